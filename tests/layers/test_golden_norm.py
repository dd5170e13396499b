"""The centring batch norm against golden data: values, running means and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry, nn
from lorentz_jax.training.state import merge, split
from tests import reference
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden


@functools.partial(quick_jit, static_argnums=0)
def golden_norm(graphdef, params, mean, batches, R, kappa):
    """Three training calls, one in evaluation; gradients of the first and the last."""

    def loss(params, x, mean, running):
        norm = merge(graphdef, params, {"mean": mean})
        y = geometry.lift(norm(x, kappa, running), kappa)
        return jnp.sum(R * y), (y, norm.mean[...])

    run = jax.value_and_grad(loss, (0, 1), has_aux=True)
    steps = []
    for i, x in enumerate(batches):
        (_, (y, mean)), gradients = run(params, x, mean, i == 3)
        steps.append((y, mean, *gradients))
    return steps


@pytest.mark.parametrize("beta", ["origin", "off"])
@pytest.mark.parametrize("d", ["d0", "d1"])
def test_golden_batch_norm(x64, kappa, d, beta):
    data = golden("layers")
    prefix, run = f"norm/k{kappa:g}/{d}/", f"norm/k{kappa:g}/{d}/nv0_fg1_{beta}/"
    X = [reference.channels_last(data[f"{prefix}x{i}"]) for i in range(4)]
    R, width = reference.channels_last(data[prefix + "R"]), X[0].shape[-1]
    point = np.eye(width)[0] / np.sqrt(kappa) if beta == "origin" else data[prefix + "beta_off"]
    options = {"kappa": 1.0, "init": "paper", "param_dtype": jnp.float64}
    graphdef, _, stats = split(nn.LorentzBatchNorm(width - 1, **options))
    batches = [reference.space(x) for x in X]
    steps = golden_norm(graphdef, {"beta": point[1:]}, stats["mean"], batches, R, kappa)
    names = ["train_y0", "train_y1", "train_y2", "eval_y3"]
    for i, (name, (y, mean, by_params, by_x)) in enumerate(zip(names, steps, strict=True)):
        assert_close(y, reference.channels_last(data[run + name]), 1e-12, what=name)
        after = data[f"{run}running_mean_after{min(i + 1, 3)}"]  # evaluation leaves it alone
        assert_close(mean, reference.space(after), 1e-12, what="running mean")
        if i in (0, 3):
            kind = "eval_" if i else ""
            by_X = reference.channels_last(data[f"{run}{kind}grad_x"])
            assert_close(by_x, reference.pull_back(by_X, X[i]), 1e-12, axis=(1, 2, 3))
            by_beta = reference.pull_back(data[f"{run}{kind}grad_beta"], point)
            assert_close(by_params["beta"], by_beta, 1e-12)
