"""The shells: one call into `functional`, honest state. Golden norms are in test_golden_norm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, geometry, nn
from lorentz_jax.hyperplane import normals
from lorentz_jax.nn import initializers
from lorentz_jax.training.state import merge, split
from tests.compiled import quick_jit


def rngs():
    return nnx.Rngs(0)


def points(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run(graphdef, params, stats, *arguments):
    """Output of a module and its new state."""
    module = merge(graphdef, params, stats)
    return module(*arguments), split(module)[2]


call = quick_jit(run, static_argnums=0)


# --- layers with hyperplanes ----------------------------------------------------------------

LAYERS = {
    "linear": (nn.LorentzLinear, {"activation": jax.nn.relu}),
    "conv": (nn.LorentzConv, {"strides": 2, "padding": 1}),
    "plain conv": (nn.LorentzConv, {"weight_norm": False, "kernel_size": (1, 3)}),
    "mlr": (nn.LorentzMLR, {"scale": None}),
}
FUNCTIONS = {
    "linear": lambda x, v, kappa: functional.linear(x, v, kappa, jax.nn.relu),
    "conv": lambda x, v, kappa: functional.conv(x, v, kappa, 2, 1),
    "plain conv": functional.conv,
    "mlr": lambda x, v, kappa: functional.mlr(x, v, kappa, None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_their_functions(name):
    kind, options = LAYERS[name]
    graphdef, params, stats = split(kind(3, 4, kappa=0.5, rngs=rngs(), **options))
    assert not stats
    params["bias"] = np.float32([0.3, -0.2, 0, 1])
    w = params["kernel"]
    if name in ("linear", "conv"):
        params["gain"] = np.float32([0.1, 1, 0, -1])
        w = w / np.linalg.norm(np.reshape(w, (-1, 4)), axis=0) * np.log1p(np.exp(params["gain"]))
    x = points(2, 6, 6, 3)
    for kappa in (None, 2.0):  # its own, or the one of the call
        own = 0.5 if kappa is None else kappa
        got, _ = call(graphdef, params, stats, x, kappa)
        # The preset "fast" stores b scaled, by all inputs of a unit.
        b = params["bias"] / np.sqrt(1 + own * np.float32(w.size / 4))
        want = jax.jit(FUNCTIONS[name])(x, normals(w, b, own), own)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_output_has_the_dtype_of_the_input(name, dtype):
    kind, options = LAYERS[name]
    model = nnx.eval_shape(lambda: kind(3, 4, kappa=0.5, rngs=rngs(), **options))
    graphdef, params, stats = split(model)
    x = jax.ShapeDtypeStruct((2, 6, 6, 3), dtype)
    y, _ = jax.eval_shape(functools.partial(run, graphdef), params, stats, x)
    assert y.dtype == dtype


def test_learnable_kappa_starts_right_and_stays_inside():
    kappa, value = nn.Kappa(1.0), jax.jit(lambda k: k())
    for start in (0.002, 0.1, 1.0, 2.5, 90.0):
        assert float(value(nn.Kappa(start))) == pytest.approx(start, rel=1e-5)
    low, high = nn.Kappa.bounds
    for raw in (-1e4, -20.0, 20.0, 1e4):
        kappa.raw[...] = jnp.asarray(raw, jnp.float32)
        assert low * 0.999 <= float(value(kappa)) <= high * 1.001
    for bad in (1e-3, 100.0, 0.0):
        with pytest.raises(ValueError, match="learnable kappa must start inside"):
            nn.Kappa(bad)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", [nn.LorentzLinear, nn.LorentzMLR])
def test_learnable_kappa_has_its_gradient(kind):
    layer = kind(3, 4, kappa=0.5, learn_kappa=True, param_dtype=jnp.float64, rngs=rngs())
    graphdef, params, stats = split(layer)
    x, step = points(5, 3).astype(float), 1e-5
    low, high = nn.Kappa.bounds
    params["bias"] = np.array([0.1, -0.3, 0, 1])

    @quick_jit
    @jax.value_and_grad
    def loss(raw):
        return jnp.sum(run(graphdef, params | {"kappa/raw": raw}, stats, x)[0] ** 2)

    raw = params["kappa/raw"]
    share = jax.nn.sigmoid(raw)
    assert float(low * (high / low) ** share) == pytest.approx(0.5, rel=1e-12)
    central = (loss(raw + step)[0] - loss(raw - step)[0]) / (2 * step)
    assert float(loss(raw)[1]) == pytest.approx(float(central), rel=1e-7)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="curvature is -kappa"):
        nn.LorentzLinear(3, 4, kappa=-1.0, rngs=rngs())
    with pytest.raises(ValueError, match="init must be one of"):
        nn.LorentzLinear(3, 4, kappa=1.0, init="best", rngs=rngs())
    with pytest.raises(ValueError, match="momentum"):
        nn.LorentzBatchNorm(3, kappa=1.0, momentum=1.5)
    with pytest.raises(ValueError, match=r"D_in = 3.*\(8, 5\)"):
        nn.LorentzLinear(3, 4, kappa=1.0, rngs=rngs())(jnp.zeros((8, 5)))


# --- batch norm -----------------------------------------------------------------------------


def test_batch_norm_before_training_is_the_identity(kappa):
    norm = nn.LorentzBatchNorm(3, kappa=kappa)
    norm.eval()
    graphdef, params, stats = split(norm)
    x = points(7, 3)
    got, after = call(graphdef, params, stats, x)
    np.testing.assert_allclose(got, x, atol=1e-6)
    np.testing.assert_array_equal(after["mean"], 0)


def test_batch_norm_centres_and_remembers(kappa):
    graphdef, params, stats = split(nn.LorentzBatchNorm(3, kappa=kappa, momentum=0.25))
    params["beta"] = np.float32([0.3, -0.4, 1.2])
    beta = params["beta"] / np.sqrt(1 + 3 * kappa)  # the preset "fast" stores it scaled
    x = points(50, 3) + np.float32([1, -2, 0.5])
    mean = geometry.centroid(x, kappa)
    y, stats = call(graphdef, params, stats, x)
    np.testing.assert_allclose(geometry.centroid(y, kappa), beta, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(
        geometry.dist(y, beta, kappa), geometry.dist(x, mean, kappa), rtol=1e-4, atol=1e-5
    )
    pair = np.stack([0 * mean, mean])
    want = geometry.centroid(pair, kappa, np.float32([0.75, 0.25]))
    np.testing.assert_allclose(stats["mean"], want, rtol=1e-5)
    moved = geometry.translate(beta, geometry.translate(-want, x, kappa), kappa)
    evaluating = nn.LorentzBatchNorm(3, kappa=kappa, momentum=0.25, use_running_average=True)
    got, after = call(split(evaluating)[0], params, stats, x)
    np.testing.assert_array_equal(after["mean"], stats["mean"])
    np.testing.assert_allclose(got, moved, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("init", initializers.PRESETS)
def test_the_stored_beta_is_scaled_in_fast_only(init):
    norm = nn.LorentzBatchNorm(3, kappa=2.5, init=init)
    norm.beta[...] = jnp.array([0.3, -0.4, 1.2])
    want = norm.beta[...] / (8.5**0.5 if init == "fast" else 1)
    np.testing.assert_allclose(norm.beta_point(), want, rtol=1e-6)


@pytest.mark.parametrize("init", initializers.PRESETS)
def test_the_stored_b_is_scaled_in_fast_only(init):
    """By the inputs of a unit: the 3x3 window of 2 channels has 18."""
    conv = nn.LorentzConv(2, 3, kappa=2.5, init=init, rngs=rngs())
    conv.bias[...] = jnp.array([0.3, -0.4, 1.2])
    for kappa, scale in ((None, 46**0.5), (0.5, 10**0.5)):
        want = conv.bias[...] / (scale if init == "fast" else 1)
        np.testing.assert_allclose(conv.biases(kappa), want, rtol=1e-6)
        np.testing.assert_array_equal(conv.weights(kappa)[1], conv.biases(kappa))


def test_an_empty_batch_changes_nothing():
    graphdef, params, stats = split(nn.LorentzBatchNorm(3, kappa=1.0))
    stats["mean"] = np.float32([1, 2, 3])
    y, after = call(graphdef, params, stats, np.zeros((0, 4, 4, 3), np.float32))
    assert y.shape == (0, 4, 4, 3)
    np.testing.assert_array_equal(after["mean"], [1, 2, 3])
    conv, norm = nn.LorentzConv(3, 3, kappa=1.0, rngs=rngs()), merge(graphdef, params, stats)
    assert nn.conv_norm(conv, norm, jnp.zeros((0, 4, 4, 3))).shape == (0, 4, 4, 3)
    np.testing.assert_array_equal(norm.mean[...], [1, 2, 3])


class Pair(nnx.Module):
    def __init__(self, kappa, fused, running):
        self.conv = nn.LorentzConv(3, 4, kappa=kappa, rngs=rngs())
        self.norm = nn.LorentzBatchNorm(4, kappa=kappa)
        self.fused, self.running = fused, running

    def __call__(self, x):
        if self.fused:
            return nn.conv_norm(self.conv, self.norm, x, None, self.running)
        return self.norm(self.conv(x), None, self.running)


@pytest.mark.parametrize("running", [False, True])
def test_fused_pair_is_the_pair(running):
    results = []
    for fused in (False, True):
        graphdef, params, stats = split(Pair(2.5, fused, running))
        params["conv/bias"] = np.full(4, 0.2, np.float32)
        params["norm/beta"] = np.float32([0.1, 0, -0.5, 0.3])
        stats["norm/mean"] = np.float32([1, 0, -1, 0.5])
        results.append(call(graphdef, params, stats, points(4, 5, 5, 3)))
    (y, stats), (fused_y, fused_stats) = results
    np.testing.assert_allclose(fused_y, y, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(fused_stats["norm/mean"], stats["norm/mean"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_pair_of_two_curvatures_is_the_pair(use_bias):
    conv = nn.LorentzConv(3, 4, kappa=1.0, use_bias=use_bias, rngs=rngs())
    x, norms = points(2, 5, 5, 3), [nn.LorentzBatchNorm(4, kappa=0.1) for _ in range(2)]
    for norm in norms:
        norm.beta[...] = points(4, seed=1)
    np.testing.assert_array_equal(nn.conv_norm(conv, norms[0], x), norms[1](conv(x)))
    np.testing.assert_array_equal(norms[0].mean[...], norms[1].mean[...])


def test_state_is_params_and_batch_stats():
    layer = nn.LorentzConv(3, 4, kappa=1.0, learn_kappa=True, rngs=rngs())
    norm = nn.LorentzBatchNorm(4, kappa=1.0)
    names = {layer: ({"kernel", "gain", "bias", "kappa/raw"}, set()), norm: ({"beta"}, {"mean"})}
    for module, (params, stats) in names.items():
        assert not jax.tree.leaves(nnx.split(module, nnx.Param, nnx.BatchStat, ...)[3])
        assert tuple(map(set, split(module)[1:])) == (params, stats)
