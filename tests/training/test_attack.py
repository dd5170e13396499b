"""Kills, interrupts and flipped bits at random: a run loses time, and never changes unnoticed."""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.training import build, checkpoint, load_run, run
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.state import split
from tests.training.tiny import stand_in

ROOT = Path(__file__).parents[2]
KILLS, INTERRUPTS, FLIPS = 20, 10, 200
SETTINGS = {"stages": (1,), "width": 2, "epochs": 200, "batch_size": 16, "limit": 208,
            "validation": 48, "checkpoint_every": 3, "keep": 2}  # fmt: skip
TIMES = ("train_seconds", "eval_seconds")


def rows(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def summary(path):
    content = json.loads((path / "summary.json").read_text())
    own = ("config", *(name for name in content if name.endswith("seconds")))
    return {k: v for k, v in content.items() if k not in own}


def network(loaded):
    _, params, stats = split(loaded.model)
    return {path: np.asarray(x) for path, x in {**params, **stats}.items()}


def equal(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(x, second[path]) for path, x in first.items()
    )


def start(folder, *arguments):
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SETTINGS.items() if k != "stages"]
    command = [
        sys.executable, str(ROOT / "train.py"), *flags, "--stages=1",
        f"--run-dir={folder}", "--name=run", *arguments,
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_kills_and_interrupts_at_any_moment_change_no_bit(tmp_path):
    moments, where = random.Random(0), {"start": 0, "training": 0, "ended": 0}
    numbers = [signal.SIGKILL] * KILLS + [signal.SIGINT] * INTERRUPTS
    trials = [(number, trial % 2 == 0) for trial, number in enumerate(numbers)]
    moments.shuffle(trials)
    for number, early in trials:
        process = start(tmp_path / "hurt", "--resume")
        if early:  # imports, data, compiling: about 5 s; before them Python itself starts
            time.sleep(moments.uniform(0.5, 5))
        else:
            while "epoch " not in (line := process.stdout.readline()) and line:
                pass
            time.sleep(moments.uniform(0, 0.7))
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        ended = process.returncode == 0
        where["ended" if ended else "start" if early else "training"] += 1
        if number == signal.SIGINT and not ended:
            assert process.returncode == 130, err
            assert len(err.splitlines()) == 1, err
    print(where)
    assert where["start"] >= KILLS / 2
    assert where["training"] >= KILLS / 2
    for name in ("hurt", "straight"):
        process = start(tmp_path / name, "--resume")
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    hurt, straight = (tmp_path / name / "run" for name in ("hurt", "straight"))
    assert rows(hurt) == rows(straight)
    assert summary(hurt) == summary(straight)
    for which in ("reported", "best", "last"):
        assert equal(*(network(load_run(path, which)) for path in (hurt, straight))), which
    config = TrainConfig(**SETTINGS)
    plan = build.make_plan(config, data.load("digits", limit=config.limit))
    expected = {"config": config.decisive(), "classes": 10}
    states = [checkpoint.read_step(path / "checkpoints", 2000)[0] for path in (hurt, straight)]
    assert equal(*states)
    assert checkpoint.restore(hurt / "checkpoints", plan.state, expected)[1]["step"] == 2000
    assert not list(hurt.rglob(".*"))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A finished run, and the same one stopped at step 9 of 12."""
    stand_in(monkeypatch)
    config = TrainConfig(
        epochs=3, batch_size=64, lr=0.5, kappa=1.0, limit=300, validation=40, name="finished",
        run_dir=tmp_path, checkpoint_every=2,
    )  # fmt: skip
    run.train(config)
    stopped = dataclasses.replace(config, name="stopped")
    original = build.Program.train

    def train(self, state, indices):
        if int(state.step) + 1 == 9:
            signal.raise_signal(signal.SIGTERM)
        return original(self, state, indices)

    with monkeypatch.context() as patch, contextlib.suppress(run.Terminated):
        patch.setattr(build.Program, "train", train)
        run.train(stopped)
    assert not (stopped.path / "summary.json").exists()
    return config, stopped


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:skipped")
def test_no_flipped_bit_goes_unnoticed(folders, tmp_path, capsys):
    finished, stopped = folders
    draw = random.Random(1)
    # Every network that a checkpoint may give, by step.
    networks = {}
    for config in folders:
        for file in (config.path / "checkpoints").iterdir():
            arrays, _ = checkpoint.read_step(file.parent, int(file.stem))
            networks[int(file.stem)] = {
                name.partition("/")[2]: x
                for name, x in arrays.items()
                if name[:3] in ("par", "sta")
            }
    outcomes = {}

    def note(what, how):
        outcomes[what, how] = outcomes.get((what, how), 0) + 1

    for trial in range(FLIPS):
        config = folders[trial % 2]
        copy = dataclasses.replace(config, run_dir=tmp_path / "copy", resume=True)
        shutil.copytree(config.path, copy.path)
        files = sorted(file for file in copy.path.rglob("*") if file.suffix in {
            ".json", ".jsonl", ".safetensors"})  # fmt: skip
        file = draw.choice(files)
        content = bytearray(file.read_bytes())
        size = len(content)
        if file.suffix == ".safetensors" and draw.random() < 0.5:
            size = 8 + int.from_bytes(content[:8], "little")
        place = draw.randrange(8 * size)
        content[place // 8] ^= 1 << place % 8
        file.write_bytes(content)
        what = f"{file.relative_to(copy.path)}, bit {place}"
        for which in ("reported", "best", "last"):
            if which == "reported" and config is stopped:
                continue
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    loaded = load_run(copy.path, which)
                except (ValueError, OSError):
                    note("load_run", "refused")
                    continue
            whole = load_run(config.path, which)
            assert equal(network(loaded), networks[loaded.step]), what
            assert (loaded.config, loaded.summary) == (whole.config, whole.summary), what
            if loaded.step != whole.step:
                assert said, what
            note("load_run", "equal" if loaded.step == whole.step else "skipped")
        capsys.readouterr()
        try:
            run.train(copy)
        except (ValueError, OSError):
            note("resume", "refused")
        else:
            assert rows(copy.path) == rows(finished.path), what
            assert summary(copy.path) == summary(finished.path), what
            assert equal(network(load_run(copy.path)), network(load_run(finished.path))), what
            note("resume", "skipped" if "warning" in capsys.readouterr().out else "equal")
        shutil.rmtree(copy.path)
    with capsys.disabled():
        print(outcomes)
    assert outcomes["resume", "skipped"] > FLIPS / 10
    assert outcomes["resume", "equal"] > FLIPS / 10
    assert outcomes["load_run", "refused"] > FLIPS / 10
