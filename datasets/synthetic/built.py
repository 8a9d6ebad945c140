"""Built land: houses, works, parked cars, runways, roads and rails."""
from __future__ import annotations

import numpy as np

from .canvas import BOARD, Board, Colour, box, smooth
from .fields import GRASS, LEAF, SOIL, annual_crop, pasture

ASPHALT = ((0.36, 0.36, 0.37), (0.44, 0.43, 0.43), (0.30, 0.30, 0.31))
CONCRETE = ((0.62, 0.61, 0.58), (0.55, 0.54, 0.52), (0.68, 0.66, 0.62))
CAR = ((0.85, 0.85, 0.86), (0.15, 0.15, 0.17), (0.60, 0.14, 0.13), (0.20, 0.30, 0.52), (0.55, 0.56, 0.58))
WAGON = ((0.60, 0.20, 0.17), (0.25, 0.35, 0.55), (0.70, 0.70, 0.70), (0.35, 0.30, 0.28))


def turned(points: np.ndarray, angle: float) -> np.ndarray:
    """Points (n, 2) given from the tile's centre, along and across a direction, as board coordinates."""
    along, across = points[:, 0], points[:, 1]
    return np.stack(
        [along * np.cos(angle) - across * np.sin(angle), along * np.sin(angle) + across * np.cos(angle)], 1,
    ) + BOARD / 2


def road(board: Board, distance: np.ndarray, width: float, colour: Colour) -> None:
    board.paint(smooth(distance, width / 2 + 0.5, width / 2 - 0.5), colour)


def cars(board: Board, points: np.ndarray, angle: float, length: float) -> None:
    """Cars at the points, all along one direction, each of its own colour."""
    for number in range(len(CAR)):
        mine = points[number::len(CAR)]
        shapes = [box(tuple(p), length, length * 0.5, angle) for p in mine]
        board.paint(board.polygons(shapes), board.colour(CAR[number], spread=0.05))


def houses(board: Board, centres: np.ndarray, size: float, angle: float) -> None:
    """Pitched roofs at the centres, most of them alike, the side that faces the light paler."""
    tiles = ((0.62, 0.32, 0.24), (0.68, 0.42, 0.33), (0.45, 0.40, 0.38), (0.56, 0.50, 0.45), (0.40, 0.28, 0.24))
    lengths = board.rng.uniform(0.68, 0.88, len(centres)) * size
    widths = board.rng.uniform(0.5, 0.7, len(centres)) * size
    aside = np.array([-np.sin(angle), np.cos(angle)])
    sizes = list(zip(centres, lengths, widths, strict=True))
    roofs = [box(tuple(centre), length, width, angle) for centre, length, width in sizes]
    lit = [box(tuple(centre + width / 4 * aside), length, width / 2, angle) for centre, length, width in sizes]
    board.shadow(board.polygons(roofs), 3)
    board.paint(board.polygons(roofs), board.colour(*tiles))
    for first in range(3):  # two houses in five have roofs of another colour
        board.paint(board.polygons(roofs[first::7]), board.colour(*tiles))
    board.shade(0.28 * board.polygons(lit))


def residential(board: Board) -> None:
    """Streets with rows of small houses, pitched roofs, gardens and garden trees."""
    board.fill(board.colour(*GRASS, (0.44, 0.46, 0.34)), 0.14, 9)
    angle = board.uniform(0, np.pi)
    along, across = board.axes(angle)
    block, house = board.uniform(38, 52), board.uniform(12, 16)
    shift = board.uniform(0, block)
    street = board.colour(*ASPHALT, (0.55, 0.53, 0.50))
    road(board, np.abs((across + shift) % block - block / 2), 6, street)
    if board.chance(0.6):
        road(board, np.abs(along - board.uniform(-40, 40)), 6, street)
    rows = np.arange(-3, 4) * block - shift + block / 2
    places = np.arange(-80, 80, house * 1.15) + board.uniform(0, house)
    grid = [(place, row + side * (8 + house * 0.4)) for row in rows for side in (-1, 1) for place in places]
    grid = turned(np.array(grid), angle) + board.rng.normal(0, 0.6, (len(grid), 2))
    houses(board, grid[board.rng.random(len(grid)) > 0.12], house, angle)
    count = board.rng.integers(12, 40)
    board.trees(board.scatter(count), board.rng.uniform(1.5, 3.5, count), board.colour(*LEAF))


