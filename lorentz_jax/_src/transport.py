"""Parallel transport from point to point, by the parts of the vector along the start and across it.

Formulas over arrays `(..., D)` and a kappa that broadcasts against them, for `geometry`. Symbols as
in `radial` and `pairs`, equations in `docs/derivations.md`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from lorentz_jax._src.pairs import Chord, chord, chord_gap
from lorentz_jax._src.scalars import direction, divide, hypot, safe_norm
from lorentz_jax._src.smooth import NEAR, dot, split


class _Parts(NamedTuple):
    """A vector at x by its parts along x and across it; all of it is across for rho < 1."""

    close: Array
    """x within rho < 1 of the origin, 0 beyond."""
    size: Array
    """|x| and direction, 0 within."""
    unit: Array
    across: Array
    alpha: Array
    """The length of the radial part, `u_x.v / h_x`."""
    boosted: Array
    """`w / cosh(s d/2)`, w the part along x of y moved by the translation of x to the origin."""
    shrink: Array
    """`H^(-1/2) = 1 / cosh(s d/2)`."""


@jax.custom_jvp
def _parts(x: Array, y: Array, v: Array, kappa: Array, chord: Chord) -> _Parts:
    """The parts, with closed derivatives; `chord` is that of x and y, and its own are not used."""
    p, gamma, rx, ry, _ = chord
    away = jnp.where(rx * rx < NEAR, jnp.zeros_like(x), x)
    size, ix = safe_norm(away, keepdims=True), 1 / rx
    unit = direction(away, size)
    along, across = split(unit, v)
    shrink = 1 / hypot(jnp.sqrt(kappa) * p, jnp.ones_like(p))
    boosted = -dot(gamma * shrink, unit) * (rx * ry)
    return _Parts(x - away, size, unit, across, along * ix * ix, boosted, shrink)


def _parts_jvp(primals, tangents):
    # (D109): in each direction terms of the size of their sum.
    (x, y, v, kappa, chord), (dx, dy, dv, dkappa, _) = primals, tangents
    dx, dy, dv = (jnp.zeros_like(x) if type(t) is SymbolicZero else t for t in (dx, dy, dv))
    out = _parts(x, y, v, kappa, chord)
    (_, gamma, rx, ry, _), (_, size, unit, across, alpha, boosted, shrink) = chord, out
    ix, iy, inverse = 1 / rx, 1 / ry, divide(jnp.ones_like(size), size)
    radial, grown = dot(unit, dx), dot(unit, dv)
    sidestep, stretch = dx - unit * radial, rx * inverse * rx
    turned = sidestep * inverse
    sideways = dot(turned, across)
    dacross = dv - unit * grown - sidestep * (alpha * stretch) - unit * sideways
    pull = alpha * (kappa * (size * ix * ix))
    dalpha = (grown + sideways) * ix * ix - pull * (radial * ix * ix)
    away = dot(gamma * shrink, dx * (ry * ix) - dy * (rx * iy))
    fall = kappa / 4 * shrink * away
    rest = radial * ((2 / shrink * ix - shrink * ix) * ix + boosted * inverse)
    dboosted = dot(y * iy * iy, dy) * (shrink * inverse) - stretch * away - rest
    dclose = dx - jnp.where(rx * rx < NEAR, jnp.zeros_like(dx), dx)
    dboosted, dshrink = dboosted - boosted * fall, -shrink * fall
    if type(dkappa) is not SymbolicZero:  # a second derivative
        u, side, scaled = size * ix * ix, chord.across * (rx * iy), gamma * shrink
        shrunk = dot(scaled, scaled) / 8
        lift = dot(unit, y) * iy * iy * boosted + dot(side * shrink, side)
        dalpha = dalpha - alpha * u * u / 2 * dkappa
        dboosted = dboosted - (u / 2 * lift + shrunk * boosted) * dkappa
        dshrink = dshrink - shrunk * shrink * dkappa
    return out, _Parts(dclose, radial, turned, dacross, dalpha, dboosted, dshrink)


_parts.defjvp(_parts_jvp, symbolic_zeros=True)


def _whole(parts: _Parts, chord: Chord, y: Array, kappa: Array) -> Array:
    """`v + F (x + y)` (D50), with the part along x in closed form where it may cancel (D108)."""
    (close, size, unit, across, alpha, boosted, shrink), (_, gamma, rx, ry, _) = parts, chord
    ix, sideways = 1 / rx, dot(gamma * shrink, across)
    lean = ry * ix * sideways - alpha * boosted
    straight = alpha * (rx * shrink * rx + ry * shrink * ry) * shrink
    straight = straight - kappa * (size * ix) * (ry * shrink) * sideways
    return across + unit * (straight / 2) - (kappa / 2 * shrink * lean) * (close + y)


def _by_kappa(parts: _Parts, chord: Chord, x: Array, y: Array, kappa: Array) -> Array:
    """(D110) near the origin, (D111) beyond."""
    (close, a, unit, across, alpha, _, shrink), (_, gamma, rx, ry, apart) = parts, chord
    ix, iy, gap = 1 / rx, 1 / ry, chord_gap(x, y, chord)
    tx, ty, jx, jy, square = rx * rx, ry * ry, ix * ix, iy * iy, shrink * shrink
    mean = kappa * gap / 2
    near = 2 * kappa * dot(close, across) * gap * (jx + jy) * (ry * ix) * jx
    near = near - 4 * (ry * ix) * dot(gamma * shrink, across) * shrink * (1 + mean * mean)
    along, ahead, length = dot(unit, y), dot(unit, y - x), safe_norm(apart, keepdims=True)
    b, u, w = hypot(along, length), a * jx, along * jy
    steep = w < -u / 2
    share = 1 / jnp.where(steep | (u == 0), jnp.ones_like(u), u + w)
    slant = length * (iy * rx) * shrink
    inner = u * share * ((jy + kappa * w * along + ty + 2 * tx) * shrink) * shrink
    inner = kappa * (u * jx) * slant * slant * (inner + 2 * jx)
    inner = inner - 2 * (jx + jy) * ahead * ((w * jx + u * jy) * share * jx) * square
    mixed = ((a + b) * jx + (a + b) * jy) * square
    straight = divide(jnp.full_like(a, 2), u + b * jy) - kappa * ((a + b) / (tx + ty))
    bend = 2 * (b - along) * shrink * (shrink * (tx + ty + (jy - ty * jx * jx) / 2))
    outer = ((a - b) * jx * mixed * straight + bend) * square
    far = (2 + tx * jy + ty * jx) * shrink * dot(apart * shrink, across) * square
    far = far - alpha * jnp.where(steep, outer, inner)
    return jnp.where(a > 0, far, near * square) / 8 * (x + y)


@jax.custom_jvp
def transported(x: Array, y: Array, v: Array, kappa: Array) -> Array:
    """Transport of v from x to y."""
    c = chord(x, y, kappa)
    return _whole(_parts(x, y, v, kappa, c), c, y, kappa)


@transported.defjvp
def _transported_jvp(primals, tangents):
    # All at once, so that nothing is computed twice; in kappa autodiff would cancel.
    (x, y, v, kappa), (dx, dy, dv, dkappa) = primals, tangents
    c, dc = jax.jvp(lambda x, y: chord(x, y, kappa, order=1), (x, y), (dx, dy))
    parts, dparts = jax.jvp(lambda x, y, v: _parts(x, y, v, kappa, c), (x, y, v), (dx, dy, dv))
    arguments, moves = (parts, c, y), (dparts, dc, dy)
    out, tangent = jax.jvp(lambda p, c, y: _whole(p, c, y, kappa), arguments, moves)
    return out, tangent + _by_kappa(parts, c, x, y, kappa) * dkappa
