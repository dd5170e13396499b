"""Own data in a run, and batches that are read on the way."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lorentz_jax import data
from lorentz_jax.data import stream
from lorentz_jax.training import build, checkpoint, devices, feed, loop, packing, run
from lorentz_jax.training.config import TrainConfig
from tests.data import formats
from tests.training.tiny import build_tiny, stand_in

ROOT = Path(__file__).parents[2]
COUNT = 60
TIMES = ("train_seconds", "eval_seconds", "data_wait")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of bright columns, with noise."""
    root, rng = tmp_path_factory.mktemp("columns"), np.random.default_rng(0)
    for i in range(COUNT):
        path = root / f"class {i % 3}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        image = rng.integers(0, 100, (8, 8), dtype=np.uint8)
        image[:, i % 3] += 100
        Image.fromarray(image).save(path)
    return root


@pytest.fixture
def config(folder, tmp_path, monkeypatch):
    stand_in(monkeypatch)
    return TrainConfig(
        dataset=f"folder:{folder}", epochs=2, batch_size=16, lr=0.5, kappa=1.0, validation=10,
        shift=1, run_dir=tmp_path, name="memory", workers=0,
    )  # fmt: skip


def rows(config):
    lines = (config.path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if k not in TIMES} for x in lines]


def last(config, dataset=None):
    """Every array of the newest checkpoint."""
    plan = build.make_plan(config, dataset or data.load(config.dataset))
    known = build.identity(config, plan)
    state, _ = checkpoint.restore(config.path / "checkpoints", plan.state, known)
    return [np.asarray(x) for x in packing.flatten(state).values()]


def assert_equal(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_streamed_run_has_the_bits_of_one_in_memory(config, workers, capfd):
    streamed = dataclasses.replace(config, name="streamed", stream="on", workers=workers)
    summary, other = run.train(config), run.train(streamed)
    assert rows(config) == rows(streamed)
    assert_equal(last(config), last(streamed))
    assert summary["test_loss"] == other["test_loss"]
    assert summary["data"] == other["data"]
    assert summary["classes"] == ["class 0", "class 1", "class 2"]
    # Only who waits is told of it.
    assert "data_wait" not in summary
    assert 0 <= other["data_wait"] <= 1
    text = (streamed.path / "metrics.jsonl").read_text()
    assert text.count("data_wait") == 2
    assert "data_wait" not in (config.path / "metrics.jsonl").read_text()
    out, err = capfd.readouterr()
    by = "2 processes" if workers else "threads"
    assert f"MiB of pixels streamed by {by} (--stream on)" in out
    assert "MiB of pixels in memory (within --data-memory 4 GiB)" in out
    assert "Traceback" not in err


def test_a_prepared_directory_is_streamed_in_the_order_of_its_ids(config, tmp_path):
    splits = {
        name: formats.tfds_examples(formats.random_examples(i, n, (4, 4, 1), 3), name)
        for i, (name, n) in enumerate((("train", 40), ("test", 7)))
    }
    features = formats.image_features((4, 4, 1), 3, ids=True)
    formats.write_tfds(tmp_path, "toy", splits, features, shards=2)
    memory = dataclasses.replace(config, dataset="toy", data_dir=tmp_path)
    streamed = dataclasses.replace(memory, name="streamed", stream="on")
    run.train(memory)
    run.train(streamed)
    assert rows(memory) == rows(streamed)


def test_a_stopped_run_goes_on_streamed_or_not(config, monkeypatch):
    """From the middle of an epoch, and from files to memory."""
    straight = dataclasses.replace(config, name="straight")
    run.train(straight)
    streamed = dataclasses.replace(config, name="stopped", stream="on")
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "run", stop_at(2))
        with pytest.raises(run.Terminated):
            run.train(streamed)
    run.train(dataclasses.replace(streamed, resume=True, stream="off"))
    assert rows(streamed) == rows(straight)
    assert_equal(last(streamed), last(straight))
    # Nothing is left to do, and nothing is read.
    again = run.train(dataclasses.replace(streamed, resume=True))
    assert again["steps"] == 4


def stop_at(step):
    original = loop.Loop.run

    def run(self, state):
        self.stop = lambda at: at == step
        return original(self, state)

    return run


def test_a_checkpoint_of_other_data_is_refused(config, folder, tmp_path):
    arrays = np.random.default_rng(1).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 3
    mine = data.Dataset.from_arrays(arrays, labels, name="mine")
    summary = run.train(config, mine)
    assert summary["config"]["dataset"] == "mine"
    assert summary["test_count"] == len(mine.test_labels)
    resumed = dataclasses.replace(config, resume=True)
    run.train(resumed, mine)
    arrays[7, 1, 1] ^= 1
    other = data.Dataset.from_arrays(arrays, labels, name="mine")
    message = f'data is "{mine.fingerprint}" there, "{other.fingerprint}" here'
    with pytest.raises(ValueError, match=message):
        run.train(resumed, other)
    with pytest.raises(ValueError, match="dataset is"):
        run.train(resumed)
    # A folder is the same wherever it lies.
    moved = dataclasses.replace(config, name="moved", dataset=f"folder:{folder}/")
    run.train(moved)
    os.symlink(folder, tmp_path / "link")
    again = dataclasses.replace(moved, dataset=f"folder:{tmp_path}/link", resume=True)
    assert run.train(again)["data"] == data.load(f"folder:{folder}").fingerprint


