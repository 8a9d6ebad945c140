"""What each class of LandCover looks like: farmed land, built land, water, and the rest. A function per class."""
from __future__ import annotations

from itertools import product

import numpy as np

from .canvas import BOARD, Board, box, smooth, to_edge, turned, value_noise

SOIL = ((0.55, 0.42, 0.30), (0.62, 0.50, 0.36), (0.47, 0.36, 0.27), (0.66, 0.57, 0.44))
GRASS = ((0.40, 0.53, 0.26), (0.46, 0.56, 0.30), (0.36, 0.48, 0.25))
LEAF = ((0.17, 0.31, 0.14), (0.21, 0.36, 0.16), (0.26, 0.38, 0.18))
WATER = ((0.22, 0.34, 0.42), (0.26, 0.40, 0.45), (0.30, 0.38, 0.38))
CROPS = (*SOIL, (0.71, 0.63, 0.38), (0.76, 0.70, 0.47), (0.44, 0.56, 0.25), (0.36, 0.50, 0.22), (0.58, 0.60, 0.30))
PADDIES = (*WATER, (0.45, 0.55, 0.55), (0.36, 0.50, 0.28), (0.44, 0.58, 0.32), (0.55, 0.60, 0.58))
ASPHALT = ((0.36, 0.36, 0.37), (0.44, 0.43, 0.43), (0.30, 0.30, 0.31))
CONCRETE = ((0.62, 0.61, 0.58), (0.55, 0.54, 0.52), (0.68, 0.66, 0.62))
CAR = ((0.85, 0.85, 0.86), (0.15, 0.15, 0.17), (0.60, 0.14, 0.13), (0.20, 0.30, 0.52), (0.55, 0.56, 0.58))
WAGON = ((0.60, 0.20, 0.17), (0.25, 0.35, 0.55), (0.70, 0.70, 0.70), (0.35, 0.30, 0.28))
ROOF = ((0.62, 0.32, 0.24), (0.68, 0.42, 0.33), (0.45, 0.40, 0.38), (0.56, 0.50, 0.45), (0.40, 0.28, 0.24))
FLAT_ROOF = ((0.80, 0.80, 0.79), (0.66, 0.67, 0.68), (0.50, 0.56, 0.63), (0.72, 0.66, 0.60))
FUSELAGE = ((0.5, 0.065), (0.5, -0.065), (-0.5, -0.065), (-0.5, 0.065))  # of an airliner, from above
WINGS = ((0.12, 0), (-0.18, 0.48), (-0.26, 0.48), (-0.10, 0), (-0.26, -0.48), (-0.18, -0.48))
TAIL = ((-0.36, 0), (-0.47, 0.17), (-0.52, 0.17), (-0.48, 0), (-0.52, -0.17), (-0.47, -0.17))
DEEP = ((0.10, 0.25, 0.40), (0.12, 0.30, 0.42), (0.08, 0.22, 0.34), (0.15, 0.33, 0.40))
MURKY = ((0.36, 0.40, 0.32), (0.40, 0.38, 0.28), (0.26, 0.37, 0.40))
SHALLOW = ((0.28, 0.58, 0.60), (0.34, 0.56, 0.58), (0.30, 0.48, 0.50))
SAND = ((0.86, 0.77, 0.58), (0.90, 0.83, 0.66), (0.80, 0.70, 0.52))
DUNE = ((0.80, 0.65, 0.44), (0.76, 0.58, 0.38), (0.84, 0.72, 0.53), (0.70, 0.55, 0.40))
CONTAINER = ((0.65, 0.25, 0.20), (0.22, 0.38, 0.58), (0.30, 0.50, 0.35), (0.80, 0.55, 0.25))
CROWN = ((0.16, 0.28, 0.14), (0.20, 0.34, 0.16), (0.13, 0.24, 0.15), (0.27, 0.37, 0.17))
HULL = ((0.5, 0), (0.2, 0.16), (-0.5, 0.16), (-0.5, -0.16), (0.2, -0.16))
EVERYWHERE = np.ones((BOARD, BOARD), dtype=np.float32)


# Farmed and open green land


