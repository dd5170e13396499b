"""Compiled inference: the compiled form against the NNX model in evaluation mode, and mpmath."""

import json
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import data, inference, metrics, nn
from lorentz_jax._src.polar import polar
from lorentz_jax.inference import compile_cached_v, restore
from lorentz_jax.inference.__main__ import main
from lorentz_jax.models import (
    EuclideanResNet,
    HCNNPaperResNet,
    HCNNResNet,
    LorentzResNet,
    PoincareResNet,
)
from lorentz_jax.training.state import merge, split
from tests import oracle
from tests.compiled import quick_jit

pytestmark = pytest.mark.slow  # whole networks are compiled here


def sphere_points(rng, shape, radius, kappa):
    """Space parts at distances up to `radius` from the origin."""
    direction = rng.normal(size=shape)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    distance = rng.uniform(0, radius, size=(*shape[:-1], 1))
    return direction * np.sinh(np.sqrt(kappa) * distance) / np.sqrt(kappa)


def scramble(model, kappa, radius, seed=0):
    """Random weights, biases, beta and running means, as training might leave them."""
    rng = np.random.default_rng(seed)
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nn.LorentzBatchNorm):
            features, dtype = node.beta.shape[0], node.beta[...].dtype
            stored = np.sqrt(1 + kappa * features) if node.scaled else 1
            beta, mean = (sphere_points(rng, (features,), radius, kappa) for _ in range(2))
            node.beta[...] = jnp.asarray(beta * stored, dtype)
            node.mean[...] = jnp.asarray(mean, dtype)
        elif isinstance(node, nn.HyperplaneLayer):
            if node.gain is not None:
                node.gain[...] = jnp.asarray(rng.normal(size=node.gain.shape), node.gain[...].dtype)
            if node.bias is None:
                continue
            dtype, inputs = node.bias[...].dtype, math.prod(node.kernel.shape[:-1])
            stored = np.sqrt(1 + kappa * inputs) if node.scaled else 1
            node.bias[...] = jnp.asarray(rng.normal(size=node.bias.shape) * stored, dtype)
    return model


def evaluated(model, x, **kwargs):
    """The model in evaluation mode, jitted."""
    graphdef, params, stats = split(model)
    return quick_jit(lambda p, s, x: merge(graphdef, p, s)(x, **kwargs))(params, stats, x)


def run(compiled, x):
    """The compiled form, as `compiled(x)` but with less effort in compiling."""
    return quick_jit(compiled.apply)(compiled.params, x)


def small_resnet(kappa, seed=0, radius=1.0, **kwargs):
    model = LorentzResNet((1, 1), 4, 5, 3, kappa=kappa, rngs=nnx.Rngs(seed), **kwargs)
    return scramble(model, kappa, radius, seed)


def images(dtype=jnp.float32, n=3, size=8, channels=3):
    return jax.random.normal(jax.random.key(1), (n, size, size, channels), dtype)


# --- the polar form -------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1e-6, 0.3, 3.0])
@pytest.mark.parametrize("place", ["apart", "near", "equal", "opposite", "mean 0", "beta 0"])
def test_polar_is_the_isometry_of_the_norm(kappa, radius, place):
    rng = np.random.default_rng(0)
    beta, mean, x = (sphere_points(rng, (5,), radius, kappa) for _ in range(3))
    if place == "near":
        beta = mean * (1 + 1e-3 * rng.normal(size=5))
    if place in ("equal", "opposite"):
        beta = mean if place == "equal" else -mean
    mean, beta = mean * (place != "mean 0"), beta * (place != "beta 0")
    rotation, point = polar(beta, mean, kappa)

    np.testing.assert_allclose(rotation @ rotation.T, np.eye(5), atol=1e-14)
    assert np.linalg.det(rotation) == pytest.approx(1)
    with mp.workdps(60):
        k = mp.mpf(float(kappa))

        def translate(p, x):
            return oracle.mp_translate(oracle.mp_lift(oracle.exactly(p), k), x, k)

        X = oracle.mp_lift(oracle.exactly(x), k)
        want = translate(beta, translate(-mean, X))[1:]
        turned = [oracle.dot(row, X[1:]) for row in oracle.exactly(rotation)]
        got = translate(point, oracle.mp_lift(turned, k))[1:]
        center = translate(beta, translate(-mean, oracle.mp_origin(5, k)))[1:]
    np.testing.assert_allclose(*_floats(got, want), atol=1e-13 * float(oracle.euclidean_norm(want)))
    # What rounding of beta and mean can do to their difference.
    slack = 1e-15 * np.cosh(np.sqrt(kappa) * radius) * radius
    np.testing.assert_allclose(*_floats(point, center), rtol=1e-13, atol=slack)


