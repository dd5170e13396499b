"""Scalar building blocks whose values and gradients are exact at their singular points.

Everything here works in the dtype it is given (float32 or float64); the callers in
`geometry` lift half precision to float32 first. `(D1)` and so on are equations of
`docs/derivations.md`.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax import Array


@jax.custom_jvp
def divide(x: Array, y: Array) -> Array:
    """`x / y`, and 0 with zero gradient wherever `y == 0`."""
    zero = y == 0
    return jnp.where(zero, jnp.zeros_like(y), x / jnp.where(zero, jnp.ones_like(y), y))


@divide.defjvp
def _divide_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    out = divide(x, y)
    return out, divide(dx - out * dy, y)  # (D1); autodiff's 1/y^2 would overflow for a tiny y


@jax.custom_jvp
def direction(x: Array, size: Array) -> Array:
    """`x / size` for `size = |x|`, exactly +-1 along an axis; 0 at 0.

    (Compiled, a division of a vector by a number is a product with the rounded inverse.)
    """
    return jnp.where(jnp.abs(x) == size, jnp.sign(x), divide(x, size))


@direction.defjvp
def _direction_jvp(primals, tangents):
    (x, size), (dx, dsize) = primals, tangents
    out = direction(x, size)
    return out, divide(dx - out * dsize, size)  # (D1)


def _power(largest: Array, margin: float = 1.0) -> Array:
    """A power of two within a factor two of a size, and from `tiny margin` to its inverse."""
    # The bits of the exponent alone; `frexp` and `ldexp` are twenty operations each.
    info = jnp.finfo(largest.dtype)
    integer = jnp.dtype(f"int{info.bits}")
    mask = jnp.asarray((2**info.nexp - 1) << info.nmant, integer)
    bits = jax.lax.bitcast_convert_type(largest, integer) & mask
    # Its inverse must not underflow either: a division is a product with it, once compiled.
    power = jax.lax.bitcast_convert_type(bits, largest.dtype)
    least = float(info.tiny) * margin
    return jnp.minimum(jnp.maximum(power, least), 1 / least)


def binary_scale(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """A power of two within a factor two of `max |x|` along `axis` (kept); 1 for zeros and inf.

    Of the largest numbers it is a quarter at least, and never a subnormal number.

    Dividing by it is exact, so a scaled sum of squares neither overflows nor loses a bit.
    """
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x)), axis=axis, keepdims=True, initial=0)
    live = (largest > 0) & jnp.isfinite(largest)
    return jnp.where(live, _power(largest), jnp.ones_like(largest))


def tiny(dtype) -> float:
    """A power of two whose inverse has a finite cube: 2^-42 (float32), 2^-340 (float64)."""
    return 2.0 ** (math.frexp(float(jnp.finfo(dtype).tiny))[1] // 3)


def seen(length: Array, order: int) -> Array:
    """A length as `order` derivatives see it: from the second one on, `tiny` at least (D100)."""
    return length if order < 2 else jnp.maximum(length, tiny(length.dtype))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _norm(x: Array, axis: int | tuple[int, ...], order: int) -> Array:
    # With a margin: XLA makes `x / (c scale)` of `x / c / scale`, and 0/0 where that underflows.
    scale = _power(jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0), 2.0**24)
    # The maximum changes nothing. Without it XLA forms `scale^2` where x is a constant.
    scaled = jnp.maximum(jnp.abs(x) / scale, 0)
    norm = scale * jnp.sqrt(jnp.sum(scaled * scaled, axis=axis, keepdims=True))
    return seen(norm, order)


@_norm.defjvp
def _norm_jvp(axis, order, primals, tangents):
    (x,), (dx,) = primals, tangents
    norm = _norm(x, axis, min(order + 1, 2))
    # By the inverse: XLA would rather keep a division of x itself than do it again.
    unit = x * divide(jnp.ones_like(norm), norm)
    return norm, jnp.sum(unit * dx, axis=axis, keepdims=True)  # (D2)


def safe_norm(
    x: Array, axis: int | tuple[int, ...] = -1, keepdims: bool = False, order: int = 0
) -> Array:
    """Euclidean norm over `axis`, for every representable `x`.

    Squares neither overflow nor underflow. The gradient is `x / |x|`, exactly 0 at `x = 0`, and 0
    where the inverse of the norm is subnormal (from 8.5e37 in float32). Second and higher
    derivatives at 0 are those of `sqrt(|x|^2 + tiny^2)` (D100): huge and finite, and right in every
    smooth function of the norm, such as its square. `order` is 1 in the rule of a derivative, which
    is itself differentiated once less.
    """
    norm = _norm(x, axis, order)
    return norm if keepdims else jnp.squeeze(norm, axis)


def hypot(x: Array, y: Array) -> Array:
    """`sqrt(x^2 + y^2)` without overflow; gradient 0 at (0, 0), then as of `safe_norm`."""
    return _hypot(x, y, 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _hypot(x: Array, y: Array, order: int) -> Array:
    large, small = jnp.maximum(jnp.abs(x), jnp.abs(y)), jnp.minimum(jnp.abs(x), jnp.abs(y))
    return seen(large * jnp.sqrt(1 + divide(small, large) ** 2), order)


@_hypot.defjvp
def _hypot_jvp(order, primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    out = _hypot(x, y, min(order + 1, 2))
    return out, divide(x, out) * dx + divide(y, out) * dy  # (D2)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`a + b` rounded, and its rounding error, exactly."""
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def _halves(x: Array) -> tuple[Array, Array]:
    """`x` as the sum of two numbers of half its digits, whose products are exact."""
    info = jnp.finfo(x.dtype)
    high = jax.lax.reduce_precision(x, info.nexp, (info.nmant - 1) // 2)
    return high, x - high


@jax.custom_jvp
def product_difference(a: Array, x: Array, b: Array, y: Array) -> Array:
    """`a x - b y` as if rounded once, plus an error of `eps^2 |a x|`, however much of it cancels.

    The products are formed from exact ones of half the digits, so that fused multiply-adds cannot
    change them. Arguments must be of moderate size (`|a x| eps^2` representable).
    """
    (ah, al), (xh, xl), (bh, bl), (yh, yl) = map(_halves, (a, x, b, y))
    high, e1 = _two_sum(ah * xh, -(bh * yh))
    left, e2 = _two_sum(ah * xl, -(bh * yl))
    right, e3 = _two_sum(al * xh, -(bl * yh))
    middle, e4 = _two_sum(left, right)
    total, e5 = _two_sum(high, middle)
    return total + (((e1 + e5) + ((e2 + e3) + e4)) + (al * xl - bl * yl))


@product_difference.defjvp
def _product_difference_jvp(primals, tangents):
    (a, x, b, y), (da, dx, db, dy) = primals, tangents
    return product_difference(a, x, b, y), (a * dx - b * dy) + (da * x - db * y)  # (D3)


@jax.custom_jvp
def less_multiple(y: Array, factor: Array, x: Array) -> Array:
    """`y - factor x` as if rounded once where `factor x` is within a few bits of y.

    Both are cut into halves of their digits, whose products are exact: each difference is exact
    until only the result is left. No fused multiply-add can change them.
    """
    (fh, fl), (xh, xl) = _halves(factor), _halves(x)
    return ((y - fh * xh) - fh * xl) - fl * xh - fl * xl


@less_multiple.defjvp
def _less_multiple_jvp(primals, tangents):
    (y, factor, x), (dy, dfactor, dx) = primals, tangents
    return less_multiple(y, factor, x), dy - factor * dx - x * dfactor  # (D3)


def even_series(coefficients, x: Array, edge: float) -> Array:
    """`sum_n c_n x^(2n)` for exact rational coefficients, by Horner's rule in the dtype of `x`.

    For `|x| < edge`: terms that are no digit of the first one there are left out.
    """
    square, total, least = x * x, jnp.zeros_like(x), float(jnp.finfo(x.dtype).eps) / 32
    live = [
        n
        for n, c in enumerate(coefficients)
        if abs(c) * edge ** (2 * n) > least * abs(coefficients[0])
    ]
    for c in reversed([float(c) for c in coefficients[: live[-1] + 1]]):
        total = total * square + jnp.asarray(c, x.dtype)
    return total


# Taylor coefficients of sinh(x)/x, and of its derivative over x; 12 terms reach 1e-20 at |x| = 1.
SINHC = [Fraction(1, math.factorial(2 * n + 1)) for n in range(12)]  # (D4)
SINHC_SLOPE = [2 * n * c for n, c in enumerate(SINHC)][1:]
# The same for asinh(x)/x, whose series converges slower; 26 terms reach 1e-17 at |x| = 1/2.
_ASINHC = [
    Fraction((-1) ** n * math.factorial(2 * n), 4**n * math.factorial(n) ** 2 * (2 * n + 1))
    for n in range(27)
]  # (D5)
_ASINHC_SLOPE = [2 * n * c for n, c in enumerate(_ASINHC)][1:]


def _near_or_far(
    x: Array, edge: float, near: Callable[[Array], Array], far: Callable[[Array], Array]
) -> Array:
    """`near(x)` where |x| < edge, `far(x)` beyond; neither sees an argument of the other."""
    inside = jnp.abs(x) < edge
    beyond = far(jnp.where(inside, jnp.ones_like(x), x))
    return jnp.where(inside, near(jnp.where(inside, x, 0)), beyond)


@jax.custom_jvp
def asinhc(x: Array) -> Array:
    """`asinh(x) / x`, 1 at 0. Its derivative `(1/sqrt(1 + x^2) - asinhc x) / x` is exact at 0."""
    return _near_or_far(
        x, 0.5, lambda x: even_series(_ASINHC, x, 0.5), lambda x: jnp.arcsinh(x) / x
    )


def _asinhc_pull_far(x: Array) -> Array:
    return 1 / hypot(x, jnp.ones_like(x)) - jnp.arcsinh(x) / x


@asinhc.defjvp
def _asinhc_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    slope = _near_or_far(  # (D5)
        x, 0.5, lambda x: x * even_series(_ASINHC_SLOPE, x, 0.5), lambda x: _asinhc_pull_far(x) / x
    )
    return asinhc(x), slope * dx


def asinhc_pull(x: Array) -> Array:
    """`x asinhc'(x) = 1/sqrt(1 + x^2) - asinhc x` (D5), also where x^2 overflows."""
    return _near_or_far(
        x, 0.5, lambda x: x * x * even_series(_ASINHC_SLOPE, x, 0.5), _asinhc_pull_far
    )


def asinh_scaled(x: Array, factor: Array, exponent: Array, unit: float | Array = 1.0) -> Array:
    """`asinh(x unit factor e^exponent)`, `factor >= 0`; the product need not be representable.

    From a product of e^20 on its size is `log 2|x| + log unit + log factor + exponent` to the last
    bit (D6). `unit` is a power of two.
    """
    size, live = jnp.abs(x), (x != 0) & (factor > 0)
    log_size = jnp.log(jnp.where(live, size, 1)) + jnp.log(jnp.where(factor > 0, factor, 1))
    log_size = log_size + jnp.log(jnp.asarray(unit, x.dtype))
    far = live & (log_size + exponent > 20)
    # The power is 1 exactly where it is not needed: 0 * inf in a branch not taken is still NaN.
    power = jnp.exp(jnp.where(live & ~far, exponent, 0))
    near = jnp.arcsinh(jnp.where(far, 0, x) * jnp.asarray(unit, x.dtype) * factor * power)
    return jnp.where(far, jnp.sign(x) * (math.log(2) + log_size + exponent), near)


def theta_limit(dtype) -> float:
    """The angle at which layers cut |theta|: 80 (float32), 701 (float64).

    The largest whose sinh times 1e3 is representable is `log(2 max / 1e3)`, 82.5 and 703.6. This is
    below it: sinh leaves a factor of 1e4 to the largest number, which products with it may use.
    """
    return float(math.floor(math.log(float(jnp.finfo(dtype).max)) - 8.7))
