"""The command as a user meets it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from lorentz_jax import data
from lorentz_jax.training import cli, load_run
from lorentz_jax.training.config import RECIPES, TrainConfig

ROOT = Path(__file__).parents[2]


def run(*arguments, cwd=ROOT):
    command = [sys.executable, str(ROOT / "train.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def call(monkeypatch, capsys):
    """The command in this process: an interpreter takes seconds to import everything."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
        try:
            status = cli.main()
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=status, stdout=out, stderr=err)

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kappa", "-1"], "kappa must be finite and positive (the curvature is -kappa)"),
        (["--kappa", "1e-60", "--overwrite"], "kappa must be finite and positive"),
        (["--data-dir", "gs://bucket/data"], "data_dir must be a local path, got the URL gs:/"),
        (["--init-from", "/no/such/run"], "init_from: there is no run /no/such/run"),
        (["--name", "../up"], "name must be a plain folder name"),
        (["--device", "tpu"], "no tpu found"),
        (["--resume", "--overwrite"], "choose one"),
    ],
)
def test_bad_input_is_one_line_and_a_status(arguments, message, tmp_path, call):
    start = time.perf_counter()
    result = call(*arguments, "--run-dir", tmp_path / "runs")
    assert time.perf_counter() - start < 60  # seconds on an idle machine
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("train.py: error: ")
    assert message in result.stderr
    assert not (tmp_path / "runs").exists()


def test_data_that_is_nowhere_is_soon_said(tmp_path):
    start = time.perf_counter()
    result = run("--dataset", "cifar10", "--data-dir", tmp_path, "--run-dir", tmp_path / "runs")
    assert time.perf_counter() - start < 60  # 30 on an idle machine
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert str(tmp_path) in result.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unknown_flag_is_named(call):
    result = call("--learning-rate", "0.1")
    assert result.returncode == 2
    assert "--learning-rate" in result.stderr


def test_help_lists_every_field():
    result = run("--help")
    assert result.returncode == 0
    for flag in (*TrainConfig.__dataclass_fields__, "recipe"):
        assert f"--{flag.replace('_', '-')}" in result.stdout


def test_a_recipe_sets_what_no_flag_sets():
    assert cli.parse([]) == cli.Options()
    options = cli.parse(["--batch-size", "32", "--recipe", "paper-cifar100", "--epochs", "61"])
    config = TrainConfig(**{k: v for k, v in vars(options).items() if k != "recipe"})
    assert config == TrainConfig(**{**RECIPES["paper-cifar100"], "epochs": 61, "batch_size": 32})
    assert get_args(cli.Options.__dataclass_fields__["recipe"].type) == ("none", *RECIPES)


@pytest.mark.slow
def test_a_small_real_run_and_its_refusals(tmp_path):
    small = ("--stages", 1, "--width", 4, "--limit", 256, "--run-dir", tmp_path, "--name", "small")
    result = run(*small, "--epochs", 2)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "small" / "summary.json").read_text())
    assert summary["steps"] == 4
    assert f"test_accuracy {summary['test_accuracy']:.4f} on 360 images" in result.stdout
    loaded, images = load_run(tmp_path / "small"), data.load("digits")
    predicted = loaded.model(loaded.prepare(images.test_images)).argmax(-1)
    # One image may lie where the compiled and the plain sum differ.
    right = int((predicted == images.test_labels).sum())
    assert abs(right - 360 * summary["test_accuracy"]) < 1.5
    again = run(*small, "--epochs", 2)
    assert again.returncode == 2
    assert len(again.stderr.splitlines()) == 1
    assert "already holds" in again.stderr
    diverging = run(*small, "--overwrite", "--epochs", 1, "--lr", 1e30)
    assert diverging.returncode == 1
    assert len(diverging.stderr.splitlines()) == 1
    assert "train.py: error: the loss at step 2 is nan" in diverging.stderr
    dry = run("--dry-run", *small[:-1], "dry")
    assert dry.returncode == 0, dry.stderr
    assert "memory of a training step" in dry.stdout
    assert not (tmp_path / "dry").exists()


@pytest.mark.slow
def test_sigterm_saves_and_resume_goes_on(tmp_path):
    small = ("--stages", 1, "--width", 2, "--batch-size", 8, "--epochs", 9, "--run-dir", tmp_path)
    command = [sys.executable, str(ROOT / "train.py"), *map(str, small), "--name", "run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(2)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert re.fullmatch(
        r"train.py: error: stopped at step (\d+); the last good checkpoint is \S+/\1\.safetensors; "
        r"go on with --resume\n", err,
    ), err  # fmt: skip
    cache = tmp_path / "cache"
    result = run(*small, "--name", "run", "--resume", "--keep", 1, "--compilation-cache", cache)
    assert result.returncode == 0, result.stderr
    assert "resumed from step" in result.stdout
    assert list(cache.iterdir())
    other = run(*small, "--name", "run", "--resume", "--kappa", 2)
    assert other.returncode == 2
    assert "kappa is 0.1 there, 2.0 here" in other.stderr
    assert len(other.stderr.splitlines()) == 1
