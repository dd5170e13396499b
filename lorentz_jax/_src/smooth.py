"""Building blocks that have derivatives of every order, at the singular points of a formula too.

Each has a hand-written rule whose tangent is made of such blocks again. A function that is even in
a length is made of the square of the length, and never of the length itself (D130).
`(D131)` and so on are equations of `docs/derivations.md`, symbols as in `radial`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero


def dot(x: Array, y: Array) -> Array:
    """Euclidean product with the coordinate axis kept at length 1."""
    return jnp.sum(x * y, axis=-1, keepdims=True)


def with_jvp(
    evaluate: Callable[..., tuple[Array, Any]],
    d_arrays: Callable[..., Array],
    d_kappa: Callable[..., Array],
    following: Callable[[], Callable[..., Array]] | None = None,
) -> Callable[..., Array]:
    """A function of arrays and kappa, with a rule for the arrays and one for kappa.

    `evaluate(*arrays, kappa)` returns its value and all that its derivatives need. Those are
    `d_arrays(primals, out, parts, moves)`, linear in the tangents `moves` of the arrays, and
    `d_kappa(primals, out, parts)`. A derivative whose tangents are known to be 0 is not formed.
    `following` makes the function that the derivatives see, where that is another one.
    """

    @jax.custom_jvp
    def function(*primals):
        return evaluate(*primals)[0]

    @jax.custom_jvp
    def known(out, *primals):
        """`function(*primals)`, whose value is `out` already."""
        return out

    def rule(primals, tangents):
        *moves, dkappa = tangents
        if following:
            out, parts = following()(*primals), None
        else:
            out, parts = evaluate(*primals)
            out = known(out, *primals)
        still = [isinstance(move, SymbolicZero) for move in moves]
        tangent: Any = jnp.zeros_like(out)
        if not all(still):
            moves = [
                jnp.zeros_like(x) if zero else move
                for x, move, zero in zip(primals[:-1], moves, still, strict=True)
            ]
            tangent = d_arrays(primals, out, parts, moves)
        if not isinstance(dkappa, SymbolicZero):
            by_kappa = d_kappa(primals, out, parts) * dkappa
            tangent = by_kappa if all(still) else tangent + by_kappa
        return out, tangent

    function.defjvp(rule, symbolic_zeros=True)
    known.defjvp(lambda primals, tangents: rule(primals[1:], tangents[1:]), symbolic_zeros=True)
    return function


@jax.custom_jvp
def over(x: Array, y: Array) -> Array:
    """`x / y` for y > 0, whose derivatives never form `y^2` (D1).

    Not for a quotient x: XLA would multiply both denominators first, and their product overflows.
    """
    return x / y


@over.defjvp
def _over_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    out = over(x, y)
    return out, over(dx - out * dy, y)


NEAR = 1.5
"""Points of a smaller scaled time are treated without the direction that the origin has not."""


def coarse_scale(x: Array, least: Array | None = None) -> Array:
    """A power of two t, 1 for all ordinary numbers, for which no square of `x t` overflows.

    Nor does one underflow beside the largest of them or `least`. `(..., 1)` for `(..., D)`.
    """
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x)), axis=-1, keepdims=True)
    if least is not None:
        largest = jnp.maximum(largest, jax.lax.stop_gradient(least))
    digits = jnp.finfo(x.dtype).maxexp // 4
    edge, small = 2.0**digits, 2.0 ** (-5 * digits // 2)
    ordinary = jnp.ones_like(largest)
    scale = jnp.where(largest < 1 / edge, 1 / small, ordinary)
    return jnp.where(largest > edge, small, scale)


def square_and_scale(x: Array, least: Array | None = None) -> tuple[Array, Array]:
    """`t^2 (|x|^2 + least^2)` and the t of `coarse_scale`."""
    scale = coarse_scale(x, least)
    # The maximum changes nothing. Without it XLA forms `x x (t t)` where t is a constant, and those
    # overflow.
    scaled = jnp.maximum(jnp.abs(x) * scale, 0)
    square = dot(scaled, scaled)
    return square if least is None else square + jnp.square(jnp.maximum(least * scale, 0)), scale


def size(x: Array) -> Array:
    """The value of `|x|`, for rules of its own."""
    square, scale = square_and_scale(x)
    return jnp.sqrt(square) / scale


def _over_number(x: Array, number: Array) -> Array:
    """`x / number`, exact where it can be: along an axis a part across the direction is then 0.

    Compiled, a division of a vector by a number is a product with the rounded inverse.
    """
    quotient = x / number
    return quotient + (x - quotient * number) / number


@jax.custom_jvp
def polar(x: Array) -> tuple[Array, Array]:
    """Size and direction of x; both 0 at 0, with finite derivatives."""
    length = size(x)
    return length, _over_number(x, jnp.where(length > 0, length, 1))


@polar.defjvp
def _polar_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    length, unit = polar(x)
    along, across = split(unit, dx)
    return (length, unit), (along, over(across, jnp.where(length > 0, length, 1)))  # (D1), (D2)


def split(unit: Array, v: Array) -> tuple[Array, Array]:
    """`(unit.v, v - unit (unit.v))`, the second orthogonal to a unit vector to its own last bit."""
    along = dot(unit, v)
    return along, project(unit, v - unit * along)


def project(unit: Array, v: Array) -> Array:
    """`v - unit (unit.v)`. Twice in a row, its rounding error is of the size of the result."""
    return v - unit * dot(unit, v)


def hypot1(x: Array) -> Array:
    """`sqrt(1 + x^2)` for x >= 0, also where the square overflows."""
    edge = 2.0**40
    return jnp.where(x < edge, jnp.sqrt(1 + jnp.square(jnp.minimum(x, edge))), x)


def _scaled_time(x, kappa):
    return hypot1(jnp.sqrt(kappa) * size(x)), None


def _d_scaled_time(primals, time, _, moves):
    x, kappa = primals
    return dot(x * over(kappa, time), moves[0])  # (D131)


def _d_kappa_scaled_time(primals, time, _):
    x, _ = primals
    return dot(over(x, time), x) / 2  # (D19)


scaled_time = with_jvp(_scaled_time, _d_scaled_time, _d_kappa_scaled_time)
"""`h = s x_t = sqrt(1 + kappa |x|^2)`, shape `(..., 1)`.

