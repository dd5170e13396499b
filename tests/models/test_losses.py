"""Entailment cones and the contrastive loss against textbook formulas in 50 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from lorentz_jax import geometry, losses
from lorentz_jax.bench.numerics import truth
from tests import oracle


def exact_angle(x, y, kappa):
    """The angle of the triangle (o, x, y) at x by the law of cosines, from outside."""
    s, o = mp.sqrt(kappa), truth.origin(x, kappa)
    X, Y = truth.point(x, kappa), truth.point(y, kappa)
    a, b, c = (s * truth.distance(*pair, kappa) for pair in ((o, X), (X, Y), (o, Y)))
    return mp.pi - mp.acos((mp.cosh(a) * mp.cosh(b) - mp.cosh(c)) / (mp.sinh(a) * mp.sinh(b)))


def exact_entailment(x, y, kappa):
    half = mp.asin(2 * mp.mpf("0.1") / (mp.sqrt(kappa) * truth.length(x)))
    return max(mp.mpf(0), exact_angle(x, y, kappa) - half)


def pairs(dtype, radius):
    rng = np.random.default_rng(5)
    kappa = np.asarray([0.1, 1.0, 2.5, 0.1, 1.0, 2.5])
    v, w = rng.normal(size=(2, 6, 3))
    far = radius / np.sqrt(kappa)[:, None]
    x = geometry.exp0(v / np.linalg.norm(v, axis=1, keepdims=True) * far, kappa)
    y = geometry.exp0(w / np.linalg.norm(w, axis=1, keepdims=True) * far * 1.5, kappa)
    return [np.asarray(a, dtype) for a in (x, y, kappa)]


@pytest.mark.parametrize(("dtype", "radius", "rtol"), [
    (np.float64, 1, 1e-13), (np.float64, 25, 1e-13), (np.float32, 1, 2e-6), (np.float32, 10, 2e-6),
])  # fmt: skip
def test_exterior_angle_and_its_gradients(x64, dtype, radius, rtol):
    x, y, kappa = pairs(dtype, radius)
    got = jax.jit(losses.exterior_angle)(x, y, kappa)
    assert got.dtype == dtype
    np.testing.assert_allclose(
        got, oracle.evaluate(exact_angle, x, y, kappa=kappa), rtol=rtol, atol=rtol
    )
    grads = jax.jit(
        jax.grad(lambda *a: jnp.sum(losses.exterior_angle(*a)), (0, 1, 2))
    )(x, y, kappa)  # fmt: skip
    for a, b in zip(grads, oracle.gradients(exact_angle, x, y, kappa=kappa), strict=True):
        assert np.isfinite(a).all()
        if radius == 1:
            np.testing.assert_allclose(a, b, rtol=50 * rtol, atol=50 * rtol)


def test_small_angles_keep_their_digits(x64):
    # Nearly on the way on from the origin: the angle is (across/along) e^... of 1e-9.
    x, kappa = np.asarray([[0.6, 0.8]]), np.asarray([1.0])
    y = 3 * x + 1e-9 * np.asarray([[0.8, -0.6]])
    want = oracle.evaluate(exact_angle, x, y, kappa=kappa)
    assert 1e-10 < want[0] < 1e-8
    np.testing.assert_allclose(losses.exterior_angle(x, y, kappa), want, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_singular_places_have_the_told_values_and_finite_gradients(x64, dtype):
    x = np.asarray([[0, 0], [0.6, -0.8], [0.6, -0.8], [0.6, -0.8], [0, 0], [1e-30, 0]], dtype)
    y = np.asarray([[1, 2], [0.6, -0.8], [1.2, -1.6], [0, 0], [0, 0], [0, 1]], dtype)
    angles = jax.jit(losses.exterior_angle)(x, y, 1.0)
    np.testing.assert_allclose(angles, [np.pi / 2, 0, 0, np.pi, 0, np.pi / 2], atol=1e-6)
    for i in (0, 1):
        for f in (losses.exterior_angle, losses.entailment):
            gradient = jax.jit(jax.grad(lambda *a, f=f: jnp.sum(f(*a, 1.0)), i))(x, y)
            assert np.isfinite(gradient).all()
            np.testing.assert_array_equal(np.asarray(gradient)[[1, 4]], 0)


def test_entailment_and_its_gradients(x64):
    x, y, kappa = pairs(np.float64, 1)
    y = y.copy()
    y[:2] = 2 * x[:2]  # inside of the cone
    y[:2, 0] += 0.01
    got = losses.entailment(x, y, kappa)
    np.testing.assert_allclose(
        got, oracle.evaluate(exact_entailment, x, y, kappa=kappa), rtol=1e-12, atol=1e-15
    )
    np.testing.assert_array_equal(got[:2], 0)
    assert (np.asarray(got[2:]) > 0.1).all()
    grads = jax.grad(lambda *a: jnp.sum(losses.entailment(*a)), (0, 1, 2))(x, y, kappa)
    want = oracle.gradients(exact_entailment, x[2:], y[2:], kappa=kappa[2:])
    for a, b in zip(grads, want, strict=True):
        np.testing.assert_allclose(a[2:], b, rtol=1e-11)
        np.testing.assert_array_equal(a[:2], 0)


def test_the_cone_near_the_origin_is_a_half_space():
    x = jnp.asarray([[0.0, 0.0], [0.1, 0.0], [0.2, 0.0], [0.4, 0.0]])
    got = losses.half_aperture(x, 1.0)
    np.testing.assert_allclose(got, [np.pi / 2] * 3 + [np.pi / 6], rtol=1e-6)
    np.testing.assert_allclose(losses.half_aperture(x, 4.0, 0.2), got, rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(losses.half_aperture(x, 1.0)))(x)
    np.testing.assert_array_equal(gradient[:3], 0)
    assert float(gradient[3, 0]) < 0
    with pytest.raises(ValueError, match="min_radius must be > 0"):
        losses.half_aperture(x, 1.0, 0.0)
    with pytest.raises(ValueError, match=r"min_radius must be one number, got shape \(4,\)"):
        losses.half_aperture(x, 1.0, jnp.ones(4))


def test_the_constant_of_the_cones_can_be_learned():
    x, y = jnp.asarray([[0.6, 0.3]]), jnp.asarray([[-1.0, 0.5]])
    loss = jax.jit(lambda k: jnp.sum(losses.entailment(x, y, 2.0, k)))
    radius = jnp.float32(0.1)
    np.testing.assert_allclose(loss(radius), losses.entailment(x, y, 2.0)[0], rtol=1e-6)
    # The derivative of -asin(2 k/(s |x|)).
    inverse = 2 / np.sqrt(2.0 * 0.45)
    want = -inverse / np.sqrt(1 - (inverse * 0.1) ** 2)
    np.testing.assert_allclose(jax.grad(loss)(radius), want, rtol=1e-5)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.5])
def test_contrastive_and_its_gradients(x64, kappa):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 3))
    temperature = 0.3

    def exact(*values):
        x, y, k = [values[0][3 * i : 3 * i + 3] for i in range(5)], values[1], values[2]
        y = [y[3 * i : 3 * i + 3] for i in range(5)]
        p = [
            [-truth.distance(truth.point(a, k), truth.point(b, k), k) / mp.mpf(temperature)
             for b in y] for a in x
        ]  # fmt: skip
        rows = [mp.log(sum(mp.exp(v) for v in row)) - row[i] for i, row in enumerate(p)]
        columns = [mp.log(sum(mp.exp(row[j]) for row in p)) - p[j][j] for j in range(5)]
        return [(a + b) / 2 for a, b in zip(rows, columns, strict=True)]

    flat = x.reshape(1, 15), y.reshape(1, 15)
    want = oracle.evaluate(exact, *flat, kappa=np.asarray([kappa]))[0]
    got = jax.jit(losses.contrastive)(x, y, temperature, kappa)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    grads = jax.jit(
        jax.grad(lambda *a: jnp.sum(losses.contrastive(*a[:2], temperature, a[2])), (0, 1, 2))
    )(x, y, kappa)
    ones = np.ones((1, 5))
    wanted = oracle.gradients(exact, *flat, kappa=np.asarray([kappa]), cotangent=ones)
    for a, b in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(np.ravel(a), np.ravel(b), rtol=1e-10, atol=1e-12)


def test_contrastive_of_equal_points_and_bad_arguments():
    x = jnp.asarray([[0.6, -0.8], [0.6, -0.8], [3.0, 1.0]], jnp.bfloat16)
    loss = losses.contrastive(x, x, 0.1, 1.0)
    assert loss.dtype == jnp.bfloat16
    np.testing.assert_allclose(loss.astype(jnp.float32), [np.log(2), np.log(2), 0], atol=1e-2)
    gradient = jax.grad(lambda x: jnp.sum(losses.contrastive(x, x, 0.1, 1.0)))(
        x.astype(jnp.float32)
    )
    assert np.isfinite(gradient).all()
    with pytest.raises(ValueError, match="temperature must be > 0"):
        losses.contrastive(x, x, 0.0, 1.0)
    with pytest.raises(ValueError, match="x and y must have shape"):
        losses.contrastive(x, x[:2], 1.0, 1.0)