def plots(board: Board, angle: float, size: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Masks of rectangles about `size` wide along a direction, and the distance to the nearest edge."""
    along, across = board.axes(angle)
    along, across = along + board.uniform(0, size), across + board.uniform(0, size)
    longer = size * board.uniform(1.0, 1.8)
    column, row = np.floor(along / longer), np.floor(across / size)
    number = (column - column.min()) * 16 + (row - row.min())
    masks = [(number == plot).astype(np.float32) for plot in np.unique(number)]
    return masks, np.minimum(to_edge(along, longer), to_edge(across, size))


def rows(board: Board, angle: float, spacing: float, bend: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """A wave from −1 to 1 across rows of the given spacing, and the coordinate along them; `bend` makes them curve."""
    along, across = board.axes(angle)
    across = across + bend * np.sin(along / BOARD * np.pi + board.angle()) + board.uniform(0, spacing)
    return np.cos(2 * np.pi * across / spacing), along


def barn(board: Board) -> None:
    roof = board.boxes(board.scatter(1), board.uniform(10, 16), board.uniform(6, 9), board.angle())
    board.stand(roof, board.colour((0.55, 0.33, 0.27), (0.55, 0.54, 0.53)), 3)


def annual_crop_land(board: Board) -> None:
    """A patchwork of bare, green and ripe fields with fine furrows, and tracks between them."""
    angle = board.angle()
    masks, edge = plots(board, angle, board.uniform(40, 160))
    for inside in masks:
        board.paint(inside, board.colour(*CROPS))
        furrow, _ = rows(board, angle + (np.pi / 2) * board.rng.integers(2), board.uniform(4, 9))
        board.shade(inside * furrow * board.uniform(0.0, 0.13))
    board.shade((board.noise(5) - 0.5) * 0.2)
    board.paint(smooth(edge, 2.2, 1.2), board.colour((0.70, 0.63, 0.50), (0.33, 0.42, 0.22)), 0.9)
    if board.chance(0.2):
        barn(board)


def permanent_crop_land(board: Board) -> None:
    """Plots of bushes in broad uneven rows: coarser than vines, closer than fruit trees."""
    angle = board.angle()
    masks, edge = plots(board, angle, board.uniform(70, 140))
    board.fill(board.colour(*SOIL, GRASS[0]))
    leaf = board.colour(*LEAF, (0.30, 0.40, 0.26))
    spacing, lumps = board.uniform(8, 14), board.noise(26, 2)
    for inside in masks:
        wave, _ = rows(board, angle + (np.pi / 2) * board.chance(0.4), spacing, board.uniform(0, 3))
        bushes = smooth(wave + 1.5 * (lumps - 0.5), 0.0, 0.5) * inside
        board.stand(bushes, leaf, 2.5, 0.4, 0.95)
        board.paint(smooth(wave + lumps, 1.0, 1.6) * inside, leaf * 1.35, 0.6)
    board.paint(smooth(edge, 3.5, 2.0), board.colour(SOIL[3]), 0.9)


def orchard(board: Board) -> None:
    """Round crowns on a regular grid over mown grass or soil."""
    board.fill(board.colour(*GRASS, *SOIL[:2]))
    spacing, angle = board.uniform(9, 19), board.angle()
    lane = spacing * board.uniform(1.0, 1.6)
    i, j = np.meshgrid(np.arange(-14, 15), np.arange(-14, 15))
    points = turned(np.stack([i * spacing + board.uniform(0, spacing), j * lane], -1).reshape(-1, 2), angle)
    points = points + board.rng.normal(0, 0.7, points.shape)
    points = points[(np.abs(points - BOARD / 2).max(1) < BOARD / 2 + 8) & (board.rng.random(len(points)) > 0.05)]
    radii = spacing * board.uniform(0.28, 0.42) * board.rng.uniform(0.8, 1.15, len(points))
    board.trees(points, radii, board.colour(*LEAF))


def vineyard(board: Board) -> None:
    """Thin unbroken rows, close together and slightly curved, crossed by a track."""
    board.fill(board.colour(*SOIL[:2], (0.70, 0.62, 0.47), GRASS[1]), 0.09)
    wave, along = rows(board, board.angle(), board.uniform(5, 10), board.uniform(0, 12))
    vines = smooth(wave + 0.5 * (board.noise(40, 1) - 0.5), 0.1, 0.5)
    board.stand(vines, board.colour(*LEAF, (0.33, 0.43, 0.20)), 1.5, 0.3, 0.9)
    if board.chance(0.6):
        board.paint(smooth(np.abs(along - board.uniform(-40, 40)), 4.5, 3.0), board.colour((0.75, 0.67, 0.53)))
    board.shade((board.noise(3) - 0.5) * 0.25)


def rice_paddy(board: Board) -> None:
    """Flooded terraces: flat cells of water and young green between thin banks of earth."""
    along, across = board.axes(board.angle())
    slope = across + board.uniform(18, 45) * (board.noise(2.5, 2) - 0.5)
    step, cell = board.uniform(14, 26), board.uniform(30, 60)
    terrace = np.floor(slope / step)
    along = along + (terrace * 0.618 % 1) * cell
    column = np.floor(along / cell)
    key = ((terrace - terrace.min()) * 31 + (column - column.min())).astype(int)
    board.rgb[:] = np.stack([board.colour(*PADDIES) for _ in range(29)])[key % 29]
    board.patches(24, 2, 0.45, 0.8, (0.42, 0.58, 0.28), strength=0.35)
    bank = np.minimum(to_edge(slope, step), to_edge(along, cell))
    board.paint(smooth(bank, 2.0, 0.9), board.colour((0.50, 0.45, 0.30), (0.40, 0.42, 0.22)), 0.9)


def pasture(board: Board) -> None:
    """Even grass in large plots, with hedges, paths, and grazing animals as pale dots."""
    board.fill(board.colour(*GRASS, (0.50, 0.62, 0.32)), cells=3)
    masks, edge = plots(board, board.angle(), board.uniform(75, 220))
    for inside in masks:
        board.shade(inside * board.uniform(-0.08, 0.08))
    hedge = smooth(edge + 5 * (board.noise(22, 1) - 0.5), 3.0, 1.5)
    board.stand(hedge, board.colour(*LEAF), 2, 0.35, 0.95)
    if board.chance(0.6):
        board.paint(board.lines([board.scatter(3)], 2), (0.62, 0.58, 0.42), 0.5)
    if board.chance(0.5):
        herd = board.rng.normal(board.rng.uniform(25, BOARD - 25, 2), 18, (board.rng.integers(8, 26), 2))
        board.paint(board.discs(herd, 1.3), board.colour((0.88, 0.86, 0.80), (0.30, 0.22, 0.17)))
    if board.chance(0.2):
        barn(board)


def herbaceous_vegetation(board: Board) -> None:
    """Herbs and tall grass: rough patches of green, olive and straw with low shrubs, without edges."""
    board.fill(board.colour((0.47, 0.52, 0.31), (0.52, 0.53, 0.33), (0.43, 0.49, 0.30)), 0.12, 9)
    board.patches(7, 3, 0.45, 0.75, (0.63, 0.59, 0.40), (0.58, 0.55, 0.37), strength=0.7)
    board.patches(11, 3, 0.55, 0.8, (0.33, 0.42, 0.22), (0.38, 0.46, 0.25), strength=0.8)
    board.grove(10, 60, 1.2, 3.2, *LEAF)
    board.shade(board.rng.normal(0, 0.05, (BOARD, BOARD)))


def golf_course(board: Board) -> None:
    """Mown fairways in darker rough, sand bunkers, round greens, clumps of trees, sometimes a pond."""
    board.fill(board.colour((0.29, 0.43, 0.21), (0.33, 0.46, 0.24)), 0.12, 8)
    stripe, _ = rows(board, board.angle(), board.uniform(7, 11))
    fairway = smooth(board.noise(2.6, 1), 0.48, 0.53)
    board.paint(fairway, board.colour((0.46, 0.63, 0.30), (0.50, 0.66, 0.34)))
    board.shade(fairway * np.sign(stripe) * 0.05)
    board.paint(board.discs(board.scatter(2), board.rng.uniform(8, 13, 2)), board.colour((0.56, 0.74, 0.40)))
    if board.chance(0.4):
        board.patches(2.5, 2, 0.80, 0.83, *WATER, strength=1.0)
    centres = board.rng.uniform(8, BOARD - 8, (board.rng.integers(3, 7), 2))
    bunkers = np.repeat(centres, 3, 0) + board.rng.normal(0, 2.5, (len(centres) * 3, 2))
    board.paint(board.discs(bunkers, board.rng.uniform(2, 4, len(bunkers))), board.colour((0.90, 0.84, 0.68)))
    trees = np.repeat(board.scatter(5), 6, 0) + board.rng.normal(0, 7, (30, 2))
    board.trees(trees, board.rng.uniform(2, 4.5, 30), board.colour(*LEAF))


def wetland(board: Board) -> None:
    """Reeds and moss with dark pools and winding creeks."""
    board.fill(board.colour((0.38, 0.42, 0.25), (0.45, 0.42, 0.28), (0.33, 0.40, 0.24)), 0.14, 12)
    board.patches(10, 3, 0.5, 0.8, (0.52, 0.50, 0.30), (0.42, 0.52, 0.27), strength=0.7)
    water = board.colour((0.16, 0.22, 0.25), (0.22, 0.29, 0.31), (0.27, 0.35, 0.40))
    wet, level = board.noise(board.uniform(4, 8), 3), board.uniform(0.50, 0.70)
    board.paint(smooth(wet, level, level + 0.05), water)
    board.paint(smooth(np.abs(board.noise(3, 2) - 0.5), 0.035, 0.02), water)


# Built land, roads and railways


def cars(board: Board, points: np.ndarray, angle: float, length: float) -> None:
    """Cars at the points, all along one direction, in several colours."""
    for number, colour in enumerate(CAR):
        mask = board.boxes(points[number::len(CAR)], length, length * 0.5, angle)
        board.paint(mask, board.colour(colour, spread=0.05))


def houses(board: Board, centres: np.ndarray, size: float, angle: float) -> None:
    """Pitched roofs, most of one colour, the side that faces the light paler."""
    lengths = board.rng.uniform(0.68, 0.88, len(centres)) * size
    widths = board.rng.uniform(0.5, 0.7, len(centres)) * size
    sizes = list(zip(centres, lengths, widths, strict=True))
    roofs = [box(centre, length, width, angle) for centre, length, width in sizes]
    board.stand(board.polygons(roofs), board.colour(*ROOF), 3)
    for first in range(3):  # two houses in five have roofs of another colour
        board.paint(board.polygons(roofs[first::7]), board.colour(*ROOF))
    lit = (box(turned((0, width / 4), angle, centre), length, width / 2, angle) for centre, length, width in sizes)
    board.shade(0.28 * board.polygons(lit))


def hall(board: Board, centre: np.ndarray, length: float, width: float, angle: float) -> None:
    """A large ribbed flat roof."""
    roof = board.boxes([centre], length, width, angle)
    board.stand(roof, board.colour(*FLAT_ROOF), 5, 0.5)
    ribs = board.axes(angle)[0 if board.chance(0.5) else 1]
    board.shade(0.12 * np.cos(2 * np.pi * ribs / board.uniform(5, 10)) * roof)


def residential_area(board: Board) -> None:
    """Streets with rows of small houses, gardens and trees."""
    board.fill(board.colour(*GRASS, (0.44, 0.46, 0.34)), 0.14, 9)
    angle, along, across = board.direction()
    block, house = board.uniform(38, 52), board.uniform(12, 16)
    shift = board.uniform(0, block)
    street = board.colour(*ASPHALT, (0.55, 0.53, 0.50))
    board.strip(np.abs((across + shift) % block - block / 2), 6, street)
    if board.chance(0.6):
        board.strip(np.abs(along - board.uniform(-40, 40)), 6, street)
    rows = np.arange(-3, 4) * block - shift + block / 2
    places = np.arange(-80, 80, house * 1.15) + board.uniform(0, house)
    grid = [(place, row + side * (8 + house * 0.4)) for row in rows for side in (-1, 1) for place in places]
    centres = turned(grid, angle) + board.rng.normal(0, 0.6, (len(grid), 2))
    houses(board, centres[board.rng.random(len(grid)) > 0.12], house, angle)
    board.grove(12, 40, 1.5, 3.5, *LEAF)


def industrial_area(board: Board) -> None:
    """Big halls on concrete yards, tanks and lorries."""
    board.fill(board.colour(*CONCRETE, *ASPHALT[:2]), 0.08)
    angle, size = board.angle(), board.uniform(44, 62)
    for i, j in product((-1, 0, 1), repeat=2):
        if not board.chance(0.12):
            place = np.array([i * size * 1.1, j * size]) + board.rng.normal(0, 4, 2)
            length, width = size * board.uniform(0.6, 0.95), size * board.uniform(0.45, 0.8)
            hall(board, turned(place, angle), length, width, angle)
    if board.chance(0.5):
        tanks = board.rng.uniform(15, BOARD - 15, (1, 2)) + np.array([[0, 0], [11, 0], [0, 11], [11, 11]])
        board.stand(board.discs(tanks, 4.6), board.colour((0.85, 0.85, 0.84)), 3)
    lorries = board.boxes(board.scatter(int(board.rng.integers(3, 9))), 8, 3, angle)
    board.paint(lorries, board.colour((0.90, 0.90, 0.90), *CAR))


def car_park(board: Board) -> None:
    """Asphalt with stall lines and long rows of cars, sometimes trees or a shop's roof."""
    board.fill(board.colour(*ASPHALT, CONCRETE[1]), 0.05)
    angle, along, across = board.direction()
    bay = board.uniform(24, 32)
    stall, shift, share = bay * 0.19, board.uniform(0, bay), board.uniform(0.2, 0.95)
    points = [
        (place, row + side * bay * 0.17) for row in np.arange(-4, 5) * bay + shift for side in (-1, 1)
        for place in np.arange(-90, 90, stall) if board.chance(share)
    ]
    near = np.abs((across - shift + bay / 2) % bay - bay / 2)
    marks = smooth(np.abs((along + stall / 2) % stall - stall / 2), 0.8, 0.3) * (near < bay * 0.32)
    board.paint(marks, (0.85, 0.85, 0.83), 0.6)
    cars(board, board.rng.permutation(turned(points, angle)), angle + np.pi / 2, bay * 0.25)
    if board.chance(0.35):
        hall(board, turned((0, 75), angle), 150, 60, angle)
    if board.chance(0.4):
        board.grove(4, 10, 2, 3.5, *LEAF)


def airport(board: Board) -> None:
    """A broad runway with markings, and either an apron with airliners or a taxiway."""
    board.fill(board.colour(*GRASS, (0.55, 0.54, 0.38)), 0.07, 4)
    angle, along, across = board.direction()
    grey, place, width = board.colour(*ASPHALT, *CONCRETE[:2]), board.uniform(-30, 10), board.uniform(20, 30)
    runway = np.abs(across - place)
    board.strip(runway, width, grey)
    board.paint(smooth(np.abs(runway - width * 0.44), 1.0, 0.4), (0.88, 0.88, 0.86), 0.7)
    board.paint(smooth(runway, 1.6, 0.9) * (along % 18 < 11), (0.92, 0.92, 0.90))
    if board.chance(0.5):  # the stripes of the threshold
        end = np.abs(along - board.uniform(-45, 45)) < 8
        board.paint(end * (runway % 4 < 2) * (runway < width * 0.4), (0.92, 0.92, 0.90))
    if board.chance(0.65):
        board.paint(smooth(across, place + 34, place + 35), board.colour(*CONCRETE))
        for spot in np.arange(-70, 80, 30) + board.uniform(0, 20):
            centre, size, course = turned((spot, place + 50), angle), board.uniform(21, 27), angle - np.pi / 2
            airliner = [size * np.array(outline) for outline in (FUSELAGE, WINGS, TAIL)]
            mask = board.polygons(turned(outline, course, centre) for outline in airliner)
            board.stand(mask, (0.95, 0.95, 0.96), 2.5)
    else:
        taxiway = board.colour(*ASPHALT, *CONCRETE[:2])
        board.strip(np.abs(across - place - 42), 9, taxiway)
        outside = (across < place) | (across > place + 42)
        board.strip(np.abs(along - board.uniform(-40, 40)) + 99 * outside, 9, taxiway)


def surroundings(board: Board) -> None:
    """What is beside a road, railway or canal: fields, pasture, houses or plain ground."""
    choice = board.rng.integers(5)
    if choice < 3:
        (annual_crop_land, pasture, residential_area)[choice](board)
    else:
        board.fill(board.colour(*GRASS, *SOIL), 0.14, 7)
        board.grove(5, 40, 2, 4, *LEAF)


def highway(board: Board) -> None:
    """Two carriageways with lane marks and traffic, straight or in a wide curve."""
    surroundings(board)
    angle, along, across = board.direction()
    bend = board.uniform(-25, 25) if board.chance(0.6) else 0.0
    curve = bend * (along / (BOARD / 2)) ** 2
    middle = curve + board.uniform(-20, 20)
    distance, width = np.abs(across - middle), board.uniform(15, 32)
    board.strip(distance, width + 8, board.colour(*GRASS, *SOIL[:2]))
    board.strip(distance, width, board.colour(*ASPHALT))
    board.strip(distance, 2.5, board.colour((0.45, 0.52, 0.33), (0.72, 0.72, 0.70)))
    lane = width / 4
    board.paint(smooth(np.abs(distance - lane - 0.5), 0.9, 0.4) * (along % 9 < 5), (0.93, 0.93, 0.90))
    board.paint(smooth(np.abs(distance - width / 2 + 1.2), 0.9, 0.4), (0.90, 0.90, 0.86), 0.8)
    places = board.rng.uniform(-80, 80, board.rng.integers(4, 14))
    sides = board.rng.choice([-1.5, -0.6, 0.6, 1.5], len(places)) * lane
    offset = float(np.mean(middle - curve))
    points = np.stack([places, bend * (places / (BOARD / 2)) ** 2 + offset + sides], 1)
    cars(board, turned(points, angle), angle, 5)


def railway(board: Board) -> None:
    """Ballast with sleepers and pairs of rails, one to five tracks, sometimes a train."""
    surroundings(board)
    _, along, across = board.direction()
    bend = board.uniform(-20, 20) if board.chance(0.5) else 0.0
    line = across - bend * (along / (BOARD / 2)) ** 2 - board.uniform(-20, 20)
    tracks, gap = int(board.rng.integers(1, 6)), 10.0
    width = tracks * gap + 4
    board.strip(np.abs(line), width, board.colour((0.50, 0.44, 0.39), (0.44, 0.40, 0.37), (0.56, 0.51, 0.46)))
    board.shade((np.abs(line) < width / 2) * board.rng.normal(0, 0.08, (BOARD, BOARD)))
    for track in range(tracks):
        off = np.abs(line - (track - (tracks - 1) / 2) * gap)
        board.paint((off < 3.6) * smooth(np.abs(along % 3.4 - 1.7), 0.9, 0.5), (0.27, 0.23, 0.20), 0.75)
        board.paint(smooth(np.abs(off - 2.2), 0.9, 0.4), (0.80, 0.78, 0.76))
        if board.chance(0.25):
            start = board.uniform(-70, 20)
            train = (off < 3.6) & (along > start) & (along < start + board.uniform(40, 90))
            wagons = train & ((along - start) % 20 > 1.5)
            board.stand(wagons.astype(np.float32), board.colour(*WAGON), 2.5)


# Water, and land that is neither built on nor farmed


def countryside(board: Board) -> None:
    """Grass or bare ground with woods."""
    board.fill(board.colour(*GRASS, *GRASS, *SOIL[:2]), 0.14, 5)
    woods = smooth(board.noise(5), 0.55, 0.62) * smooth(board.noise(40, 1), 0.2, 0.6)
    board.paint(woods, board.colour(*LEAF), 0.9)


def ripples(board: Board, mask: np.ndarray, strength: float) -> None:
    """Small waves under a mask."""
    noise = value_noise(board.rng, BOARD, 44, 3.0)
    _, _, across = board.direction()
    swell = np.sin(across / board.uniform(2.0, 4.5) + 5 * board.noise(4, 2))
    board.shade(mask * strength * (0.6 * swell + 0.8 * (noise - 0.5)))


def river(board: Board) -> None:
    """A winding stream of changing width between green or sandy banks."""
    countryside(board)
    _, along, across = board.direction()
    phase, turns = board.uniform(0, 2 * np.pi), board.uniform(1.0, 2.4)
    bend = board.uniform(4, 26) * np.sin(along / BOARD * turns * np.pi + phase) + 12 * (board.noise(2.5, 2) - 0.5)
    width = board.uniform(9, 24) * (0.75 + 0.5 * board.noise(3, 1))
    distance = np.abs(across - bend)
    board.paint(smooth(distance, width / 2 + 6, width / 2 + 1), board.colour(*SAND, *LEAF, *LEAF), 0.75)
    water = smooth(distance, width / 2 + 0.7, width / 2 - 0.7)
    board.paint(water, board.colour(*WATER, *MURKY, DEEP[0]))
    ripples(board, water, 0.04)


def canal(board: Board) -> None:
    """A straight channel with walls and a towpath, sometimes a barge."""
    surroundings(board)
    angle, along, across = board.direction()
    place, width = board.uniform(-25, 25), board.uniform(11, 24)
    distance = np.abs(across - place - board.uniform(-9, 9) * (along / (BOARD / 2)) ** 2)
    if board.chance(0.7):
        board.paint(smooth(distance, width / 2 + 7, width / 2 + 6), board.colour(*GRASS, *CONCRETE))
    board.paint(smooth(distance, width / 2 + 2.5, width / 2 + 1.5), board.colour(*CONCRETE, SOIL[1]))
    water = smooth(distance, width / 2 + 0.5, width / 2 - 0.5)
    board.paint(water, board.colour(*WATER, *MURKY, DEEP[0]))
    ripples(board, water, 0.03)
    if board.chance(0.4):
        barge = board.boxes([turned((board.uniform(-45, 45), place), angle)], board.uniform(20, 32), width * 0.35, angle)
        board.paint(barge, board.colour((0.55, 0.30, 0.22), (0.30, 0.30, 0.33), (0.80, 0.79, 0.75)))


def lake(board: Board) -> None:
    """Still water with a closed, uneven shore."""
    countryside(board)
    centre = board.rng.normal(BOARD / 2, 12, 2)
    squeeze, turn = board.uniform(1.0, 1.7), board.angle()
    x, y = board.x - centre[0], board.y - centre[1]
    a, b = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    radius = np.hypot(a, b * squeeze) + board.uniform(20, 50) * (board.noise(3.5, 3) - 0.5)
    size = board.uniform(32, 78)
    board.paint(smooth(radius, size + 5, size + 1), board.colour(*SAND, *LEAF, *LEAF), 0.7)
    water = smooth(radius, size + 0.8, size - 0.8)
    board.paint(water, board.colour(*WATER, *DEEP, MURKY[2]))
    board.shade(-0.15 * smooth(radius, size, size * 0.4) * water)
    ripples(board, water, 0.025)


def sea(board: Board) -> None:
    """Open water to every edge: swell, whitecaps, sometimes a ship with its wake."""
    board.fill(board.colour(*DEEP, *DEEP, WATER[1]), 0.05, 3)
    ripples(board, EVERYWHERE, board.uniform(0.02, 0.16))
    if board.chance(0.6):
        foam = smooth(value_noise(board.rng, BOARD, 50, 2.5), 0.86, 1.0)
        board.paint(foam, (0.88, 0.92, 0.94), board.uniform(0.2, 0.7))
    if board.chance(0.3):
        place, course = board.rng.uniform(30, BOARD - 30, (1, 2)), board.rng.uniform(0, 2 * np.pi, 1)
        vessels(board, place, course, board.uniform(9, 16), wake=True)


def vessels(board: Board, centres: np.ndarray, angles: np.ndarray, length: float, wake: bool = False) -> None:
    """Boats with a pointed bow, most of them white, and a darker cabin."""
    hulls, cabins = [], []
    for centre, angle in zip(centres, angles, strict=True):
        if wake:
            arms = turned([((-0.5, 0), (-2.7, side)) for side in (-0.7, 0, 0.7)], angle, 0)
            board.paint(board.lines(centre + length * arms, 2), (0.9, 0.94, 0.96), 0.6)
        hulls.append(centre + length * turned(HULL, angle, 0))
        cabins.append(box(turned((-0.1 * length, 0), angle, centre), length * 0.4, length * 0.16, angle))
    board.paint(board.polygons(hulls), (0.94, 0.94, 0.94))
    board.paint(board.polygons(hulls[::5]), board.colour(*CAR))
    board.paint(board.polygons(cabins), (0.55, 0.50, 0.45))


def harbour(board: Board) -> None:
    """A quay with sheds or containers, and piers with moored boats."""
    board.fill(board.colour(*DEEP, *WATER), 0.05, 3)
    ripples(board, EVERYWHERE, 0.03)
    angle, _, across = board.direction()
    shore = board.uniform(-48, -22)
    board.paint(smooth(across, shore + 0.5, shore - 0.5), board.colour(*CONCRETE))
    for place in np.arange(-80, 80, 34) + board.uniform(0, 20):
        if board.chance(0.5):
            hall(board, turned((place, shore - 16), angle), 26, 16, angle)
        else:
            stack = [turned((place + 4.5 * i, shore - 8 - 9 * j), angle) for i in range(5) for j in range(2)]
            for first in range(3):
                board.paint(board.boxes(stack[first::3], 3.5, 8, angle), board.colour(*CONTAINER))
    berth, reach, length = board.uniform(26, 36), board.uniform(50, 85), board.uniform(9, 13)
    piers = np.arange(-90, 90, berth) + board.uniform(0, berth)
    planks = board.lines([turned(((pier, shore), (pier, shore + reach)), angle) for pier in piers], 3)
    board.paint(planks, board.colour((0.72, 0.70, 0.66), (0.60, 0.53, 0.45)))
    moored = np.array([
        (pier + side * (length / 2 + 2.5), spot, side)
        for pier in piers for spot in np.arange(shore + 6, shore + reach, length * 0.55) for side in (-1, 1)
    ])
    moored = moored[board.rng.random(len(moored)) < 0.7]
    vessels(board, turned(moored[:, :2], angle), np.where(moored[:, 2] < 0, angle + np.pi, angle), length)


def beach(board: Board) -> None:
    """Sand between surf and green land, with parasols; shallow water turns deep."""
    board.fill(board.colour(*DEEP), 0.05, 3)
    along, across = board.axes(board.uniform(0, 2 * np.pi))
    shore = across + 10 * np.sin(along / 60 + board.uniform(0, 6)) + 12 * (board.noise(4, 2) - 0.5)
    shore += board.uniform(-12, 22)
    board.paint(smooth(shore, -50, 0), board.colour(*SHALLOW), 0.9)
    ripples(board, (shore < 0).astype(np.float32), 0.05)
    for reach in (-14.0, -7.0, -1.0):
        surf = np.abs(shore - reach - 5 * (board.noise(9, 2) - 0.5))
        board.paint(smooth(surf, 2.4, 0.8), (0.95, 0.97, 0.97), board.uniform(0.3, 0.95))
    sand = board.colour(*SAND)
    board.paint(smooth(shore, 0, 1.5), sand * 0.85)
    board.paint(smooth(shore, 5, 10), sand)
    board.shade((shore > 2) * 0.12 * (board.noise(20, 2) - 0.5))
    back = board.uniform(30, 60)
    board.paint(smooth(shore + 10 * (board.noise(8, 2) - 0.5), back, back + 3), board.colour(*GRASS, *LEAF))
    if board.chance(0.5):
        spots = board.scatter(60)
        x, y = spots.astype(int).T % BOARD
        spots = spots[(shore[y, x] > 10) & (shore[y, x] < back - 6)]
        board.paint(board.discs(spots, 1.7), board.colour((0.85, 0.25, 0.22), (0.95, 0.95, 0.95)))


def forest(board: Board) -> None:
    """Crown beside crown with dark gaps, sometimes a clearing."""
    board.rgb[:] = board.colour(*CROWN)
    cell = board.uniform(5, 13)
    side = int(np.sqrt(int((BOARD / cell + 2) ** 2)))  # of a grid of trees
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1) * cell - cell / 2
    trees = grid + board.rng.uniform(-0.45, 0.45, grid.shape) * cell
    column, row = (((axis + cell) / cell).astype(int).clip(0, side - 1) for axis in (board.x, board.y))
    steps = product((-1, 0, 1), repeat=2)
    near = np.array([((row + i).clip(0, side - 1), (column + j).clip(0, side - 1)) for i, j in steps])
    r, c = near.swapaxes(0, 1)  # (9, BOARD, BOARD) each: the trees around a pixel
    distance = np.hypot(board.x - trees[r, c, 0], board.y - trees[r, c, 1])
    tree = np.take_along_axis(r * side + c, distance.argmin(0)[None], 0)[0]
    tone = board.rng.normal(0, 0.14, int(tree.max()) + 1)[tree]
    board.shade(tone + 0.35 - 0.9 * np.clip(distance.min(0) / cell, 0, 1))
    lit = (board.x * np.cos(board.sun) + board.y * np.sin(board.sun)) / BOARD
    board.shade((board.noise(4) - 0.5) * 0.3 - 0.05 * lit)
    if board.chance(0.35):
        board.patches(2.5, 2, 0.70, 0.74, *GRASS, strength=0.9)


