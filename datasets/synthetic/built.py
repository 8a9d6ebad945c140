"""Built land: houses, industry, car parks, airports, roads and railways."""
from __future__ import annotations

import numpy as np

from .canvas import BOARD, Board, box, heading, point, smooth, turned
from .fields import GRASS, LEAF, SOIL, annual_crop_land, pasture

ASPHALT = ((0.36, 0.36, 0.37), (0.44, 0.43, 0.43), (0.30, 0.30, 0.31))
CONCRETE = ((0.62, 0.61, 0.58), (0.55, 0.54, 0.52), (0.68, 0.66, 0.62))
CAR = ((0.85, 0.85, 0.86), (0.15, 0.15, 0.17), (0.60, 0.14, 0.13), (0.20, 0.30, 0.52), (0.55, 0.56, 0.58))
WAGON = ((0.60, 0.20, 0.17), (0.25, 0.35, 0.55), (0.70, 0.70, 0.70), (0.35, 0.30, 0.28))
ROOF = ((0.62, 0.32, 0.24), (0.68, 0.42, 0.33), (0.45, 0.40, 0.38), (0.56, 0.50, 0.45), (0.40, 0.28, 0.24))
FLAT_ROOF = ((0.80, 0.80, 0.79), (0.66, 0.67, 0.68), (0.50, 0.56, 0.63), (0.72, 0.66, 0.60))
WINGS = ((0.12, 0), (-0.18, 0.48), (-0.26, 0.48), (-0.10, 0), (-0.26, -0.48), (-0.18, -0.48))
TAIL = ((-0.36, 0), (-0.47, 0.17), (-0.52, 0.17), (-0.48, 0), (-0.52, -0.17), (-0.47, -0.17))


def cars(board: Board, points: np.ndarray, angle: float, length: float) -> None:
    """Cars at the points, all along one direction, in several colours."""
    for number, colour in enumerate(CAR):
        mask = board.boxes(points[number::len(CAR)], length, length * 0.5, angle)
        board.paint(mask, board.colour(colour, spread=0.05))


def houses(board: Board, centres: np.ndarray, size: float, angle: float) -> None:
    """Pitched roofs, most of one colour, the side that faces the light paler."""
    lengths = board.rng.uniform(0.68, 0.88, len(centres)) * size
    widths = board.rng.uniform(0.5, 0.7, len(centres)) * size
    aside = heading(angle)[1]
    sizes = list(zip(centres, lengths, widths, strict=True))
    roofs = [box(centre, length, width, angle) for centre, length, width in sizes]
    board.shadow(board.polygons(roofs), 3)
    board.paint(board.polygons(roofs), board.colour(*ROOF))
    for first in range(3):  # two houses in five have roofs of another colour
        board.paint(board.polygons(roofs[first::7]), board.colour(*ROOF))
    lit = (box(centre + width / 4 * aside, length, width / 2, angle) for centre, length, width in sizes)
    board.shade(0.28 * board.polygons(lit))


def hall(board: Board, centre: np.ndarray, length: float, width: float, angle: float) -> None:
    """A large ribbed flat roof."""
    roof = board.boxes([centre], length, width, angle)
    board.shadow(roof, 5, 0.5)
    board.paint(roof, board.colour(*FLAT_ROOF))
    ribs = board.axes(angle)[0 if board.chance(0.5) else 1]
    board.shade(0.12 * np.cos(2 * np.pi * ribs / board.uniform(5, 10)) * roof)


def residential_area(board: Board) -> None:
    """Streets with rows of small houses, gardens and trees."""
    board.fill(board.colour(*GRASS, (0.44, 0.46, 0.34)), 0.14, 9)
    angle = board.angle()
    along, across = board.axes(angle)
    block, house = board.uniform(38, 52), board.uniform(12, 16)
    shift = board.uniform(0, block)
    street = board.colour(*ASPHALT, (0.55, 0.53, 0.50))
    board.strip(np.abs((across + shift) % block - block / 2), 6, street)
    if board.chance(0.6):
        board.strip(np.abs(along - board.uniform(-40, 40)), 6, street)
    rows = np.arange(-3, 4) * block - shift + block / 2
    places = np.arange(-80, 80, house * 1.15) + board.uniform(0, house)
    grid = [(place, row + side * (8 + house * 0.4)) for row in rows for side in (-1, 1) for place in places]
    centres = turned(np.array(grid), angle) + board.rng.normal(0, 0.6, (len(grid), 2))
    houses(board, centres[board.rng.random(len(grid)) > 0.12], house, angle)
    board.grove(12, 40, 1.5, 3.5, *LEAF)


