"""Two points: their half chord, and what is made of it.

Formulas over space parts `(..., D)` and a kappa that broadcasts against them, for `geometry`;
results keep the coordinate axis. Symbols as in `radial`; `(D35)` and so on are equations of
`docs/derivations.md`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax._src.arguments import row
from lorentz_jax._src.radial import arc
from lorentz_jax._src.scalars import (
    asinhc,
    asinhc_pull,
    direction,
    divide,
    hypot,
    less_multiple,
    safe_norm,
    seen,
)
from lorentz_jax._src.smooth import dot


class Chord(NamedTuple):
    """What two points are to each other; `x_|` is the part of y across x."""

    p: Array
    """The half chord `sinh(s d / 2) / s`, `(..., 1)`; `|x - y| / 2` as kappa -> 0."""
    gamma: Array
    """`x sqrt(h_y/h_x) - y sqrt(h_x/h_y)`, `(..., D)`: the direction of both derivatives of p."""
    rx: Array
    """`sqrt(h_x)`, `(..., 1)`."""
    ry: Array
    across: Array
    """The part of y across x, `(..., D)`; all of it where x is the origin."""


def _chord(x: Array, y: Array, kappa: Array, order: int) -> Chord:
    """`Chord` by the parts of y along x and across it, without cancellation (D103), (D104)."""
    s, one = jnp.sqrt(kappa), jnp.ones_like(x[..., :1])
    size = safe_norm(x, keepdims=True)
    unit = direction(x, size)
    along, ahead = dot(unit, y), dot(unit, y - x)
    # At distance rho an error of the direction is worth a distance e^rho times larger (D103).
    inverse, close = divide(one, size), 2 * jnp.abs(ahead) < size
    factor = jnp.where(close, 1 + ahead * inverse, along * inverse)
    rest = less_multiple(y, factor, x)
    across = rest - unit * dot(unit, rest)
    length = safe_norm(across, keepdims=True)
    tx, ty = hypot(s * size, one), hypot(s * hypot(along, length), one)
    rx, ry = jnp.sqrt(tx), jnp.sqrt(ty)
    # Products with inverse roots: XLA makes `a / (b c)` of `a / b / c`, which overflows far out.
    ix, iy = 1 / rx, 1 / ry
    ahead, side = ahead * ix * iy, length * iy * rx
    u, v = size * ix * ix, along * iy * iy
    share = 1 / jnp.where(v > 0, u + v, one)
    acute = ahead * ((v * ix * ix + u * iy * iy) * share)
    acute = acute - side * (kappa * u * (length * iy * iy)) * (u * share)
    straight = jnp.where(v > 0, acute, (v - u) * (rx * ry))
    inverse = 1 / (tx + ty)
    gap = ahead * ((along + size) * inverse) + side * ix * (length * inverse) * ix
    p = hypot(hypot(side, straight), s * gap) / 2
    return Chord(seen(p, order), -(across * (iy * rx) + unit * straight), rx, ry, across)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def chord(x: Array, y: Array, kappa: Array, order: int = 0) -> Chord:
    """All of `Chord`; `order` as in `safe_norm`, for p alone."""
    return _chord(x, y, kappa, order)


def chord_gap(x: Array, y: Array, chord: Chord) -> Array:
    """`E = (h_x - h_y)/(kappa sqrt(h_x h_y))`, with `4 p^2 = |Gamma|^2 + kappa E^2` (D101)."""
    _, _, rx, ry, _ = chord
    return dot((x - y) * (1 / rx), (x + y) * (1 / (rx * rx + ry * ry))) * (1 / ry)


@chord.defjvp
def _chord_jvp(order, primals, tangents):
    (x, y, kappa), (dx, dy, dkappa) = primals, tangents
    out = chord(x, y, kappa, min(order + 1, 2))
    p, gamma, rx, ry, across = out
    ix, iy = 1 / rx, 1 / ry
    phi, back, gap = ry * ix, rx * iy, chord_gap(x, y, out)
    qx, qy = x * ix * ix, y * iy * iy
    wx, wy = kappa / 2 * dot(qx, dx), kappa / 2 * dot(qy, dy)
    # (D102)
    dp = dot(divide(gamma, 4 * p), phi * dx - back * dy) - divide(gap, p) * (gap / 8) * dkappa
    turn = wy * back - wx * phi - gap * (ix * ix + iy * iy) / 4 * dkappa
    # Written with dx - dy: a joint movement of coincident points leaves exactly 0 (D105).
    dgamma = phi * (dx - dy) - kappa * gap * dy + (qx + qy) * turn
    drx, dry = ix * wx + dot(x * ix, qx) / 4 * dkappa, iy * wy + dot(y * iy, qy) / 4 * dkappa
    return out, Chord(dp, dgamma, drx, dry, _across_slope(x, y, across, dx, dy))


def _across_slope(x, y, across, dx, dy):
    """The differential of the part of y across x, for x off the origin (D18)."""
    size = safe_norm(x, keepdims=True, order=1)
    unit, inverse = direction(x, size), divide(jnp.ones_like(size), size)
    turned = (dx - unit * dot(unit, dx)) * inverse
    return dy - unit * dot(unit, dy) - turned * dot(unit, y) - unit * dot(turned, across)


def _ordered(x: Array, y: Array) -> tuple[Array, Array]:
    """Both points in an order that does not depend on which comes first."""
    weights = jnp.asarray(np.sin(np.arange(1, x.shape[-1] + 1)), x.dtype)
    kept = jax.lax.stop_gradient(dot(row(weights, x), x - y)) >= 0
    return jnp.where(kept, x, y), jnp.where(kept, y, x)


def half_chord(x: Array, y: Array, kappa: Array) -> Array:
    """`p = sinh(s d / 2) / s`, `|x - y| / 2` as kappa -> 0; symmetric to the last bit."""
    return chord(*_ordered(x, y), kappa).p


@jax.custom_jvp
def minkowski(x: Array, y: Array, kappa: Array) -> Array:
    """`-x_t y_t + x.y = -1/kappa - 2 p^2`, `(..., 1)`."""
    p = half_chord(x, y, kappa)
    return -(1 / kappa + 2 * p * p)


@minkowski.defjvp
def _minkowski_jvp(primals, tangents):
    # (D102), `d(2 p^2) = 4 p dp`: formed from p, the terms of its derivative in kappa would cancel.
    (x, y, kappa), (dx, dy, dkappa) = primals, tangents
    out = chord(x, y, kappa, 1)
    gap, move = chord_gap(x, y, out), dx * (out.ry / out.rx) - dy * (out.rx / out.ry)
    by_kappa = 1 / kappa / kappa + gap * gap / 2
    return minkowski(x, y, kappa), by_kappa * dkappa - dot(out.gamma, move)


@jax.custom_jvp
def squared_distance(x: Array, y: Array, kappa: Array) -> Array:
    """`d^2`, smooth everywhere; shape `(..., 1)`."""
    return (2 * arc(half_chord(x, y, kappa), kappa)) ** 2


@squared_distance.defjvp
def _squared_distance_jvp(primals, tangents):
    (x, y, kappa), (dx, dy, dkappa) = primals, tangents
    out = chord(x, y, kappa, 1)
    p, gamma, rx, ry, _ = out
    gap, q = chord_gap(x, y, out), jnp.sqrt(kappa) * p
    ratio, inverse = asinhc(q), 1 / hypot(q, jnp.ones_like(q))
    by_kappa = 4 * arc(p, kappa) * (p * asinhc_pull(q)) / kappa - ratio * gap * (gap * inverse)
    move = dx * (ry / rx) - dy * (rx / ry)
    by_points = 2 * ratio * dot(gamma * inverse, move)  # (D106); far out A itself underflows
    return squared_distance(x, y, kappa), by_points + by_kappa * dkappa


def log_factors(q):
    """`log = A (y - x) - B x`: A, B and their derivatives in `q = sinh(s d/2)` times q.

    `A = asinh(q)/(q cosh)`, `B = 2 q asinh(q)/cosh`, `cosh = sqrt(1 + q^2)`. No square of q, which
    may overflow, is formed, and no two terms cancel.
    """
    cosh, ratio = hypot(q, jnp.ones_like(q)), asinhc(q)
    share = (q / cosh) ** 2
    a = ratio / cosh
    b = 2 * (q / cosh) * (q * ratio)  # (D39)
    return a, b, (asinhc_pull(q) - ratio * share) / cosh, 2 * share * (1 + a)  # (D40)


@jax.custom_jvp
def logarithm(x: Array, y: Array, kappa: Array) -> Array:
    """log at x of y."""
    a, b, _, _ = log_factors(jnp.sqrt(kappa) * half_chord(x, y, kappa))
    return a * (y - x) - b * x


@logarithm.defjvp
def _logarithm_jvp(primals, tangents):
    (x, y, kappa), (dx, dy, dkappa) = primals, tangents
    p, gamma, rx, ry, _ = chord(x, y, kappa, 1)
    a, b, slope_a, slope_b = log_factors(jnp.sqrt(kappa) * p)
    unit = divide(gamma, 2 * p)
    # dq/q, the part in kappa being |Gamma|^2/(8 kappa p^2): it depends on z = kappa p^2 alone.
    grown = dot(unit, dx * (ry / rx) - dy * (rx / ry)) / 2  # (D41)
    by_q = divide(slope_a, p) * (y - x) - divide(slope_b, p) * x
    by_kappa = dot(unit, unit) / (2 * kappa) * (slope_a * (y - x) - slope_b * x)  # (D107)
    by_points = a * (dy - dx) - b * dx + by_q * grown
    return logarithm(x, y, kappa), by_points + by_kappa * dkappa
