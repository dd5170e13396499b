"""Functions of a size `x = sinh(s r)/s` at distance r from the origin, and of kappa.

Each has derivatives in closed form: those of autodiff cancel where kappa x^2 is small, and far out
they form squares that overflow. `s = sqrt(kappa)`.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.scalars import (
    DSINHC,
    asinh_scaled,
    asinhc,
    asinhc_pull,
    direction,
    divide,
    even_series,
    hypot,
    safe_norm,
    split,
)


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
    return arc(x, kappa), by_x * dx + (x * asinhc_pull(scaled) / (2 * kappa)) * dkappa


@jax.custom_jvp
def arc_along(x: Array, kappa: Array) -> Array:
    """`x asinh(s|x|)/(s|x|)` for vectors `(..., D)`: `arc` of the length, in the direction of x."""
    return asinhc(jnp.sqrt(kappa) * safe_norm(x, keepdims=True)) * x


@arc_along.defjvp
def _arc_along_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    size = safe_norm(x, keepdims=True)
    scaled, unit = jnp.sqrt(kappa) * size, direction(x, size)
    radial, across = split(unit, dx)
    along = unit * (radial / hypot(scaled, jnp.ones_like(scaled)))
    by_kappa = x * (asinhc_pull(scaled) / (2 * kappa))
    return arc_along(x, kappa), asinhc(scaled) * across + along + by_kappa * dkappa


@jax.custom_jvp
def complement(x: Array) -> Array:
    """`1 - x^2` for |x| < 1, precise up to the edge; its derivative is `-2 x` to the last bit."""
    return (1 - x) * (1 + x)


@complement.defjvp
def _complement_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return complement(x), -2 * x * dx


@jax.custom_jvp
def lean(x: Array, kappa: Array) -> Array:
    """`kappa x / (1 + sqrt(1 + kappa x^2)) = s tanh(s r/2)` of the size `x = sinh(s r)/s`.

    With `h = sqrt(1 + kappa x^2)` its derivatives are `kappa/(h (1 + h))` and `x/(2 h)`.
    """
    s = jnp.sqrt(kappa)
    return s * (s * x / (1 + hypot(s * x, jnp.ones_like(x))))


@lean.defjvp
def _lean_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    h = hypot(jnp.sqrt(kappa) * x, jnp.ones_like(x))
    return lean(x, kappa), kappa / (1 + h) / h * dx + x / (2 * h) * dkappa


@jax.custom_jvp
def over_time(r: Array, x: Array, kappa: Array) -> Array:
    """`r / sqrt(1 + kappa x^2)`, the length of a radial tangent vector r at the size x.

    Far out its derivatives are products of moderate numbers; those of autodiff overflow.
    """
    return r / hypot(jnp.sqrt(kappa) * x, jnp.ones_like(x))


@over_time.defjvp
def _over_time_jvp(primals, tangents):
    (r, x, kappa), (dr, dx, dkappa) = primals, tangents
    s, out = jnp.sqrt(kappa), over_time(r, x, kappa)
    h = hypot(s * x, jnp.ones_like(x))
    share = x / h
    return out, dr / h - out * (s * share) * (s / h) * dx - (out * share * share / 2) * dkappa


def sinhc_slope(x: Array) -> Array:
    """`sinhc'(x) / x`, 1/3 at 0."""
    near = jnp.abs(x) < 1
    far = jnp.where(near, jnp.ones_like(x), x)
    close = even_series(DSINHC, jnp.where(near, x, 0))
    return jnp.where(near, close, jnp.cosh(far) / far * (1 - jnp.tanh(far) / far) / far)


@jax.custom_jvp
def rise(x: Array, kappa: Array) -> Array:
    """`(sqrt(1 + kappa x^2) - 1)/s`, without cancellation."""
    return x * (lean(x, kappa) / jnp.sqrt(kappa))


@rise.defjvp
def _rise_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    s, out = jnp.sqrt(kappa), rise(x, kappa)
    h = hypot(s * x, jnp.ones_like(x))
    return out, s * (x / h) * dx + out / h / (2 * kappa) * dkappa


@jax.custom_jvp
def arc_over(x: Array, size: Array) -> Array:
    """`size asinh(x / size)`, 0 where size is 0."""
    return size * jnp.arcsinh(divide(x, size))


@arc_over.defjvp
def _arc_over_jvp(primals, tangents):
    (x, size), (dx, dsize) = primals, tangents
    q = divide(x, size)
    by_size = -q * asinhc_pull(q)
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
    whole = divide(x, size)
    inside, q = jnp.abs(whole) <= limit, jnp.clip(whole, -limit, limit)
    by_x = jnp.where(inside, jnp.cosh(q), 0)
    by_size = jnp.where(inside, -(q**3) * sinhc_slope(q), jnp.sinh(q))
    return size_sinh(x, size, limit), by_x * dx + by_size * dsize


def tanh_gap(x: Array) -> Array:
    """`tanh(x) - x`, without cancellation near 0."""
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
    s = jnp.sqrt(kappa)
    out = asinh_scaled(z, divide(s * scale, norm), excess, unit) / s
    return out * norm if outside else out


@plane_arc.defjvp
def _plane_arc_jvp(outside, primals, tangents):
    # By A itself: tanh A and tanh A - A neither overflow nor cancel.
    (z, unit, scale, norm, excess, kappa), (dz, _, _, dnorm, dexcess, dkappa) = primals, tangents
    s = jnp.sqrt(kappa)
    angle = asinh_scaled(z, divide(s * scale, norm), excess, unit)
    far = jnp.abs(angle) > 20
    near = divide(s * scale, norm) * jnp.exp(jnp.where(far, 0, excess))
    sinh = jnp.where(far, 0, z) * unit * jnp.where(far, 0, near)
    near = unit * (near / s) / hypot(sinh, jnp.ones_like(z))
    by_z = jnp.where(far, divide(jnp.ones_like(z), s * jnp.abs(z)), near)
    tanh, gap = jnp.tanh(angle), tanh_gap(angle)
    out, by_norm, size = angle / s, -divide(tanh, s * norm), jnp.ones_like(norm)
    if outside:
        out, by_norm, size = norm * out, -gap / s, norm
    tangent = size * (by_z * dz + tanh / s * dexcess + gap / (2 * kappa * s) * dkappa)
    return out, tangent + by_norm * dnorm


@jax.custom_jvp
def rejection(x: Array, v: Array) -> Array:
    """What of v is orthogonal to x, `v - x (x.v)/|x|^2`; v at x = 0."""
    return split(direction(x, safe_norm(x, keepdims=True)), v)[1]


@rejection.defjvp
def _rejection_jvp(primals, tangents):
    # The derivative of the direction of x alone would be multiplied by v before it is divided by x.
    (x, v), (dx, dv) = primals, tangents
    size = safe_norm(x, keepdims=True)
    unit = direction(x, size)
    along, turned = jnp.sum(unit * v, axis=-1, keepdims=True), split(unit, dx)[1]
    across = unit * jnp.sum(turned * divide(v, size), axis=-1, keepdims=True)
    return rejection(x, v), split(unit, dv)[1] - turned * divide(along, size) - across