def hall(board: Board, centre: tuple[float, float], length: float, width: float, angle: float) -> None:
    """A large flat roof with skylights and vents."""
    roof = board.polygons([box(centre, length, width, angle)])
    board.shadow(roof, 5, 0.5)
    board.paint(roof, board.colour((0.80, 0.80, 0.79), (0.66, 0.67, 0.68), (0.50, 0.56, 0.63), (0.72, 0.66, 0.60)))
    along, across = board.axes(angle)
    ribs = np.cos(2 * np.pi * (along if board.chance(0.5) else across) / board.uniform(5, 10))
    board.shade(0.12 * ribs * roof)


def industrial(board: Board) -> None:
    """Big halls with flat ribbed roofs on concrete yards, tanks and lorries."""
    board.fill(board.colour(*CONCRETE, *ASPHALT[:2]), 0.08)
    angle, size = board.uniform(0, np.pi), board.uniform(44, 62)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            if board.chance(0.12):
                continue
            centre = turned(np.array([[i * size * 1.1, j * size]]) + board.rng.normal(0, 4, (1, 2)), angle)[0]
            hall(board, tuple(centre), size * board.uniform(0.6, 0.95), size * board.uniform(0.45, 0.8), angle)
    if board.chance(0.5):
        tanks = board.rng.uniform(15, BOARD - 15, (1, 2)) + np.array([[0, 0], [11, 0], [0, 11], [11, 11]])
        round_tanks = board.discs(tanks, np.full(4, 4.6))
        board.shadow(round_tanks, 3)
        board.paint(round_tanks, board.colour((0.85, 0.85, 0.84)))
    lorries = board.scatter(board.rng.integers(3, 9))
    board.paint(board.polygons([box(tuple(p), 8, 3, angle) for p in lorries]), board.colour((0.90, 0.90, 0.90), *CAR))


def car_park(board: Board) -> None:
    """Asphalt with stall lines and cars side by side in long rows, lanes between, a few trees or a shop's roof."""
    board.fill(board.colour(*ASPHALT, CONCRETE[1]), 0.05)
    angle, bay = board.uniform(0, np.pi), board.uniform(24, 32)
    stall = bay * 0.19
    shift = board.uniform(0, bay)
    full = board.uniform(0.2, 0.95)
    points = []
    for row in np.arange(-4, 5) * bay + shift:
        for side in (-1, 1):
            for place in np.arange(-90, 90, stall):
                if board.chance(full):
                    points.append((place, row + side * bay * 0.17))
    along, across = board.axes(angle)
    near = np.abs((across - shift + bay / 2) % bay - bay / 2)
    marks = smooth(np.abs((along + stall / 2) % stall - stall / 2), 0.8, 0.3) * (near < bay * 0.32)
    board.paint(marks, (0.85, 0.85, 0.83), 0.6)
    cars(board, board.rng.permutation(turned(np.array(points), angle)), angle + np.pi / 2, bay * 0.25)
    if board.chance(0.35):
        hall(board, tuple(turned(np.array([[0, 75.0]]), angle)[0]), 150, 60, angle)
    if board.chance(0.4):
        count = board.rng.integers(4, 10)
        board.trees(board.scatter(count), board.rng.uniform(2, 3.5, count), board.colour(*LEAF))


def plane(centre: np.ndarray, size: float, angle: float) -> list[list[tuple[float, float]]]:
    """Fuselage, swept wings and tail of an airliner seen from above."""
    ahead, aside = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
    at = lambda a, b: tuple(centre + size * (a * ahead + b * aside))  # noqa: E731
    return [
        box(tuple(centre), size, size * 0.13, angle),
        [at(0.12, 0), at(-0.18, 0.48), at(-0.26, 0.48), at(-0.10, 0), at(-0.26, -0.48), at(-0.18, -0.48)],
        [at(-0.36, 0), at(-0.47, 0.17), at(-0.52, 0.17), at(-0.48, 0), at(-0.52, -0.17), at(-0.47, -0.17)],
    ]


