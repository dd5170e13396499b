"""Describe trees by arrays of parents: distances in them, and how well points keep those.

Node 0 is the root and has parent -1; every other node comes after its parent.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lorentz_jax import geometry, metrics

__all__ = [
    "TreeSize",
    "caterpillar",
    "check_parents",
    "depths",
    "distortion",
    "least_radius",
    "mammals",
    "mean_average_precision",
    "regular_tree",
    "spider",
    "tree_distances",
    "tree_points",
    "tree_size",
]


def regular_tree(branching: int, depth: int) -> np.ndarray:
    """Return the parents `(nodes,)` of the tree whose nodes above `depth` have m children each.

    Its `1 + m + ... + m^h` nodes come level by level; a `branching` m of 1 is a path of h edges.
    """
    if branching < 1 or depth < 1:
        raise ValueError(f"branching and depth must be at least 1, got {branching} and {depth}")
    parents, level = [-1], [0]
    for _ in range(depth):
        start = len(parents)
        parents += [node for node in level for _ in range(branching)]
        level = list(range(start, len(parents)))
    return np.array(parents)


def spider(legs: int, length: int) -> np.ndarray:
    """Return the parents of the tree with that many paths of `length` edges from the root."""
    if legs < 1 or length < 1:
        raise ValueError(f"legs and length must be at least 1, got {legs} and {length}")
    first = range(1, legs * length + 1, length)
    steps = [0 if node in first else node - 1 for node in range(1, legs * length + 1)]
    return np.array([-1, *steps])


def caterpillar(spine: int, leaves: int) -> np.ndarray:
    """Return the parents of a path of `spine` edges from the root, each node but it with leaves.

    It is `spine + 1` deep.
    """
    if spine < 1 or leaves < 1:
        raise ValueError(f"spine and leaves must be at least 1, got {spine} and {leaves}")
    body = list(range(spine))
    return np.array([-1, *body, *(node for node in range(1, spine + 1) for _ in range(leaves))])


def mammals() -> tuple[list[str], np.ndarray]:
    """Return names and parents of a taxonomy of mammals: class, orders, families, genera, species.

    `mammals.csv` holds a line for each species: order, family, genus, epithet. It was written for
    this package and has its licence.
    """
    text = Path(__file__).with_name("mammals.csv").read_text(encoding="utf-8")
    names, parents = ["Mammalia"], [-1]
    nodes: dict[tuple[str, ...], int] = {(): 0}
    for row in csv.reader(text.splitlines()[1:]):
        for rank in range(1, len(row) + 1):
            path = tuple(row[:rank])
            if path not in nodes:
                nodes[path] = len(names)
                names.append(row[rank - 1] if rank < 4 else f"{row[2]} {row[3]}")
                parents.append(nodes[path[:-1]])
    return names, np.array(parents)


def depths(parents: Any) -> np.ndarray:
    """Count the edges from the root to each node, `(nodes,)`."""
    return tree_distances(parents)[0]


def tree_distances(parents: Any) -> np.ndarray:
    """Count the edges between any two nodes, `(nodes, nodes)`."""
    parents = check_parents(parents)
    edges = np.zeros((len(parents), len(parents)), int)
    for node in range(1, len(parents)):
        edges[node, :node] = edges[parents[node], :node] + 1
        edges[:node, node] = edges[node, :node]
    return edges


def check_parents(parents: Any) -> np.ndarray:
    """Return the array; `ValueError` unless node 0 is the one root and parents come first."""
    parents = np.asarray(parents)
    if parents.ndim != 1 or not len(parents) or parents[0] != -1 or np.any(parents[1:] < 0):
        raise ValueError(f"expected node 0 to be the one root, with parent -1, got {parents}")
    late = np.flatnonzero(parents >= np.arange(len(parents)))
    if len(late):
        raise ValueError(f"expected parents before their children, got {parents} (node {late[0]})")
    return parents


def distortion(distances: Any, wanted: Any) -> tuple[float, float]:
    """Return `metrics.distortion`, average and worst, in float64; 0 and 1 are best."""
    with jax.enable_x64(True):
        result = metrics.distortion(np.asarray(distances, float), np.asarray(wanted, float))
        return float(result.average), float(result.worst)


def mean_average_precision(distances: Any, edges: Any) -> float:
    """Measure how well the points nearest to each are its neighbours in the tree; 1 is best.

    `metrics.mean_average_precision` in float64, with the neighbours one edge away.

    Args:
      distances: between the points, `(nodes, nodes)`.
      edges: numbers of edges between the nodes, `(nodes, nodes)`.
    """
    with jax.enable_x64(True):
        near = np.asarray(edges) == 1
        return float(metrics.mean_average_precision(np.asarray(distances, float), near))


def tree_points(parents: Any, edge: float, kappa: float = 1.0) -> np.ndarray:
    """Lay out a tree on the hyperbolic plane, `(nodes, 2)`: every edge of length `edge` (Sarkar).

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
    """The result of `tree_points` for a tree.

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
        distances = np.asarray(geometry.dist(points[:, None], points[None], kappa))
        radius = float(np.max(geometry.dist0(points, kappa)))
    error = np.abs(distances[edges > 0] / (edge * edges[edges > 0]) - 1).max()
    worst = distortion(distances, edges)[1]
    return TreeSize(worst, radius, least_radius(depth, edge, error), edge * depth)


def least_radius(depth: int, edge: float, error: float = 0.0) -> float:
    """Return `(1 - error) edge depth`: some leaf is so far out, however a tree is embedded."""
    if depth < 1 or not edge > 0 or not 0 <= error < 1:
        raise ValueError(
            f"expected depth >= 1, edge > 0 and an error in [0, 1), got {depth}, {edge}, {error}"
        )
    return (1 - error) * edge * depth