def _floats(*vectors):
    return [np.asarray([float(v) for v in vector]) for vector in vectors]


# --- compiled equals model ------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_layer_with_norm_float64(kappa, kind, fold):
    common = {"kappa": kappa, "param_dtype": jnp.float64}
    rngs = nnx.Rngs(0)
    layer = (
        nn.LorentzLinear(6, 7, rngs=rngs, **common)
        if kind == "linear"
        else nn.LorentzConv(6, 7, (3, 3), strides=2, rngs=rngs, **common)
    )
    norm = nn.LorentzBatchNorm(7, use_running_average=True, **common)
    model = scramble(nnx.Sequential(layer, norm), kappa, 3.0)
    shape = (50, 6) if kind == "linear" else (2, 5, 5, 6)
    x = jnp.asarray(sphere_points(np.random.default_rng(1), shape, 3.0, kappa))
    compiled = compile_cached_v(model, fold=fold)
    assert [layer["folded"] for layer in compiled.layers.values()] == [fold, fold]
    oracle.assert_close(compiled(x), model(x), 1e-10)


CONFIGS = [(0.1, True, "inside"), (1.0, False, "outside"), (2.5, False, None)]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("kappa", "learn_kappa", "scale"), CONFIGS)
def test_resnet_float64(kappa, learn_kappa, scale):
    options = {"learn_kappa": learn_kappa, "scale": scale, "param_dtype": jnp.float64}
    model = small_resnet(kappa, radius=3.0, use_bias=kappa != 1, **options)
    x = images(jnp.float64)
    want = evaluated(model, x, train=False)
    assert np.ptp(want, axis=0).max() > 1e-3  # the images do matter
    for fold in (True, False):
        oracle.assert_close(
            run(compile_cached_v(model, fold=fold), x), want, 1e-10, what=f"fold={fold}"
        )


def test_each_layer_keeps_its_kappa(x64):
    options = {"learn_kappa": True, "kappa_per_layer": True, "param_dtype": jnp.float64}
    model = small_resnet(1.0, radius=3.0, **options)
    kappas = [node for _, node in nnx.iter_graph(model) if isinstance(node, nn.Kappa)]
    for index, kappa in enumerate(kappas):
        kappa.raw[...] = kappa.raw[...] + 0.1 * (index - 3)
    x = images(jnp.float64)
    for fold in (True, False):
        compiled = compile_cached_v(model, fold=fold)
        assert compiled.kappa is None
        assert len({layer["kappa"] for layer in compiled.layers.values()}) == len(kappas) == 7
        assert sorted(compiled.kappas.values()) == sorted(float(kappa()) for kappa in kappas)
        oracle.assert_close(run(compiled, x), evaluated(model, x, train=False), 1e-10)


@pytest.mark.parametrize(("kappa", "learn_kappa", "scale"), CONFIGS)
def test_resnet_float32(kappa, learn_kappa, scale):
    model = small_resnet(kappa, learn_kappa=learn_kappa, scale=scale, init="paper")
    compiled, x = compile_cached_v(model), images()
    want = evaluated(model, x, train=False)
    assert np.ptp(want, axis=0).max() > 1e-3
    assert compiled.kappa == pytest.approx(kappa, rel=1e-5)
    oracle.assert_close(run(compiled, x), want, 1e-6)


BASELINES = {
    "variance": lambda **kw: LorentzResNet(norm="variance", kappa=0.7, **kw),
    "euclidean": EuclideanResNet,
    "hcnn": lambda **kw: HCNNResNet(kappa=0.7, **kw),
    "hcnn-paper": lambda **kw: HCNNPaperResNet(kappa=0.7, extra_logit=True, **kw),
    "poincare": lambda **kw: PoincareResNet(kappa=0.3, learn_kappa=True, **kw),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name):
    model = BASELINES[name](stages=(1, 1), width=4, num_classes=5, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.BatchStat | nnx.Param):
            node[...] = node[...] + jnp.asarray(rng.uniform(0, 0.2, node.shape), jnp.float32)
    x = images(size=4)
    want = evaluated(model, x, train=False)
    for fold in (True, False):
        compiled = compile_cached_v(model, fold=fold)
        # HCNN's norms multiply what two programs round differently.
        rtol = 1e-5 if name == "hcnn" else 1e-6
        oracle.assert_close(run(compiled, x), want, rtol, what=f"fold={fold}")
    (batch,) = inference.export(compiled, x.shape[1:]).in_avals
    assert str(batch.shape) == "(batch, 4, 4, 3)"  # any number of images


