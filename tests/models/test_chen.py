"""Chen et al.'s layers: golden data, brute-force patches, and where the reference is wrong."""

import functools
import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import geometry
from lorentz_jax.models import chen
from tests.compiled import jitted, quick_jit, run
from tests.conftest import KAPPAS
from tests.oracle import assert_close, evaluate, golden, mp_time
from tests.reference import channels_last, pull_back, space

linear = jitted(chen.linear)
linear_relu = quick_jit(functools.partial(chen.linear, activation=jax.nn.relu))
conv = quick_jit(chen.conv, static_argnames=("strides", "padding"))


def case(kappa):
    prefix = f"k{kappa:g}/d1/"
    data = golden("baselines")
    return {k.removeprefix(prefix): v for k, v in data.items() if k.startswith(prefix)}


def split_weights(W, b, normalise):
    """The reference's `(out + 1, 1 + in)` as our arguments; its row 0 is the gate or nothing."""
    rows = slice(0 if normalise else 1, None)
    return W[rows, 1:].T, W[rows, 0], None if b is None else b[rows]


@functools.cache
def golden_runner(relu, normalise):
    """Output and gradients in the reference's form: an ambient vector, perhaps cut by ReLU."""
    eps = 1e-5 if normalise else 0.0  # which the reference adds below its root

    @quick_jit
    def both(x, W, b, scale, R, kappa):
        def loss(x, W, b, scale):
            kernel, time, bias = split_weights(W, b, normalise)
            y = chen.linear(x, kernel, time, kappa, bias, scale if normalise else None)
            time = jnp.sqrt(jnp.sum(y * y, -1, keepdims=True) + 1 / kappa + eps)
            out = jnp.concatenate([time, y], axis=-1)
            out = jax.nn.relu(out) if relu else out
            return jnp.sum(R * out), (y, out)

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(x, W, b, scale)

    return both


# The reference's other version of the layer ("theirs") is right at kappa = 1 alone.
GOLDEN = [(k, f"chen_{kind}_bias") for k in KAPPAS for kind in ("plain", "norm")]
GOLDEN += [(1.0, f"theirs_{kind}") for kind in ("plain_bias", "norm_bias", "norm_nobias")]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("kappa", "name"), GOLDEN)
def test_golden_values_and_gradients(kappa, name):
    data = case(kappa)
    b = np.zeros_like(data["lin_b"]) if "nobias" in name else data["lin_b"]
    values = {"x": space(data["lin_x"]), "W": data["lin_W"], "b": b, "scale": data["lin_scale"]}
    both = golden_runner(name.startswith("chen"), "norm_" in name)
    (_, (y, out)), grads = both(*values.values(), data["lin_R"], kappa)
    assert_close(out, data[f"{name}_y"], 1e-14, axis=None)
    if name.startswith("chen"):
        assert_close(y, space(data[f"{name}_y_noact"]), 1e-13)
    for leaf, got in zip(values, grads, strict=True):
        if f"{name}_grad_{leaf}" in data:
            want = data[f"{name}_grad_{leaf}"]
            want = pull_back(want, data["lin_x"]) if leaf == "x" else want
            assert_close(got, want, 1e-12, axis=tuple(range(want.ndim)), what=leaf)


@quick_jit
def reference_form(X, kernel, time, bias, R, kappa):
    """The layer without normalisation; its output and the gradient by X."""

    def loss(X):
        out = chen.reference_linear(X, kernel, time, kappa, bias)
        return jnp.sum(R * out), out

    gradient, out = jax.grad(loss, has_aux=True)(X)
    return out, gradient


