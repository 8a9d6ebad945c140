"""Farmed and open green land: crops that look alike, and several kinds of grass."""
from __future__ import annotations

import numpy as np

from .canvas import BOARD, Board, smooth, to_edge, turned

SOIL = ((0.55, 0.42, 0.30), (0.62, 0.50, 0.36), (0.47, 0.36, 0.27), (0.66, 0.57, 0.44))
GRASS = ((0.40, 0.53, 0.26), (0.46, 0.56, 0.30), (0.36, 0.48, 0.25))
LEAF = ((0.17, 0.31, 0.14), (0.21, 0.36, 0.16), (0.26, 0.38, 0.18))
WATER = ((0.22, 0.34, 0.42), (0.26, 0.40, 0.45), (0.30, 0.38, 0.38))
CROPS = (*SOIL, (0.71, 0.63, 0.38), (0.76, 0.70, 0.47), (0.44, 0.56, 0.25), (0.36, 0.50, 0.22), (0.58, 0.60, 0.30))
PADDIES = (*WATER, (0.45, 0.55, 0.55), (0.36, 0.50, 0.28), (0.44, 0.58, 0.32), (0.55, 0.60, 0.58))


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
    board.shadow(roof, 3)
    board.paint(roof, board.colour((0.55, 0.33, 0.27), (0.55, 0.54, 0.53)))


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
        board.shadow(bushes, 2.5, 0.4)
        board.paint(bushes, leaf, 0.95)
        board.paint(smooth(wave + lumps, 1.0, 1.6) * inside, leaf * 1.35, 0.6)
    board.paint(smooth(edge, 3.5, 2.0), board.colour(SOIL[3]), 0.9)


def orchard(board: Board) -> None:
    """Round crowns on a regular grid over mown grass or soil."""
    board.fill(board.colour(*GRASS, *SOIL[:2]))
    spacing, angle = board.uniform(9, 19), board.angle()
    lane = spacing * board.uniform(1.0, 1.6)
    i, j = (a.ravel() for a in np.meshgrid(np.arange(-14, 15), np.arange(-14, 15)))
    points = turned(np.stack([i * spacing + board.uniform(0, spacing), j * lane], 1), angle)
    points = points + board.rng.normal(0, 0.7, points.shape)
    points = points[(np.abs(points - BOARD / 2).max(1) < BOARD / 2 + 8) & (board.rng.random(len(points)) > 0.05)]
    radii = spacing * board.uniform(0.28, 0.42) * board.rng.uniform(0.8, 1.15, len(points))
    board.trees(points, radii, board.colour(*LEAF))


def vineyard(board: Board) -> None:
    """Thin unbroken rows, close together and slightly curved, crossed by a track."""
    board.fill(board.colour(*SOIL[:2], (0.70, 0.62, 0.47), GRASS[1]), 0.09)
    angle, spacing = board.angle(), board.uniform(5, 10)
    wave, along = rows(board, angle, spacing, board.uniform(0, 12))
    vines = smooth(wave + 0.5 * (board.noise(40, 1) - 0.5), 0.1, 0.5)
    board.shadow(vines, 1.5, 0.3)
    board.paint(vines, board.colour(*LEAF, (0.33, 0.43, 0.20)), 0.9)
    if board.chance(0.6):
        track = np.abs(along - board.uniform(-40, 40))
        board.paint(smooth(track, 4.5, 3.0), board.colour((0.75, 0.67, 0.53)))
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
    board.shadow(hedge, 2, 0.35)
    board.paint(hedge, board.colour(*LEAF), 0.95)
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
    wet = board.noise(board.uniform(4, 8), 3)
    level = board.uniform(0.50, 0.70)
    board.paint(smooth(wet, level, level + 0.05), water)
    board.paint(smooth(np.abs(board.noise(3, 2) - 0.5), 0.035, 0.02), water)