def test_a_dataset_from_python_is_limited_and_needs_no_opening(config, monkeypatch):
    mine = data.load(config.dataset)
    monkeypatch.setattr(data, "load", None)
    summary = run.train(dataclasses.replace(config, limit=30, name="limited", epochs=1), mine)
    assert summary["steps"] == (30 - 10) // 16
    with pytest.raises(ValueError, match="image_size goes with a dataset that is opened"):
        run.train(dataclasses.replace(config, image_size=(8,)), mine)


def test_what_is_too_large_for_memory_is_streamed_and_the_dry_run_says_why(config, capsys):
    small = dataclasses.replace(config, data_memory=1e-6, dry_run=True)
    run.dry_run(small)
    out = capsys.readouterr().out
    assert "MiB of pixels streamed by threads (over --data-memory 1e-06 GiB)" in out
    assert "memory of a training step, a batch of images included" in out
    run.dry_run(dataclasses.replace(small, stream="off"))
    out = capsys.readouterr().out
    assert "MiB of pixels in memory (--stream off)" in out
    assert "memory of a training step, the training images included" in out
    # Arrays in memory are streamed to the devices by threads, whatever they came from.
    run.dry_run(dataclasses.replace(small, workers=3), data.load(config.dataset))
    assert "streamed by threads (over" in capsys.readouterr().out
    assert not (config.path).exists()


def test_without_grain_the_extra_is_named(config, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "grain" else find(name, *a)
    )
    with pytest.raises(ValueError, match=r"streaming needs the package grain: pip install .*strea"):
        run.train(dataclasses.replace(config, stream="on"))
    run.train(config)
    assert not (config.run_dir / "streamed").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_ends_the_run_in_one_line(config, tmp_path, monkeypatch, workers):
    images = data.load(config.dataset, memory=0).train_images
    bad = tmp_path / "bad.png"
    read = stream.ReadBatch(Broken(bad, images), np.zeros(len(images), np.int32), in_turn)
    with stream.batches(read, 0, 3, workers, tuple) as batches:
        assert len(next(batches)[0]) == 2
        with pytest.raises(data.DataError, match=f"^{bad} cannot be decoded$"):
            list(batches)


class Broken(data.Images):
    """Images of which the third cannot be read."""

    def __init__(self, path, images):
        super().__init__(images._reader, images.shape[1:], images._rows)
        self.path = path

    def read(self, i):
        if i == 2:
            raise data.DataError(f"{self.path} cannot be decoded")
        return super().read(i)


def in_turn(step):
    return np.array([2 * step, 2 * step + 1])


def test_every_process_reads_the_rows_of_its_devices():
    """A batch of 8 on four devices, of which this process has the second and the last."""

    class Sharding:
        def addressable_devices_indices_map(self, shape):
            assert shape == (8,)
            return {"b": (slice(2, 4),), "d": (slice(6, None),)}

    rows = devices.Placement(None, Sharding()).local_rows(8)
    assert rows.tolist() == [2, 3, 6, 7]
    whole = stream.Shuffled(seed=3, count=20, batch_size=8, rows=np.arange(8))
    part = whole._replace(rows=rows)
    for step in range(6):
        np.testing.assert_array_equal(part(step), whole(step)[rows])
    np.testing.assert_array_equal(whole(3), stream.epoch_batches(3, 2, 20, 8)[1])
    assert stream.InOrder(5, 4, np.array([0, 3]))(1).tolist() == [4, 0]
    assert devices.Placement(None, None).local_rows(3).tolist() == [0, 1, 2]


def test_a_feed_from_files_and_one_in_memory_give_the_same_batches(config, folder):
    lazy = data.load(config.dataset, memory=0)
    plans = [build.make_plan(dataclasses.replace(config, stream=s), lazy) for s in ("on", "off")]
    feeds = [
        kind(config, plan.dataset, plan.validation, plan.placement, plan.batch_size)
        for kind, plan in zip((feed.Streamed, feed.InMemory), plans, strict=True)
    ]

    def picked(batch):
        images, labels, indices = batch
        return (images, labels) if indices is None else (images[indices], labels[indices])

    def everything(feed):
        with feed.train(1, 6) as batches:
            yield from map(picked, batches)
        for split in ("validation", "test"):
            with feed.evaluate(split) as batches:
                yield from map(picked, batches)
        yield picked(feed.eval_batch(np.arange(2, 18, dtype=np.int32)))

    pairs = [*zip(*map(everything, feeds), strict=True)]
    assert len(pairs) == 5 + 1 + 1 + 1
    for (images, labels), (same_images, same_labels) in pairs:
        np.testing.assert_array_equal(images, same_images)
        np.testing.assert_array_equal(labels, same_labels)


@pytest.mark.slow
def test_a_script_without_a_guard_streams_by_processes(folder, tmp_path):
    """A new process would run an unguarded script again, if it knew of it."""
    script = tmp_path / "mine.py"
    script.write_text(
        "print('begin', flush=True)\n"
        "from pathlib import Path\n"
        "from lorentz_jax import training\n"
        "from lorentz_jax.training import build\n"
        "from tests.training.tiny import build_tiny\n"
        "build.build_model = build_tiny\n"
        f"config = training.TrainConfig(dataset='folder:{folder}', stream='on', epochs=1,\n"
        f"    batch_size=16, kappa=1.0, run_dir=Path({str(tmp_path)!r}), name='run')\n"
        "print(training.train(config)['steps'])\n"
    )
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("begin") == 1
    assert result.stdout.endswith("3\n")
    assert build_tiny.__name__  # what the script stands in with
