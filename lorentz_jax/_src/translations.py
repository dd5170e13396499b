"""Translations, the exponential map and tangent vectors, by their parts along a ray and across it.

Formulas over arrays `(..., D)` and a kappa that broadcasts against them, for `geometry`.
Symbols as in `radial`, equations in `docs/derivations.md`. Far out the part along the ray from the
origin is e^rho times longer than the rest: adding both and taking them apart loses the rest.
"""

import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.charts import scaled_time
from lorentz_jax._src.pairs import d_kappa_boost, dot
from lorentz_jax._src.radial import lean, over_time, rejection, rise
from lorentz_jax._src.scalars import (
    direction,
    divide,
    hypot,
    safe_norm,
    sinhc,
    sinhc_slope,
    split,
    with_kappa_jvp,
)


def _light_cone(along, floor, time):
    """`time + along` and `time - along`, of product `floor^2`, without cancellation."""
    ahead = along >= 0
    larger = time + jnp.where(ahead, along, -along)
    smaller = floor * divide(floor, larger)
    return jnp.where(ahead, larger, smaller), jnp.where(ahead, smaller, larger)


def _boost(p, x, kappa):
    """The translation that takes the origin to p, applied to x."""
    s = jnp.sqrt(kappa)
    a, pt = safe_norm(p, keepdims=True), scaled_time(p, kappa)
    u, stretch = direction(p, a), s * a + pt  # e^rho
    # Where x returns to the origin all is in proportion to the rest p + x (D25).
    rest = p + x
    along_rest, across_rest = split(u, rest)
    missing = s * (along_rest + dot(rest, (p - x) * (s / (pt + scaled_time(x, kappa))))) / stretch
    tall = s * safe_norm(across_rest, keepdims=True)
    returns = (2 * safe_norm(rest, keepdims=True) < a) & (jnp.abs(missing) < 0.5) & (tall < 1)
    missing, tall = jnp.where(returns, missing, 0), jnp.where(returns, tall, 0)
    # (D26)
    back = across_rest + u * ((tall * tall + missing * (2 - missing)) / (2 * s * (1 - missing)))
    x = jnp.where(returns, jnp.zeros_like(x), x)  # a branch not taken must not overflow
    along, across = split(u, x)
    # A boost multiplies the light-cone coordinates s (x_t +- u.x) by e^(+-rho) (D23).
    floor = hypot(s * safe_norm(across, keepdims=True), jnp.ones_like(a))
    plus, minus = _light_cone(s * along, floor, scaled_time(x, kappa))
    # (D24)
    near = x + (p + u * rise(a, kappa)) * ((plus + divide(minus, stretch)) / 2)
    far = across + u * ((stretch * plus - divide(minus, stretch)) / (2 * s))
    # `near` is exact through the origin; `far` when x and p are far out and may cancel.
    moved = jnp.where((s * a < 1) | (jnp.abs(s * along) < 1), near, far)
    return jnp.where(returns, back, moved)


# In kappa the light-cone coordinates would cancel (D28).
boost = with_kappa_jvp(_boost, d_kappa_boost)


def to_origin(x, v, kappa) -> Array:
    """Transport of v from x to the origin."""
    near = jnp.sqrt(kappa) * safe_norm(x, keepdims=True) < 1
    across, along = _parts(x, v, kappa)
    unit = direction(x, safe_norm(x, keepdims=True))
    return jnp.where(near, _to_origin_near(x, v, kappa, near), across + unit * along)


def _to_origin_near(x, v, kappa, near):
    close = jnp.where(near, x, jnp.zeros_like(x))
    time = scaled_time(close, kappa)
    return v - close * (kappa * dot(close, v) / ((1 + time) * time))  # (D29)


def from_origin(y, v, kappa) -> Array:
    """Transport of v from the origin to y."""
    size = safe_norm(y, keepdims=True)
    # Far out y may have coordinates 1e-37 times as large as others, and their products count too.
    large = jnp.where(jnp.sqrt(kappa) * size > 1, 2.0**60, 1.0).astype(y.dtype)
    return v + y * (lean(size, kappa) / large) * dot(direction(y, size) * large, v)  # (D29)


def _parts(x, v, kappa):
    """Split v at x into its part orthogonal to x and its signed radial length (D29)."""
    size = safe_norm(x, keepdims=True)
    unit = direction(x, size)
    # v is shortened first: far out the derivative of its product with x would overflow.
    return rejection(x, v), dot(unit, over_time(v, size, kappa))


def product_at(x, u, v, kappa) -> Array:
    """Riemannian product at x."""
    near = jnp.sqrt(kappa) * safe_norm(x, keepdims=True) < 1
    close, away = jnp.where(near, x, jnp.zeros_like(x)), jnp.where(near, jnp.zeros_like(x), x)
    times = dot(close, u) * dot(close, v) * (kappa / scaled_time(close, kappa) ** 2)
    (a, along_a), (b, along_b) = _parts(away, u, kappa), _parts(away, v, kappa)
    return jnp.where(near, dot(u, v) - times, dot(a, b) + along_a * along_b)  # (D30)


def length_at(x, v, kappa) -> Array:
    """Length of v at x."""
    near = jnp.sqrt(kappa) * safe_norm(x, keepdims=True) < 1
    across, along = _parts(jnp.where(near, jnp.zeros_like(x), x), v, kappa)
    far = hypot(safe_norm(across, keepdims=True), along)
    return jnp.where(near, safe_norm(_to_origin_near(x, v, kappa, near), keepdims=True), far)


def exponential_at_origin(v, kappa) -> Array:
    """`sinhc(s|v|) v`."""
    return sinhc(jnp.sqrt(kappa) * safe_norm(v, keepdims=True)) * v


def _d_kappa_exponential(x, v, kappa):
    """(D32), of `cosh(s L) x + sinhc(s L) v` for v of length L; `square` is that of (s L)^2."""
    across, along = _parts(x, v, kappa)
    scaled = jnp.sqrt(kappa) * length_at(x, v, kappa)
    square = dot(across, across) + over_time(along, safe_norm(x, keepdims=True), kappa) ** 2
    return square / 2 * (sinhc(scaled) * x + sinhc_slope(scaled) * v)


def _exponential(x, v, kappa):
    """exp at x of v."""
    s, a = jnp.sqrt(kappa), safe_norm(x, keepdims=True)
    near = s * a < 1
    close, short = (jnp.where(near, z, jnp.zeros_like(z)) for z in (x, v))
    start = exponential_at_origin(_to_origin_near(close, short, kappa, near), kappa)
    through = _boost(close, start, kappa)
    # The same by parts (D31). With the vector at the origin formed, its direction would be rounded.
    away = jnp.where(near, jnp.zeros_like(x), x)
    across, along = _parts(away, v, kappa)
    length = hypot(safe_norm(across, keepdims=True), along)
    grown = sinhc(s * length)
    across, along = grown * across, s * (grown * along)
    time = hypot(s * (grown * length), jnp.ones_like(a))
    floor = hypot(s * safe_norm(across, keepdims=True), jnp.ones_like(a))
    plus, minus = _light_cone(along, floor, time)
    size = safe_norm(away, keepdims=True)
    u, stretch = direction(away, size), s * size + scaled_time(away, kappa)
    moved = (away + u * rise(size, kappa)) * ((plus + divide(minus, stretch)) / 2) + u * (along / s)
    far = u * ((stretch * plus - divide(minus, stretch)) / (2 * s))
    out = across + jnp.where(jnp.abs(along) < 1, moved, far)
    return jnp.where(near, through, out)


exponential = with_kappa_jvp(_exponential, _d_kappa_exponential)
