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
| `arc_over` | `l asinh(z/l)` for a length l |
| `plane_column` | what the normal of a plane has beside its direction |
| `asinhc_pull` | `x asinhc'(x)`: how fast asinhc falls, in proportion |
| `tanh_gap` | `tanh x - x` |
| `plane_arc` | distance from a plane, of the product of point and normal |
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from lorentz_jax._src.scalars import (
    SINHC,
    SINHC_SLOPE,
    asinh_scaled,
    asinhc,
    asinhc_pull,
    direction,
    divide,
    even_series,
    hypot,
    safe_norm,
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def plane_column(size: Array, b: Array, kappa: Array, limit: float) -> tuple[Array, Array]:
    """`size sinh(theta)` and `cosh theta` of `theta = -s b/size`, which is cut at `limit`.

    The first is `-s b`, its limit, where size is 0.
    """
    parts = _plane_parts(size, b, kappa, limit)
    return parts[0], parts[1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _plane_parts(size: Array, b: Array, kappa: Array, limit: float) -> Array:
    """What `plane_column` and its derivatives are made of, as the rows of one array.

    It is one kernel then: as arrays by themselves, XLA would compile ten of them.
    """
    push = -jnp.sqrt(kappa) * b
    inverse = divide(jnp.ones_like(size), size)  # which the derivative of a norm has formed already
    q = jnp.clip(push * inverse, -limit, limit)
    near = jnp.abs(q) < 1
    small = jnp.where(near, q, 0)
    half = jnp.exp(jnp.abs(q) + math.log(0.5))
    rest = 0.25 / half
    cosh = half + rest
    sinh = jnp.where(near, q * even_series(SINHC, small, 1), jnp.sign(q) * (half - rest))
    slow = small * small * small * even_series(SINHC_SLOPE, small, 1)
    fall = jnp.where(near, slow, q * cosh - sinh)
    time = jnp.where(size > 0, size * sinh, push)
    return jnp.stack([time, cosh, sinh, fall, q, inverse])


def _plane_moves(primals, tangents, limit):
    """The parts, and how push, size and theta move (D147)."""
    (size, b, kappa), (dsize, db, dkappa) = primals, tangents
    parts = _plane_parts(size, b, kappa, limit)
    _, _, _, _, q, inverse = parts
    s, zero = jnp.sqrt(kappa), jnp.zeros_like(size)
    dpush = zero if isinstance(db, SymbolicZero) else -s * db
    if not isinstance(dkappa, SymbolicZero):
        dpush = dpush - b / (2 * s) * dkappa
    dsize = zero if isinstance(dsize, SymbolicZero) else dsize
    inside = jnp.abs(q) < limit
    return parts, inside, dpush, dsize, jnp.where(inside, inverse * (dpush - q * dsize), 0)


def _plane_column_jvp(limit, primals, tangents):
    parts, inside, dpush, dsize, dq = _plane_moves(primals, tangents, limit)
    time, cosh, sinh, fall, _, _ = parts
    dtime = jnp.where(inside, cosh * dpush - fall * dsize, sinh * dsize)
    return (time, cosh), (dtime, sinh * dq)  # (D14), (D148)


def _plane_parts_jvp(limit, primals, tangents):
    parts, inside, dpush, dsize, dq = _plane_moves(primals, tangents, limit)
    _, cosh, sinh, fall, q, inverse = parts
    dtime = jnp.where(inside, cosh * dpush - fall * dsize, sinh * dsize)
    dinverse = -inverse * (inverse * dsize)
    return parts, jnp.stack([dtime, sinh * dq, cosh * dq, q * sinh * dq, dq, dinverse])


plane_column.defjvp(_plane_column_jvp, symbolic_zeros=True)
_plane_parts.defjvp(_plane_parts_jvp, symbolic_zeros=True)


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
