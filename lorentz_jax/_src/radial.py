"""Functions of the size of a point, that is of the length of its space part, and of kappa.

Each has derivatives in closed form: those of autodiff cancel where kappa x^2 is small, and far out
they form squares that overflow. `(D7)` and so on are equations of `docs/derivations.md`. Symbols
of all modules of `_src`:

| symbol | meaning |
|---|---|
| `s` | `sqrt(kappa)` |
| `r` | distance of a point from the origin |
| `rho` | scaled distance `s r`; `rho_x` that of a point x |
| `x`, `size`, `a`, `b` | size `|x| = sinh(rho)/s` |
| `h`, `tx`, `ty` | scaled time `s x_t = sqrt(1 + kappa |x|^2) = cosh rho` |
| `unit`, `ux`, `uy` | direction `x/|x|`, 0 at the origin |
| `radial` or `along`, `across` | part of a vector along a direction, and the rest of it |
| `arc`, `arc_along` | `r` of a size; the vector of length r along x |
| `arc_over`, `size_sinh` | `l asinh(z/l)` for a length l, and its inverse `l sinh(z/l)` |
| `asinhc_pull` | `x asinhc'(x)`: how fast asinhc falls, in proportion |
| `tanh_gap` | `tanh x - x` |
| `plane_arc` | distance from a plane, of the product of point and normal |
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from lorentz_jax._src.scalars import (
    asinh_scaled,
    asinhc,
    asinhc_pull,
    direction,
    divide,
    hypot,
    safe_norm,
    sinhc_slope,
)
from lorentz_jax._src.smooth import split


@jax.custom_jvp
def arc(x: Array, kappa: Array) -> Array:
    """`asinh(s x) / s`, the distance with the half chord or coordinate x; x as kappa -> 0.

    The derivatives `1/sqrt(1 + kappa x^2)` and, in kappa, `x^3` times a bounded factor cancel in
    no term, and no square that overflows is formed.
    """
    return x * asinhc(jnp.sqrt(kappa) * x)


@arc.defjvp
def _arc_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    scaled = jnp.sqrt(kappa) * x
    by_x = 1 / hypot(scaled, jnp.ones_like(scaled))
    return arc(x, kappa), by_x * dx + (x * asinhc_pull(scaled) / (2 * kappa)) * dkappa  # (D7)


@jax.custom_jvp
def arc_along(x: Array, kappa: Array) -> Array:
    """`x asinh(s|x|)/(s|x|)` for vectors `(..., D)`: `arc` of the length, in the direction of x."""
    return asinhc(jnp.sqrt(kappa) * safe_norm(x, keepdims=True)) * x


@arc_along.defjvp
def _arc_along_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    size = safe_norm(x, keepdims=True, order=1)
    scaled, unit = jnp.sqrt(kappa) * size, direction(x, size)
    (radial, across), pull = split(unit, dx), asinhc_pull(scaled)
    # Near the origin along and across differ by the pull alone; far out it would cancel.
    near = scaled < 0.5
    along = unit * (radial * jnp.where(near, pull, 1 / hypot(scaled, jnp.ones_like(scaled))))
    across = asinhc(scaled) * jnp.where(near, dx, across)
    return arc_along(x, kappa), across + along + x * (pull / (2 * kappa)) * dkappa  # (D8)


@jax.custom_jvp
def arc_over(x: Array, size: Array) -> Array:
    """`size asinh(x / size)`, 0 where size is 0."""
    return size * jnp.arcsinh(divide(x, size))


@arc_over.defjvp
def _arc_over_jvp(primals, tangents):
    (x, size), (dx, dsize) = primals, tangents
    q = divide(x, size)
    by_size = -q * asinhc_pull(q)  # (D13)
    return arc_over(x, size), dx / hypot(q, jnp.ones_like(q)) + by_size * dsize


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def size_sinh(x: Array, size: Array, limit: float) -> Array:
    """`size sinh(x/size)` with x/size cut at `limit`; x itself, the limit, where size is 0.

    In the size its derivative is `sinh q - q cosh q`, q = x/size, without cancellation. (The series
    is in the derivative alone: XLA would evaluate one of the value for every output of a layer.)
    """
    q = jnp.clip(divide(x, size), -limit, limit)
    return jnp.where(size > 0, size * jnp.sinh(q), x)


@size_sinh.defjvp
def _size_sinh_jvp(limit, primals, tangents):
    (x, size), (dx, dsize) = primals, tangents
    uncut = divide(x, size)
    inside, q = jnp.abs(uncut) <= limit, jnp.clip(uncut, -limit, limit)
    by_x = jnp.where(inside, jnp.cosh(q), 0)  # (D14)
    by_size = jnp.where(inside, -(q**3) * sinhc_slope(q), jnp.sinh(q))
    return size_sinh(x, size, limit), by_x * dx + by_size * dsize


def tanh_gap(x: Array) -> Array:
    """`tanh(x) - x`, without cancellation near 0 (D15)."""
    near = jnp.abs(x) < 1
    sinh = jnp.sinh(jnp.where(near, x, 0))
    return jnp.where(near, sinh * asinhc_pull(sinh), jnp.tanh(x) - x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(6,))
def plane_arc(
    z: Array, unit: Array, scale: Array, norm: Array, excess: Array, kappa: Array, outside: bool
) -> Array:
    """`A/s`, `A = asinh(s z unit scale e^excess / norm)`, times `norm` if `outside`.

    The product need not be representable; 0 where norm is 0. `unit` and `scale` are powers of two
    without a derivative.
    """
    return _plane_arc_parts(z, unit, scale, norm, excess, kappa, outside)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(7,))
def _known_arc(out, z, unit, scale, norm, excess, kappa, outside):
    """`plane_arc`, whose value is `out` already."""
    return out


def _plane_arc_parts(z, unit, scale, norm, excess, kappa, outside):
    s = jnp.sqrt(kappa)
    factor = divide(s * scale, norm)
    angle = asinh_scaled(z, factor, excess, unit)
    out = angle / s
    return out * norm if outside else out, angle, factor


def _plane_arc_jvp(outside, primals, tangents):
    # By A itself (D16): tanh A and tanh A - A neither overflow nor cancel.
    z, unit, scale, norm, excess, kappa = primals
    moves = [None if isinstance(t, SymbolicZero) else t for t in tangents]
    dz, _, _, dnorm, dexcess, dkappa = moves
    value, angle, factor = _plane_arc_parts(z, unit, scale, norm, excess, kappa, outside)
    s, out = jnp.sqrt(kappa), _known_arc(value, z, unit, scale, norm, excess, kappa, outside)
    tanh, tangent = jnp.tanh(angle), jnp.zeros_like(out)
    if dz is not None:
        far = jnp.abs(angle) > 20
        near = factor * jnp.exp(jnp.where(far, 0, excess))
        sinh = jnp.where(far, 0, z) * unit * jnp.where(far, 0, near)
        near = unit * (near / s) / hypot(sinh, jnp.ones_like(z))
        by_z = jnp.where(far, divide(jnp.ones_like(z), s * jnp.abs(z)), near)  # (D17)
        tangent = tangent + by_z * dz
    if dexcess is not None:
        tangent = tangent + tanh / s * dexcess
    if dkappa is not None:
        tangent = tangent + tanh_gap(angle) / (2 * kappa * s) * dkappa
    tangent = norm * tangent if outside else tangent
    if dnorm is not None:
        by_norm = -tanh_gap(angle) / s if outside else -divide(tanh, s * norm)
        tangent = tangent + by_norm * dnorm
    return out, tangent


plane_arc.defjvp(_plane_arc_jvp, symbolic_zeros=True)


def _known_arc_jvp(outside, primals, tangents):
    return _plane_arc_jvp(outside, primals[1:], tangents[1:])


_known_arc.defjvp(_known_arc_jvp, symbolic_zeros=True)