@pytest.mark.usefixtures("x64")
def test_the_reference_form_reproduces_its_relu_after_the_time(kappa):
    data = case(kappa)
    kernel, time, bias = split_weights(data["lin_W"], data["lin_b"], False)
    X, want = data["lin_x"], data["chen_plain_bias_y"]
    out, gradient = reference_form(X, kernel, time, bias, data["lin_R"], kappa)
    assert_close(out, want, 1e-14)
    assert_close(gradient, data["chen_plain_bias_grad_x"], 1e-12)
    with pytest.raises(ValueError, match="not a point of the hyperboloid"):
        geometry.drop(out, kappa)
    meant = linear_relu(space(X), kernel, time, kappa, bias)
    assert_close(meant, space(want), 1e-14, axis=None)
    normalised = split_weights(data["lin_W"], data["lin_b"], True)
    out = jitted(chen.reference_linear)(X, *normalised[:2], kappa, normalised[2], data["lin_scale"])
    assert_close(space(out), space(data["chen_norm_bias_y"]), 1e-14, axis=None)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "strides"), [("k3p1s1", 1), ("k3p1s2", 2), ("k1p0s2", 2)])
def test_golden_convolution(name, strides):
    data = golden("baselines")
    x, R = channels_last(data["conv/x"]), channels_last(data[f"conv/{name}/R"])
    weight, size = data[f"conv/{name}/weight.weight"], int(name[1])

    def loss(x, weight):
        kernel, time, _ = split_weights(weight, None, False)
        kernel = kernel.reshape(size, size, x.shape[-1], -1)
        y = geometry.lift(chen.conv(x, kernel, time, 1.0, strides=strides), 1.0)
        return jnp.sum(R * y), y

    (_, y), grads = quick_jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(space(x), weight)
    assert_close(y, channels_last(data[f"conv/{name}/y"]), 1e-13)
    want = pull_back(channels_last(data[f"conv/{name}/grad_x"]), x)
    assert_close(grads[0], want, 1e-12, axis=(0, 1, 2, 3))
    assert_close(grads[1], data[f"conv/{name}/grad_weight.weight"], 1e-12, axis=(0, 1))


def patches(x, size, pad, strides):
    """Concatenated patches of one image, position-major, and the output's shape."""
    padded = np.pad(x, ((pad, pad), (pad, pad), (0, 0)))
    rows = range(0, padded.shape[0] - size + 1, strides)
    columns = range(0, padded.shape[1] - size + 1, strides)
    flat = [padded[i : i + size, j : j + size].ravel() for i, j in itertools.product(rows, columns)]
    return np.array(flat), (len(rows), len(columns))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("size", "pad", "strides"), [(3, 1, 1), (3, 1, 2), (2, 0, 1)])
def test_convolution_is_the_layer_of_each_patch_at_every_kappa(kappa, size, pad, strides):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 5, 2))
    kernel, time, bias = rng.normal(size=(size, size, 2, 3)), rng.normal(size=3), rng.normal(size=3)
    flat, shape = patches(x, size, pad, strides)

    def truth(patch, k):
        # Time of the concatenation from those of its points (Qu et al.), in another form than ours.
        points = [patch[i : i + 2] for i in range(0, len(patch), 2)]
        t = mp.sqrt(mp.fsum(mp_time(p, k) ** 2 for p in points) - (len(points) - 1) / k)
        rows = kernel.reshape(-1, 3).T
        return [
            t * mp.mpf(float(time[j]))
            + mp.fsum(mp.mpf(float(w)) * v for w, v in zip(rows[j], patch, strict=True))
            + mp.mpf(float(bias[j]))
            for j in range(3)
        ]

    want = evaluate(truth, flat, kappa=kappa).reshape(*shape, 3)
    window = {"strides": strides, "padding": pad}
    assert_close(conv(x, kernel, time, kappa, bias, **window), want, 1e-13)
    gate = np.concatenate([kernel, kernel[..., :1]], -1)
    rest = np.append(time, 0.1), kappa, np.append(bias, 0.2), np.float64(0.7)
    gated = conv(x, gate, *rest, **window)
    whole = linear(flat, gate.reshape(-1, 4), *rest)
    assert_close(gated, whole.reshape(*shape, 3), 1e-13)


