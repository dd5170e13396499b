"""Trees laid out on the hyperbolic plane, and the radius that a tree needs (Prop. tree distance).

Two leaves of a tree of depth h that meet in the root are 2 h edges apart. If every distance is
`edge` times that number within a share `error`, the triangle inequality puts one of them at radius
`(1 - error) edge h` or more, wherever the root is; and `tree_points` needs no more than `edge h`.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lorentz_jax import geometry
from lorentz_jax.studies.hierarchy import (
    check_parents,
    depths,
    distortions,
    regular_tree,
    tree_distances,
)


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
        radius = float(np.max(geometry.norm(points, kappa)))
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
