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
| `complement` | `1 - x^2` |
| `lean` | `s tanh(rho/2)`: how far transport from the origin leans outwards |
| `rise` | `(h - 1)/s`: how far the scaled time rises over that of the origin |
| `over_time` | `v/h`: length at x of a radial tangent vector with space part v |
| `asinhc_pull` | `x asinhc'(x)`: how fast asinhc falls, in proportion |
| `tanh_gap` | `tanh x - x` |
| `plane_arc` | distance from a plane, of the product of point and normal |
| `rejection` | `across` of v with respect to x |
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.scalars import (
    asinh_scaled,
    asinhc,
    asinhc_pull,
    direction,
    divide,
    hypot,
    safe_norm,
    sinhc_slope,
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
def complement(x: Array) -> Array:
    """`1 - x^2` for |x| < 1, precise up to the edge; its derivative is `-2 x` to the last bit."""
    return (1 - x) * (1 + x)


@complement.defjvp
def _complement_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return complement(x), -2 * x * dx  # (D9)


@jax.custom_jvp
def lean(x: Array, kappa: Array) -> Array:
    """`kappa x / (1 + h) = s tanh(rho/2)`.

    Its derivatives are `kappa/(h (1 + h))` and `x/(2 h)`.
    """
    s = jnp.sqrt(kappa)
    return s * (s * x / (1 + hypot(s * x, jnp.ones_like(x))))


@lean.defjvp
def _lean_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    h = hypot(jnp.sqrt(kappa) * x, jnp.ones_like(x))
    return lean(x, kappa), kappa / (1 + h) / h * dx + x / (2 * h) * dkappa  # (D10)


@jax.custom_jvp
def over_time(v: Array, x: Array, kappa: Array) -> Array:
    """`v / h`, the length of a radial tangent vector v at the size x.

    Far out its derivatives are products of moderate numbers; those of autodiff overflow.
    """
    return v / hypot(jnp.sqrt(kappa) * x, jnp.ones_like(x))


@over_time.defjvp
def _over_time_jvp(primals, tangents):
    (v, x, kappa), (dv, dx, dkappa) = primals, tangents
    s, out = jnp.sqrt(kappa), over_time(v, x, kappa)
    h = hypot(s * x, jnp.ones_like(x))
    share = x / h
    # (D11)
    return out, dv / h - out * (s * share) * (s / h) * dx - (out * share * share / 2) * dkappa


@jax.custom_jvp
def rise(x: Array, kappa: Array) -> Array:
    """`(h - 1)/s`, without cancellation."""
    return x * (lean(x, kappa) / jnp.sqrt(kappa))


@rise.defjvp
def _rise_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    s, out = jnp.sqrt(kappa), rise(x, kappa)
    h = hypot(s * x, jnp.ones_like(x))
    return out, s * (x / h) * dx + out / h / (2 * kappa) * dkappa  # (D12)


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
    s = jnp.sqrt(kappa)
    out = asinh_scaled(z, divide(s * scale, norm), excess, unit) / s
    return out * norm if outside else out


@plane_arc.defjvp
def _plane_arc_jvp(outside, primals, tangents):
    # By A itself (D16): tanh A and tanh A - A neither overflow nor cancel.
    (z, unit, scale, norm, excess, kappa), (dz, _, _, dnorm, dexcess, dkappa) = primals, tangents
    s = jnp.sqrt(kappa)
    angle = asinh_scaled(z, divide(s * scale, norm), excess, unit)
    far = jnp.abs(angle) > 20
    near = divide(s * scale, norm) * jnp.exp(jnp.where(far, 0, excess))
    sinh = jnp.where(far, 0, z) * unit * jnp.where(far, 0, near)
    near = unit * (near / s) / hypot(sinh, jnp.ones_like(z))
    by_z = jnp.where(far, divide(jnp.ones_like(z), s * jnp.abs(z)), near)  # (D17)
    tanh, gap = jnp.tanh(angle), tanh_gap(angle)
    out, by_norm, size = angle / s, -divide(tanh, s * norm), jnp.ones_like(norm)
    if outside:
        out, by_norm, size = norm * out, -gap / s, norm
    tangent = size * (by_z * dz + tanh / s * dexcess + gap / (2 * kappa * s) * dkappa)
    return out, tangent + by_norm * dnorm


@jax.custom_jvp
def rejection(x: Array, v: Array) -> Array:
    """The part of v orthogonal to x, `v - x (x.v)/|x|^2`; v at x = 0."""
    return split(direction(x, safe_norm(x, keepdims=True)), v)[1]


@rejection.defjvp
def _rejection_jvp(primals, tangents):
    # (D18). Autodiff would multiply the direction's derivative by v before it divides by |x|.
    (x, v), (dx, dv) = primals, tangents
    size = safe_norm(x, keepdims=True)
    unit = direction(x, size)
    along, turned = jnp.sum(unit * v, axis=-1, keepdims=True), split(unit, dx)[1]
    across = unit * jnp.sum(turned * divide(v, size), axis=-1, keepdims=True)
    return rejection(x, v), split(unit, dv)[1] - turned * divide(along, size) - across
