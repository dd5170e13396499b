"""Distances of all pairs of two sets of points: exact by blocks, or as one matrix product.

`geometry` re-exports `pairwise_dist`. `(D174)` and so on are equations of `docs/derivations.md`.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype, gathered, spec
from lorentz_jax._src.centred import Centred, centred, middle
from lorentz_jax._src.pairs import half_chord
from lorentz_jax._src.plain import root
from lorentz_jax._src.radial import arc

METHODS = ("exact", "product")
_BLOCK = 2**17
"""Coordinates of all the pairs of a block: what a core's cache holds of one array."""


def _blocks(x: Array, size: int) -> Array:
    """Cut `(..., N, D)` into blocks `(count, ..., size, D)`, the last one filled with origins."""
    count = -(-x.shape[-2] // size)
    padding = [(0, 0)] * (x.ndim - 2) + [(0, count * size - x.shape[-2]), (0, 0)]
    x = jnp.pad(x, padding).reshape(*x.shape[:-2], count, size, x.shape[-1])
    return jnp.moveaxis(x, -3, 0)


def _even(length: int, most: int) -> int:
    """The size of equal blocks of at most `most`."""
    return -(-length // -(-length // max(1, min(length, most))))


@jax.jit
def _exact(x: Array, y: Array, kappa: Array) -> Array:
    """Distances `(..., B, C)`, of which a block at a time is formed, in both directions."""
    each = math.prod(x.shape[:-2]) * x.shape[-1]
    columns = _even(y.shape[-2], _BLOCK // each)
    rows = _even(x.shape[-2], _BLOCK // (each * columns))

    @partial(jax.checkpoint, prevent_cse=False)
    def block(x, y):
        p = half_chord(x[..., :, None, :], y[..., None, :, :], kappa)
        return (2 * arc(p, kappa))[..., 0]

    ys = _blocks(y, columns)
    strip = partial(_strip, block, ys)
    out = lax.map(strip, _blocks(x, rows))  # (count, ..., rows, C)
    out = jnp.moveaxis(out, 0, -3)
    out = out.reshape(*out.shape[:-3], -1, out.shape[-1])
    return out[..., : x.shape[-2], : y.shape[-2]]


def _strip(block, ys, x):
    """The distances of some rows to all columns."""
    if len(ys) == 1:
        return block(x, ys[0])
    out = jnp.moveaxis(lax.map(partial(block, x), ys), 0, -2)
    return out.reshape(*out.shape[:-2], -1)


def squared_chords(x: Centred, y: Centred, kappa: Array) -> Array:
    """`4 p^2` of all pairs `(..., B, C)`, p the half chord, as one product (D174).

    It tends to `|x - y|^2` in the flat limit. Rounding errors can make it negative.
    """
    right = jnp.swapaxes(y.chords(kappa), -1, -2)
    return jnp.matmul(x.columns, right, precision=lax.Precision.HIGHEST)


def see(x: Array, y: Array, kappa: Array) -> tuple[Centred, Centred]:
    """Both sets of points, from a centre amid the second."""
    centre = middle(y, kappa)
    return centred(x, centre, kappa), centred(y, centre, kappa)


@jax.jit
def _product(x: Array, y: Array, kappa: Array) -> Array:
    size = root(squared_chords(*see(x, y, kappa), kappa))
    return 2 * arc(size / 2, kappa)


def pairwise_dist(x: ArrayLike, y: ArrayLike, kappa: ArrayLike, method: str = "exact") -> Array:
    """Measure the geodesic distances of all pairs of two sets of points.

    The values are those of `dist(x[..., :, None, :], y[..., None, :, :], kappa)`, in the memory of
    a few arrays of the result's size, first derivatives included. (Second ones at coincident points
    are right forward over forward and reverse over forward; `jax.hessian` is NaN there, as in every
    `lax.map`.) With "product" all pairs come from one matrix product (D174), which is many times
    faster, but near pairs cancel: the square of a distance has an error of some
    `30 eps cosh(s r)^2/kappa`, r being the distance of the points
    from a centre amid y. So distances below `5 sqrt(eps) cosh(s r)/s` are lost, those of equal
    points too.

    Args:
        x: Points `(..., B, D)`.
        y: Points `(..., C, D)`.
        kappa: Minus the curvature, one number or of the batch shape `(...)`.
        method: "exact" or "product".

    Returns:
        Distances `(..., B, C)`.

    Raises:
        ValueError: if there is no such method, or shapes do not fit.

    >>> x, y = jnp.zeros((1, 2)), jnp.array([[0.75, 0.0], [0.0, 0.0]])
    >>> print(geometry.pairwise_dist(x, y, 1.0))
    [[0.6931 0.    ]]
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    x, y, kappa, dtype = pair_arguments(x, y, kappa)
    if 0 in (*x.shape[:-1], *y.shape[:-1]):
        return jnp.zeros((*x.shape[:-1], y.shape[-2]), dtype)
    # Rows and columns of the result cannot lie on the same axis of a mesh.
    if method == "product":
        y = y if (spec(x) or [None, None])[-2] is None else gathered(y, -2)
        return _product(x, y, kappa).astype(dtype)
    x, y = gathered(x, -2), gathered(y, -2)  # as the axis of a loop must be
    return _exact(x, y, kappa[..., None] if kappa.ndim else kappa).astype(dtype)


def pair_arguments(
    x: ArrayLike, y: ArrayLike, kappa: ArrayLike, names: tuple[str, str] = ("x", "y")
) -> tuple[Array, Array, Array, jnp.dtype]:
    """Two sets of points of one batch shape, kappa `(..., 1, 1)` or `()`, and the result's dtype.

    Raises `ValueError` where shapes do not fit.
    """
    points = {name: as_array(name, z, 2) for name, z in zip(names, (x, y), strict=True)}
    a, b = points.values()
    shapes = " and ".join(f"{name} {z.shape}" for name, z in points.items())
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"points must agree in their last axis (D), got {shapes}")
    try:
        batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(f"batch shapes do not broadcast: {shapes}") from None
    dtype = jnp.result_type(a, b)
    inner = compute_dtype(dtype)
    kappa = as_kappa(kappa, inner, batch)
    a, b = (jnp.broadcast_to(z, batch + z.shape[-2:]).astype(inner) for z in (a, b))
    return a, b, kappa[..., None, None] if kappa.ndim else kappa, dtype


pairwise_dist.__module__ = "lorentz_jax.geometry"
