"""The shells: right initial values, one call into `functional`, honest state."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, geometry, initializers, nn
from lorentz_jax.hyperplane import normals


def rngs():
    return nnx.Rngs(0)


def points(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("shape", [(12, 400), (3, 3, 5, 400)])
@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("init", initializers.PRESETS)
def test_initial_values_are_those_of_the_table(init, weight_norm, shape):
    fan_in, out = math.prod(shape[:-1]), shape[-1]
    kernel, gain, bias = initializers.affine(
        jax.random.key(0), shape, init, weight_norm, jnp.float32
    )
    variance = {
        ("fast", True): 2 / fan_in,
        ("fast", False): 2 / fan_in,
        ("paper", True): 2 / out,
        ("paper", False): 1 / (fan_in + out),
    }[init, weight_norm]
    assert np.std(kernel) == pytest.approx(variance**0.5, rel=0.05)
    assert set(np.asarray(bias)) == {0.0 if init == "fast" else -0.5}
    if weight_norm:
        length = jax.nn.softplus(gain)
        wanted = 2**0.5 if init == "fast" else math.log1p(math.exp((fan_in + out) ** -0.5))
        np.testing.assert_allclose(length, wanted, rtol=1e-6)
    else:
        assert gain is None


def test_head_columns_have_norm_one_in_fast():
    kernel = nn.LorentzMLR(64, 10, kappa=1.0, rngs=rngs()).kernel[...]
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1, rtol=1e-5)


@pytest.mark.parametrize("weight_norm", [True, False])
def test_layers_are_their_functions(weight_norm, kappa):
    options = {"kappa": kappa, "rngs": rngs(), "weight_norm": weight_norm}
    linear = nn.LorentzLinear(3, 4, activation=jax.nn.relu, **options)
    conv = nn.LorentzConv(3, 4, (3, 3), strides=2, **options)
    for layer in (linear, conv):
        layer.bias[...] = jnp.array([0.3, -0.2, 0.0, 1.0])
        w = layer.kernel[...]
        if weight_norm:
            w = w / jnp.linalg.norm(w.reshape(-1, 4), axis=0) * jnp.log1p(jnp.exp(layer.gain[...]))
        planes = normals(w, layer.bias[...], kappa)
        x = points(2, 6, 6, 3)
        if layer is linear:
            want = functional.linear(x, planes, kappa, jax.nn.relu)
        else:
            want = functional.conv(x, planes, kappa, strides=2)
        np.testing.assert_allclose(layer(x), want, rtol=2e-5, atol=2e-5)
    head = nn.LorentzMLR(3, 4, kappa=kappa, scale=None, rngs=rngs())
    x = points(5, 3)
    want = functional.mlr(x, normals(head.kernel[...], head.bias[...], kappa), kappa, None)
    np.testing.assert_array_equal(head(x), want)


def test_a_call_may_override_kappa():
    layer = nn.LorentzLinear(3, 4, kappa=1.0, rngs=rngs())
    other = nn.LorentzLinear(3, 4, kappa=0.1, rngs=rngs())
    x = points(5, 3) * 3
    layer.bias[...] = other.bias[...] = jnp.ones(4)
    np.testing.assert_array_equal(layer(x, kappa=0.1), other(x))
    assert np.abs(np.asarray(layer(x) - other(x))).max() > 1e-2


def test_learnable_kappa_starts_right_stays_inside_and_has_a_gradient():
    for start in (0.002, 0.1, 1.0, 2.5, 90.0):
        assert float(nn.Kappa(start)()) == pytest.approx(start, rel=1e-5)
    low, high = nn.Kappa.bounds
    kappa = nn.Kappa(1.0)
    for raw in (-1e4, -20.0, 20.0, 1e4):
        kappa.raw[...] = jnp.asarray(raw, jnp.float32)
        assert low * 0.999 <= float(kappa()) <= high * 1.001
    layer = nn.LorentzLinear(3, 4, kappa=0.5, learn_kappa=True, rngs=rngs())
    x, step = points(5, 3), 1e-2
    graphdef, state = nnx.split(layer)

    def loss(state):
        return jnp.sum(nnx.merge(graphdef, state, copy=True)(x) ** 2)

    gradient = float(jax.grad(loss)(state)["kappa"]["raw"][...])
    sides = []
    for sign in (1, -1):
        layer.kappa.raw[...] = state["kappa"]["raw"][...] + sign * step
        sides.append(float(jnp.sum(layer(x) ** 2)))
    assert gradient == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-2)
    for bad in (1e-3, 100.0, 0.0):
        with pytest.raises(ValueError, match="learnable kappa must start inside"):
            nn.Kappa(bad)


def test_batch_norm_before_training_is_the_identity(kappa):
    norm = nn.LorentzBatchNorm(3, kappa=kappa)
    x = points(7, 3)
    np.testing.assert_allclose(norm(x, use_running_average=True), x, atol=1e-6)


def test_batch_norm_centres_and_remembers(kappa):
    norm = nn.LorentzBatchNorm(3, kappa=kappa, momentum=0.25)
    x = points(50, 3) + jnp.array([1.0, -2.0, 0.5])
    mean = geometry.centroid(x, kappa)
    y = norm(x)
    np.testing.assert_allclose(geometry.centroid(y, kappa), 0, atol=2e-5)
    np.testing.assert_allclose(
        geometry.norm(y, kappa), geometry.dist(x, mean, kappa), rtol=1e-4, atol=1e-5
    )
    pair = jnp.stack([jnp.zeros(3), mean])
    want = geometry.centroid(pair, kappa, jnp.array([0.75, 0.25]))
    np.testing.assert_allclose(norm.mean[...], want, rtol=1e-5)
    moved = geometry.translate(-want, x, kappa)
    np.testing.assert_allclose(norm(x, use_running_average=True), moved, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("init", initializers.PRESETS)
def test_the_stored_beta_is_scaled_in_fast_only(init):
    norm = nn.LorentzBatchNorm(3, kappa=2.5, init=init)
    norm.beta[...] = jnp.array([0.3, -0.4, 1.2])
    want = norm.beta[...] / ((1 + 2.5 * 3) ** 0.5 if init == "fast" else 1)
    np.testing.assert_allclose(norm.bias_point(), want, rtol=1e-6)
    x = points(20, 3) + 1
    np.testing.assert_allclose(geometry.centroid(norm(x), 2.5), want, rtol=1e-4, atol=1e-5)


def test_an_empty_batch_changes_nothing():
    norm = nn.LorentzBatchNorm(3, kappa=1.0)
    norm.mean[...] = jnp.array([1.0, 2.0, 3.0])
    assert norm(jnp.zeros((0, 4, 4, 3))).shape == (0, 4, 4, 3)
    np.testing.assert_array_equal(norm.mean[...], [1, 2, 3])
    conv = nn.LorentzConv(3, 3, kappa=1.0, rngs=rngs())
    assert nn.conv_norm(conv, norm, jnp.zeros((0, 4, 4, 3))).shape == (0, 4, 4, 3)
    np.testing.assert_array_equal(norm.mean[...], [1, 2, 3])


def test_fused_pair_is_the_pair(kappa):
    x = points(4, 5, 5, 3)
    pairs = []
    for fused in (False, True):
        conv = nn.LorentzConv(3, 4, kappa=kappa, rngs=rngs())
        norm = nn.LorentzBatchNorm(4, kappa=kappa)
        conv.bias[...], norm.beta[...] = jnp.full(4, 0.2), jnp.array([0.1, 0.0, -0.5, 0.3])
        out = nn.conv_norm(conv, norm, x) if fused else norm(conv(x))
        pairs.append((out, norm.mean[...], nn.conv_norm(conv, norm, x, None, True)))
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="curvature is -kappa"):
        nn.LorentzLinear(3, 4, kappa=-1.0, rngs=rngs())
    with pytest.raises(ValueError, match="init must be one of"):
        nn.LorentzLinear(3, 4, kappa=1.0, init="best", rngs=rngs())
    with pytest.raises(ValueError, match="momentum"):
        nn.LorentzBatchNorm(3, kappa=1.0, momentum=1.5)
    with pytest.raises(ValueError, match=r"D_in = 3.*\(8, 5\)"):
        nn.LorentzLinear(3, 4, kappa=1.0, rngs=rngs())(jnp.zeros((8, 5)))
