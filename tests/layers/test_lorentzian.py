"""Lorentzian activation and weight norm against mpmath."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from lorentz_jax import functional
from lorentz_jax.hyperplane import normals
from tests.compiled import quick_jit
from tests.oracle import assert_close


def mp_softplus(u):
    return max(u, mp.mpf(0)) + (mp.log1p(mp.exp(-abs(u))) if abs(u) < 1000 else 0)


ACTIVATIONS = {
    "relu": (jax.nn.relu, lambda u: max(u, mp.mpf(0))),
    "tanh": (jnp.tanh, lambda u: mp.tanh(u) if abs(u) < 1000 else mp.sign(u)),
    "softplus": (jax.nn.softplus, mp_softplus),
    "square": (jnp.square, lambda u: u**2),
}
SIZES = {
    np.float32: [0, 1e-6, 0.3, 3, 20, 39, 41, 100],
    np.float64: [0, 1e-9, 0.7, 8, 340, 360, 900],
}


def mp_lorentzian(name, x, kappa):
    s, h = mp.sqrt(mp.mpf(float(kappa))), ACTIVATIONS[name][1]
    return mp.asinh(s * h(mp.sinh(s * x) / s)) / s


@functools.partial(quick_jit, static_argnums=0)
def activate(name, x, kappa):
    """Value and slope."""
    run = functools.partial(functional.lorentzian(ACTIVATIONS[name][0]), kappa=kappa)
    return jax.jvp(run, (x,), (jnp.ones_like(x),))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_lorentzian(x64, kappa, name, dtype):
    x = np.array(SIZES[dtype])
    x = np.concatenate([x, -x[1:]]).astype(dtype)
    value, slope = activate(name, x, kappa)
    assert value.dtype == dtype
    with mp.workdps(50):
        points = [mp.mpf(float(a)) for a in x]
        want = np.array([float(mp_lorentzian(name, a, kappa)) for a in points])
        smooth = x != 0 if name == "relu" else np.ones_like(x, bool)
        run = functools.partial(mp_lorentzian, name, kappa=kappa)
        slopes = np.array([float(mp.diff(run, a)) if a or name != "relu" else 0 for a in points])
    tolerance = {np.float32: 2e-6, np.float64: 1e-13}[dtype]
    np.testing.assert_allclose(value, want, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        np.asarray(slope)[smooth], slopes[smooth], rtol=50 * tolerance, atol=50 * tolerance
    )


@pytest.mark.parametrize(
    ("name", "x", "kappa", "want"),
    [
        ("relu", 100, 1, 100),
        ("relu", 1, 4, 1),
        ("relu", -3, 1, 0),
        ("tanh", 1, 1, 0.752790238070175),
        ("tanh", -2, 0.25, -0.946284076873561),
        ("tanh", 1, 1e-8, 0.7615941560),
    ],
)
def test_worked_values(name, x, kappa, want):
    assert abs(activate(name, np.float32(x), kappa)[0] - want) < 1e-6


def test_dtypes_and_arguments():
    run = functional.lorentzian(jax.nn.relu)
    for dtype in (jnp.bfloat16, jnp.float16):
        got = activate("tanh", jnp.asarray([-2, 0.5, 30], dtype), 1.0)[0]
        assert got.dtype == dtype
        want = activate("tanh", jnp.asarray([-2, 0.5, 30], jnp.float32), 1.0)[0]
        np.testing.assert_array_equal(got, want.astype(dtype))
    per_sample = jax.jit(run)(jnp.ones((2, 3)), jnp.asarray([[1.0], [4.0]]))
    np.testing.assert_allclose(per_sample, 1, rtol=1e-6)
    with pytest.raises(TypeError, match="x must be a floating-point array"):
        run(np.ones(3, np.int32), 1.0)
    with pytest.raises(ValueError, match=r"kappa of shape \(2,\)"):
        run(np.ones(3, np.float32), np.ones(2, np.float32))
    with pytest.raises(ValueError, match="curvature is -kappa"):
        run(np.ones(3, np.float32), -1.0)


# --- weight norm ----------------------------------------------------------------------------


def unit(a, gain, b):
    """Output of a layer with weight norm, and the norms of its weights."""
    w = functional.weight_norm(a, gain)
    v = normals(w, b, 1.0)
    return functional.linear(jnp.ones(a.shape[0], a.dtype), v, 1.0), (w, v.length)


def test_weight_norm():
    a = np.float32([[3, 3, 0], [4, 4, 0], [0, 0, 0]])
    gain, b = np.float32([2, -2, 1]), np.float32([0.1, 0.1, 0.1])
    y, (w, norms) = quick_jit(unit)(a, gain, b)
    np.testing.assert_allclose(w, [[1.2, -1.2, 0], [1.6, -1.6, 0], [0, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(norms, [2, 2, 0])
    slopes = quick_jit(jax.jacrev(unit, (0, 1, 2), has_aux=True))
    for gains in (gain, 0 * gain):
        gradients, _ = slopes(a, gains, b)
        assert all(np.isfinite(g).all() for g in gradients)
    assert np.isfinite(y).all()


def test_weight_norm_counts_every_axis_but_the_last(kappa):
    rng = np.random.default_rng(0)
    a, gain = rng.normal(size=(3, 3, 2, 5)).astype(np.float32), np.linspace(0.5, 3, 5, dtype="f4")
    w = functional.weight_norm(a, gain)
    np.testing.assert_allclose(np.linalg.norm(w.reshape(18, 5), axis=0), gain, rtol=1e-6)
    np.testing.assert_allclose(w / a, np.broadcast_to((w / a)[0, 0, 0], a.shape), rtol=1e-5)


def test_arguments_of_weight_norm():
    a = np.ones((3, 2), np.float32)
    with pytest.raises(ValueError, match=r"gain must have shape \(2,\), got \(3,\)"):
        functional.weight_norm(a, np.ones(3, np.float32))
    with pytest.raises(TypeError, match="direction must be a floating-point array"):
        functional.weight_norm(a.astype(int), np.ones(2, np.float32))
    half = functional.weight_norm(jnp.ones((3, 2), jnp.bfloat16), jnp.ones(2, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    assert_close(half, np.full((3, 2), 3**-0.5), 4e-3)