def test_a_direction_that_vanishes_gives_the_origin_with_finite_gradients():
    x, kernel, time = jnp.ones((2, 3)), jnp.zeros((3, 4)), jnp.zeros(4)

    def loss(x, kernel, time, scale):
        return jnp.sum(chen.linear(x, kernel, time, 0.5, log_scale=scale) ** 2)

    np.testing.assert_array_equal(linear(x, kernel, time, 0.5, log_scale=2.3), np.zeros((2, 3)))
    for gradient in quick_jit(jax.grad(loss, (0, 1, 2, 3)))(x, kernel, time, jnp.asarray(2.3)):
        assert np.isfinite(gradient).all()
    tiny = linear(x, kernel.at[0, 1].set(1e-30), time, 0.5, log_scale=0.0)
    np.testing.assert_allclose(tiny, [[0.5, 0, 0]] * 2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dtypes_jit_and_batches(dtype):
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, 4, 4, 3)), dtype)
    kernel, time, bias = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in [(3, 3, 3, 5), (5,), (5,)]
    )
    eager = chen.conv(x, kernel, time, 0.5, bias)
    assert eager.dtype == dtype
    assert eager.shape == (2, 4, 4, 5)
    compiled = conv(x, kernel, time, 0.5, bias)
    mapped = quick_jit(jax.vmap(lambda image: chen.conv(image, kernel, time, 0.5, bias)))(x)
    for other in (compiled, mapped):
        np.testing.assert_allclose(*(np.float32(v) for v in (eager, other)), rtol=2e-2, atol=2e-2)
    flat = linear(x, kernel[0, 0], time, jnp.full((2, 4, 4), 0.5), bias, 1.0)
    assert flat.dtype == dtype
    assert flat.shape == (2, 4, 4, 4)
    assert linear(x[:0], kernel[0, 0], time, 0.5).shape == (0, 4, 4, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": jnp.ones((2, 4))}, "D_in = 3"),
        ({"time": jnp.ones(4)}, r"time must have shape \(5,\)"),
        ({"bias": jnp.ones((1, 5))}, r"bias must have shape \(5,\)"),
        ({"kappa": 0.0}, "finite and > 0"),
        ({"kernel": jnp.ones((3, 1)), "time": jnp.ones(1), "log_scale": 1.0}, "first column"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change, message):
    arguments = {"x": jnp.ones((2, 3)), "kernel": jnp.ones((3, 5)), "time": jnp.ones(5), "kappa": 1}
    with pytest.raises(ValueError, match=message):
        chen.linear(**{**arguments, **change})
    if "x" in change:
        with pytest.raises(ValueError, match=r"3 \+ 1 coordinates"):
            chen.reference_linear(jnp.ones((2, 3)), jnp.ones((3, 5)), jnp.ones(5), 1.0)
    with pytest.raises(TypeError, match="floating"):
        chen.linear(**{**arguments, "x": jnp.ones((2, 3), jnp.int32)})


def test_layers_are_their_functions_and_start_as_published():
    x = jnp.ones((2, 6, 6, 3))
    layer = chen.ChenConv(3, 4, kappa=0.5, strides=2, normalise=True, rngs=nnx.Rngs(0))
    weights = (layer.kernel[...], layer.time[...])
    want = conv(x, *weights, 2.0, layer.bias[...], layer.log_scale[...], strides=2)
    np.testing.assert_array_equal(run(layer, x, 2.0), want)
    assert run(layer, x).shape == (2, 3, 3, 4)
    assert layer.kernel.shape == (3, 3, 3, 5)
    bound = np.sqrt(2 / 27)  # HCNN's
    for leaf in (layer.kernel, layer.time, layer.bias):
        assert 0.5 * bound < np.abs(leaf[...]).max() < bound
    layer = chen.ChenLinear(3, 40, kappa=0.5, init="chen", rngs=nnx.Rngs(0))
    assert 0.018 < np.abs(layer.kernel[...]).max() < 0.02
    assert not np.any(layer.bias[...])
    assert chen.ChenLinear(3, 4, kappa=0.5, use_bias=False, rngs=nnx.Rngs(0)).bias is None
    want = linear(x, layer.kernel[...], layer.time[...], 0.7)
    np.testing.assert_array_equal(run(layer, x, 0.7), want)
    with pytest.raises(ValueError, match="init must be one of"):
        chen.ChenLinear(3, 4, kappa=0.5, init="fast", rngs=nnx.Rngs(0))
