"""A kill -9 at any moment costs nothing but time."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.training import build, checkpoint, packing
from lorentz_jax.training.config import TrainConfig
from tests.training.tiny import build_tiny

ROOT = Path(__file__).parents[2]
KILLS, WINDOW = 10, 0.8  # seconds of training between the kills

SCRIPT = """
import sys, time
from pathlib import Path
from lorentz_jax.training import build, run
from lorentz_jax.training.config import TrainConfig
from tests.training.tiny import build_tiny

build.build_model = build_tiny
original, slow = build.Program.train, sys.argv[2] == "slow"
def train(self, state, indices):
    if slow:
        time.sleep(0.03)
    print("step", flush=True)
    return original(self, state, indices)
build.Program.train = train
run.train(TrainConfig(run_dir=Path(sys.argv[1]), name="run", resume=True, {settings}))
"""
SETTINGS = {
    "epochs": 12, "batch_size": 16, "limit": 208, "validation": 48, "kappa": 1.0, "lr": 0.5,
    "checkpoint_every": 3, "keep": 2,
}  # fmt: skip


def start(folder, pace):
    settings = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
    command = [sys.executable, "-c", SCRIPT.replace("{settings}", settings), str(folder), pace]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def outcome(folder, monkeypatch):
    monkeypatch.setattr(build, "build_model", build_tiny)
    config = TrainConfig(run_dir=folder, name="run", **SETTINGS)
    plan = build.make_plan(config, data.load("digits", limit=config.limit))
    expected = {"config": config.decisive(), "classes": 10}
    state, meta = checkpoint.restore(config.path / "checkpoints", plan.state, expected)
    assert meta["step"] == 120
    rows = [json.loads(line) for line in (config.path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["train_seconds"], row["eval_seconds"]
    summary = json.loads((config.path / "summary.json").read_text())
    arrays = {path: np.asarray(x) for path, x in packing.flatten(state).items()}
    return arrays, rows, summary["test_loss"], summary["selected_epoch"]


@pytest.mark.slow
def test_ten_kills_change_no_bit(tmp_path, monkeypatch):
    moments, killed = random.Random(0), 0
    while killed < KILLS:
        process = start(tmp_path / "killed", "slow")
        while (line := process.stdout.readline()) != "step\n":
            assert line, process.stderr.read()
        time.sleep(moments.uniform(0, WINDOW))
        if process.poll() is not None:
            break  # faster than it was killed
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
    assert killed >= KILLS // 2
    for folder in (tmp_path / "killed", tmp_path / "straight"):
        process = start(folder, "fast")
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    arrays, *rest = outcome(tmp_path / "killed", monkeypatch)
    expected, *rest_expected = outcome(tmp_path / "straight", monkeypatch)
    for path, array in expected.items():
        np.testing.assert_array_equal(arrays[path], array, err_msg=path)
    assert rest == rest_expected