def industrial_area(board: Board) -> None:
    """Big halls on concrete yards, tanks and lorries."""
    board.fill(board.colour(*CONCRETE, *ASPHALT[:2]), 0.08)
    angle, size = board.angle(), board.uniform(44, 62)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            if not board.chance(0.12):
                place = np.array([[i * size * 1.1, j * size]]) + board.rng.normal(0, 4, (1, 2))
                length, width = size * board.uniform(0.6, 0.95), size * board.uniform(0.45, 0.8)
                hall(board, turned(place, angle)[0], length, width, angle)
    if board.chance(0.5):
        tanks = board.rng.uniform(15, BOARD - 15, (1, 2)) + np.array([[0, 0], [11, 0], [0, 11], [11, 11]])
        mask = board.discs(tanks, 4.6)
        board.shadow(mask, 3)
        board.paint(mask, board.colour((0.85, 0.85, 0.84)))
    lorries = board.boxes(board.scatter(int(board.rng.integers(3, 9))), 8, 3, angle)
    board.paint(lorries, board.colour((0.90, 0.90, 0.90), *CAR))


def car_park(board: Board) -> None:
    """Asphalt with stall lines and long rows of cars, sometimes trees or a shop's roof."""
    board.fill(board.colour(*ASPHALT, CONCRETE[1]), 0.05)
    angle, bay = board.angle(), board.uniform(24, 32)
    stall, shift, share = bay * 0.19, board.uniform(0, bay), board.uniform(0.2, 0.95)
    points = [
        (place, row + side * bay * 0.17) for row in np.arange(-4, 5) * bay + shift for side in (-1, 1)
        for place in np.arange(-90, 90, stall) if board.chance(share)
    ]
    along, across = board.axes(angle)
    near = np.abs((across - shift + bay / 2) % bay - bay / 2)
    marks = smooth(np.abs((along + stall / 2) % stall - stall / 2), 0.8, 0.3) * (near < bay * 0.32)
    board.paint(marks, (0.85, 0.85, 0.83), 0.6)
    cars(board, board.rng.permutation(turned(np.array(points), angle)), angle + np.pi / 2, bay * 0.25)
    if board.chance(0.35):
        hall(board, point(0, 75.0, angle), 150, 60, angle)
    if board.chance(0.4):
        board.grove(4, 10, 2, 3.5, *LEAF)


def airliner(centre: np.ndarray, size: float, angle: float) -> list[np.ndarray]:
    """Outlines of fuselage, wings and tail, seen from above."""
    ahead, aside = heading(angle)
    shapes = [np.array([centre + size * (a * ahead + b * aside) for a, b in outline]) for outline in (WINGS, TAIL)]
    return [box(centre, size, size * 0.13, angle), *shapes]


def airport(board: Board) -> None:
    """A broad runway with markings, and either an apron with airliners or a taxiway."""
    board.fill(board.colour(*GRASS, (0.55, 0.54, 0.38)), 0.07, 4)
    angle = board.angle()
    along, across = board.axes(angle)
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
            outlines = airliner(point(spot, place + 50, angle), board.uniform(21, 27), angle - np.pi / 2)
            board.shadow(board.polygons(outlines), 2.5)
            board.paint(board.polygons(outlines), (0.95, 0.95, 0.96))
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
    angle, bend = board.angle(), board.uniform(-25, 25) if board.chance(0.6) else 0.0
    along, across = board.axes(angle)
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
    angle, bend = board.angle(), board.uniform(-20, 20) if board.chance(0.5) else 0.0
    along, across = board.axes(angle)
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
            train = (off < 3.6) * (along > start) * (along < start + board.uniform(40, 90))
            train = train * ((along - start) % 20 > 1.5)
            board.shadow(train.astype(np.float32), 2.5)
            board.paint(train, board.colour(*WAGON))
