"""A checkpoint of the present format version stays readable.

`golden/checkpoint/5.safetensors` is what `write` saved, and `expected.json` what the network
answered. A new format version needs new files.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.training import build, checkpoint, packing, run
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.loop import Progress
from lorentz_jax.training.state import merge

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint"
CONFIG = TrainConfig(
    dataset="digits", limit=40, validation=0, shift=1, model="lorentz", stages=(1,), width=2,
    kappa=0.5, init="fast", epochs=1, batch_size=4, lr=0.1, momentum=0.9, nesterov=True,
    weight_decay=5e-4, max_turn=None, schedule="cosine", precision="float32", seed=3,
    checkpoint_every=5,
)  # fmt: skip


def restored(config=CONFIG):
    plan = build.make_plan(config, data.load("digits", limit=40))
    expected = {"config": config.decisive(), "classes": 10}
    state, meta = checkpoint.restore(GOLDEN, plan.state, expected)
    return plan, state, meta


def logits(plan, state):
    model = merge(plan.graphdef, state.params, state.stats)
    images = np.arange(2 * 64, dtype=np.float32).reshape(2, 8, 8, 1) % 7 - 3
    return np.asarray(jax.jit(lambda x: model(x, train=False))(images))


def momentum(state):
    """Sum of all absolute values of the momentum."""
    traces = (x for path, x in packing.flatten(state).items() if "/trace/" in path)
    return sum(float(np.abs(np.asarray(x, np.float64)).sum()) for x in traces)


def test_the_golden_checkpoint_is_restored():
    plan, state, meta = restored()
    assert meta["version"] == checkpoint.VERSION
    expected = json.loads((GOLDEN / "expected.json").read_text())
    assert meta["step"] == int(state.step) == 5
    progress = Progress(**meta["progress"])
    assert (progress.epoch, len(progress.losses), progress.history) == (1, 5, [])
    np.testing.assert_allclose(logits(plan, state), expected["logits"], rtol=1e-4, atol=1e-5)
    assert jax.random.key_data(state.key).tolist() == expected["key"]
    assert momentum(state) == pytest.approx(expected["momentum"], rel=1e-6)


def test_a_run_without_a_limit_is_not_continued_with_one():
    with pytest.raises(ValueError, match=r"max_turn is null there, 0\.015 here"):
        restored(dataclasses.replace(CONFIG, max_turn=0.015))


def write():
    """Write the golden files."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    run.train(dataclasses.replace(CONFIG, run_dir=folder, name="run"))
    shutil.copy(folder / "run" / "checkpoints" / "5.safetensors", GOLDEN)
    plan, state, _ = restored()
    content = {
        "logits": logits(plan, state).tolist(),
        "key": jax.random.key_data(state.key).tolist(),
        "momentum": momentum(state),
    }
    (GOLDEN / "expected.json").write_text(json.dumps(content, indent=1) + "\n")
