"""Points seen from a centre, by numbers of which sums and products are formed without cancellation.

The boost that takes a centre p to the origin takes a point x to y. Sums of `(y_t, y)` and products
of them are those of the points themselves, but near p nothing cancels in them, however far out p
is. The centre is a choice of coordinates: results do not depend on it, so it carries no derivative.
Formulas square their arguments, as layers may. `(D170)` and so on are equations of
`docs/derivations.md`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from lorentz_jax._src.arguments import row
from lorentz_jax._src.smooth import dot

CENTERS = ("middle", "origin")
"""Centres that have a name."""


def check_center(center: str) -> str:
    """Return `center`; raise `ValueError` unless it is the name of one."""
    if center not in CENTERS:
        raise ValueError(f"center must be one of {CENTERS}, got {center!r}")
    return center


class Centred(NamedTuple):
    """Points `(..., N, D)` about a centre p, which is `u size`, or about the origin.

    Attributes:
        columns: One array of which sums are formed. Its last two columns are `rise`, that is
            `(s y_t - 1)/kappa`, and 1. Before them are the coordinates of the moved point y: all D
            of x about the origin; else its part across u, and `along`, `u.y`. About a centre the
            first column is `forward`, `u.(x - p)`.
        unit: u, `(..., 1, D)`; None about the origin.
        size: `u.p`, `(..., 1, 1)`.
    """

    columns: Array
    unit: Array | None = None
    size: Array | None = None

    def space(self, means: Array) -> Array:
        """The space part of a mean of points, from that of the columns."""
        if self.unit is None or self.size is None:
            return means[..., :-2]
        return means[..., 1:-3] + self.unit * (self.size + means[..., :1])

    def spread(self, means: Array, kappa: Array) -> Array:
        """`-(1 + kappa M o M)/kappa` of a mean M of points, from that of the columns (D175)."""
        factors = np.full(means.shape[-1], -1.0)
        factors[-2:] = 0
        if self.unit is not None:
            factors[0] = 0
        rise = np.arange(len(factors)) == len(factors) - 2
        factors, rise = (row(jnp.asarray(a, means.dtype), means) for a in (factors, rise))
        squares = means * means * (factors + kappa * rise)
        return 2 * means[..., -2:-1] + jnp.sum(squares, axis=-1, keepdims=True)

    def chords(self, kappa: Array) -> Array:
        """What has `4 p^2` as its product with other columns, p the half chord (D174).

        A product of matrices, like those before and after it: XLA would form slices of them again
        and again.
        """
        width = self.columns.shape[-1]
        flat, bent = np.zeros((2, width, width))
        coordinates = range(0 if self.unit is None else 1, width - 2)
        flat[coordinates, coordinates] = -2
        flat[-2, -1] = flat[-1, -2] = bent[-2, -2] = 2
        dtype = self.columns.dtype
        flat, bent = (row(jnp.asarray(a, dtype), kappa) for a in (flat, bent))
        matrix = flat + kappa * bent
        return jnp.matmul(self.columns, matrix, precision=lax.Precision.HIGHEST)


def middle(x: Array, kappa: Array) -> Array:
    """A point amid the points `(..., N, D)`, `(..., 1, D)`: about `exp0` of the mean of `log0`.

    Unlike the centroid it does not run after the farthest points. Any point would do, so small
    arguments need no precision.
    """
    x, s = lax.stop_gradient((x, jnp.sqrt(kappa)))
    tiny = float(jnp.finfo(x.dtype).tiny)
    rho = s * jnp.sqrt(dot(x, x))
    logs = x * (jnp.log(rho + jnp.sqrt(1 + rho * rho)) / (rho + tiny))
    mean = jnp.sum(logs, axis=-2, keepdims=True) / max(x.shape[-2], 1)
    rho = s * jnp.sqrt(dot(mean, mean))
    return mean * ((jnp.exp(rho) - jnp.exp(-rho)) / (2 * rho + tiny))


def at_origin(x: Array, kappa: Array) -> Centred:
    """See the points x from the origin, which costs little."""
    rise = _rise(dot(x, x), kappa)
    return Centred(jnp.concatenate([x, rise, jnp.ones_like(rise)], axis=-1))


@jax.custom_jvp
def _rise(squares: Array, kappa: Array) -> Array:
    """`(s x_t - 1)/kappa` of `|x|^2`."""
    return squares / (1 + jnp.sqrt(1 + kappa * squares))


def _rise_jvp(primals, tangents):
    (_, kappa), (dsquares, dkappa) = primals, tangents
    out, move = _rise(*primals), tangent(dsquares)
    if not isinstance(dkappa, SymbolicZero):
        move = move - out * out * dkappa
    return out, move * (0.5 / (1 + kappa * out))  # (D149)


_rise.defjvp(_rise_jvp, symbolic_zeros=True)


def _coarse(x: Array) -> Array:
    """`x` rounded to half of its digits, as a constant: products of two such numbers are exact."""
    info = jnp.finfo(x.dtype)
    return lax.stop_gradient(lax.reduce_precision(x, info.nexp, (info.nmant - 1) // 2))


def centred(x: Array, centre: Array, kappa: Array) -> Centred:
    """See the points x from the centre (D170)."""
    centre = lax.stop_gradient(centre)
    far = jnp.sqrt(dot(centre, centre))
    first = (jnp.arange(x.shape[-1]) == 0).astype(x.dtype)  # at the origin any direction will do
    unit = jnp.where(far > 0, centre / jnp.where(far > 0, far, 1), first)
    size = dot(unit, centre)
    forward = dot(unit, x - centre)
    # Far out a rounding error of x across the unit would be a long way.
    ahead, coarse = size + forward, _coarse(unit)
    high = _coarse(ahead)
    across = ((x - coarse * high) - (unit - coarse) * high) - unit * (ahead - high)
    across = across - lax.stop_gradient(unit * dot(unit, across))  # one along it goes
    along, rise = _boosted(forward, dot(across, across), size, kappa)
    columns = forward, across, along, rise, jnp.ones_like(rise)
    return Centred(jnp.concatenate(columns, axis=-1), unit, size)


@jax.custom_jvp
def _boosted(forward: Array, wide: Array, size: Array, kappa: Array) -> tuple[Array, Array]:
    """`along` and `rise` of points with `|across|^2 = wide` (D171)."""
    s, ahead = jnp.sqrt(kappa), size + forward
    time, time_there = _times(ahead, wide, size, kappa)
    shrink = 1 / (s * size + time_there)
    # The light-cone coordinate of y is `plus = 1 + s gain`; both without cancellation.
    climb = s * (forward * (size + ahead) + wide) / (time + time_there)
    gain, larger = shrink * (climb + forward), time + s * jnp.abs(ahead)
    plus = shrink * jnp.where(ahead >= 0, larger, (1 + kappa * wide) / larger)
    half = 0.5 / plus
    return (gain * (1 + plus) - s * wide) * half, (gain * gain + wide) * half


def _times(ahead, wide, size, kappa):
    squares = ahead * ahead + wide
    return jnp.sqrt(1 + kappa * squares), jnp.sqrt(1 + kappa * size * size)


def tangent(move: Any) -> Any:
    """A tangent of a rule with symbolic zeros, as a number where it is one."""
    return 0.0 if isinstance(move, SymbolicZero) else move


def _boosted_jvp(primals, tangents):
    forward, wide, size, kappa = primals
    dforward, dwide, _, dkappa = tangents
    along, rise = _boosted(*primals)
    ahead = size + forward
    time, there = _times(ahead, wide, size, kappa)
    dforward, dwide = map(tangent, (dforward, dwide))
    dalong = ((1 + kappa * rise) * dforward - kappa * size / 2 * dwide) / time  # (D172)
    drise = (along * dforward + there / 2 * dwide) / time
    if not isinstance(dkappa, SymbolicZero):
        both = time * there  # (D173)
        dalong -= size / 2 * (ahead * along + wide * there) / both * dkappa
        squares = size * size * time * time + ahead * ahead + wide  # (both^2 - 1)/kappa
        straight = along * along * (squares / (both + 1) + size * ahead) / both
        bent = wide * ((forward * (size + ahead) + wide) / (there + time) + size * along) / time
        drise -= (straight + bent) / (2 * (2 + kappa * rise)) * dkappa
    return (along, rise), (dalong, drise)


_boosted.defjvp(_boosted_jvp, symbolic_zeros=True)