def airport(board: Board) -> None:
    """A broad runway with its markings and a taxiway over grass, or an apron with parked airliners."""
    board.fill(board.colour(*GRASS, (0.55, 0.54, 0.38)), 0.07, 4)
    angle = board.uniform(0, np.pi)
    along, across = board.axes(angle)
    grey, place, width = board.colour(*ASPHALT, *CONCRETE[:2]), board.uniform(-30, 10), board.uniform(20, 30)
    strip = np.abs(across - place)
    road(board, strip, width, grey)
    board.paint(smooth(np.abs(strip - width * 0.44), 1.0, 0.4), (0.88, 0.88, 0.86), 0.7)
    board.paint(smooth(strip, 1.6, 0.9) * (along % 18 < 11), (0.92, 0.92, 0.90))
    if board.chance(0.5):  # the threshold's piano keys
        end = np.abs(along - board.uniform(-45, 45)) < 8
        board.paint(end * (strip % 4 < 2) * (strip < width * 0.4), (0.92, 0.92, 0.90))
    if board.chance(0.65):
        apron = smooth(across, place + 34, place + 35)
        board.paint(apron, board.colour(*CONCRETE))
        for spot in np.arange(-70, 80, 30) + board.uniform(0, 20):
            centre = turned(np.array([[spot, place + 50]]), angle)[0]
            shape = board.polygons(plane(centre, board.uniform(21, 27), angle - np.pi / 2))
            board.shadow(shape, 2.5)
            board.paint(shape, (0.95, 0.95, 0.96))
    else:
        taxi = board.colour(*ASPHALT, *CONCRETE[:2])
        road(board, np.abs(across - place - 42), 9, taxi)
        road(board, np.abs(along - board.uniform(-40, 40)) + 99 * ((across < place) | (across > place + 42)), 9, taxi)


def surroundings(board: Board) -> None:
    """What lies beside a road, rails or a canal: fields, meadow, houses or plain ground."""
    choice = board.rng.integers(5)
    if choice == 0:
        annual_crop(board)
    elif choice == 1:
        pasture(board)
    elif choice == 2:
        residential(board)
    else:
        board.fill(board.colour(*GRASS, *SOIL), 0.14, 7)
        count = board.rng.integers(5, 40)
        board.trees(board.scatter(count), board.rng.uniform(2, 4, count), board.colour(*LEAF))


def highway(board: Board) -> None:
    """Two carriageways with lane marks and traffic, straight or in a wide curve, through any country."""
    surroundings(board)
    angle, bend = board.uniform(0, np.pi), board.uniform(-25, 25) if board.chance(0.6) else 0.0
    along, across = board.axes(angle)
    middle = bend * (along / (BOARD / 2)) ** 2 + board.uniform(-20, 20)
    distance, width = np.abs(across - middle), board.uniform(15, 32)
    road(board, distance, width + 8, board.colour(*GRASS, *SOIL[:2]))
    road(board, distance, width, board.colour(*ASPHALT))
    road(board, distance, 2.5, board.colour((0.45, 0.52, 0.33), (0.72, 0.72, 0.70)))
    lane = width / 4
    board.paint(smooth(np.abs(distance - lane - 0.5), 0.9, 0.4) * (along % 9 < 5), (0.93, 0.93, 0.90))
    board.paint(smooth(np.abs(distance - width / 2 + 1.2), 0.9, 0.4), (0.90, 0.90, 0.86), 0.8)
    places = board.rng.uniform(-80, 80, board.rng.integers(4, 14))
    sides = board.rng.choice([-1.5, -0.6, 0.6, 1.5], len(places)) * lane
    offset = float(np.mean(middle - bend * (along / (BOARD / 2)) ** 2))
    points = np.stack([places, bend * (places / (BOARD / 2)) ** 2 + offset + sides], 1)
    cars(board, turned(points, angle), angle, 5)


def railway(board: Board) -> None:
    """Ballast with sleepers and pairs of bright rails, one track or a yard of many, at times a train."""
    surroundings(board)
    angle, bend = board.uniform(0, np.pi), board.uniform(-20, 20) if board.chance(0.5) else 0.0
    along, across = board.axes(angle)
    line = across - bend * (along / (BOARD / 2)) ** 2 - board.uniform(-20, 20)
    tracks, gap = int(board.rng.integers(1, 6)), 10.0
    width = tracks * gap + 4
    road(board, np.abs(line), width, board.colour((0.50, 0.44, 0.39), (0.44, 0.40, 0.37), (0.56, 0.51, 0.46)))
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
