"""A checkpoint of any format version stays readable for ever.

`golden/5` is what `write` saved in version 1, and `golden/expected.json` what the network answered;
`golden2` is of version 2. Never write them again: for a new format version add a new pair.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.training import checkpoint, loop, packing, setup, upgrade
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.epochs import Progress
from lorentz_jax.training.state import TrainState, merge

GOLDEN = {
    version: Path(__file__).parent / name for version, name in ((1, "golden"), (2, "golden2"))
}
CONFIG = TrainConfig(
    dataset="digits", limit=40, validation=0, shift=1, model="lorentz", stages=(1,), width=2,
    kappa=0.5, init="fast", epochs=1, batch_size=4, lr=0.1, momentum=0.9, nesterov=True,
    weight_decay=5e-4, max_turn=None, schedule="cosine", precision="float32", seed=3,
    checkpoint_every=5,
)  # fmt: skip


def restored(version, config=CONFIG):
    plan = setup.plan_run(config, data.load("digits", limit=40))
    expected = {"config": config.decisive(), "classes": 10}
    state, meta = checkpoint.restore(GOLDEN[version], plan.state, expected)
    return plan, state, meta


def logits(plan, state):
    model = merge(plan.graphdef, state.params, state.stats)
    images = np.arange(2 * 64, dtype=np.float32).reshape(2, 8, 8, 1) % 7 - 3
    return np.asarray(jax.jit(lambda x: model(x, train=False))(images))


def momentum(state, factors):
    """Sum of all absolute values; those of each bias are multiplied by the factor of its layer."""
    total = 0.0
    for path, x in packing.flatten(state).items():
        if "/trace/" in path:
            layer, _, leaf = path.split("/trace/")[1].rpartition("/")
            factor = factors.get(layer, 1.0) if leaf == "bias" else 1.0
            total += factor * float(np.abs(np.asarray(x, np.float64)).sum())
    return total


@pytest.mark.parametrize("version", GOLDEN)
def test_the_golden_checkpoint_is_restored(version):
    plan, state, meta = restored(version)
    assert meta["version"] == version
    expected = json.loads((GOLDEN[version] / "expected.json").read_text())
    assert meta["step"] == int(state.step) == 5
    progress = Progress(**meta["progress"])
    assert (progress.epoch, len(progress.losses), progress.history) == (1, 5, [])
    np.testing.assert_allclose(logits(plan, state), expected["logits"], rtol=1e-4, atol=1e-5)
    assert jax.random.key_data(state.key).tolist() == expected["key"]
    # Version 1 stored b, and 2 stores b sqrt(1 + kappa in).
    inputs = {"stem/conv": 9, "stages/0/0/first/conv": 18, "stages/0/0/second/conv": 18, "head": 2}
    factors = {layer: (1 + 0.5 * n) ** 0.5 for layer, n in inputs.items()} if version == 1 else {}
    assert momentum(state, factors) == pytest.approx(expected["momentum"], rel=1e-6)


def test_a_run_without_a_limit_is_not_continued_with_one():
    with pytest.raises(ValueError, match=r"max_turn is null there, 0\.015 here"):
        restored(2, dataclasses.replace(CONFIG, max_turn=0.015))


def write():
    """Write the golden files."""
    import tempfile

    version, folder = checkpoint.VERSION, Path(tempfile.mkdtemp())
    loop.train(dataclasses.replace(CONFIG, run_dir=folder, name="run"))
    shutil.copytree(folder / "run" / "checkpoints" / "5", GOLDEN[version] / "5")
    plan, state, _ = restored(version)
    content = {
        "logits": logits(plan, state).tolist(),
        "key": jax.random.key_data(state.key).tolist(),
        "momentum": momentum(state, {}),
    }
    (GOLDEN[version] / "expected.json").write_text(json.dumps(content, indent=1) + "\n")


@pytest.mark.parametrize(
    ("model", "init", "learn_kappa", "factor"),
    [
        ("lorentz", "fast", False, 2.5**0.5),
        ("lorentz", "fast", True, 7**0.5),
        ("lorentz", "paper", False, 1),
        ("hcnn", "fast", False, 1),
    ],
)
def test_b_of_version_1_is_renewed_where_it_was_stored_otherwise(model, init, learn_kappa, factor):
    params = {"head/kernel": jnp.ones((3, 2)), "head/bias": jnp.array([1.0, -2])}
    if learn_kappa:
        # log kappa is a sigmoid's share of the way from log 1e-3 to log 1e2; here kappa is 2.
        share = np.log(2 / 1e-3) / np.log(1e5)
        params["kappa/raw"] = jnp.asarray(np.log(share / (1 - share)), jnp.float32)
    step = jnp.zeros((), jnp.int32)
    old = TrainState(params, {}, {"trace": dict(params)}, step, jax.random.key(0))
    config = {"model": model, "init": init, "learn_kappa": learn_kappa, "kappa": 0.5}
    new = upgrade.from_version_1(old, config)
    np.testing.assert_allclose(new.params["head/bias"], np.array([1, -2]) * factor, rtol=1e-5)
    moved = np.array([1, -2]) / factor
    np.testing.assert_allclose(new.opt_state["trace"]["head/bias"], moved, rtol=1e-5)
    np.testing.assert_array_equal(new.params["head/kernel"], 1)
