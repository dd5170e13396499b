"""The wrapped normal against textbook formulas in 50 digits, and against integrals."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import geometry, nn
from lorentz_jax.bench.numerics import truth
from lorentz_jax.distributions import WrappedNormal, log_sinhc
from tests import oracle


def exact(mean, scale, x, kappa):
    """Log-density of the ambient textbook: log at the mean, transport to the origin."""
    s = mp.sqrt(kappa)
    o, M, X = truth.origin(mean, kappa), truth.point(mean, kappa), truth.point(x, kappa)
    u = truth.transported(M, o, truth.logarithm(M, X, kappa), kappa)[1:]
    r = s * truth.length(u)
    stretch = mp.log(mp.sinh(r) / r) if r else mp.mpf(0)
    normal = sum(-((a / b) ** 2) / 2 - mp.log(b) for a, b in zip(u, scale, strict=True))
    return normal - len(x) * mp.log(2 * mp.pi) / 2 - (len(x) - 1) * stretch


def log_prob(mean, scale, x, kappa):
    return WrappedNormal(mean, scale, kappa).log_prob(x)


def samples(dtype, radius):
    """Means and points at distances up to `radius`, three coordinates."""
    rng = np.random.default_rng(2)
    kappa = np.asarray([0.1, 1.0, 2.5, 0.1, 1.0, 2.5])
    v, w = rng.normal(size=(2, 6, 3))
    far = np.asarray([1, 1, 1, radius, radius, radius])[:, None] / np.sqrt(kappa)[:, None]
    mean = geometry.exp0(v / np.linalg.norm(v, axis=1, keepdims=True) * far, kappa)
    x = geometry.exp0(w / np.linalg.norm(w, axis=1, keepdims=True) * far, kappa)
    scale = rng.uniform(0.5, 2, size=(6, 3))
    return [np.asarray(a, dtype) for a in (mean, scale, x, kappa)]


@pytest.mark.parametrize(("dtype", "radius", "rtol"), [
    (np.float64, 1, 1e-13), (np.float64, 40, 1e-12), (np.float32, 1, 2e-6), (np.float32, 10, 2e-6),
])  # fmt: skip
def test_log_prob_and_its_gradients(x64, dtype, radius, rtol):
    mean, scale, x, kappa = samples(dtype, radius)
    got = jax.jit(log_prob)(mean, scale, x, kappa)
    assert got.dtype == dtype
    want = oracle.evaluate(exact, mean, scale, x, kappa=kappa)
    np.testing.assert_allclose(got, want, rtol=rtol)
    if radius > 1:
        return
    grads = jax.jit(jax.grad(lambda *a: jnp.sum(log_prob(*a)), (0, 1, 2, 3)))(mean, scale, x, kappa)
    for a, b in zip(grads, oracle.gradients(exact, mean, scale, x, kappa=kappa), strict=True):
        np.testing.assert_allclose(a, b, rtol=40 * rtol, atol=40 * rtol)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.5])
def test_value_gradient_and_hessian_at_the_mean(x64, kappa):
    mean, scale = jnp.asarray([0.6, -0.8]), jnp.asarray([0.5, 2.0])
    normal = WrappedNormal(mean, scale, kappa)
    assert float(normal.log_prob(mean)) == pytest.approx(-math.log(2 * math.pi), rel=1e-14)
    gradient, hessian = jax.jit(lambda x: (jax.grad(normal.log_prob)(x),
                                           jax.hessian(normal.log_prob)(x)))(mean)  # fmt: skip
    np.testing.assert_allclose(gradient, 0, atol=1e-14)
    with mp.workdps(60):
        m, s, k = oracle.exactly(mean), oracle.exactly(scale), mp.mpf(kappa)
        h = mp.mpf(10) ** -12

        def at(i, j):
            def moved(a, b):
                x = list(m)
                x[i] += a * h
                x[j] += b * h
                return exact(m, s, x, k)

            return float((moved(1, 1) - moved(1, -1) - moved(-1, 1) + moved(-1, -1)) / (4 * h * h))

        want = [[at(i, j) for j in range(2)] for i in range(2)]
    np.testing.assert_allclose(hessian, want, rtol=1e-9)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("dim", [2, 3])
def test_the_density_integrates_to_one(x64, kappa, dim):
    # In polar coordinates around a point that is not the mean.
    s = math.sqrt(kappa)
    nodes, weights = np.polynomial.legendre.leggauss(90)
    r, r_weights = (nodes + 1) * 4, weights * 4
    phi = np.arange(64) * (2 * math.pi / 64)
    if dim == 2:
        unit, area = np.stack([np.cos(phi), np.sin(phi)], -1), np.full(64, 2 * math.pi / 64)
    else:
        z, z_weights = np.polynomial.legendre.leggauss(40)
        ring = np.sqrt(1 - z**2)[:, None]
        height = np.broadcast_to(z[:, None], (40, 64))
        unit = np.stack([ring * np.cos(phi), ring * np.sin(phi), height], -1).reshape(-1, 3)
        area = np.repeat(z_weights * (2 * math.pi / 64), 64)
    x = geometry.exp0(jnp.asarray(r[:, None, None] * unit), kappa)
    mean, scale = jnp.asarray([0.3, -0.2, 0.1][:dim]), jnp.asarray([0.5, 0.7, 0.6][:dim])
    density = jnp.exp(WrappedNormal(mean, scale, kappa).log_prob(x))
    volume = (np.sinh(s * r) / s) ** (dim - 1) * r_weights
    assert float(np.einsum("ru,r,u->", density, volume, area)) == pytest.approx(1, abs=1e-6)


def test_samples_have_the_law_of_the_density(x64):
    normal = WrappedNormal(jnp.asarray([0.6, -0.8]), jnp.asarray([0.5, 1.5]), 1.5)
    x, log_density = normal.sample_and_log_prob(jax.random.key(0), (20_000,))
    np.testing.assert_allclose(log_density, normal.log_prob(x), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(x, normal.sample(jax.random.key(0), (20_000,)))
    u = geometry.log0(geometry.translate(-normal.mean, x, 1.5), 1.5)
    np.testing.assert_allclose(np.mean(np.asarray(u), 0), 0, atol=0.03)
    np.testing.assert_allclose(np.std(np.asarray(u), 0), [0.5, 1.5], rtol=0.03)


def test_samples_follow_their_parameters(x64):
    """The derivative of a sample is that of `T_mean(exp0(scale z))` with fixed z."""
    z = jax.random.normal(jax.random.key(3), (2,), jnp.float64)

    def sample(mean, scale, kappa):
        return WrappedNormal(mean, scale, kappa).sample(jax.random.key(3))

    def by_hand(mean, scale, kappa):
        return geometry.translate(mean, geometry.exp0(scale * z, kappa), kappa)

    arguments = jnp.asarray([0.6, -0.8]), jnp.asarray([0.5, 1.5]), jnp.asarray(0.7)
    for a, b in zip(*(jax.jacobian(f, (0, 1, 2))(*arguments) for f in (sample, by_hand)),
                    strict=True):  # fmt: skip
        np.testing.assert_allclose(a, b, rtol=1e-12)
        assert float(jnp.abs(a).max()) > 0.01


@pytest.mark.parametrize("kappa", [1e-8, 1e-12])
def test_the_flat_limit_is_the_normal_distribution(x64, kappa):
    mean, scale = jnp.asarray([0.3, -0.2, 0.5]), jnp.asarray([0.5, 2.0, 1.0])
    x = jnp.asarray([1.0, -1.0, 0.7])
    flat = jnp.sum(jax.scipy.stats.norm.logpdf(x, mean, scale))
    np.testing.assert_allclose(log_prob(mean, scale, x, kappa), flat, rtol=30 * kappa + 1e-14)


def test_shapes_dtypes_and_transforms():
    normal = WrappedNormal(jnp.zeros((3, 1, 2)), jnp.ones((4, 2)), jnp.ones((3, 1)))
    assert normal.batch_shape == (3, 4)
    assert normal.event_shape == (2,)
    x, log_density = normal.sample_and_log_prob(jax.random.key(0), (5,))
    assert x.shape == (5, 3, 4, 2)
    assert log_density.shape == (5, 3, 4) == normal.log_prob(x).shape
    assert normal.sample(jax.random.key(0), (0,)).shape == (0, 3, 4, 2)
    # As an argument of jit and vmap.
    many = WrappedNormal(jnp.zeros((3, 2)), jnp.full((3, 1), 0.5), jnp.asarray([0.5, 1.0, 2.0]))
    point = jnp.asarray([0.6, -0.8])
    one_by_one = jax.jit(jax.vmap(lambda normal: normal.log_prob(point)))(many)
    np.testing.assert_allclose(one_by_one, jax.jit(many.log_prob)(point), rtol=1e-6)


def test_a_learned_kappa_of_a_module():
    """An `nnx.Param` and a `Kappa` stand for their values, and a gradient reaches them."""
    point = jnp.asarray([0.6, -0.8])

    @jax.jit
    def log_prob(kappa):
        normal = WrappedNormal(jnp.zeros(2), 0.5, kappa)
        return jax.jit(lambda normal: normal.log_prob(point))(normal)  # kappa is a leaf

    value, slope = jax.jit(jax.value_and_grad(log_prob))(jnp.float32(1.5))
    for kappa in (nnx.Param(jnp.float32(1.5)), nn.Kappa(1.5)):
        np.testing.assert_allclose(log_prob(kappa), value, rtol=1e-5)
    param = nnx.Param(jnp.float32(1.5))
    normal = WrappedNormal(jnp.zeros(2), 0.5, param)
    param[...] = jnp.float32(3)
    assert float(normal.kappa) == 1.5, "a distribution does not change as its parameter trains"
    learned = nn.Kappa(1.5)
    want = slope * jax.grad(lambda kappa: kappa())(learned).raw[...]
    np.testing.assert_allclose(jax.grad(log_prob)(learned).raw[...], want, rtol=1e-5)


def test_half_precision_in_and_out():
    half = WrappedNormal(jnp.zeros(2, jnp.bfloat16), 1.0, 1.0)
    assert half.sample(jax.random.key(0)).dtype == half.log_prob(half.mean).dtype == jnp.bfloat16


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="scale must be finite and positive"):
        WrappedNormal(jnp.zeros(2), jnp.asarray([1.0, 0.0]), 1.0)
    with pytest.raises(ValueError, match="scale of shape"):
        WrappedNormal(jnp.zeros(2), jnp.ones(3), 1.0)
    with pytest.raises(ValueError, match="scale of shape"):
        WrappedNormal(jnp.zeros(1), jnp.ones(3), 1.0)
    with pytest.raises(ValueError, match="kappa must be finite and > 0"):
        WrappedNormal(jnp.zeros(2), 1.0, -1.0)
    with pytest.raises(ValueError, match="does not broadcast to the batch shape"):
        WrappedNormal(jnp.zeros((3, 2)), 1.0, jnp.ones(4))
    with pytest.raises(TypeError, match="floating-point"):
        WrappedNormal(jnp.zeros(2, jnp.int32), 1.0, 1.0)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-14), (np.float32, 5e-7)])
def test_log_sinhc_and_its_derivatives(x64, dtype, rtol):
    x = np.asarray([0, 1e-20, 1e-3, 0.5, 0.999, 1, 1.001, 3, 50, -0.7, -2, 1e4], dtype)

    def truth_of(x):
        return mp.log(mp.sinh(x) / x) if x else mp.mpf(0)

    with mp.workdps(60):
        for order in range(3):
            function = log_sinhc
            for _ in range(order):
                function = jax.grad(function)
            want = [float(mp.diff(truth_of, mp.mpf(float(v)), order)) if v else
                    [0, 0, 1 / 3][order] for v in x]  # fmt: skip
            got = jax.jit(jax.vmap(function))(x)
            np.testing.assert_allclose(got, want, rtol=20**order * rtol, atol=1e-37)
    assert float(log_sinhc(np.asarray(3e38, dtype))) == pytest.approx(3e38)
    assert math.isfinite(float(jax.grad(log_sinhc)(jnp.asarray(3e38, dtype))))