def desert(board: Board) -> None:
    """Dunes with crests lit from one side, or gravel with dry gullies."""
    board.fill(board.colour(*DUNE), 0.06, 4)
    _, along, across = board.direction()
    spacing = board.uniform(14, 40)
    ridge = ((across + 26 * (board.noise(3, 2) - 0.5) + 0.25 * along) / spacing) % 1
    board.shade(board.uniform(0.08, 0.24) * (np.where(ridge < 0.75, ridge / 0.75, (1 - ridge) / 0.25) - 0.6))
    board.shade(0.05 * np.sin(across / 1.3 + 8 * board.noise(5, 1)))
    if board.chance(0.4):
        board.paint(smooth(np.abs(board.noise(3, 3) - 0.5), 0.03, 0.0), (0.55, 0.42, 0.30), 0.6)
    if board.chance(0.5):
        count = int(board.rng.integers(5, 40))
        board.paint(board.discs(board.scatter(count), board.rng.uniform(0.8, 2, count)), (0.42, 0.36, 0.25), 0.8)


def snow(board: Board) -> None:
    """Snowfields with blue shade in the hollows, rock and trees."""
    relief = board.noise(board.uniform(2.5, 5), 4)
    slope = np.gradient(relief)
    light = slope[0] * np.sin(board.sun) + slope[1] * np.cos(board.sun)
    board.rgb[:] = board.colour((0.92, 0.94, 0.97), (0.88, 0.91, 0.95), spread=0.02)
    board.paint(smooth(light, 0.0, 0.02), (0.66, 0.74, 0.86), 0.8)
    board.shade(0.04 * (board.noise(20, 2) - 0.5))
    if board.chance(0.6):
        rock = smooth(relief + 0.5 * (board.noise(14, 3) - 0.5), 0.78, 0.84)
        board.paint(rock, board.colour((0.36, 0.34, 0.34), (0.45, 0.41, 0.38)), 0.9)
    if board.chance(0.3):
        board.grove(5, 30, 1.2, 2.4, (0.17, 0.26, 0.20))