def test_single_layers(kappa):
    rngs = nnx.Rngs(0)
    points, pictures = images()[0, 0], images()
    layers = [
        (nn.LorentzLinear(3, 4, kappa=kappa, activation=jax.nn.relu, rngs=rngs), points),
        (nn.LorentzLinear(3, 4, kappa=kappa, weight_norm=False, init="paper", rngs=rngs), points),
        (nn.LorentzConv(3, 4, (3, 2), kappa=kappa, padding=((1, 0), (0, 1)), rngs=rngs), pictures),
        (nn.LorentzConv(3, 4, (1, 1), kappa=kappa, strides=(2, 1), padding="SAME",
                        activation=jnp.tanh, rngs=rngs), pictures),
        (nn.LorentzMLR(3, 4, kappa=kappa, scale=None, rngs=rngs), points),
    ]  # fmt: skip
    for layer, x in layers:
        scramble(nnx.Sequential(layer), kappa, 1.0)
        compiled = compile_cached_v(layer)
        assert set(compiled.params) == {"space", "time", "length", "excess"}
        oracle.assert_close(compiled(x), layer(x), 1e-5)
    norm = nn.LorentzBatchNorm(3, kappa=kappa)
    scramble(nnx.Sequential(norm), kappa, 1.0)
    oracle.assert_close(
        compile_cached_v(norm)(pictures), norm(pictures, use_running_average=True), 1e-6
    )


def test_a_norm_folds_only_where_it_may():
    rngs = nnx.Rngs(0)

    def folded(*layers):
        model = scramble(nnx.Sequential(*layers), 1.0, 1.0)
        compiled = compile_cached_v(model)
        model.eval()
        oracle.assert_close(compiled(images()[0, 0]), model(images()[0, 0]), 1e-6)
        return [name[-1] for name, layer in compiled.layers.items() if layer["folded"]]

    def linear(activation=None, kappa=1.0):
        return nn.LorentzLinear(3, 3, kappa=kappa, activation=activation, rngs=rngs)

    def norm():
        return nn.LorentzBatchNorm(3, kappa=1.0)

    assert folded(linear(), norm(), jax.nn.relu, linear(), norm()) == ["0", "1", "3", "4"]
    assert folded(linear(jax.nn.relu), norm()) == []  # ReLU stands between
    assert folded(linear(kappa=2.0), norm()) == []  # two curvatures
    assert folded(linear(), norm(), norm()) == ["0", "1"]
    assert folded(norm(), linear()) == []
    shared = norm()
    assert folded(linear(), shared, linear(), shared) == []  # one norm, two layers


