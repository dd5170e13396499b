"""Weighted Lorentz centroids as products: dense or sparse weights, and segments.

`functional` re-exports the public functions. `(D174)` and so on are equations of
`docs/derivations.md`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import as_array, as_kappa, check_sizes, compute_dtype, concrete
from lorentz_jax._src.centred import centred, middle

Product = Callable[[Array], Array]
"""Weighted sums `(..., M, K)` of the rows of an array `(..., N, K)`."""


@jax.custom_jvp
def _floor(x: Array) -> Array:
    """A number that is not negative, but for its rounding error. The derivative is 1 throughout."""
    return jnp.maximum(x, 0)


_floor.defjvp(lambda primals, tangents: (_floor(*primals), tangents[0]))


def centroids(x: Array, centre: Array, kappa: Array, product: Product) -> Array:
    """Centroids with the weights of a product; the origin where these sum to 0.

    Of `D + 4` sums `D + 1` give the space part of `M = sum w X`, and all but one of those its
    length (D174). Divided by the sum of weights, no square of a tiny weight is formed.
    """
    view = centred(x, centre, kappa)
    numbers = view.forward, view.along, view.rise, jnp.ones_like(view.rise)
    sums = product(jnp.concatenate([view.across, *numbers], axis=-1))
    total = sums[..., -1:]
    live = total > 0
    means = sums[..., :-1] / jnp.where(live, total, 1)
    across = means[..., :-3]
    forward, along, rise = (means[..., i, None] for i in (-3, -2, -1))
    squares = jnp.sum(across * across, axis=-1, keepdims=True) + along * along
    spread = _floor(rise * (2 + kappa * rise) - squares)
    space = across + view.unit * (view.size + forward)
    return jnp.where(live, space / jnp.sqrt(1 + kappa * spread), 0)


def _prepare(x: Any, kappa: Any, center: Any, dtype: Any) -> tuple[Array, Array, Array]:
    """Points, centre and kappa that broadcast against each other, in the dtype to compute in."""
    inner, batch = compute_dtype(dtype), x.shape[:-2]
    kappa = as_kappa(kappa, inner, batch)
    kappa = kappa[..., None, None] if kappa.ndim else kappa
    x = x.astype(inner)
    if center is None:
        return x, middle(x, kappa), kappa
    center = as_array("center", center).astype(inner)
    try:
        fits = jnp.broadcast_shapes(center.shape, (*batch, x.shape[-1])) == (*batch, x.shape[-1])
    except ValueError:
        fits = False
    if not fits or center.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"center must be points {(*batch, x.shape[-1])} to go with x {x.shape}, got "
            f"{center.shape}"
        )
    return x, center[..., None, :], kappa


def _check_weights(weights: Any) -> None:
    """Raise `ValueError` for concrete weights that are negative."""
    if concrete(weights) and (np.asarray(weights) < 0).any():
        raise ValueError(f"weights must be >= 0, got {np.asarray(weights).min()}")


def _dense(weights: Array, columns: Array) -> Array:
    return jnp.matmul(weights, columns, precision=lax.Precision.HIGHEST)


def _scatter(
    weights: Array | None, senders: Array | None, receivers: Array, count: int, columns: Array
) -> Array:
    """Sums over entries: `weights[e] columns[senders[e]]` is added to the row `receivers[e]`.

    An entry that names a row outside is left out, as padding is.
    """
    columns = jnp.moveaxis(columns, -2, 0)
    if senders is not None:
        columns = columns.at[senders].get(mode="fill", fill_value=0)
    if weights is not None:
        columns = columns * weights.reshape(-1, *[1] * (columns.ndim - 1))
    return jnp.moveaxis(jax.ops.segment_sum(columns, receivers, count), 0, -2)


@jax.jit
def _aggregate(x, centre, kappa, weights):
    return centroids(x, centre, kappa, partial(_dense, weights))


@partial(jax.jit, static_argnames="count")
def _aggregate_entries(x, centre, kappa, weights, senders, receivers, count):
    return centroids(x, centre, kappa, partial(_scatter, weights, senders, receivers, count))


def aggregate(
    x: ArrayLike, weights: Any, kappa: ArrayLike, center: ArrayLike | None = None
) -> Array:
    """Compute weighted Lorentz centroids of one set of points, all of them by one product.

    Row j is the centroid of the points with the weights `weights[j]`: `M/(s sqrt(-M o M))` of
    `M = sum_i w_ji X_i`. The sums are formed about a centre (D174), so a tight cluster keeps its
    digits wherever it is. The relative error is about `eps cosh(s r)^2`, r being the distance of
    the points of a row from the centre; `geometry.centroid` is exact, and far more expensive.

    Args:
        x: Points `(..., N, D)`.
        weights: w >= 0, `(..., M, N)`, or a `jax.experimental.sparse.BCOO` matrix `(M, N)`. Rows
            need not sum to 1. One that sums to 0 gives the origin, with gradient 0.
        kappa: Minus the curvature, one number or of the batch shape of x.
        center: Points `(..., D)` to form the sums about. The result does not depend on them, but
            its error does. Default: a mean of x. Give it where x is padded with far-off points.

    Returns:
        Points `(..., M, D)`.

    Raises:
        ValueError: if concrete weights are negative, or shapes do not fit.

    >>> x = jnp.array([[0.75, 0.0], [0.0, 0.0]])
    >>> print(functional.aggregate(x, jnp.array([[1.0, 1.0], [3.0, 0.0], [0.0, 0.0]]), 1.0))
    [[0.3536 0.    ]
     [0.75   0.    ]
     [0.     0.    ]]
    """
    x = as_array("x", x, min_ndim=2)
    if type(weights).__name__ == "BCOO":  # not worth the import of a large module
        return _aggregate_bcoo(x, weights, kappa, center)
    weights = as_array("weights", weights, min_ndim=0)  # of no points, too
    if weights.ndim < 2 or weights.shape[-1] != x.shape[-2]:
        raise ValueError(
            f"weights must have shape (..., M, {x.shape[-2]}) to go with x {x.shape}, got "
            f"{weights.shape}"
        )
    try:
        jnp.broadcast_shapes(weights.shape[:-2], x.shape[:-2])
    except ValueError:
        raise ValueError(
            f"batch shapes of x {x.shape} and weights {weights.shape} do not broadcast"
        ) from None
    _check_weights(weights)
    dtype = jnp.result_type(x, weights)
    points, centre, kappa = _prepare(x, kappa, center, dtype)
    return _aggregate(points, centre, kappa, weights.astype(points.dtype)).astype(dtype)


def _aggregate_bcoo(x, weights, kappa, center):
    shape = weights.shape
    if len(shape) != 2 or weights.n_batch or weights.n_dense:
        raise ValueError(
            f"BCOO weights must be a matrix without batch or dense axes, got shape {shape} with "
            f"n_batch={weights.n_batch} and n_dense={weights.n_dense}; jax.vmap batches them"
        )
    if shape[1] != x.shape[-2]:
        raise ValueError(f"weights must have shape (M, {x.shape[-2]}), got {shape}")
    receivers, senders = weights.indices[:, 0], weights.indices[:, 1]
    return segment_aggregate(x, receivers, shape[0], kappa, weights.data, senders, center)


def segment_aggregate(
    x: ArrayLike,
    segment_ids: ArrayLike,
    num_segments: int,
    kappa: ArrayLike,
    weights: ArrayLike | None = None,
    senders: ArrayLike | None = None,
    center: ArrayLike | None = None,
) -> Array:
    """Compute the weighted Lorentz centroid of each segment, as `jax.ops.segment_sum` does sums.

    Entry e adds `weights[e]` times the point `senders[e]` to the segment `segment_ids[e]`: on a
    graph with edges from senders to receivers, the segments are the receivers. Precision as in
    `aggregate`.

    Args:
        x: Points `(..., N, D)`.
        segment_ids: Integers `(E,)`. Entries with an id outside `[0, num_segments)` are left out.
        num_segments: The number of centroids, static.
        kappa: Minus the curvature, one number or of the batch shape of x.
        weights: w >= 0, `(E,)`. Default: equal.
        senders: Integers `(E,)`, the point of each entry. Default: entry i is point i, E = N.
        center: As in `aggregate`.

    Returns:
        Points `(..., num_segments, D)`; the origin where the weights of a segment sum to 0.

    Raises:
        TypeError: if ids are no integers.
        ValueError: if concrete weights are negative, or shapes do not fit.

    >>> x = jnp.array([[0.75], [0.0], [1.0]])
    >>> print(functional.segment_aggregate(x, jnp.array([0, 0, 1]), 2, 1.0))
    [[0.3536]
     [1.    ]]
    """
    x = as_array("x", x, min_ndim=2)
    check_sizes(num_segments=num_segments)
    ids = {"segment_ids": jnp.asarray(segment_ids)}
    if senders is not None:
        ids["senders"] = jnp.asarray(senders)
    entries = x.shape[-2:-1] if senders is None else ids["segment_ids"].shape[:1]
    for name, array in ids.items():
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
        if array.shape != entries:
            raise ValueError(f"{name} must have shape {entries}, got {array.shape}")
    dtype = x.dtype
    if weights is not None:
        weights = as_array("weights", weights, min_ndim=0)
        if weights.shape != entries:
            raise ValueError(f"weights must have shape {entries}, got {weights.shape}")
        _check_weights(weights)
        dtype = jnp.result_type(x, weights)
    points, centre, kappa = _prepare(x, kappa, center, dtype)
    weights = None if weights is None else weights.astype(points.dtype)
    out = _aggregate_entries(
        points, centre, kappa, weights, ids.get("senders"), ids["segment_ids"], int(num_segments)
    )
    return out.astype(dtype)


for _function in (aggregate, segment_aggregate):
    _function.__module__ = "lorentz_jax.functional"
