"""Trees as arrays of parents: distances in them, and how well points keep those distances.

Node 0 is the root and has parent -1; every other node comes after its parent.
"""

import csv
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jax
import numpy as np

from lorentz_jax import geometry


def regular_tree(branching: int, depth: int) -> np.ndarray:
    """Parents `(nodes,)` of the tree whose nodes above `depth` have `branching` children each.

    Level by level, `1 + m + ... + m^h` nodes; branching 1 is a path of `depth` edges.
    """
    if branching < 1 or depth < 1:
        raise ValueError(f"branching and depth must be at least 1, got {branching} and {depth}")
    parents, level = [-1], [0]
    for _ in range(depth):
        start = len(parents)
        parents += [node for node in level for _ in range(branching)]
        level = list(range(start, len(parents)))
    return np.array(parents)


def mammals() -> tuple[list[str], np.ndarray]:
    """Names and parents of a taxonomy of mammals: class, orders, families, genera, species.

    `mammals.csv` holds a line a species (order, family, genus, epithet). It was written for this
    study and has the licence of the package.
    """
    text = files("lorentz_jax.figures").joinpath("mammals.csv").read_text(encoding="utf-8")
    names, parents = ["Mammalia"], [-1]
    place: dict[tuple[str, ...], int] = {(): 0}
    for row in csv.reader(text.splitlines()[1:]):
        for rank in range(1, len(row) + 1):
            path = tuple(row[:rank])
            if path not in place:
                place[path] = len(names)
                names.append(row[rank - 1] if rank < 4 else f"{row[2]} {row[3]}")
                parents.append(place[path[:-1]])
    return names, np.array(parents)


def depths(parents: Any) -> np.ndarray:
    """Edges from the root to each node, `(nodes,)`."""
    parents = check_parents(parents)
    found = np.zeros(len(parents), int)
    for node in range(1, len(parents)):
        found[node] = found[parents[node]] + 1
    return found


def tree_distances(parents: Any) -> np.ndarray:
    """Number of edges between any two nodes, `(nodes, nodes)`."""
    parents = check_parents(parents)
    found = np.zeros((len(parents), len(parents)), int)
    for node in range(1, len(parents)):
        found[node, :node] = found[parents[node], :node] + 1
        found[:node, node] = found[node, :node]
    return found


def check_parents(parents: Any) -> np.ndarray:
    """The array, or a `ValueError` unless the first node is the one root and parents come first."""
    parents = np.asarray(parents)
    if parents.ndim != 1 or not len(parents) or parents[0] != -1 or np.any(parents[1:] < 0):
        raise ValueError(f"expected node 0 to be the one root, with parent -1, got {parents}")
    late = np.flatnonzero(parents >= np.arange(len(parents)))
    if len(late):
        raise ValueError(f"expected parents before their children, got {parents} (node {late[0]})")
    return parents


def distortions(found: Any, wanted: Any) -> tuple[float, float]:
    """Average and worst distortion of distances `found` for `wanted`, both `(nodes, nodes)`.

    The mean of `|found/wanted - 1|` over pairs of nodes, and
    `max(found/wanted)/min(found/wanted)`, which no scaling changes; 0 and 1 are best.
    """
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    if found.shape != wanted.shape or found.ndim != 2 or len(found) < 2:
        raise ValueError(
            f"expected two square matrices of one size, got {found.shape} and {wanted.shape}"
        )
    above = np.triu_indices(len(found), 1)
    ratio = found[above] / wanted[above]
    low, high = ratio.min(), ratio.max()
    return float(np.mean(np.abs(ratio - 1))), float(high / low) if low > 0 else float("inf")


def mean_average_precision(found: Any, edges: Any) -> float:
    """How well the points nearest to each are its neighbours in the tree; 1 is best.

    For a node a and a neighbour b: the share of a's neighbours among the points that are at most
    as far from a as b is. The mean over b, then over a. `found` are distances between the points,
    `edges` the numbers of edges between the nodes, both `(nodes, nodes)`.
    """
    found, edges = np.asarray(found, float), np.asarray(edges)
    scores = []
    for node, (row, near) in enumerate(zip(found, edges == 1, strict=True)):
        others = np.arange(len(row)) != node
        within = (row[None] <= row[near][:, None]) & others
        scores.append(np.mean((within & near).sum(axis=1) / within.sum(axis=1)))
    return float(np.mean(scores))


def tree_points(parents: Any, edge: float, kappa: float = 1.0) -> np.ndarray:
    """A tree laid out on the hyperbolic plane, `(nodes, 2)`: every edge of length `edge` (Sarkar).

    The neighbours of a node are spread evenly in direction, so with an edge long enough
    (s edge about 2 for binary trees) distances are those of the tree up to a constant, and nothing
    is farther than `edge` times the depth from the root, which is the origin.
    """
    parents = check_parents(parents)
    if not edge > 0:
        raise ValueError(f"the edge must be positive, got {edge}")
    level, order, ways = depths(parents), np.zeros(len(parents)), np.ones(len(parents))
    for node in range(len(parents)):
        children = np.flatnonzero(parents == node)
        order[children] = np.arange(len(children)) + (node > 0)
        ways[children] = len(children) + (node > 0)
    grand = np.where(level > 1, parents[parents], 0)
    points = np.zeros((len(parents), 2))
    with jax.enable_x64(True):
        # All nodes at each level, of which one level is used: one shape, one compilation.
        for depth in range(1, level.max() + 1):
            here = points[parents]
            back = np.asarray(geometry.translate(-here, points[grand], kappa))
            turn = np.where(level > 1, np.arctan2(back[:, 1], back[:, 0]), 0)
            turn = turn + 2 * math.pi * order / ways
            v = edge * np.stack([np.cos(turn), np.sin(turn)], axis=-1)
            moved = geometry.translate(here, geometry.exp0(v, kappa), kappa)
            points = np.where((level == depth)[:, None], moved, points)
    return points


@dataclass(frozen=True)
class TreeSize:
    """What `tree_points` makes of a tree.

    Attributes:
      worst: distortion, `max(d/D)/min(d/D)` over pairs of nodes.
      radius: of the farthest node.
      least: the bound for it, given the largest relative error of a distance.
      most: edge times depth.
    """

    worst: float
    radius: float
    least: float
    most: float


def tree_size(branching: int, depth: int, edge: float, kappa: float = 1.0) -> TreeSize:
    """Lay out the m-ary tree of a depth, and measure it."""
    parents = regular_tree(branching, depth)
    points, edges = tree_points(parents, edge, kappa), tree_distances(parents)
    with jax.enable_x64(True):
        found = np.asarray(geometry.dist(points[:, None], points[None], kappa))
        radius = float(np.max(geometry.dist0(points, kappa)))
    error = np.abs(found[edges > 0] / (edge * edges[edges > 0]) - 1).max()
    worst = distortions(found, edges)[1]
    return TreeSize(worst, radius, least_radius(depth, edge, error), edge * depth)


def least_radius(depth: int, edge: float, error: float = 0.0) -> float:
    """Radius that some leaf has at least, however a tree is embedded: `(1 - error) edge depth`."""
    if depth < 1 or not edge > 0 or not 0 <= error < 1:
        raise ValueError(
            f"expected depth >= 1, edge > 0 and an error in [0, 1), got {depth}, {edge}, {error}"
        )
    return (1 - error) * edge * depth
