"""Whole blocks and networks against the reference implementation, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import geometry
from lorentz_jax.metrics import cross_entropy
from lorentz_jax.models import LorentzResNet
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.optimiser import make_optimiser
from lorentz_jax.training.state import merge, split
from tests import reference
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden

pytestmark = pytest.mark.usefixtures("x64")


def network(stages, **kwargs):
    """The structure of the network; its values come from the golden data."""
    options = {"kappa": 1.0, "init": "paper", "param_dtype": jnp.float64, **kwargs}
    return nnx.eval_shape(lambda: LorentzResNet(stages, 4, rngs=nnx.Rngs(0), **options))


def section(prefix):
    """The golden arrays below `prefix`, by the rest of their names."""
    data = golden("networks")
    return {k.removeprefix(prefix): v for k, v in data.items() if k.startswith(prefix)}


def assert_arrays(got, want, rtol):
    assert got.keys() == want.keys()
    for path in want:
        assert_close(got[path], want[path], rtol, axis=tuple(range(want[path].ndim)), what=path)


# --- a residual block: forward pass, gradients, running means -------------------------------


@functools.cache
def block_runner(stage):
    graphdef, params, stats = split(network((1, 1), in_channels=4).stages[stage][0])

    @quick_jit
    def run(params, stats, x, cotangent, kappa):
        def loss(params, x):
            block = merge(graphdef, params, stats)
            y = geometry.lift(block(x, kappa, False), kappa)
            return jnp.sum(cotangent * y), (y, split(block)[2])

        (_, (y, after)), grads = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
        evaluated = [merge(graphdef, params, s)(x, kappa, True) for s in (stats, after)]
        return y, after, grads, [geometry.lift(y, kappa) for y in evaluated]

    return run, params, stats


@pytest.mark.parametrize(("name", "stage"), [("c5_5_s1", 0), ("c5_9_s2", 1)])
def test_block(kappa, name, stage):
    data = section(f"resblock/k{kappa:g}/{name}/")
    run, *like = block_runner(stage)
    params, stats = (reference.arrays(data, "sd/", arrays) for arrays in like)
    x, cotangent, grad_x = (reference.channels_last(data[key]) for key in ("x", "R", "grad_x"))
    y, after, grads, evaluated = run(params, stats, reference.space(x), cotangent, kappa)
    for got, key in zip((y, *evaluated), ("y_train", "y_eval", "y_eval_after"), strict=True):
        assert_close(got, reference.channels_last(data[key]), 1e-13, what=key)
    assert_arrays(after, reference.arrays(data, "after/", after), 1e-13)
    assert_arrays(grads[0], reference.gradients(data, "grad/", "sd/", params), 1e-12)
    assert_arrays({"x": grads[1]}, {"x": reference.pull_back(grad_x, x)}, 1e-12)


# --- the ResNet: stages, logits, loss, gradients --------------------------------------------


@functools.cache
def resnet_runner():
    graphdef, params, stats = split(network((1, 1, 1, 1)))

    @quick_jit
    def train(params, stats, x, labels, kappa):
        def loss(params):
            model = merge(graphdef, params, stats)
            logits = model(x, train=True, kappa=kappa)
            return cross_entropy(logits, labels).mean(), (logits, split(model)[2])

        (value, (logits, stats_after)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, logits, stats_after, grads

    @quick_jit
    def evaluate(params, stats, x, kappa):
        model = merge(graphdef, params, stats)
        y = jax.nn.relu(model.stem(x, kappa, True))
        activations = [geometry.lift(y, kappa)]
        for blocks in model.stages:
            y = blocks[0](y, kappa, True)
            activations.append(geometry.lift(y, kappa))
        return activations, model(x, train=False, kappa=kappa)

    return train, evaluate, params, stats


@pytest.mark.slow  # compiles the whole network
@pytest.mark.parametrize("kappa", [0.1, 1.0])
def test_resnet(kappa):
    data = section(f"resnet/k{kappa:g}/")
    train, evaluate, *like = resnet_runner()
    params, stats = (reference.arrays(data, "sd0/", arrays) for arrays in like)
    x, labels = np.moveaxis(data["x"][0], 1, -1), data["labels"][0]
    activations, logits = evaluate(params, stats, x, kappa)
    names = ["eval_input_proj", *(f"eval_stage{i}" for i in range(1, 5))]
    for got, name in zip(activations, names, strict=True):
        assert_close(got, reference.channels_last(data[name]), 1e-12, what=name)
    assert_close(logits, data["logits_eval_x0"], 1e-12, what="logits")
    loss, logits, _, grads = train(params, stats, x, labels, kappa)
    assert_close(logits, data["logits_train_x0"], 1e-12, what="logits")
    assert_close(loss, data["loss0"], 1e-12, what="loss")
    assert_arrays(grads, reference.gradients(data, "grad0/", "sd0/", params), 1e-12)


@pytest.mark.slow
def test_three_steps_of_the_paper_preset():
    start, data = section("resnet/k1/"), section("sgd/")
    train, evaluate, *like = resnet_runner()
    params, stats = (reference.arrays(start, "sd0/", arrays) for arrays in like)
    config = TrainConfig(
        init="paper", kappa=1.0, lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="constant"
    )
    optimiser = make_optimiser(config, params, steps_per_epoch=3)
    state, update = optimiser.init(params), quick_jit(optimiser.update)
    images, losses = np.moveaxis(start["x"], 2, -1), []
    for step in range(4):
        loss, _, after, grads = train(params, stats, images[step], start["labels"][step], 1.0)
        losses.append(loss)
        if step == 3:  # a forward pass that only moves the running means
            assert_arrays(stats, reference.arrays(data, "sd3/", stats), 1e-12)
        else:
            updates, state = update(grads, state, params)
            params = {path: params[path] + updates[path] for path in params}
        stats = after
    assert_close(np.array(losses), data["losses"], 1e-12, axis=None, what="losses")
    assert_arrays(params, reference.arrays(data, "sd3/", params), 1e-12)
    _, logits = evaluate(params, stats, images[0], 1.0)
    assert_close(logits, data["logits_eval_x0_after3"], 1e-12, what="logits")
