"""Values, slopes and second derivatives at and around every singular point, against mpmath."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from lorentz_jax import geometry
from lorentz_jax._src import scalars
from tests.oracle import assert_close

DTYPES = (np.float32, np.float64)


def mp_asinhc(t):
    return mp.asinh(t) / t if t else mp.mpf(1)


def arguments(dtype, extra):
    """0, tiny and ordinary numbers, the neighbours of the thresholds, and `extra`; both signs."""
    f = dtype
    edges = [np.nextafter(f(t), f(u)) for t in (0.5, 1) for u in (0, 2)]
    values = [f(t) for t in (0, 1e-30, 1e-12, 1e-4, 0.1, 0.3, 0.5, 0.75, 1, 1.5, 3, 10, *extra)]
    values = np.array(values + edges, f)
    return np.concatenate([values, -values])


def derivatives(function):
    """Value, slope and second derivative of a scalar function, at every entry, compiled."""
    first = jax.grad(function)
    return jax.jit(jax.vmap(lambda t: (function(t), first(t), jax.grad(first)(t))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_asinhc(x64, dtype):
    """Derivative `order` to about 2^order digits less than the value: the far forms cancel."""
    t = arguments(dtype, (1e3, 1e10, 1e18))
    eps = float(np.finfo(dtype).eps)
    results = np.asarray(derivatives(scalars.asinhc)(t), np.float64)
    # Close to 0, differences of the truth need more digits than 50.
    with mp.workdps(120):
        for order, factor in ((0, 3), (1, 30), (2, 300)):
            want = np.array([float(mp.diff(mp_asinhc, mp.mpf(float(v)), order)) for v in t])
            # Denormals may be flushed; XLA's sinh is good to |t| eps.
            gap = np.abs(results[order] - want) - np.finfo(dtype).tiny
            scale = np.maximum(np.abs(want), 0.01 if order == 2 else 1e-300)  # one has a zero
            ratio = gap / (eps * scale * np.maximum(1, np.abs(t)))
            assert ratio.max() <= factor, (order, t[ratio.argmax()])
    assert (results[0, t == 0] == dtype(mp_asinhc(mp.mpf(0)))).all()
    assert (results[1, t == 0] == 0).all()
    half = len(t) // 2  # even, bit for bit
    np.testing.assert_array_equal(results[0, :half], results[0, half:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_safe_norm(x64, dtype):
    """Squares may overflow or underflow; the gradient is the unit vector, exactly 0 at 0."""
    big, small = (1e30, 1e-30) if dtype == np.float32 else (1e300, 1e-300)
    rows = [[0, 0, 0], [3, 4, 0], [big, big, -big], [small, 0, 0], [small, -small, small],
            [big, small, 1], [1, 1e-7, 0], [-5, 0, 0], [-0.0, 0, 0]]  # fmt: skip
    x, eps = np.array(rows, dtype), float(np.finfo(dtype).eps)
    with mp.workdps(50):
        norms = [mp.sqrt(mp.fsum(mp.mpf(float(v)) ** 2 for v in row)) for row in x]
        units = [[float(v / n) if n else 0.0 for v in map(float, r)]
                 for r, n in zip(x, norms, strict=True)]  # fmt: skip
    want = np.array([float(n) for n in norms])
    value_and_slope = jax.jit(jax.vmap(jax.value_and_grad(scalars.safe_norm)))
    norm, gradient = value_and_slope(x)
    assert_close(norm, want, 4 * eps, axis=None)
    assert_close(scalars.safe_norm(x), want, 4 * eps, axis=None)
    assert_close(gradient, units, 4 * eps)
    assert not np.any(gradient[0])
    hessian = jax.jit(jax.vmap(jax.hessian(scalars.safe_norm)))(x[:2])
    assert np.isfinite(hessian).all()
    curved = np.array([[16, -12, 0], [-12, 9, 0], [0, 0, 25]]) / 125
    assert_close(hessian[1], curved, 8 * eps, axis=(0, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_safe_norm_of_the_largest_numbers(x64, dtype):
    x = np.array([0.6, 0.3], dtype) * np.finfo(dtype).max
    want = np.hypot(np.longdouble(x[0]), np.longdouble(x[1]))
    for norm in (scalars.safe_norm, jax.jit(scalars.safe_norm)):
        assert_close(norm(x), np.asarray(want, dtype), 4 * np.finfo(dtype).eps)


def test_safe_norm_axes():
    y = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    assert_close(scalars.safe_norm(y, (0, 1)), np.sqrt((y.astype(float) ** 2).sum((0, 1))), 5e-7)
    assert jax.eval_shape(lambda y: scalars.safe_norm(y, -2, keepdims=True), y).shape == (2, 1, 4)
    assert scalars.safe_norm(y[:0]).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hypot(x64, dtype):
    big, small = (1e37, 1e-30) if dtype == np.float32 else (1e307, 1e-300)
    x, y = np.array(
        [[0, 0], [3, 4], [0, 1], [-2, 0], [big, big], [small, small], [big, 1], [1, 1], [-7, 1]],
        dtype,
    ).T
    eps = float(np.finfo(dtype).eps)
    with mp.workdps(50):
        want = np.array([float(mp.hypot(float(a), float(b))) for a, b in zip(x, y, strict=True)])
    value, gradients = jax.jit(jax.vmap(jax.value_and_grad(scalars.hypot, (0, 1))))(x, y)
    assert_close(value, want, 4 * eps, axis=None)
    for got, part in zip(gradients, (x, y), strict=True):
        assert_close(got[1:], part[1:] / want[1:], 4 * eps, axis=None)
        assert got[0] == 0
    second = jax.jit(jax.vmap(jax.grad(jax.grad(scalars.hypot))))(x, y)
    assert np.isfinite(second[:4]).all()
    assert_close(second[1], 16 / 125, 8 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_divide(x64, dtype):
    """The last denominator's square underflows in float32, its reciprocal does not overflow."""
    x, y = np.array([[1, 0, -3, 5, 2**-80], [0, 0, 2, -4, 2**-80]], dtype)
    value, gradients = jax.jit(jax.vmap(jax.value_and_grad(scalars.divide, (0, 1))))(x, y)
    np.testing.assert_array_equal(value, [0, 0, -1.5, -1.25, 1])
    np.testing.assert_array_equal(gradients[0], [0, 0, 0.5, -0.25, 2.0**80])
    np.testing.assert_array_equal(gradients[1], [0, 0, 0.75, -0.3125, -(2.0**80)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_scale(x64, dtype):
    info = np.finfo(dtype)
    x = np.array([[0, 0], [1, -3], [0.3, 0.2], [info.max, 1], [np.inf, 1], [info.tiny, 0]], dtype)
    scale = np.asarray(jax.jit(scalars.binary_scale)(x))[:, 0]
    assert scale[0] == scale[4] == 1
    mantissa, _ = np.frexp(scale)
    np.testing.assert_array_equal(mantissa, 0.5)
    finite = [1, 2, 3, 5]
    ratio = np.abs(x).max(-1)[finite] / scale[finite]
    # Of the largest numbers it is 4: the inverse of a larger power of two is subnormal.
    assert (ratio >= 1).all()
    assert (ratio < [2, 2, 4, 2]).all()
    np.testing.assert_array_equal(
        jax.jit(jax.grad(lambda x: scalars.binary_scale(x).sum()))(x[:4]), 0
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_asinh_scaled(x64, dtype):
    """`asinh(x factor e^exponent)`, the product representable or not, and its three slopes."""
    huge = 1e36 if dtype == np.float32 else 1e300
    rows = [(0.5, 2, 0), (1e-4, 1, 0), (-3, 0.1, 1), (1e-8, 1, 20), (1, 1, 19.9), (1, 1, 20.1),
            (-1, 1, 30), (huge, 1, 0), (huge, 1e3, 50), (-2, 1e30, 95), (1, 1e-20, 80), (3, 1, 900),
            (1e-30, 1, 50), (1e5, 1e5, 0), (7, 1, -30)]  # fmt: skip
    x, factor, exponent = np.array(rows, dtype).T
    eps = float(np.finfo(dtype).eps)
    with mp.workdps(50):
        product = [mp.mpf(float(a)) * float(b) * mp.exp(float(c))
                   for a, b, c in zip(x, factor, exponent, strict=True)]  # fmt: skip
        want = np.array([float(mp.asinh(p)) for p in product])
        slopes = np.array([float(p / mp.sqrt(1 + p * p)) for p in product])
    # Rounding `exponent` moves the product by |exponent| eps where the product is small.
    rtol = 4 * eps * np.maximum(1, np.abs(exponent))
    slopes_of = jax.jit(jax.vmap(jax.value_and_grad(scalars.asinh_scaled, (0, 1, 2))))
    got, (by_x, by_factor, by_exponent) = slopes_of(x, factor, exponent)
    assert (np.abs(np.asarray(got, np.float64) - want) <= rtol * np.abs(want)).all()
    for got, scale in ((by_x, x), (by_factor, factor), (by_exponent, np.ones_like(x))):
        log_slope = np.asarray(got, np.float64) * scale
        assert (np.abs(log_slope - slopes) <= 2 * rtol * np.abs(slopes)).all()
    # The singular points: nothing to scale, or a scale of 0.
    rows = np.array([(0, 3, 0), (0, 3, 500), (2, 0, 0), (2, 0, 500), (0, 0, 0)], dtype)
    values, gradients = slopes_of(*rows.T)
    assert not np.any(values)
    assert np.isfinite(gradients).all()
    assert gradients[0][0] == 3


def test_theta_limit(x64):
    for dtype, limit in zip(DTYPES, (80, 701), strict=True):
        assert scalars.theta_limit(dtype) == limit
        assert float(np.sinh(np.float64(limit))) * 1e3 < np.finfo(dtype).max
        assert mp.sinh(limit + 3) * 1e3 > np.finfo(dtype).max


@pytest.mark.parametrize("number", [0.2, 1e-3, 3.0, 1e6])
def test_the_norm_of_a_multiple_of_zero_has_a_gradient(number):
    # Compiled, x / number / scale becomes x / (number scale), which must not be 0 / 0.
    x = jnp.asarray([[0.0, 0.0], [0.6, -0.8], [1e-37, 0.0]], jnp.float32)
    for change in (lambda x: x / number, lambda x: x * number):
        gradient = jax.jit(jax.grad(lambda x, f=change: jnp.sum(scalars.safe_norm(f(x)))))(x)
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[0], 0)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_the_norm_of_a_constant_keeps_its_digits(size):
    constant = jnp.asarray([[3 * size, 4 * size], [0.6, -0.8]], jnp.float32)
    norm = jax.jit(lambda x: scalars.safe_norm(constant) + 0 * x)(0.0)
    np.testing.assert_allclose(norm, [5 * size, 1], rtol=1e-6)
    # As a constant beside an argument, with derivatives.
    other = jnp.asarray([0.6, -0.8], jnp.float32)
    value, gradient = jax.jit(
        jax.value_and_grad(lambda x: jnp.sum(geometry.squared_dist(constant, x, 1.0)))
    )(other)
    assert np.isfinite(value) or size > 1
    assert np.isfinite(gradient).all() or size > 1
