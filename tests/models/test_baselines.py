"""The networks beside `LorentzResNet`: parity with the reference, layout, and training steps."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import geometry
from lorentz_jax.metrics import cross_entropy
from lorentz_jax.models import RESNETS, HCNNPaperResNet, LorentzResNet, build_model, hcnn, poincare
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.optimiser import make_optimiser
from lorentz_jax.training.state import merge, split
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden
from tests.reference import channels_last, pull_back, reference_name, space

pytestmark = pytest.mark.slow  # whole networks are compiled here


# --- parity with the reference code -----------------------------------------------------------

REFERENCE = {"variance": "normal", "hcnn-paper": "theirs"}  # what it calls the two networks
both = pytest.mark.parametrize("name", REFERENCE)


def section(prefix):
    data = golden("baseline_networks")
    return {k.removeprefix(prefix): v for k, v in data.items() if k.startswith(prefix)}


def reference_array(data, prefix, path, gradient_of=None):
    """The reference's array for one of ours; `gradient_of` is where the points of betas are."""
    module, leaf = path.rsplit("/", 1)
    name = prefix + reference_name(f"{module}/kernel").rsplit(".", 1)[0]
    point = gradient_of and gradient_of + reference_name(f"{module}/beta")
    if leaf in ("gamma", "var"):
        return data[f"{name}.{'gamma' if leaf == 'gamma' else 'running_var'}"][0]
    if leaf == "beta" and gradient_of:
        return pull_back(data[f"{name}.beta"], data[point])
    if leaf in ("beta", "mean"):
        return space(data[f"{name}.{'beta' if leaf == 'beta' else 'running_mean'}"])
    if f"{name}.weight.weight" in data:  # row 0 makes a time that is dropped
        weight = data[f"{name}.weight.weight"][1:]
        return weight[:, 0] if leaf == "time" else weight[:, 1:].T
    if f"{name}.z" in data:
        return data[f"{name}.a"] if leaf == "bias" else data[f"{name}.z"].T
    return -data[f"{name}.a"][0] if leaf == "bias" else data[f"{name}.U"]


def reference_arrays(data, prefix, like, gradient_of=None):
    return {
        path: reference_array(data, prefix, path, gradient_of).reshape(value.shape)
        for path, value in like.items()
    }


def assert_arrays(got, want, rtol):
    assert got.keys() == want.keys()
    for path in want:
        assert_close(got[path], want[path], rtol, axis=tuple(range(want[path].ndim)), what=path)


def network(name, stages, **kwargs):
    """The structure of a network; its values come from the golden data."""
    options = {"kappa": 1.0, "init": "paper", "param_dtype": jnp.float64, **kwargs}
    if name == "variance":
        options |= {"norm": "variance", "weight_norm": False}
    else:
        options |= {"extra_logit": True}
    kind = LorentzResNet if name == "variance" else HCNNPaperResNet
    return nnx.eval_shape(lambda: kind(stages, 4, rngs=nnx.Rngs(0), **options))


@pytest.mark.usefixtures("x64")
@both
def test_golden_block(name):
    data = section(f"block/{REFERENCE[name]}/")
    graphdef, *like = split(network(name, (1, 1), in_channels=4).stages[1][0])
    params, stats = (reference_arrays(data, "sd/", arrays) for arrays in like)
    x, cotangent, grad_x = (channels_last(data[key]) for key in ("x", "R", "grad_x"))

    @quick_jit
    def run(params, stats, x):
        def loss(params, x):
            block = merge(graphdef, params, stats)
            y = geometry.lift(block(x, 1.0, False), 1.0)
            return jnp.sum(cotangent * y), (y, split(block)[2])

        (_, (y, after)), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
        evaluated = [merge(graphdef, params, s)(x, 1.0, True) for s in (stats, after)]
        return y, after, grads, [geometry.lift(y, 1.0) for y in evaluated]

    y, after, grads, evaluated = run(params, stats, space(x))
    for got, key in zip((y, *evaluated), ("y_train", "y_eval", "y_eval_after"), strict=True):
        assert_close(got, channels_last(data[key]), 1e-13, what=key)
    assert_arrays(after, reference_arrays(data, "after/", after), 1e-13)
    assert_arrays(grads[0], reference_arrays(data, "grad/", params, "sd/"), 1e-12)
    assert_arrays({"x": grads[1]}, {"x": pull_back(grad_x, x)}, 1e-12)


