"""Translations, the exponential map and tangent vectors, by their parts along a ray and across it.

Formulas over arrays `(..., D)` and a kappa that broadcasts against them, for `geometry`.
Symbols as in `radial`, equations in `docs/derivations.md`. Far out the part along the ray from the
origin is e^rho times longer than the rest: adding both and taking them apart loses the rest.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from lorentz_jax._src.scalars import divide, seen
from lorentz_jax._src.smooth import (
    NEAR,
    dot,
    grown,
    outward,
    over,
    polar,
    scaled_time,
    size,
    split,
    with_jvp,
)


def _outward(x, kappa):
    """Scaled time of x, and x split in two: `inner` near the origin, size and direction beyond.

    What belongs to the other case is 0, with all its derivatives, so that a sum chooses.
    """
    time, size, axis = outward(x, kappa)
    near = time < NEAR
    return time, near, jnp.where(near, axis, 0), size, jnp.where(near, 0, axis)


def _boost_parts(p, x, kappa):
    """T_p(x) and what its derivatives need."""
    s = jnp.sqrt(kappa)
    pt, near, inner, a, u = _outward(p, kappa)
    xt, stretch = scaled_time(x, kappa), s * a + pt  # stretch is e^rho beyond `near`
    rest = p + x
    # Where x returns to the origin all is in proportion to the rest p + x (D25).
    share = rest / jnp.where(near, 1, a)
    returns = ~near & (dot(share, share) < 0.25)
    along, across = split(u, jnp.where(returns, rest, x))
    forward = along - jnp.where(returns, a, 0)  # u.x
    # A boost multiplies the light-cone coordinates h_x +- s u.x by e^(+-rho) (D23).
    ahead = forward >= 0
    larger = xt + s * jnp.where(ahead, forward, -forward)
    bulge = kappa * dot(across, over(across, larger))
    plus = jnp.where(ahead, larger, over(jnp.ones_like(larger), larger) + bulge)
    moved = a * plus + over(forward, stretch)  # (D133)
    missing = along + s * dot(rest, over(p - x, pt + xt))
    missing = jnp.where(returns, over(s * missing, stretch), 0)
    scale = jnp.where(returns, stretch, 1)
    back = scale * (bulge + over(missing * (2 - missing), larger)) / (2 * s)  # (D26)
    # (D134)
    low = jnp.where(near, pt, 1)  # beyond it the products would overflow
    turned = x * over(1 + low, low + xt) + inner * over(xt - 1, low + xt)
    gain = kappa * over(dot(rest, turned), 1 + low)
    climb = jnp.where(near, 1 + gain, plus - over(2 * s * forward, 1 + stretch))
    climbed = jnp.where(returns, back, moved)
    out = (across + inner) + inner * gain + u * climbed
    return out, (pt, xt, near, inner, a, u, across, forward, climb, climbed)


def _d_boost(primals, out, parts, moves):
    """(D135)."""
    (_, x, kappa), (dp, dx) = primals, moves
    pt, xt, near, inner, a, u, across, forward, climb, _ = parts
    time, s = scaled_time(out, kappa), jnp.sqrt(kappa)
    one = jnp.ones_like(pt)
    lift_x, lift_p = (s * over(s * jnp.where(near, one, a), t) for t in (xt, 1 + pt))
    bend = -over(over(kappa * over(kappa * dot(inner, x), 1 + pt), 1 + pt), pt)  # (D152)
    by_x = jnp.where(near, over(kappa * one, 1 + pt), over(time, xt))
    by_p = jnp.where(near, bend, over(time, pt))
    # A small x leaves p almost as it is, and so the parts of dp must not be taken apart.
    close = ~near & (xt < NEAR)
    by_x = by_x - jnp.where(close, 1, 0)
    by_p = jnp.where(close, over(s * over(s * a, pt) * forward, 1 + pt), by_p)  # (D150)
    axis = inner + u
    radial = dot(across, lift_x * dx + lift_p * dp) + dot(axis, by_x * dx + by_p * dp)
    moved = dx + climb * dp
    return jnp.where(close, moved, split(u, moved)[1]) + axis * radial


def _d_kappa_boost(primals, _, parts):
    """(D136), `p/2 (|x|^2/h_x + p.x/h_p)`."""
    (p, x, kappa), (pt, xt, near, inner, a, _, across, forward, _, _) = primals, parts
    low = jnp.where(near, pt, 1)
    s, one = jnp.sqrt(kappa), jnp.ones_like(pt)
    scaled = s * x
    bulge = dot(scaled, over(scaled, xt))  # h_x - 1/h_x
    close = x * over(low + 1 / xt, low + xt) + inner * over(bulge, low + xt)
    close = over(dot(s * inner + scaled, close), low)
    opposite = (forward < 0) & (xt > NEAR)
    size, _ = polar(jnp.where(opposite, x, 0))
    v, w = over(s * a, pt), over(size, xt)
    sideways = dot(across, over(across, jnp.where(opposite, size - forward, 1)))
    apart = over(one, jnp.where(opposite, pt * (v + s * w), 1))
    gap = s * (s * w) * over(size - a, pt) * over(size + a, xt) * apart
    plain = dot(scaled, over(x, xt)) + v * forward
    beyond = jnp.where(opposite, gap + v * sideways, plain)
    return (inner * (close / 2) + jnp.where(near, 0, p) * (beyond / 2)) / s


boost = with_jvp(_boost_parts, _d_boost, _d_kappa_boost)
"""The translation that takes the origin to p, applied to x."""


def _tangent_parts(x, v, kappa):
    """The parts of v at x, its lowered form `n = G v`, and `tilt = kappa x.v/h^2` (D137)."""
    time, near, inner, a, u = _outward(x, kappa)
    radial, across = split(u, v)
    along, s, low = over(radial, time), jnp.sqrt(kappa), jnp.where(near, time, 1)
    tilt = s * over(s * a, time) * along + over(kappa * dot(inner, v), low * low)
    lowered = across + u * (along * over(jnp.ones_like(time), time)) - inner * tilt
    return (time, near, inner, a, u), across, along, lowered, tilt


def _to_origin(x, v, kappa):
    parts = _tangent_parts(x, v, kappa)
    (time, _, inner, _, u), across, along, _, tilt = parts
    return across + u * along - inner * over(tilt * time, 1 + time), parts  # (D29)


def _d_to_origin(primals, _, parts, moves):
    """(D138)."""
    (_, _, kappa), (dx, dv) = primals, moves
    (time, near, inner, a, u), across, _, _, tilt = parts
    s, one = jnp.sqrt(kappa), jnp.ones_like(time)
    once = over(one, time)
    fall, share = over(tilt * time, 1 + time), kappa * once * over(one, 1 + time)
    by_v = jnp.where(near, -share, once)
    by_across = -jnp.where(near, share, s * over(s * a, 1 + time) * once)
    by_x = jnp.where(near, fall * share * over(1 + 2 * time, time), -tilt * once)
    axis = inner + u
    radial = dot(axis, by_v * dv + by_x * dx) + by_across * dot(across, dx)
    return split(u, dv - fall * dx)[1] + axis * radial


def _d_kappa_to_origin(primals, _, parts):
    (x, v, _), time = primals, parts[0][0]
    klein = over(x, time)
    return klein * (dot(klein, over(v, time)) / -2)  # (D139)


to_origin = with_jvp(_to_origin, _d_to_origin, _d_kappa_to_origin)
"""Transport of v from x to the origin."""


def _leaning(y, kappa):
    """`y sqrt(kappa/(1 + h))`, twice a factor of the transport from the origin (D140)."""
    time = scaled_time(y, kappa)
    return y * (jnp.sqrt(kappa) / jnp.sqrt(1 + time)), time


def _d_leaning(primals, out, time, moves):
    (y, kappa), (dy,) = primals, moves
    root = jnp.sqrt(1 + time)
    return over(jnp.sqrt(kappa) * dy, root) - over(out, 2 * (1 + time)) * dot(
        y * over(kappa, time), dy
    )


def _d_kappa_leaning(primals, out, time):
    kappa = primals[1]
    return out * (over(1 + time, time) / (4 * kappa))


leaning = with_jvp(_leaning, _d_leaning, _d_kappa_leaning)


def from_origin(y, v, kappa) -> Array:
    """Transport of v from the origin to y."""
    lean = leaning(y, kappa)
    return v + lean * dot(lean, v)  # (D140)


def _product_at(x, u, v, kappa):
    return dot(to_origin(x, u, kappa), to_origin(x, v, kappa)), None


def _d_product_at(primals, _, __, moves):
    """(D141)."""
    (x, u, v, kappa), (dx, du, dv) = primals, moves
    *_, lowered_u, tilt_u = _tangent_parts(x, u, kappa)
    *_, lowered_v, tilt_v = _tangent_parts(x, v, kappa)
    return dot(lowered_u, dv - tilt_v * dx) + dot(lowered_v, du - tilt_u * dx)


def _d_kappa_product_at(primals, _, __):
    x, u, v, kappa = primals
    time = scaled_time(x, kappa)
    klein = over(x, time)
    return -dot(klein, over(u, time)) * dot(klein, over(v, time))


product_at = with_jvp(_product_at, _d_product_at, _d_kappa_product_at)
"""Riemannian product at x."""


@functools.cache
def _length(order: int) -> Callable[..., Array]:
    """Length of v at x as `order` derivatives see it, as in `safe_norm` (D100)."""

    def evaluate(x, v, kappa):
        length = size(to_origin(x, v, kappa))
        return seen(length, order), None

    def d_arrays(primals, length, _, moves):
        dx, dv = moves
        *_, lowered, tilt = _tangent_parts(*primals)
        return dot(divide(lowered, length), dv - tilt * dx)  # (D141)

    def d_kappa(primals, length, _):
        x, v, kappa = primals
        time = scaled_time(x, kappa)
        along = dot(over(x, time), over(v, time))
        return along * divide(along, -2 * length)

    following = None if order == 2 else lambda: _length(order + 1)
    return with_jvp(evaluate, d_arrays, d_kappa, following)


def length_at(x, v, kappa) -> Array:
    """Length of v at x."""
    return _length(0)(x, v, kappa)


def exponential_at_origin(v, kappa) -> Array:
    """`sinhc(s|v|) v`."""
    # Linear in kappa: of the square of `sqrt(kappa) v` second derivatives would cancel.
    return grown(dot(kappa * v, v), 1)[1] * v


def _exponential_parts(x, v, kappa):
    """exp at x of v, and what its derivatives need."""
    s = jnp.sqrt(kappa)
    frame, across, along, lowered, tilt = _tangent_parts(x, v, kappa)
    time, _, inner, a, u = frame
    scaled = s * across
    wide = dot(scaled, scaled)
    square = wide + jnp.square(s * along) - kappa * (tilt * dot(inner, v))  # of s times the length
    cosh, sinhc, slope = grown(square, 1)
    # (D31), (D133) of the parts at the origin
    forward = s * (sinhc * along)
    ahead = along >= 0
    larger = cosh + jnp.where(ahead, forward, -forward)
    smaller = over(jnp.ones_like(cosh), larger) + sinhc * over(sinhc, larger) * wide
    climb = a * jnp.where(ahead, larger, smaller) + over(sinhc * along, s * a + time)
    out = sinhc * across + inner * cosh + u * climb
    return out, (frame, (across, along, lowered, tilt), (wide, cosh, sinhc, slope))


def _d_exponential(primals, out, parts, moves):
    """(D142)."""
    (_, _, kappa), (dx, dv) = primals, moves
    (time, near, inner, a, u), (across, along, lowered, tilt), (wide, cosh, sinhc, slope) = parts
    reach = scaled_time(out, kappa)
    free = dv - tilt * dx
    stretched = kappa * dot(lowered, free)
    share, far = over(sinhc, cosh), over(reach, cosh)
    outward = stretched * slope * (share * a * wide + far * along)
    s = jnp.sqrt(kappa)
    sideways = s * a * sinhc * share * dot(s * across, free)
    # A small v leaves x almost as it is, and so the parts of dx must not be taken apart.
    close = ~near & (cosh < NEAR)
    by_free = jnp.where(close, sinhc * share * tilt, over(far * sinhc, time))  # (D151)
    ahead = dot(u, by_free * free + jnp.where(close, 0, over(reach, time)) * dx)
    bent = across * (stretched * slope) + inner * (stretched * sinhc)
    moved = cosh * dx + sinhc * dv
    across = jnp.where(close, moved, split(u, moved)[1])
    return across + bent + u * (outward + sideways + ahead)


def _d_kappa_exponential(primals, _, parts):
    """(D32), of `cosh(s L) x + sinhc(s L) v` for v of length L."""
    (x, v, _), ((time, _, inner, _, _), (across, along, _, tilt), powers) = primals, parts
    _, _, sinhc, slope = powers
    rate = dot(across, across) + jnp.square(along * over(jnp.ones_like(time), time))
    rate = rate - tilt * dot(inner, v) * (1 + 1 / time / time)
    return rate / 2 * (sinhc * x + slope * v)


exponential = with_jvp(_exponential_parts, _d_exponential, _d_kappa_exponential)
