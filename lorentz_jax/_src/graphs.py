"""How well distances of an embedding stand for a graph, for `lorentz_jax.metrics`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import as_array, check_shapes, check_sizes, concrete


class Distortion(NamedTuple):
    """How distances differ from those that they stand for.

    Attributes:
        average: mean of `|d/t - 1|` over all pairs.
        worst: the largest `d/t` over the smallest; 1 for a multiple of the targets, infinity where
            two points coincide.
    """

    average: Array
    worst: Array


def _square(name: str, matrix: ArrayLike) -> Array:
    matrix = as_array(name, matrix, min_ndim=2)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be a square matrix (N, N), got shape {matrix.shape}")
    return matrix


def distortion(distances: ArrayLike, targets: ArrayLike) -> Distortion:
    """Compare the distances of an embedding with those of a graph.

    Args:
        distances: d, `(N, N)`.
        targets: t, the lengths of shortest paths, `(N, N)`. Pairs with t = 0 or infinity, as the
            diagonal and other components, are left out.

    Returns:
        Average and worst distortion; of traced targets without any pair, 0 and infinity.

    Raises:
        ValueError: the matrices are not square and alike, or concrete targets have no pair.

    >>> line = jnp.abs(jnp.arange(3.0)[:, None] - jnp.arange(3.0))
    >>> distortion(1.5 * line, line)
    Distortion(average=Array(0.5, dtype=float32), worst=Array(1., dtype=float32))
    """
    d, t = _square("distances", distances), _square("targets", targets)
    check_shapes(d.shape, f"distances {d.shape}", targets=t)
    counted = (t > 0) & jnp.isfinite(t)
    _require_some("targets between 0 and infinity", counted)
    ratio = d / jnp.where(counted, t, 1).astype(d.dtype)
    average = jnp.sum(jnp.where(counted, jnp.abs(ratio - 1), 0)) / _count(counted, d)
    most = jnp.max(jnp.where(counted, ratio, 0))
    least = jnp.min(jnp.where(counted, ratio, jnp.inf))
    apart = least > 0  # else two points coincide
    return Distortion(average, jnp.where(apart, most / jnp.where(apart, least, 1), jnp.inf))


def mean_average_precision(distances: ArrayLike, adjacency: ArrayLike) -> Array:
    """Measure how far the nearest points of every node are its neighbours: 1 if they all are.

    For a node and one of its neighbours, the precision is the share of neighbours among all other
    nodes that are no farther than this one. It is averaged over the neighbours, then over all nodes
    that have any. (Sala et al., 2018, as for reconstruction by Nickel and Kiela, 2017.)

    Args:
        distances: `(N, N)`.
        adjacency: nonzero where j is a neighbour of i, `(N, N)`; the diagonal does not count.

    Returns:
        A number from 0 to 1; 0 for a traced graph without edges.

    Raises:
        ValueError: the matrices are not square and alike, or a concrete graph has no edges.

    >>> line = jnp.abs(jnp.arange(3.0)[:, None] - jnp.arange(3.0))
    >>> print(mean_average_precision(line, line == 1))
    1.0
    """
    d = _square("distances", distances)
    edges = jnp.asarray(adjacency).astype(bool)
    check_shapes(d.shape, f"distances {d.shape}", adjacency=edges)
    alone = jnp.eye(d.shape[0], dtype=bool)
    edges, d = edges & ~alone, jnp.where(alone, jnp.inf, d)
    _require_some("edges", edges)

    def of_node(row: Array, hits: Array) -> Array:
        order = jnp.argsort(row)
        found = jnp.cumsum(hits[order].astype(jnp.int32))
        within = jnp.searchsorted(row[order], row, side="right")  # those as far are within, too
        precision = found[jnp.maximum(within - 1, 0)] / jnp.maximum(within, 1)
        return jnp.sum(jnp.where(hits, precision, 0).astype(d.dtype)) / _count(hits, d)

    return jnp.sum(jax.vmap(of_node)(d, edges)) / _count(jnp.any(edges, axis=1), d)


def _count(flags: Array, like: Array) -> Array:
    """How many are true, at least 1 so that it divides."""
    return jnp.maximum(jnp.sum(flags), 1).astype(like.dtype)


def _require_some(what: str, flags: Array) -> None:
    if concrete(flags) and not bool(jnp.any(flags)):
        raise ValueError(f"expected {what}, there are none among {flags.shape}")


def gromov_delta(distances: ArrayLike) -> Array:
    """Compute Gromov's delta exactly: how far a metric is from that of a tree, for which it is 0.

    The largest, over all four points, of half the difference between the two largest of
    `d(x, y) + d(z, w)`, `d(x, z) + d(y, w)` and `d(x, w) + d(y, z)`. The hyperbolic plane of
    curvature -1 has log 2. It takes about N^4 operations and memory for N^2 numbers: up to some
    hundred points; `sampled_gromov_delta` is for more.

    Args:
        distances: a metric, `(N, N)`.

    Returns:
        A number of at least 0. Divided by half of the largest distance it is free of scale.

    Raises:
        ValueError: the matrix is not square.

    >>> square = jnp.array([[0.0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]])
    >>> print(gromov_delta(square))
    1.0
    """
    return _delta(_square("distances", distances))


@jax.jit
def _delta(d: Array) -> Array:
    def at(base: Array) -> Array:
        """`(x|y) >= min((x|z), (z|y)) - delta` of Gromov products, for every z in its turn."""
        products = (d[base][:, None] + d[base][None] - d) / 2

        def through(z: Array, best: Array) -> Array:
            return jnp.maximum(best, jnp.minimum(products[:, z][:, None], products[z][None]))

        best = jax.lax.fori_loop(0, d.shape[0], through, products)
        return jnp.max(best - products)

    return jnp.max(jax.lax.map(at, jnp.arange(d.shape[0])))


def sampled_gromov_delta(distances: ArrayLike, samples: int, key: Array) -> Array:
    """Bound `gromov_delta` from below, by the largest value of random fours of points.

    Args:
        distances: a metric, `(N, N)`.
        samples: number of fours, at least 1.
        key: a random key.

    Returns:
        A number of at least 0.

    Raises:
        ValueError: the matrix is not square, or samples is below 1.

    >>> square = jnp.array([[0.0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]])
    >>> print(sampled_gromov_delta(square, 1000, jax.random.key(0)))
    1.0
    """
    d = _square("distances", distances)
    check_sizes(samples=samples)
    x, y, z, w = jax.random.randint(key, (4, samples), 0, d.shape[0])
    sums = jnp.sort(jnp.stack([d[x, y] + d[z, w], d[x, z] + d[y, w], d[x, w] + d[y, z]]), axis=0)
    return jnp.max((sums[2] - sums[1]) / 2)