Its gradient in kappa does not cancel as kappa -> 0, where that of `s * time` does (D19).
"""


@jax.custom_jvp
def outward(x: Array, kappa: Array) -> tuple[Array, Array, Array]:
    """Scaled time of x, and its size and direction; 0 and x itself for points near the origin.

    Near is what `time < NEAR` says. No derivative of the direction is formed there.
    """
    length = size(x)
    time = hypot1(jnp.sqrt(kappa) * length)
    near = time < NEAR
    return time, jnp.where(near, 0, length), _over_number(x, jnp.where(near, 1, length))


def _outward_jvp(primals, tangents):
    (x, kappa), (dx, dkappa) = primals, tangents
    time, length, axis = outward(x, kappa)
    near = time < NEAR
    still = [isinstance(t, SymbolicZero) for t in tangents]
    moves = jnp.zeros_like(time) if still[0] else dot(x * over(kappa, time), dx)  # (D131)
    if not still[1]:
        moves = moves + dot(over(x, time), x) / 2 * dkappa  # (D19)
    if still[0]:
        return (time, length, axis), (moves, jnp.zeros_like(time), jnp.zeros_like(x))
    along, across = split(jnp.where(near, 0, axis), dx)
    turns = over(across, jnp.where(near, 1, length))  # (D1)
    return (time, length, axis), (moves, along, turns)


outward.defjvp(_outward_jvp, symbolic_zeros=True)


# Taylor coefficients of sinh(q)/q in z = q^2, and of its derivatives d/dz times 2^n.
@functools.cache
def _coefficients(n: int, count: int) -> list[float]:
    return [
        2.0**n * math.factorial(k + n) / math.factorial(k) / math.factorial(2 * (k + n) + 1)
        for k in range(count)
    ]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def grown(z: Array, n: int) -> tuple[Array, ...]:
    """`cosh q`, `sinh(q)/q = S_0` and `S_1` to `S_n`, with `S_(i+1) = S_i'/q`, z = q^2 (D132)."""
    near = z < 1
    small = jnp.where(near, z, 0)
    large = jnp.where(near, 1, jnp.minimum(z, 2.0**20))  # from there on all are inf
    count = 7 if z.dtype == jnp.float32 else 12
    series = [_horner(_coefficients(i, count), small) for i in (n, n - 1)]
    for i in range(n - 1, -1, -1):  # upwards in z all terms are positive
        series.append((2 * i + 1) * series[-1] + small * series[-2])
    q = jnp.sqrt(large)
    half = jnp.exp(q + math.log(0.5))
    rest = 0.25 / half
    cosh = half + rest
    far, shares = [cosh, (half - rest) / q], [1.0, (1 - rest / half) / (1 + rest / half) / q]
    for i in range(n):  # by their shares of cosh, which may be inf
        shares.append((shares[-2] - (2 * i + 1) * shares[-1]) / large)
        far.append(cosh * shares[-1])
    return tuple(jnp.where(near, a, b) for a, b in zip(series[::-1], far, strict=True))


def _horner(coefficients: list[float], z: Array) -> Array:
    total = jnp.full_like(z, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * z + c
    return total


@grown.defjvp
def _grown_jvp(n, primals, tangents):
    (z,), (dz,) = primals, tangents
    out = grown(z, n + 1)
    return out[:-1], tuple(following * (dz / 2) for following in out[1:])
