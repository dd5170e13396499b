"""Hyperplanes of the hyperboloid, as Minkowski normals: eq. V and its inverse, signed distances.

The plane of a Euclidean weight column w and bias b passes through the point at signed distance
`-b/|w|` from the origin along w, orthogonally to it. Its normal there, of Lorentz length |w|, is
`v = (|w| sinh theta, w cosh theta)` with `theta = -s b/|w|`, s = sqrt(kappa) (D62), and a point X
lies on it where `X o v = x.v - x_t v_t = 0`. As kappa -> 0 that product becomes `w.x + b`.

Dtypes, batches and errors are those of `geometry`, with a `ValueError` wherever a shape does not
fit another. `(D62)` and so on are equations of `docs/derivations.md`. Examples assume what those
of `geometry` do, and `from lorentz_jax import hyperplane`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import (
    along_batch,
    as_array,
    as_kappa,
    check_input,
    check_normals,
    check_shapes,
    compute_dtype,
    concrete,
    operation,
    row,
)
from lorentz_jax._src.charts import time_column
from lorentz_jax._src.radial import arc_over, plane_arc, plane_column
from lorentz_jax._src.scalars import binary_scale, divide, safe_norm, theta_limit
from lorentz_jax._src.smooth import grown

__all__ = ["Normals", "factored_normals", "normals", "weights"]
__all__ += ["point_from_distances", "signed_distance"]

# `weights` of a bare pair is refused where rounding moved |v|_L by more than this (relative).
_LOSS = 1e-3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Normals:
    """The cached V: one Minkowski normal per output unit. A pytree.

    Attributes:
        time: `v_t`, shape `(out,)`; None for planes through the origin (b = 0), where it is 0.
        space: the space parts, shape `(..., out)`; a convolution keeps its `(kh, kw, in, out)`.
        length: Lorentz lengths |w|, shape `(out,)`. In floating point `time` and `space` lose them
            from |theta| about 8 (float32), so without them the pair is a one-way export.
        excess: how far |theta| exceeds the angle at which it is cut, shape `(out,)`; the true
            normal is `e^excess (time, space)` (D66). None stands for 0.

    >>> v = hyperplane.normals(jnp.array([[0.6], [0.8]]), jnp.array([-1.0]), 1.0)
    >>> v.time.shape, v.space.shape, v.length.shape
    ((1,), (2, 1), (1,))
    """

    time: Array | None
    space: Array
    length: Array | None = None
    excess: Array | None = None

    @property
    def times(self) -> Array:
        """`v_t` with its zeros, shape `(out,)`."""
        zeros = jnp.zeros(self.space.shape[-1:], self.space.dtype)
        return zeros if self.time is None else self.time


def _inputs(space: Array) -> tuple[int, ...]:
    """The axes of a kernel that are inputs: all but the last."""
    return tuple(range(space.ndim - 1))


def normals(w: ArrayLike, b: ArrayLike | None, kappa: ArrayLike) -> Normals:
    """Make the normals of weights and biases, `(|w| sinh theta, w cosh theta)` (eq. V).

    |theta| is cut at 80 (float32) or 701 (float64) and the rest kept in `excess`: layers see the
    plane at the cut, distances the true one. `w = 0` has no direction: theta counts as 0 there, so
    the unit gives `s b x_t`, with the gradients of the limit.

    Args:
        w: Weights `(..., out)`; all axes but the last are input, as of `(kh, kw, in, out)`.
        b: Biases `(out,)`; None for planes through the origin, whose normals have no time and are
            the weights themselves.
        kappa: Minus the curvature, one number.

    Returns:
        `Normals` in w's dtype, and in float32 for half precision: rounding time and space apart
        from each other would move the plane.

    >>> v = hyperplane.normals(jnp.array([[0.6], [0.8]]), jnp.array([-1.0]), 1.0)
    >>> print(v.time, v.space[:, 0])
    [1.1752] [0.9258 1.2345]
    """
    w = as_array("w", w, min_ndim=2)
    if b is None:
        as_kappa(kappa, compute_dtype(w.dtype))
        w = w.astype(compute_dtype(w.dtype))
        return Normals(None, w, safe_norm(w, _inputs(w)))
    b = as_array("b", b)
    check_shapes(w.shape[-1:], f"w {w.shape}", b=b)
    dtype = compute_dtype(jnp.result_type(w, b))
    return _normals(w.astype(dtype), b.astype(dtype), as_kappa(kappa, dtype))


def factored_normals(
    direction: ArrayLike, gain: ArrayLike, b: ArrayLike | None, kappa: ArrayLike
) -> tuple[Normals, Array]:
    """Make the normals of `w = g a/|a|` with their space part left over a number per unit (D67).

    The same planes as `normals(weight_norm(a, g), b, kappa)`. A layer that applies the number to
    its output makes no other array of the kernel's size. `a = 0` is a unit with `w = 0`, and its
    gradient for a is 0.

    Args:
        direction: The direction a of every unit's weights, `(..., out)`.
        gain: Their signed length g, `(out,)`.
        b: Biases `(out,)`; None as in `normals`.
        kappa: Minus the curvature, one number.

    Returns:
        `Normals` whose `space` is a itself (all else is final), and
        `unit_scale = g cosh(theta)/|a|`, shape `(out,)`: the true space part is `unit_scale * a`.

    >>> a, g, b = jnp.array([[3.0], [4.0]]), jnp.array([1.0]), jnp.array([-1.0])
    >>> v, unit_scale = hyperplane.factored_normals(a, g, b, 1.0)
    >>> print((v.space * unit_scale)[:, 0])
    [0.9258 1.2345]
    """
    a, g = as_array("direction", direction, min_ndim=2), as_array("gain", gain)
    check_shapes(a.shape[-1:], f"a direction {a.shape}", gain=g)
    if b is None:
        dtype = compute_dtype(jnp.result_type(a, g))
        as_kappa(kappa, dtype)
        a, g = a.astype(dtype), g.astype(dtype)
        length = safe_norm(a, _inputs(a))
        return Normals(None, a, jnp.where(length > 0, jnp.abs(g), 0)), divide(g, length)
    b = as_array("b", b)
    check_shapes(a.shape[-1:], f"a direction {a.shape}", b=b)
    dtype = compute_dtype(jnp.result_type(a, g, b))
    a, g, b = a.astype(dtype), g.astype(dtype), b.astype(dtype)
    return _factored(a, g, b, as_kappa(kappa, dtype))


@jax.jit
def _normals(w: Array, b: Array, kappa: Array) -> Normals:
    size = safe_norm(w, _inputs(w), keepdims=True)
    time, cosh, excess = _column(size, row(b, w), kappa)
    return Normals(time.ravel(), w * cosh, size.ravel(), excess.ravel())


@jax.jit
def _factored(a: Array, g: Array, b: Array, kappa: Array) -> tuple[Normals, Array]:
    length = safe_norm(a, _inputs(a))
    size = jnp.where(length > 0, jnp.abs(g), 0)
    time, cosh, excess = _column(size, b, kappa)
    return Normals(time, a, size, excess), divide(g * cosh, length)  # (D67)


def _column(size: Array, b: Array, kappa: Array) -> tuple[Array, Array, Array]:
    """Time, cosh(theta) and excess of units with |w| = size."""
    limit = theta_limit(size.dtype)
    time, cosh = plane_column(size, b, kappa, limit)  # (D62)
    full = divide(jnp.sqrt(kappa) * b, size)
    return time, cosh, jnp.maximum(jnp.abs(full) - limit, 0)  # (D66)


def _lorentz_norm(normals: Normals) -> tuple[Array, Array]:
    """|v|_L of a bare pair, and the share of it that one rounding of the pair can change."""
    size, time = safe_norm(normals.space, _inputs(normals.space)), jnp.abs(normals.times)
    product = (size - time) * (size + time)
    norm = jnp.sqrt(jnp.maximum(product, 0))  # (D64)
    eps = float(jnp.finfo(normals.space.dtype).eps)
    loss = eps * divide(size * size, jnp.maximum(product, 0))  # (D65)
    return norm, jnp.where(size > 0, loss, 0) + jnp.where((size > 0) & (product <= 0), jnp.inf, 0)


def weights(normals: Normals, kappa: ArrayLike) -> tuple[Array, Array]:
    """Restore weights and biases, the inverse of `normals` (Prop. cache inverse).

    `w = |v|_L v/|v|`, `b = -(|v|_L/s) asinh(v_t/|v|_L)` (D64). Exact to rounding where `length` is
    present. Of a bare pair `|v|_L = sqrt(|v|^2 - v_t^2)`, which rounding destroys as |theta| grows.

    Args:
        normals: The normals, space part `(..., out)`.
        kappa: Minus the curvature, one number.

    Returns:
        w `(..., out)` and b `(out,)`.

    Raises:
        ValueError: if units of a bare pair lost more than 0.1 %; traced ones become NaN.

    >>> v = hyperplane.normals(jnp.array([[0.6], [0.8]]), jnp.array([-1.0]), 1.0)
    >>> w, b = hyperplane.weights(v, 1.0)
    >>> print(w[:, 0], b)
    [0.6 0.8] [-1.]
    """
    check_normals(normals)
    space, time = normals.space, normals.times
    kappa = as_kappa(kappa, space.dtype)
    s = jnp.sqrt(kappa)
    if normals.length is None:
        norm, loss = _lorentz_norm(normals)
        lost = loss > _LOSS
        if concrete(lost):
            if np.asarray(lost).any():
                units = np.flatnonzero(np.asarray(lost)).tolist()
                raise ValueError(
                    f"the Lorentz lengths of units {units} are lost to {space.dtype} rounding; "
                    "restoring needs Normals that carry `length`"
                )
        else:
            norm = jnp.where(lost, jnp.nan, norm)
    else:
        norm = normals.length
    w = space * row(divide(norm, safe_norm(space, _inputs(space))), space)  # (D64)
    scaled = arc_over(time, norm)  # |w| theta
    if normals.excess is not None:
        scaled = scaled + norm * (jnp.sign(time) * normals.excess)
    # w = 0 is stored with theta = 0 and time -s b.
    return w, -jnp.where(norm == 0, time, scaled) / s


def signed_distance(
    x: ArrayLike, normals: Normals, kappa: ArrayLike, scale: str | None = "inside"
) -> Array:
    """Measure the signed distances of points to hyperplanes, from `z = X o v = x.v - x_t v_t`.

    Finite wherever the distance is, also where z or the normal overflow. A unit with `w = 0` is at
    distance 0 for None and "outside". Gradients at `z = 0` are regular (D17).

    Args:
        x: Points `(..., D)`.
        normals: The planes, space part `(D, out)`.
        kappa: Minus the curvature, one number or of the batch shape `(...)`.
        scale: None for `asinh(s z/|w|)/s`, the geodesic distance (D63); "inside" for
            `asinh(s z)/s`, the paper's choice d_2; "outside" for `|w| asinh(s z/|w|)/s`, its d_1.

    Returns:
        Distances `(..., out)`.

    Raises:
        ValueError: if `scale` is another word.

    >>> v = hyperplane.normals(jnp.array([[0.6], [0.8]]), jnp.array([-1.0]), 1.0)
    >>> print(hyperplane.signed_distance(jnp.zeros(2), v, 1.0, scale=None))
    [-1.]
    """
    if scale not in ("inside", "outside", None):
        raise ValueError(f'scale must be "inside", "outside" or None, got {scale!r}')
    x = check_input(x, normals, axes=1)
    dtype = compute_dtype(x.dtype)
    kappa = along_batch(as_kappa(kappa, dtype, x.shape[:-1]))
    points, normals = x.astype(dtype), jax.tree.map(lambda a: a.astype(dtype), normals)
    # Over powers of two neither the product nor its gradient overflows, and no bit is lost.
    unit = binary_scale(points)
    size = binary_scale(normals.space, 0)[0]
    if normals.time is not None:
        size = jnp.maximum(size, binary_scale(normals.time[None], 0)[0])
    z = (points / unit) @ (normals.space / size[None])
    if normals.time is not None:
        z = z - time_column(points, kappa) / unit * row(normals.time / size, z)
    norm = _lorentz_norm(normals)[0] if normals.length is None else normals.length
    norm = jnp.ones_like(size) if scale == "inside" else norm
    excess = jnp.zeros_like(size) if normals.excess is None else normals.excess
    size, norm, excess = row(size, z), row(norm, z), row(excess, z)
    out = plane_arc(z, unit, size, norm, excess, kappa, scale == "outside")
    return out.astype(x.dtype)


@operation
def point_from_distances(distances: ArrayLike, kappa: ArrayLike) -> Array:
    """Find the point at given signed distances to the coordinate hyperplanes: `sinh(s d)/s`.

    (Prop. activations to output; printed there with 1/kappa for 1/s.) Regular at d = 0.

    Args:
        distances: d `(..., D)`.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        The point, `(..., D)`.

    >>> print(hyperplane.point_from_distances(jnp.array([1.0, 0.0]), 4.0))
    [1.8134 0.    ]
    """
    return grown(kappa * jnp.square(distances), 1)[1] * distances