@functools.cache
def resnet_runner(name):
    graphdef, params, stats = split(network(name, (1, 1, 1, 1)))

    @quick_jit
    def train(params, stats, x, labels):
        def loss(params):
            model = merge(graphdef, params, stats)
            logits = model(x, train=True)
            return cross_entropy(logits, labels).mean(), (logits, split(model)[2])

        (value, (logits, after)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, logits, after, grads

    @quick_jit
    def evaluate(params, stats, x):
        return merge(graphdef, params, stats)(x, train=False)

    return train, evaluate, params, stats


@pytest.mark.usefixtures("x64")
@both
def test_golden_resnet_and_three_training_steps(name):
    data, later = (section(f"{part}/{REFERENCE[name]}/") for part in ("net", "sgd"))
    train, evaluate, *like = resnet_runner(name)
    params, stats = (reference_arrays(data, "sd0/", arrays) for arrays in like)
    images = np.moveaxis(data["x"], 2, -1)
    assert_close(evaluate(params, stats, images[0]), data["logits_eval_x0"], 1e-12)
    config = TrainConfig(
        init="paper", kappa=1.0, lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="constant"
    )
    optimiser = make_optimiser(config, params, steps_per_epoch=3)
    state, update, losses = optimiser.init(params), quick_jit(optimiser.update), []
    for step, (x, labels) in enumerate(zip(images, data["labels"], strict=True)):
        loss, logits, stats, grads = train(params, stats, x, labels)
        losses.append(loss)
        if step == 0:
            assert_close(logits, data["logits_train_x0"], 1e-12)
            assert_close(loss, data["loss0"], 1e-12)
        if step < len(images) - 1:
            updates, state = update(grads, state, params)
            params = {path: params[path] + updates[path] for path in params}
    if later:  # these losses depend on every gradient of three steps
        assert_close(np.array(losses), later["losses"], 1e-12, axis=None)
        got = evaluate(params, stats, images[0])
        assert_close(got, later["logits_eval_x0_after3"], 1e-12)


# --- every network --------------------------------------------------------------------------


def model_of(name, stages=(1, 1), width=4, classes=5, channels=2, **kwargs):
    options = {} if name == "euclidean" else {"kappa": 0.5}
    return RESNETS[name](stages, width, classes, channels, rngs=nnx.Rngs(0), **options, **kwargs)


@pytest.mark.parametrize("name", RESNETS)
def test_a_step_is_finite_and_evaluation_knows_no_batch(name):
    graphdef, params, stats = split(model_of(name))
    x = jax.random.normal(jax.random.key(1), (4, 6, 6, 2)).at[0].set(0)  # one blank image
    labels = jnp.arange(4, dtype=jnp.int32)

    @quick_jit
    def step(params, stats):
        def loss(params):
            model = merge(graphdef, params, stats)
            logits = model(x, train=True)
            return cross_entropy(logits, labels).mean(), (logits, split(model)[2])

        (value, (logits, after)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        moved = {path: params[path] - 0.1 * grads[path] for path in params}
        return value, logits, after, moved

    evaluate = quick_jit(lambda params, stats, x: merge(graphdef, params, stats)(x, train=False))
    first, logits, after, moved = step(params, stats)
    assert logits.shape == (4, 5)
    assert logits.dtype == x.dtype
    assert all(jnp.isfinite(value).all() for value in {**after, **moved}.values())
    assert all((after[path] != stats[path]).any() for path in stats)  # every norm took part
    trained = [moved[path] for path in params]
    assert all((a != params[path]).any() for a, path in zip(trained, params, strict=True))
    assert step(moved, after)[0] < first
    whole = evaluate(params, after, x)
    np.testing.assert_allclose(whole[1:2], evaluate(params, after, x[1:2]), rtol=2e-4, atol=1e-5)
    assert evaluate(params, after, x[:0]).shape == (0, 5)


@pytest.mark.parametrize("name", RESNETS)
def test_an_all_zero_batch_has_finite_gradients(name):
    graphdef, params, stats = split(model_of(name, stages=(1,)))
    x = jnp.zeros((2, 4, 4, 2))
    gradient = quick_jit(
        jax.grad(lambda p, x: merge(graphdef, p, stats)(x, train=True).sum(), (0, 1))
    )
    grads, grad_x = gradient(params, x)
    assert all(jnp.isfinite(value).all() for value in (*grads.values(), grad_x))


def test_baselines_differ_where_their_papers_say():
    for name in RESNETS:
        model = model_of(name)
        first = name in ("hcnn", "poincare")  # the stride of a block is on its first convolution
        block = model.stages[1][0]
        x = jnp.ones((1, 6, 6, 4))
        assert (block.first.conv(x).shape[1] == 3) == first
        assert model.stages[0][0].shortcut is None
        assert (block.shortcut.norm is None) == (name == "poincare")
        biases = [path for path in split(model)[1] if path.endswith("conv/bias")]
        assert bool(biases) == (name in ("hcnn", "poincare"))
    assert model_of("hcnn-paper", extra_logit=True).head.kernel.shape == (8, 6)
    norm = model_of("euclidean").stem.norm  # the share of the batch is 0.1, as in the others
    norm(jnp.full((1, 2, 2, 4), 2.0))
    np.testing.assert_allclose(norm.mean[...], 0.2, rtol=1e-6)
    twin = sum(p.size for p in split(model_of("euclidean"))[1].values())
    ours = sum(p.size for p in split(model_of("lorentz"))[1].values())
    assert abs(twin - ours) < 0.1 * ours
    with pytest.raises(ValueError, match='norm must be "centering" or "variance"'):
        model_of("lorentz", norm="batch")


def test_hcnn_classifies_the_centroid_and_poincare_the_mean_tangent():
    x = jax.random.normal(jax.random.key(2), (2, 5, 5, 2))
    model = model_of("hcnn", stages=(1,))
    y = model.stages[0][0](model.relu(model.stem(x, 0.5, True), 0.5), 0.5, True)
    centroid = geometry.centroid(y.reshape(2, -1, 4), 0.5)
    want = hcnn.mlr(centroid, model.head.kernel[...], model.head.bias[...], 0.5)
    np.testing.assert_allclose(model(x, train=False), want, rtol=1e-4, atol=1e-6)
    model = model_of("poincare", stages=(1,))
    y = model.stem(geometry.exp0(2 * x, 0.5), 0.5, True)  # pixels are tangent vectors of the ball
    y = model.stages[0][0](poincare.relu(y, 0.5), 0.5, True)
    mean = jnp.mean(geometry.log0(y, 0.5), (1, 2))
    normals = poincare.plane_normals(model.head.kernel[...], model.head.bias[...], 0.5)
    out = poincare.linear(geometry.exp0(mean, 0.5), normals, 0.5)
    want = geometry.log0(out, 0.5) / 2
    np.testing.assert_allclose(model(x, train=False), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", RESNETS)
def test_a_config_builds_the_network_that_it_names(name):
    def config(**changes):
        values = {"model": name, "stages": (1,), "width": 4, "kappa": 0.5, "learn_kappa": False,
                  "kappa_per_layer": False, "distance_gain": False}  # fmt: skip
        return types.SimpleNamespace(**{**values, "init": "fast", **changes})

    model = build_model(config(), 5, 2, nnx.Rngs(0))
    assert type(model) is RESNETS[name]
    if name == "euclidean":
        with pytest.raises(ValueError, match="no kappa to learn"):
            build_model(config(learn_kappa=True), 5, 2, nnx.Rngs(0))
    else:
        assert model.kappa == 0.5
        learned = build_model(config(learn_kappa=True), 5, 2, nnx.Rngs(0))
        assert learned.kappa() == pytest.approx(0.5)
        if name == "lorentz":
            fields = {"learn_kappa": True, "kappa_per_layer": True}
            layered = build_model(config(**fields), 5, 2, nnx.Rngs(0))
            assert layered.kappa is None
            assert layered.stem.kappa() == pytest.approx(0.5)
        paper = build_model(config(init="paper"), 5, 2, nnx.Rngs(0))
        assert paper.head.bias.shape == (6 if name == "hcnn-paper" else 5,)
    with pytest.raises(ValueError, match="model must be one of lorentz, euclidean"):
        build_model(config(model="mlp"), 5, 2, nnx.Rngs(0))
