"""Hyperplanes of the hyperboloid, as Minkowski normals: eq. V and its inverse, signed distances.

The plane of a Euclidean weight column w and bias b passes through the point at signed distance
`-b/|w|` from the origin along w, orthogonally to it. Its normal there, of Lorentz length |w|, is
`v = (|w| sinh theta, w cosh theta)` with `theta = -s b/|w|`, s = sqrt(kappa), and a point X lies
on it where `X o v = x.v - x_t v_t = 0`. As kappa -> 0 that product becomes `w.x + b`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax._src.arguments import (
    along_batch,
    as_array,
    as_kappa,
    compute_dtype,
    concrete,
    operation,
)
from lorentz_jax._src.charts import time_column
from lorentz_jax._src.radial import arc_over, plane_arc, size_sinh
from lorentz_jax._src.scalars import binary_scale, divide, safe_norm, sinhc, theta_limit

# `weights` of a bare pair is refused where rounding moved |v|_L by more than this (relative).
_LOSS = 1e-3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Normals:
    """The cached V: one Minkowski normal per output unit.

    Attributes:
      time: `v_t`, shape `(out,)`.
      space: the space parts, shape `(..., out)`; a convolution keeps its `(kh, kw, in, out)`.
      length: Lorentz lengths |w|, shape `(out,)`. In floating point `time` and `space` lose them
        from |theta| about 8 (float32), so without them the pair is a one-way export.
      excess: how far |theta| exceeds the largest one with a representable sinh, shape `(out,)`;
        the true normal is `e^excess (time, space)`. None stands for 0.
    """

    time: Array
    space: Array
    length: Array | None = None
    excess: Array | None = None


def _inputs(space: Array) -> tuple[int, ...]:
    """The axes of a kernel that are inputs: all but the last."""
    return tuple(range(space.ndim - 1))


def normals(w: Any, b: Any, kappa: Any) -> Normals:
    """Normals `(|w| sinh theta, w cosh theta)`, `theta = -s b/|w|`, of weights `w` and biases `b`.

    `w` has shape `(..., out)` (every axis but the last is input: `(in, out)` or
    `(kh, kw, in, out)`), `b` shape `(out,)`; kappa is a scalar. |theta| is cut at
    `numerics.theta_limit` (80 in float32) and the rest kept in `excess`: layers then see the plane
    at the cut, distances the true one. `w = 0` has no direction: theta counts as 0 there, so the
    unit gives `s b x_t`, with the gradients of the limit. Half-precision weights give float32
    normals, since rounding time and space apart from each other moves the plane.
    """
    w, b = as_array("w", w, min_ndim=2), as_array("b", b)
    if b.shape != w.shape[-1:]:
        raise ValueError(f"b must have shape {w.shape[-1:]} to go with w {w.shape}, got {b.shape}")
    dtype = compute_dtype(jnp.result_type(w, b))
    w, b, kappa = w.astype(dtype), b.astype(dtype), as_kappa(kappa, dtype)
    return _normals(w, b, kappa)


def factored_normals(direction: Any, gain: Any, b: Any, kappa: Any) -> tuple[Normals, Array]:
    """Normals of `w = g a/|a|` as `(Normals, unit_scale)`, their space part being `unit_scale * a`.

    The same planes as `normals(weight_norm(a, g), b, kappa)`: time, length |g| and excess are
    final, `space` is the direction `a` `(..., out)` itself and `unit_scale = g cosh(theta)/|a|`
    `(out,)`. A layer that applies it to its output makes no other array of the kernel's size.
    `gain` and `b` have shape `(out,)`; `a = 0` is a unit with `w = 0`, with zero gradient for `a`.
    """
    a, b = as_array("direction", direction, min_ndim=2), as_array("b", b)
    g = as_array("gain", gain)
    for name, value in (("gain", g), ("b", b)):
        if value.shape != a.shape[-1:]:
            raise ValueError(
                f"{name} must have shape {a.shape[-1:]} to go with a direction {a.shape}, "
                f"got {value.shape}"
            )
    dtype = compute_dtype(jnp.result_type(a, g, b))
    a, g, b = a.astype(dtype), g.astype(dtype), b.astype(dtype)
    return _factored(a, g, b, as_kappa(kappa, dtype))


@jax.jit
def _normals(w: Array, b: Array, kappa: Array) -> Normals:
    size = safe_norm(w, _inputs(w))
    time, cosh, excess = _column(size, b, kappa)
    return Normals(time, w * cosh, size, excess)


@jax.jit
def _factored(a: Array, g: Array, b: Array, kappa: Array) -> tuple[Normals, Array]:
    length = safe_norm(a, _inputs(a))
    size = jnp.where(length > 0, jnp.abs(g), 0)
    time, cosh, excess = _column(size, b, kappa)
    return Normals(time, a, size, excess), divide(g * cosh, length)


def _column(size: Array, b: Array, kappa: Array) -> tuple[Array, Array, Array]:
    """Time, cosh(theta) and excess of units with |w| = size."""
    s, limit = jnp.sqrt(kappa), theta_limit(size.dtype)
    full = divide(-s * b, size)
    theta = jnp.clip(full, -limit, limit)
    time = size_sinh(-s * b, size, limit)
    return time, jnp.cosh(theta), jnp.maximum(jnp.abs(full) - limit, 0)


def _lorentz_norm(normals: Normals) -> tuple[Array, Array]:
    """|v|_L of a bare pair, and the share of it that one rounding of the pair can change."""
    size, time = safe_norm(normals.space, _inputs(normals.space)), jnp.abs(normals.time)
    product = (size - time) * (size + time)
    norm = jnp.sqrt(jnp.maximum(product, 0))
    eps = float(jnp.finfo(normals.space.dtype).eps)
    return norm, jnp.where(size > 0, eps * divide(size * size, jnp.maximum(product, 0)), 0) + (
        jnp.where((size > 0) & (product <= 0), jnp.inf, 0)
    )


def weights(normals: Normals, kappa: Any) -> tuple[Array, Array]:
    """Weights and biases of normals, the inverse of `normals` (Prop. cache inverse).

    `w = |v|_L v/|v|`, `b = -(|v|_L/s) asinh(v_t/|v|_L)`. Exact to rounding where `length` is
    present. Of a bare pair `|v|_L = sqrt(|v|^2 - v_t^2)`, which rounding destroys as |theta|
    grows: concrete units that lost more than 0.1 % raise `ValueError`, traced ones become NaN.
    """
    space, time = normals.space, normals.time
    kappa = as_kappa(kappa, space.dtype)
    s = jnp.sqrt(kappa)
    if normals.length is None:
        norm, loss = _lorentz_norm(normals)
        lost = loss > _LOSS
        if concrete(lost):
            if np.asarray(lost).any():
                units = np.flatnonzero(np.asarray(lost)).tolist()
                raise ValueError(
                    f"the Lorentz norms of units {units} are lost to {space.dtype} rounding; "
                    "restoring needs Normals that carry `norm`"
                )
        else:
            norm = jnp.where(lost, jnp.nan, norm)
    else:
        norm = normals.length
    w = space * divide(norm, safe_norm(space, _inputs(space)))
    scaled = arc_over(time, norm)  # |w| theta
    if normals.excess is not None:
        scaled = scaled + norm * (jnp.sign(time) * normals.excess)
    # w = 0 is stored with theta = 0 and time -s b.
    return w, -jnp.where(norm == 0, time, scaled) / s


def signed_distance(x: Any, normals: Normals, kappa: Any, scale: str | None = "inside") -> Array:
    """Signed distances of points `(..., D)` to hyperplanes, shape `(..., out)`.

    With `z = X o v = x.v - x_t v_t`:
      scale=None       `asinh(s z/|w|)/s`, the geodesic distance;
      scale="inside"   `asinh(s z)/s`, the paper's choice d_2;
      scale="outside"  `|w| asinh(s z/|w|)/s`, its d_1.
    Finite wherever the distance is, also where z or the normal overflow. A unit with `w = 0` is at
    distance 0 for None and "outside". Gradients at `z = 0` are regular.
    """
    if scale not in ("inside", "outside", None):
        raise ValueError(f'scale must be "inside", "outside" or None, got {scale!r}')
    x = check_input(x, normals, axes=1)
    dtype = compute_dtype(x.dtype)
    kappa = as_kappa(kappa, dtype, x.shape[:-1])
    kappa = along_batch(kappa)
    points, normals = x.astype(dtype), jax.tree.map(lambda a: a.astype(dtype), normals)
    # Over powers of two neither the product nor its gradient overflows, and no bit is lost.
    unit = binary_scale(points)
    size = jnp.maximum(binary_scale(normals.space, 0)[0], binary_scale(normals.time[None], 0)[0])
    time = time_column(points, kappa) / unit
    z = (points / unit) @ (normals.space / size) - time * (normals.time / size)
    norm = _lorentz_norm(normals)[0] if normals.length is None else normals.length
    norm = jnp.ones_like(size) if scale == "inside" else norm
    excess = jnp.zeros_like(size) if normals.excess is None else normals.excess
    out = plane_arc(z, unit, size, norm, excess, kappa, scale == "outside")
    return out.astype(x.dtype)


def check_input(x: Any, normals: Normals, axes: int) -> Array:
    """`x` as an array whose last axis fits the kernel; `axes` is 1 (dense) or 3 (convolution)."""
    kernel = normals.space.shape
    if len(kernel) != axes + 1:
        raise ValueError(f"expected normals with a space part of {axes + 1} axes, got {kernel}")
    x = as_array("x", x, min_ndim=axes)
    if x.shape[-1] != kernel[-2]:
        raise ValueError(
            f"expected points with D_in = {kernel[-2]} space coordinates in the last axis, "
            f"got shape {x.shape}"
        )
    return x


@operation
def point_from_distances(distances, kappa):
    """The point whose signed distances to the D coordinate hyperplanes are given: `sinh(s d)/s`.

    (Prop. activations to output; printed there with 1/kappa for 1/s.)
    """
    return sinhc(jnp.sqrt(kappa) * distances) * distances