SLOW = {"exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "cosh", "sinh", "asinh", "pow"}


def slow_operations(jaxpr, inside=False):
    """Yield transcendental operations, and whether they belong to the logits."""
    for equation in jaxpr.eqns:
        logits = inside or "logits" in str(equation.source_info.name_stack)
        if equation.primitive.name in SLOW:
            yield equation.primitive.name, logits
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from slow_operations(inner, logits)


def test_one_convolution_a_layer_and_nothing_transcendental_but_in_the_logits():
    compiled = compile_cached_v(small_resnet(1.0))
    lowered = jax.jit(compiled.apply).lower(compiled.params, images())
    convolutions = sum(layer["layer"] == "LorentzConv" for layer in compiled.layers.values())
    assert lowered.as_text().count("stablehlo.convolution") == convolutions == 6
    text = lowered.compile().as_text()
    assert len(re.findall(r" (?:convolution|dot)\(", text)) <= 2 * convolutions + 1
    jaxpr = jax.make_jaxpr(compiled.apply)(compiled.params, images()).jaxpr
    slow = list(slow_operations(jaxpr))
    assert slow  # those of the logits are seen
    assert all(logits for _, logits in slow), slow


def test_the_model_is_not_touched_and_not_followed():
    # w[0, 0] += 1 on the input side of the first unit.
    layer = nn.LorentzLinear(2, 2, kappa=1.0, weight_norm=False, init="paper", rngs=nnx.Rngs(0))
    layer.kernel[...] = jnp.array([[1, 0.5], [2, -1]], jnp.float32)
    layer.bias[...] = jnp.array([0.125, -0.25])
    x = jnp.array([0.5, -0.25])
    compiled = compile_cached_v(layer)
    before = [0.1432800883153, 0.2237484571034]
    np.testing.assert_allclose(compiled(x), before, atol=1e-6)
    layer.kernel[...] = layer.kernel[...].at[0, 0].add(1)
    np.testing.assert_allclose(compiled(x), before, atol=1e-6)
    after = [0.6437404721186, 0.2237484571034]
    np.testing.assert_allclose(compile_cached_v(layer)(x), after, atol=1e-6)
    np.testing.assert_allclose(layer(x), after, atol=1e-6)


def test_half_precision():
    model = small_resnet(1.0, radius=0.5)
    x = images()
    want = run(compile_cached_v(model), x)
    for dtype in ("bfloat16", "float16"):
        compiled = compile_cached_v(model, dtype=dtype)
        kinds = {key.rsplit("/", 1)[-1]: value.dtype for key, value in compiled.params.items()}
        assert kinds["time"] == kinds["push"] == kinds["pull"] == jnp.float32
        assert compiled.params["stem/conv/space"].dtype == dtype
        assert jax.eval_shape(compiled.apply, compiled.params, x).dtype == jnp.float32
        limit = 0.05 if dtype == "bfloat16" else 0.01
        error = oracle.error(run(compiled, x), want)
        assert 1e-6 < error < limit
    with pytest.raises(ValueError, match=r"dtype must be None or one of.*float64"):
        compile_cached_v(model, dtype="float64")


# --- restore --------------------------------------------------------------------------------


def test_restore_is_lossless(kappa):
    model = small_resnet(kappa)
    stored = math.sqrt(1 + kappa * model.head.kernel.shape[0])
    model.head.bias[...] = stored * jnp.array([20.0, -20, 0, 1, 40])  # theta far beyond 8
    compiled = compile_cached_v(model, fold=False)
    restored = restore(compiled)
    assert set(restored) == {n for n in compiled.layers if not n.endswith("norm")}
    for name, module in {
        "stem/conv": model.stem.conv,
        "stages/1/0/shortcut/conv": model.stages[1][0].shortcut.conv,
        "head": model.head,
    }.items():
        w, b = module.weights()
        np.testing.assert_allclose(restored[name].w, w, rtol=2e-6, atol=1e-7)
        np.testing.assert_allclose(restored[name].b, b, rtol=2e-6, atol=1e-7)
    np.testing.assert_array_equal(compiled.params["stem/norm/mean"], model.stem.norm.mean[...])


@pytest.mark.parametrize("weight_norm", [True, False])
def test_restore_of_planes_through_the_origin(weight_norm):
    conv = nn.LorentzConv(
        2, 3, kappa=1.0, use_bias=False, weight_norm=weight_norm, rngs=nnx.Rngs(0)
    )
    for options in ({}, {"dtype": "bfloat16"}, {"lengths": False}):
        compiled = compile_cached_v(conv, **options)
        assert "time" not in compiled.params
        w, b = restore(compiled)[""]
        tolerance = 1e-2 if "dtype" in options else 1e-6
        np.testing.assert_allclose(w, conv.weights()[0], atol=tolerance)
        np.testing.assert_array_equal(b, 0)


def test_restore_refuses_what_is_lost():
    compiled = compile_cached_v(small_resnet(1.0))
    with pytest.raises(ValueError, match=r"folded into .*stem/conv.*layers=\['head'\].*fold=False"):
        restore(compiled)
    assert list(restore(compiled, ["head"])) == ["head"]
    with pytest.raises(ValueError, match=r"no layers with hyperplanes: \['tail'\]"):
        restore(compiled, ["tail"])

    # A bare V, in float32 and at |theta| = 20; inference from it stays right.
    layer = nn.LorentzLinear(2, 1, kappa=1.0, weight_norm=False, init="paper", rngs=nnx.Rngs(0))
    layer.kernel[...], layer.bias[...] = jnp.array([[1.0], [0]]), jnp.array([20.0])
    bare = compile_cached_v(layer, lengths=False)
    assert "length" not in bare.params
    with pytest.raises(ValueError, match="lost to float32 rounding"):
        restore(bare)
    np.testing.assert_allclose(restore(compile_cached_v(layer))[""].b, [20], rtol=1e-6)
    np.testing.assert_array_equal(bare(jnp.ones(2)), layer(jnp.ones(2)))
    layer.bias[...] = jnp.array([1.0])
    np.testing.assert_allclose(
        restore(compile_cached_v(layer, lengths=False))[""].b, [1], rtol=1e-5
    )


# --- errors ---------------------------------------------------------------------------------


def test_wrong_input_is_refused_when_tracing():
    compiled = compile_cached_v(small_resnet(1.0))
    apply = jax.jit(compiled.apply)
    with pytest.raises(
        ValueError, match=r"expected images \(N, H, W, 3\), got shape \(3, 8, 8, 4\)"
    ):
        apply.lower(compiled.params, images(channels=4))
    with pytest.raises(TypeError, match="floating-point"):
        apply.lower(compiled.params, jnp.ones((1, 8, 8, 3), jnp.int32))
    other = compile_cached_v(LorentzResNet((1, 1), 4, 7, 3, rngs=nnx.Rngs(0)))
    with pytest.raises(
        ValueError, match=r"not the arrays.*head/space: expected \(8, 5\), got \(8, 7"
    ):
        apply.lower(other.params, images())
    layer = compile_cached_v(nn.LorentzLinear(3, 4, kappa=1.0, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="expected points with D_in = 3"):
        jax.jit(layer.apply).lower(layer.params, jnp.ones((2, 5)))


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"expected an nnx\.Module, got function"):
        compile_cached_v(lambda x: x)
    broken = small_resnet(1.0)
    broken.head.bias[...] = broken.head.bias[...].at[1].set(jnp.inf)
    with (
        jax.debug_nans(False),
        pytest.raises(ValueError, match=r"head/.* is not finite in float32"),
    ):
        compile_cached_v(broken)


# --- export and evaluation ------------------------------------------------------------------

ONLY_JAX = """
import sys
from pathlib import Path
import jax, numpy
model = jax.export.deserialize(Path(sys.argv[1]).read_bytes())
x = numpy.load(sys.argv[2])
for n in (1, 7, 64):
    numpy.save(sys.argv[2] + f".{n}", numpy.asarray(model.call(x[:n])))
try:
    model.call(x[:0])
except ValueError as error:
    print(error)
assert not {"flax", "lorentz_jax"} & {name.split(".")[0] for name in sys.modules}
"""


def test_export_runs_with_jax_alone(tmp_path):
    compiled, x = compile_cached_v(small_resnet(0.1)), images(n=64)
    exported = inference.export(compiled, (8, 8, 3), tmp_path / "model.stablehlo")
    with pytest.raises(ValueError, match="Expected value >= 1 for dimension variable 'batch'"):
        exported.call(x[:0])
    with pytest.raises(ValueError, match="sample_shape"):
        inference.export(compiled, (8, 0, 3))
    wide = LorentzResNet((1,), 32, 5, 3, kappa=0.1, rngs=nnx.Rngs(0))
    inference.export(compile_cached_v(wide), ("h", "w", 3))  # its sums go by the number of pixels

    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-I", "-c", ONLY_JAX, "model.stablehlo", "x.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Expected value >= 1 for dimension variable 'batch'" in done.stdout
    for n in (1, 7, 64):
        got = np.load(tmp_path / f"x.npy.{n}.npy")
        np.testing.assert_array_equal(got, exported.call(x[:n]))
        np.testing.assert_allclose(got, compiled(x[:n]), atol=1e-6)


def test_evaluate_counts_every_image_once():
    digits = data.load("digits")
    model = scramble(LorentzResNet((1,), 4, 10, 1, kappa=1.0, rngs=nnx.Rngs(0)), 1.0, 1.0)
    pixels = data.normalise(jnp.asarray(digits.test_images), digits.mean, digits.std)
    labels = jnp.asarray(digits.test_labels)
    logits = evaluated(model, pixels, train=False)
    compiled = compile_cached_v(model)
    result = inference.evaluate(compiled, digits, batch_size=100)
    assert result["count"] == 360
    assert result["accuracy"] == float(np.mean(np.asarray(logits.argmax(-1) == labels)))
    want = float(metrics.cross_entropy(logits, labels).mean())
    assert result["loss"] == pytest.approx(want, rel=1e-5)

    few = compile_cached_v(LorentzResNet((1,), 4, 5, 1, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"digits has 10 classes, the model's output is \(5,\)"):
        inference.evaluate(few, digits)
    theirs = HCNNPaperResNet((1,), 4, 10, 1, init="paper", extra_logit=True, rngs=nnx.Rngs(0))
    info = {"config": {"model": "hcnn-paper", "init": "paper"}}
    assert inference.evaluate(compile_cached_v(theirs, info=info), digits)["count"] == 360
    with pytest.raises(ValueError, match=r"10 classes, the model's output is \(11,\)"):
        inference.evaluate(compile_cached_v(theirs), digits)
    colour = compile_cached_v(LorentzResNet((1,), 4, 10, 3, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"expected images \(N, H, W, 3\)"):
        inference.evaluate(colour, digits)


def command(capsys, *arguments):
    status = main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_evaluate_from_the_command_line(tmp_path, capsys):
    compiled = compile_cached_v(LorentzResNet((1,), 4, 10, 1, kappa=0.5, rngs=nnx.Rngs(0)))
    inference.save(compiled, tmp_path / "m.npz")
    status, out, _ = command(capsys, "evaluate", tmp_path / "m.npz", "--dataset", "digits")
    assert status == 0
    assert re.fullmatch(r"test_accuracy 0\.\d+ test_loss [\d.]+ on 360 images of digits.*\n", out)
    status, _, err = command(capsys, "evaluate", tmp_path / "m.npz")
    assert status == 2
    assert "m.npz names no dataset: choose one with --dataset" in err
    digits = ("--dataset", "digits")
    status, _, err = command(capsys, "evaluate", tmp_path / "m.npz", *digits, "--kappa", "0.25")
    assert status == 2
    assert "expected kappa 0.25, got a model of kappa 0.5" in err
    assert len(err.splitlines()) == 1
    status, _, err = command(capsys, "evaluate", tmp_path / "none.npz")
    assert status == 2
    assert "none.npz" in err


def own_model():
    return nnx.Sequential(nn.LorentzLinear(3, 2, kappa=0.5, rngs=nnx.Rngs(0)), jnp.tanh)


def test_describe_and_export_files_of_both_kinds(tmp_path, capsys):
    network = LorentzResNet((1,), 4, 10, 1, kappa=0.5, rngs=nnx.Rngs(0))
    inference.save(compile_cached_v(network), tmp_path / "network.npz")
    inference.save(compile_cached_v(own_model()), tmp_path / "own.npz")
    status, out, _ = command(capsys, "describe", tmp_path / "network.npz")
    assert status == 0
    assert "LorentzResNet" in out
    assert "stem/conv: LorentzConv kappa 0.5 with its norm" in out
    assert "head/space float32 (4, 10)" in out
    status, out, _ = command(capsys, "describe", tmp_path / "own.npz", "--json")
    assert status == 0
    assert json.loads(out)["layers"]["layers/0"]["kappa"] == 0.5
    target = tmp_path / "m.stablehlo"
    sample = ("--sample", "h", "w", "1")
    assert command(capsys, "export", tmp_path / "network.npz", target, *sample)[0] == 0
    assert jax.export.deserialize(target.read_bytes()).call(jnp.ones((2, 5, 6, 1))).shape == (2, 10)
    status, _, err = command(capsys, "export", tmp_path / "own.npz", target, "--sample", "3")
    assert status == 2
    assert "load it with like=" in err
    like = ("--like", "tests.inference.test_inference:own_model")
    status, _, err = command(capsys, "export", tmp_path / "own.npz", target, "--sample", "3", *like)
    assert (status, err) == (0, "")
    x = jnp.ones((4, 3))
    want = compile_cached_v(own_model())(x)
    exported = jax.export.deserialize(target.read_bytes())
    np.testing.assert_allclose(exported.call(x), want, rtol=1e-6)
    status, _, err = command(
        capsys, "export", tmp_path / "own.npz", target, "--sample", "3", "--like", "nowhere:f"
    )
    assert status == 2
    assert "--like nowhere:f: No module named 'nowhere'" in err
