"""Water, and land that is neither built on nor farmed."""
from __future__ import annotations

import numpy as np

from .built import CAR, CONCRETE, hall, surroundings
from .canvas import BOARD, Board, box, heading, point, smooth, turned, value_noise
from .fields import GRASS, LEAF, SOIL, WATER

DEEP = ((0.10, 0.25, 0.40), (0.12, 0.30, 0.42), (0.08, 0.22, 0.34), (0.15, 0.33, 0.40))
MURKY = ((0.36, 0.40, 0.32), (0.40, 0.38, 0.28), (0.26, 0.37, 0.40))
SHALLOW = ((0.28, 0.58, 0.60), (0.34, 0.56, 0.58), (0.30, 0.48, 0.50))
SAND = ((0.86, 0.77, 0.58), (0.90, 0.83, 0.66), (0.80, 0.70, 0.52))
DUNE = ((0.80, 0.65, 0.44), (0.76, 0.58, 0.38), (0.84, 0.72, 0.53), (0.70, 0.55, 0.40))
CONTAINER = ((0.65, 0.25, 0.20), (0.22, 0.38, 0.58), (0.30, 0.50, 0.35), (0.80, 0.55, 0.25))
CROWN = ((0.16, 0.28, 0.14), (0.20, 0.34, 0.16), (0.13, 0.24, 0.15), (0.27, 0.37, 0.17))
HULL = ((0.5, 0), (0.2, 0.16), (-0.5, 0.16), (-0.5, -0.16), (0.2, -0.16))
EVERYWHERE = np.ones((BOARD, BOARD), dtype=np.float32)


def countryside(board: Board) -> None:
    """Grass or bare ground with woods."""
    board.fill(board.colour(*GRASS, *GRASS, *SOIL[:2]), 0.14, 5)
    woods = smooth(board.noise(5), 0.55, 0.62) * smooth(board.noise(40, 1), 0.2, 0.6)
    board.paint(woods, board.colour(*LEAF), 0.9)


def ripples(board: Board, mask: np.ndarray, strength: float) -> None:
    """Small waves under a mask."""
    noise = value_noise(board.rng, BOARD, 44, 3.0)
    _, across = board.axes(board.angle())
    swell = np.sin(across / board.uniform(2.0, 4.5) + 5 * board.noise(4, 2))
    board.shade(mask * strength * (0.6 * swell + 0.8 * (noise - 0.5)))


def river(board: Board) -> None:
    """A winding stream of changing width between green or sandy banks."""
    countryside(board)
    along, across = board.axes(board.angle())
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
    angle, place, width = board.angle(), board.uniform(-25, 25), board.uniform(11, 24)
    along, across = board.axes(angle)
    distance = np.abs(across - place - board.uniform(-9, 9) * (along / (BOARD / 2)) ** 2)
    if board.chance(0.7):
        board.paint(smooth(distance, width / 2 + 7, width / 2 + 6), board.colour(*GRASS, *CONCRETE))
    board.paint(smooth(distance, width / 2 + 2.5, width / 2 + 1.5), board.colour(*CONCRETE, SOIL[1]))
    water = smooth(distance, width / 2 + 0.5, width / 2 - 0.5)
    board.paint(water, board.colour(*WATER, *MURKY, DEEP[0]))
    ripples(board, water, 0.03)
    if board.chance(0.4):
        centre = point(board.uniform(-45, 45), place, angle)
        barge = board.boxes([centre], board.uniform(20, 32), width * 0.35, angle)
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
        ahead, aside = heading(angle)
        if wake:
            stern = centre - ahead * length / 2
            arms = [(stern, stern - ahead * length * 2.2 + aside * k * length * 0.7) for k in (-1, 0, 1)]
            board.paint(board.lines(arms, 1.5), (0.9, 0.94, 0.96), 0.6)
        hulls.append([centre + length * (a * ahead + b * aside) for a, b in HULL])
        cabins.append(box(centre - ahead * length * 0.1, length * 0.4, length * 0.16, angle))
    board.paint(board.polygons(hulls), (0.94, 0.94, 0.94))
    board.paint(board.polygons(hulls[::5]), board.colour(*CAR))
    board.paint(board.polygons(cabins), (0.55, 0.50, 0.45))


def harbour(board: Board) -> None:
    """A quay with sheds or containers, and piers with moored boats."""
    board.fill(board.colour(*DEEP, *WATER), 0.05, 3)
    ripples(board, EVERYWHERE, 0.03)
    angle, shore = board.angle(), board.uniform(-48, -22)
    _, across = board.axes(angle)
    board.paint(smooth(across, shore + 0.5, shore - 0.5), board.colour(*CONCRETE))
    for place in np.arange(-80, 80, 34) + board.uniform(0, 20):
        if board.chance(0.5):
            hall(board, point(place, shore - 16.0, angle), 26, 16, angle)
        else:
            stack = [point(place + 4.5 * i, shore - 8.0 - 9 * j, angle) for i in range(5) for j in range(2)]
            for first in range(3):
                board.paint(board.boxes(stack[first::3], 3.5, 8, angle), board.colour(*CONTAINER))
    berth, reach, length = board.uniform(26, 36), board.uniform(50, 85), board.uniform(9, 13)
    piers = np.arange(-90, 90, berth) + board.uniform(0, berth)
    planks = board.lines([turned(np.array([[pier, shore], [pier, shore + reach]]), angle) for pier in piers], 3)
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


def crowns(board: Board, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """A closed cover of crowns: for each pixel the distance to the nearest tree, and the number of that tree."""
    side = int(np.sqrt(int((BOARD / cell + 2) ** 2)))
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2) * cell - cell / 2
    trees = (grid + board.rng.uniform(-0.45, 0.45, grid.shape) * cell).reshape(side, side, 2)
    column, row = (np.clip(((axis + cell) / cell).astype(int), 0, side - 1) for axis in (board.x, board.y))
    best, which = np.full((BOARD, BOARD), 1e9), np.zeros((BOARD, BOARD), dtype=int)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            r, c = np.clip(row + i, 0, side - 1), np.clip(column + j, 0, side - 1)
            away = np.hypot(board.x - trees[r, c, 0], board.y - trees[r, c, 1])
            closer = away < best
            best[closer], which[closer] = away[closer], (r * side + c)[closer]
    return best, which


def forest(board: Board) -> None:
    """Crown beside crown with dark gaps, sometimes a clearing."""
    board.rgb[:] = board.colour(*CROWN)
    cell = board.uniform(5, 13)
    distance, tree = crowns(board, cell)
    tone = board.rng.normal(0, 0.14, int(tree.max()) + 1)[tree]
    board.shade(tone + 0.35 - 0.9 * np.clip(distance / cell, 0, 1))
    lit = (board.x * np.cos(board.sun) + board.y * np.sin(board.sun)) / BOARD
    board.shade((board.noise(4) - 0.5) * 0.3 - 0.05 * lit)
    if board.chance(0.35):
        board.patches(2.5, 2, 0.70, 0.74, *GRASS, strength=0.9)


def desert(board: Board) -> None:
    """Dunes with crests lit from one side, or gravel with dry gullies."""
    board.fill(board.colour(*DUNE), 0.06, 4)
    along, across = board.axes(board.angle())
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
