"""Weighted Lorentz centroids as products: dense or sparse weights, and segments.

`functional` re-exports the public functions. `(D175)` and so on are equations of
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

from lorentz_jax._src.arguments import (
    as_array,
    as_kappa,
    check_sizes,
    compute_dtype,
    concrete,
    spec,
)
from lorentz_jax._src.centred import CENTERS, Centred, at_origin, centred, middle
from lorentz_jax._src.plain import inverse, inverse_root

Product = Callable[[Array], Array]
"""Weighted sums `(..., M, K)` of the rows of an array `(..., N, K)`."""


@jax.custom_jvp
def floor(x: Array) -> Array:
    """A number that is not negative, but for its rounding error. The derivative is 1 throughout."""
    return jnp.maximum(x, 0)


floor.defjvp(lambda primals, tangents: (floor(*primals), tangents[0]))


def centroids(view: Centred, kappa: Array, product: Product) -> Array:
    """Centroids with the weights of a product; the origin where these sum to 0.

    Divided by the sum of weights, no square of a tiny weight is formed.
    """
    sums = product(view.columns)
    total = sums[..., -1:]
    none = total == 0  # and not NaN, which must show
    means = sums * inverse(jnp.where(none, 1, total))
    spread = floor(view.spread(means, kappa))
    return jnp.where(none, 0, view.space(means) * inverse_root(1 + kappa * spread))  # (D175)


def prepare_center(center: Any, batch: tuple[int, ...], size: int, dtype: Any) -> Any:
    """A centre as the name that it has, or as points `(..., 1, D)` of this batch shape.

    Raises `ValueError` where it is neither.
    """
    if isinstance(center, str):
        if center not in CENTERS:
            raise ValueError(f"center must be one of {CENTERS} or points, got {center!r}")
        return center
    center = as_array("center", center).astype(dtype)
    try:
        fits = jnp.broadcast_shapes(center.shape, (*batch, size)) == (*batch, size)
    except ValueError:
        fits = False
    if not fits or center.shape[-1] != size:
        raise ValueError(f"center must be points {(*batch, size)}, got shape {center.shape}")
    return center[..., None, :]


def _prepare(x: Array, kappa: Any, center: Any, dtype: Any) -> tuple[Array, Any, Any, Array]:
    """Points, the name of their centre or its points, and kappa, in the dtype to compute in."""
    inner, batch = compute_dtype(dtype), x.shape[:-2]
    kappa = as_kappa(kappa, inner, batch)
    center = prepare_center(center, batch, x.shape[-1], inner)
    named = isinstance(center, str)
    kappa = kappa[..., None, None] if kappa.ndim else kappa
    return x.astype(inner), center if named else None, None if named else center, kappa


def view(x: Array, name: str | None, point: Array | None, kappa: Array) -> Centred:
    """See points from a centre of this name, or else from this point."""
    if name == "origin":
        return at_origin(x, kappa)
    return centred(x, middle(x, kappa) if point is None else point, kappa)


def _check_weights(weights: Any) -> None:
    """Raise `ValueError` for concrete weights that are negative."""
    if concrete(weights) and (np.asarray(weights) < 0).any():
        raise ValueError(f"weights must be >= 0, got {np.asarray(weights).min()}")


def dense(weights: Array, columns: Array) -> Array:
    """The product with a matrix of weights, in full precision on every device."""
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
    sums = jnp.zeros((count, *columns.shape[1:]), columns.dtype)
    lies = spec(columns)
    if lies:  # the sums lie on a mesh as the columns do
        sums = jax.sharding.reshard(sums, jax.sharding.PartitionSpec(None, *lies[1:]))
    receivers = jnp.where(receivers < 0, count, receivers)  # outside, and not from the end
    return jnp.moveaxis(sums.at[receivers].add(columns, mode="drop"), 0, -2)


@partial(jax.jit, static_argnames="name")
def _aggregate(x, name, point, kappa, weights):
    return centroids(view(x, name, point, kappa), kappa, partial(dense, weights))


@partial(jax.jit, static_argnames=("name", "count"))
def _aggregate_entries(x, name, point, kappa, weights, senders, receivers, count):
    product = partial(_scatter, weights, senders, receivers, count)
    return centroids(view(x, name, point, kappa), kappa, product)


def aggregate(
    x: ArrayLike, weights: Any, kappa: ArrayLike, center: ArrayLike | str = "middle"
) -> Array:
    """Compute weighted Lorentz centroids of one set of points, all of them by one product.

    Row j is the centroid of the points with the weights `weights[j]`: `M/(s sqrt(-M o M))` of
    `M = sum_i w_ji X_i`. The sums are formed about a centre (D170), so a tight cluster keeps its
    digits wherever it is. The relative error is a few `eps cosh(s r)^2`, r being the distance of
    the points of a row from the centre, so float32 has no digit left from `s r = 8` on, where
    derivatives may overflow; `geometry.centroid` is exact, and far more expensive.

    Args:
        x: Points `(..., N, D)`.
        weights: w >= 0, `(..., M, N)`, or a `jax.experimental.sparse.BCOO` matrix `(M, N)`. Rows
            need not sum to 1. One that sums to 0 gives the origin, with gradient 0. A weight of 0
            has a gradient, so its point must be finite.
        kappa: Minus the curvature, one number or of the batch shape of x.
        center: What to form the sums about; the result does not depend on it, but its error does.
            "middle" is a mean of x, "origin" a cheaper form with r the distance from the origin,
            and points `(..., D)` serve where a mean does not, as where x is padded.

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
    points, name, point, kappa = _prepare(x, kappa, center, dtype)
    return _aggregate(points, name, point, kappa, weights.astype(points.dtype)).astype(dtype)


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
    center: ArrayLike | str = "middle",
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
    points, name, point, kappa = _prepare(x, kappa, center, dtype)
    weights = None if weights is None else weights.astype(points.dtype)
    senders, receivers = ids.get("senders"), ids["segment_ids"]
    count = int(num_segments)
    out = _aggregate_entries(points, name, point, kappa, weights, senders, receivers, count)
    return out.astype(dtype)


for _function in (aggregate, segment_aggregate):
    _function.__module__ = "lorentz_jax.functional"
