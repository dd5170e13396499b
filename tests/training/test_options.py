"""What a run can do besides: half precision, export, events, a trace."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import data, inference
from lorentz_jax.training import build, run
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.report import save_confusion, save_curves
from lorentz_jax.training.step import make_train_step
from tests.training.tiny import TinyNet


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A real network, as small as it can be, with everything switched on."""
    config = TrainConfig(
        epochs=2, batch_size=16, limit=64, stages=(1,), width=2, name="run",
        run_dir=tmp_path_factory.mktemp("options"), precision="bfloat16", validation=16,
        export=True, tensorboard=True, profile=True, log_radius=True, diagnostics=True,
    )  # fmt: skip
    return config, run.train(config)


def test_bfloat16_computes_convolutions_in_half_and_the_rest_in_float32(finished):
    config, summary = finished
    assert np.isfinite(summary["train_loss"])
    assert np.isfinite(summary["test_loss"])
    plan = build.make_plan(config, data.load("digits", limit=64))

    def prepare(key, images):
        return images.astype(jnp.float32)

    step = make_train_step(plan.graphdef, plan.optimiser, prepare, dtype=jnp.bfloat16)
    arguments = (plan.state, jnp.ones((4, 8, 8, 1)), jnp.zeros(4, jnp.int32), jnp.arange(4))
    lowered = jax.jit(step).lower(*arguments)
    state, result = lowered.out_info
    lines = [line for line in lowered.as_text().splitlines() if "stablehlo.convolution" in line]
    assert len(lines) >= 9  # three convolutions, forward and twice backward
    for line in lines:
        operands = re.search(r"\((tensor<[^>]*>), (tensor<[^>]*>)\) ->", line).groups()
        assert all(operand.endswith("xbf16>") for operand in operands)
    assert result.loss.dtype == jnp.float32
    floats = [x for x in jax.tree.leaves(state[:3]) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert all(x.dtype == jnp.float32 for x in floats)


def test_export_leaves_the_reported_network(finished):
    config, summary = finished
    compiled = inference.load(config.path / "compiled.npz")
    assert compiled.info["dataset"] == "digits"
    assert compiled.info["test_accuracy"] == summary["test_accuracy"]
    assert compiled.info["config"]["validation"] == 16
    result = inference.evaluate(compiled, data.load("digits"))
    # In float32 the network is another one by a rounding of every convolution.
    assert result["loss"] == pytest.approx(summary["test_loss"], rel=0.02)


def test_every_option_leaves_its_files(finished):
    config, summary = finished
    assert set(summary) >= {"validation_accuracy", "selected_epoch"}
    row = json.loads((config.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["validation_count"] == 16
    layers = [f"stages/0/0{part}" for part in ("", "/first", "/second")]
    assert sorted(row["radius"]) == [*layers, "stem"]
    assert all(0 < radius < 10 for radius in row["radius"].values())
    measures = row["diagnostics"]
    assert all(0 < measures[f"{layer}/scale"] < 10 for layer in (*layers, "stem"))
    assert all(0 < measures[f"{layer}/active"] < 1 for layer in (*layers[:2], "stem"))
    assert measures["stages/0/0/second/conv/kernel/speed"] > 0
    assert list((config.path / "tensorboard").glob("events.out.tfevents.*"))
    assert list((config.path / "profile").rglob("*.xplane.pb"))


def test_the_confusion_of_many_classes_has_no_numbers_in_it(tmp_path):
    save_confusion(tmp_path / "100.png", np.eye(100, dtype=int).tolist(), "100 classes")
    assert (tmp_path / "100.png").read_bytes().startswith(b"\x89PNG")


def test_names_of_classes_are_drawn_whatever_is_in_them(tmp_path):
    names = ["$x", "猫", "a name that is far too long for a picture", r"\frac"]
    save_confusion(tmp_path / "named.png", np.eye(4, dtype=int).tolist(), "a $ and $ b", names)
    save_confusion(tmp_path / "plain.png", np.eye(4, dtype=int).tolist(), "a $ and $ b")
    named, plain = ((tmp_path / name).read_bytes() for name in ("named.png", "plain.png"))
    assert named.startswith(b"\x89PNG")
    assert named != plain
    row = {"epoch": 1, "train_loss": 1, "test_loss": 1, "train_accuracy": 1, "test_accuracy": 1}
    save_curves(tmp_path / "curves.png", [row], r"a $\frac$ b")


def test_a_network_of_another_class_is_exported_too(finished, monkeypatch):
    config, _ = finished
    monkeypatch.setattr(build, "build_model", lambda *a, rngs, **k: TinyNet(10, rngs=rngs))
    tiny = dataclasses.replace(
        config, precision="float32", name="tiny", profile=False, log_radius=False
    )
    summary = run.train(tiny)
    like = TinyNet(10, rngs=nnx.Rngs(0))
    compiled = inference.load(tiny.path / "compiled.npz", like=like)
    assert compiled.info["epoch"] == summary["selected_epoch"]
    assert compiled.description is None
