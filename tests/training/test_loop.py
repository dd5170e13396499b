"""A whole run with a tiny network: its files, its refusals, its bits."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.data import stream
from lorentz_jax.training import build, run, run_directory
from lorentz_jax.training.config import TrainConfig
from tests.training.tiny import build_tiny, stand_in

PICTURES = {"curves.png", "confusion.png"}
RESULTS = {
    "config.json",
    "metrics.jsonl",
    "summary.json",
    "model.safetensors",
    "checkpoints",
} | PICTURES
TIMES = ("train_seconds", "eval_seconds")


@pytest.fixture
def config(tmp_path, monkeypatch):
    stand_in(monkeypatch)
    return TrainConfig(
        epochs=3, batch_size=64, lr=0.5, kappa=1.0, name="tiny", run_dir=tmp_path, limit=300
    )


def rows(config):
    return [json.loads(line) for line in (config.path / "metrics.jsonl").read_text().splitlines()]


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_a_run_writes_what_it_returns(config, capsys, monkeypatch):
    monkeypatch.undo()  # nothing stands in but the network
    monkeypatch.setattr(build, "build_model", build_tiny)
    summary = run.train(config)
    assert {file.name for file in config.path.iterdir()} == RESULTS
    assert json.loads((config.path / "summary.json").read_text()) == summary
    assert json.loads((config.path / "config.json").read_text()) == config.to_json()
    for name in PICTURES:
        assert (config.path / name).read_bytes().startswith(b"\x89PNG")
    assert sorted(int(p.stem) for p in (config.path / "checkpoints").iterdir()) == [4, 8, 12]
    assert summary["steps"] == 12  # three epochs of 300 // 64 steps
    assert summary["parameters"] == sum(a * b for a, b in [(8, 8)] * 2 + [(8, 10)] + [(8, 3)] * 2)
    assert summary["config"] == config.to_json()
    assert set(summary["versions"]) >= {"python", "jax", "jaxlib", "flax", "optax", "lorentz_jax"}
    parts = [summary[f"{part}_seconds"] for part in ("build", "compile", "train", "eval")]
    assert all(seconds > 0 for seconds in parts)
    assert sum(parts) < summary["seconds"]
    history = rows(config)
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert [row["step"] for row in history] == [4, 8, 12]
    assert history[-1]["test_accuracy"] == summary["test_accuracy"]
    assert summary["test_count"] == 360
    # 360 times the accuracy is a whole number: every test image counted once.
    assert summary["test_accuracy"] * 360 == pytest.approx(round(summary["test_accuracy"] * 360))
    assert history[0]["train_loss"] > history[-1]["train_loss"]
    assert history[0]["lr"] > history[-1]["lr"] > 0
    out = capsys.readouterr().out
    assert "weight decay 0.0005 on 5 of 9 leaves (224 of 256 parameters)" in out
    assert out.count("test accuracy") == 3


def test_the_seed_decides_every_bit(config):
    def losses(seed, name):
        seeded = dataclasses.replace(config, seed=seed, name=name, epochs=2)
        run.train(seeded)
        return [{k: v for k, v in row.items() if k not in TIMES} for row in rows(seeded)]

    first = losses(1, "a")
    assert first == losses(1, "b")
    assert first != losses(2, "c")


def test_the_seed_decides_the_initial_values(config):
    # One batch holds everything, so order hardly matters, and the loss is that before the update.
    whole = dataclasses.replace(config, limit=64, epochs=1, shift=0)
    seeded = [dataclasses.replace(whole, seed=seed, name=f"seed{seed}") for seed in (1, 2)]
    losses = [run.train(each)["train_loss"] for each in seeded]
    assert abs(losses[0] - losses[1]) > 1e-3


def test_epochs_are_shuffled_by_seed_and_epoch():
    batches = stream.epoch_batches(0, 1, 10, 3)
    assert batches.shape == (3, 3)
    assert batches.dtype == np.int32
    assert len(set(batches.ravel()) & set(range(10))) == 9
    np.testing.assert_array_equal(batches, stream.epoch_batches(0, 1, 10, 3))
    assert (batches != stream.epoch_batches(0, 2, 10, 3)).any()
    assert (batches != stream.epoch_batches(1, 1, 10, 3)).any()
    # Sorted they are whole: nothing is drawn twice.
    np.testing.assert_array_equal(np.sort(stream.epoch_batches(5, 7, 12, 4).ravel()), range(12))


def test_results_are_refused_then_replaced_on_request(config):
    config.path.mkdir()
    (config.path / "summary.json").write_text("{}")
    (config.path / "metrics.jsonl").write_text('{"epoch": 1}\n')
    (config.path / "config.json").write_text(json.dumps(config.to_json()))
    (config.path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"summary.json, metrics.jsonl, .*--overwrite"):
        run.train(config)
    assert (config.path / "summary.json").read_text() == "{}"
    run.train(dataclasses.replace(config, overwrite=True, epochs=1))
    assert json.loads((config.path / "summary.json").read_text())["epochs"] == 1
    assert len(rows(config)) == 1
    assert (config.path / "notes.txt").read_text() == "mine"


def test_bad_input_costs_no_file(config, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("no such thing")

    config.path.mkdir()
    for name in RESULTS - {"checkpoints"}:
        (config.path / name).write_text("precious")
    (config.path / "config.json").write_text(json.dumps(config.to_json()))
    before = contents(config.path)
    with monkeypatch.context() as patch:
        patch.setattr(data, "load", broken)
        with pytest.raises(ValueError, match="no such thing"):
            run.train(dataclasses.replace(config, overwrite=True))

    monkeypatch.setattr(build, "build_model", broken)
    with pytest.raises(ValueError, match="no such thing"):
        run.train(dataclasses.replace(config, overwrite=True))
    assert contents(config.path) == before


def test_a_file_in_the_way_is_named(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is a file"):
        run.train(dataclasses.replace(config, run_dir=tmp_path / "file" / "deeper"))


def test_a_dataset_smaller_than_the_batch_shrinks_the_batch_with_a_notice(config, capsys):
    summary = run.train(dataclasses.replace(config, limit=50, batch_size=128, epochs=2))
    assert summary["batch_size"] == 50
    assert summary["steps"] == 2
    assert "notice: only 50 training images, so the batch size is 50" in capsys.readouterr().out


def test_a_non_finite_loss_stops_at_its_step(config):
    hot = dataclasses.replace(config, lr=1e30, schedule="constant")
    with jax.debug_nans(False), pytest.raises(run.NonFiniteLossError, match=r"at step [23] is"):
        run.train(hot)
    assert {file.name for file in config.path.iterdir()} == {
        "config.json", "metrics.jsonl", "checkpoints",
    }  # fmt: skip
    assert not list((config.path / "checkpoints").iterdir())


def test_a_last_update_that_breaks_the_network_is_noticed_too(config):
    hot = dataclasses.replace(config, lr=1e30, schedule="constant", limit=64, epochs=1)
    with (
        jax.debug_nans(False),
        pytest.raises(run.NonFiniteLossError, match="test loss after step 1"),
    ):
        run.train(hot)


def test_json_files_are_whole_or_absent(tmp_path, monkeypatch):
    run_directory.write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        run_directory.write_json(tmp_path / "a.json", {"x": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert {file.name for file in tmp_path.iterdir()} == {"a.json"}
