"""The command as a user meets it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*arguments, cwd=ROOT):
    command = [sys.executable, str(ROOT / "train.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kappa", "-1"], "kappa must be finite and positive (the curvature is -kappa)"),
        (["--dataset", "mnist"], "unknown dataset 'mnist'; known: digits"),
        (["--name", "../up"], "name must be a plain folder name"),
    ],
)
def test_bad_input_is_one_line_and_a_status(arguments, message, tmp_path):
    start = time.perf_counter()
    result = run(*arguments, "--run-dir", tmp_path / "runs")
    assert time.perf_counter() - start < 60  # seconds on an idle machine
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("train.py: error: ")
    assert message in result.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unknown_flag_is_named(tmp_path):
    result = run("--learning-rate", "0.1")
    assert result.returncode == 2
    assert "--learning-rate" in result.stderr


def test_help_lists_every_field():
    result = run("--help")
    assert result.returncode == 0
    for flag in ("--dataset", "--stages", "--kappa", "--init", "--lr", "--overwrite", "--seed"):
        assert flag in result.stdout


@pytest.mark.slow
def test_a_small_real_run_and_its_refusals(tmp_path):
    small = ("--stages", 1, "--width", 4, "--limit", 256, "--run-dir", tmp_path, "--name", "small")
    result = run(*small, "--epochs", 2)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "small" / "summary.json").read_text())
    assert summary["steps"] == 4
    assert f"test_accuracy {summary['test_accuracy']:.4f} on 360 images" in result.stdout
    again = run(*small, "--epochs", 2)
    assert again.returncode == 2
    assert len(again.stderr.splitlines()) == 1
    assert "already holds" in again.stderr
    diverging = run(*small, "--overwrite", "--epochs", 1, "--lr", 1e30)
    assert diverging.returncode == 1
    assert len(diverging.stderr.splitlines()) == 1
    assert "train.py: error: the loss at step 2 is nan" in diverging.stderr
