"""Distortion, mean average precision and Gromov's delta against their definitions in loops."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path

from lorentz_jax import geometry, metrics


def tree(nodes):
    """The adjacency of a binary tree, each node i below (i - 1)//2."""
    edges = np.zeros((nodes, nodes))
    for i in range(1, nodes):
        edges[i, (i - 1) // 2] = edges[(i - 1) // 2, i] = 1
    return edges


def cycle(nodes):
    return np.roll(np.eye(nodes), 1, axis=0) + np.roll(np.eye(nodes), -1, axis=0)


def lengths(edges):
    return shortest_path(edges).astype(np.float32)


def random_metric(n, seed):
    """Distances of points in the plane, some pairs equally far."""
    x = np.random.default_rng(seed).integers(0, 6, size=(n, 2)).astype(np.float32)
    return np.abs(x[:, None] - x).sum(-1)


def delta_by_definition(d):
    def of_four(x, y, z, w):
        sums = sorted([d[x, y] + d[z, w], d[x, z] + d[y, w], d[x, w] + d[y, z]])
        return (sums[2] - sums[1]) / 2

    return max(of_four(*four) for four in itertools.combinations(range(len(d)), 4))


def precision_by_definition(d, adjacency):
    means = []
    for i in range(len(d)):
        neighbours = [j for j in range(len(d)) if adjacency[i, j] and j != i]
        if not neighbours:
            continue
        shares = []
        for j in neighbours:
            ball = [k for k in range(len(d)) if k != i and d[i, k] <= d[i, j]]
            shares.append(sum(k in neighbours for k in ball) / len(ball))
        means.append(np.mean(shares))
    return np.mean(means)


@pytest.mark.parametrize("seed", range(3))
def test_gromov_delta_is_that_of_all_fours(seed):
    d = random_metric(9, seed)
    assert float(metrics.gromov_delta(d)) == delta_by_definition(d)
    sampled = float(metrics.sampled_gromov_delta(d, 20_000, jax.random.key(seed)))
    assert sampled == delta_by_definition(d)


def test_gromov_delta_of_known_metrics():
    assert float(metrics.gromov_delta(lengths(tree(15)))) == 0
    assert float(metrics.gromov_delta(lengths(cycle(12)))) == 3
    # The ends of two far geodesics at a right angle nearly reach log 2, that of the plane.
    ends = 8 * jnp.asarray([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    points = geometry.exp0(ends, 1.0)
    d = geometry.dist(points[:, None], points, 1.0)
    assert float(metrics.gromov_delta(d)) == pytest.approx(math.log(2), abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_mean_average_precision_with_ties_and_lonely_nodes(seed):
    d = random_metric(10, seed)
    edges = np.random.default_rng(seed).random((10, 10)) < 0.3
    edges[4] = False
    got = float(jax.jit(metrics.mean_average_precision)(d, edges))
    assert got == pytest.approx(precision_by_definition(d, edges), rel=1e-6)
    assert got < 1


def test_perfect_and_absent_graphs():
    d, edges = lengths(tree(15)), tree(15)
    assert float(metrics.mean_average_precision(d, edges)) == 1
    with pytest.raises(ValueError, match="expected edges, there are none"):
        metrics.mean_average_precision(d, np.eye(15))
    with pytest.raises(ValueError, match="expected targets between 0 and infinity"):
        metrics.distortion(d, np.zeros_like(d))
    assert float(jax.jit(metrics.mean_average_precision)(d, np.eye(15))) == 0


def test_distortion_leaves_out_other_components():
    d = np.asarray([[0, 2, 9], [2, 0, 9], [9, 9, 0]], np.float32)
    t = np.asarray([[0, 1, np.inf], [1, 0, np.inf], [np.inf, np.inf, 0]], np.float32)
    average, worst = metrics.distortion(d, t)
    assert (float(average), float(worst)) == (1, 1)
    rng = np.random.default_rng(0)
    d, t = (np.abs(rng.normal(size=(6, 6))).astype(np.float32) for _ in range(2))
    off = ~np.eye(6, dtype=bool)
    t[~off] = 0
    average, worst = metrics.distortion(d, t)
    ratio = (d[off] / t[off]).astype(float)
    assert float(average) == pytest.approx(np.abs(ratio - 1).mean(), rel=1e-5)
    assert float(worst) == pytest.approx(ratio.max() / ratio.min(), rel=1e-5)


def test_bad_matrices_are_refused():
    with pytest.raises(ValueError, match="distances must be a square matrix"):
        metrics.gromov_delta(jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"targets must have shape \(2, 2\)"):
        metrics.distortion(jnp.zeros((2, 2)), jnp.zeros((3, 3)))
    with pytest.raises(ValueError, match="adjacency must have shape"):
        metrics.mean_average_precision(jnp.zeros((2, 2)), jnp.zeros((2, 3)))
    with pytest.raises(TypeError, match="floating-point"):
        metrics.gromov_delta(jnp.zeros((2, 2), jnp.int32))
