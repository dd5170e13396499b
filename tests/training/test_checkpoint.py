"""Checkpoints: exact, whole, refused when they do not fit."""

import dataclasses
import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from lorentz_jax import data
from lorentz_jax.training import build, checkpoint, packing, run, sealed
from lorentz_jax.training.config import TrainConfig
from tests.training.tiny import stand_in

TIMES = ("train_seconds", "eval_seconds")
BASE = {"epochs": 3, "batch_size": 64, "lr": 0.5, "kappa": 1.0, "limit": 300, "validation": 40}
# 260 images in batches of 64: four steps an epoch.


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    stand_in(monkeypatch)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run of twelve steps, with a checkpoint after every second one."""
    config = TrainConfig(
        **BASE, name="run", run_dir=tmp_path_factory.mktemp("straight"), checkpoint_every=2
    )
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        run.train(config)
    return config


@pytest.fixture
def copied(straight, tmp_path):
    """A copy of the run, for tests that break it."""
    shutil.copytree(straight.path, tmp_path / "run")
    return dataclasses.replace(straight, run_dir=tmp_path, resume=True)


def fresh(config):
    plan = build.make_plan(config, data.load("digits", limit=config.limit))
    return plan.state, {"config": config.decisive(), "classes": 10}


def restored(config):
    """Arrays and meta data of the newest checkpoint."""
    state, expected = fresh(config)
    state, meta = checkpoint.restore(config.path / "checkpoints", state, expected)
    return {path: np.asarray(x) for path, x in packing.flatten(state).items()}, meta


def rows(config):
    lines = (config.path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def same(run, other):
    first, second = restored(run)[0], restored(other)[0]
    assert first.keys() == second.keys()
    for path, array in first.items():
        np.testing.assert_array_equal(array, second[path], err_msg=path)
    assert rows(run) == rows(other)
    summaries = [json.loads((c.path / "summary.json").read_text()) for c in (run, other)]
    for summary in summaries:
        for name in [n for n in summary if n.endswith("seconds")] + ["config"]:
            del summary[name]
    assert summaries[0] == summaries[1]


def steps(config):
    return sorted(int(file.stem) for file in (config.path / "checkpoints").glob("*.safetensors"))


def interrupt(monkeypatch, number, at):
    """A signal arrives during step `at`."""
    original = build.Program.train

    def train(self, state, indices):
        if int(state.step) + 1 == at:
            os.kill(os.getpid(), number)
        return original(self, state, indices)

    monkeypatch.setattr(build.Program, "train", train)


@pytest.mark.parametrize(("number", "at"), [("SIGTERM", 5), ("SIGINT", 5), ("SIGTERM", 8)])
def test_a_signal_saves_and_the_resumed_run_has_the_same_bits(
    number, at, straight, tmp_path, monkeypatch, capsys
):
    number = signal.Signals[number]
    handler = signal.getsignal(number)
    config = dataclasses.replace(straight, run_dir=tmp_path, checkpoint_every=None)
    with monkeypatch.context() as patch:
        interrupt(patch, number, at)
        with pytest.raises(
            run.Terminated, match=rf"stopped at step {at}; .*checkpoints/{at}\.safetensors$"
        ):
            run.train(config)
    assert signal.getsignal(number) is handler
    # As a kill in the middle of writing leaves it.
    with (config.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "ste')
    part = config.path / "checkpoints" / ".part-abcd0123-9.safetensors"
    part.write_bytes(b"half")
    run.train(dataclasses.replace(config, resume=True))
    assert f"resumed from step {at}" in capsys.readouterr().out
    assert not part.exists()
    same(straight, config)


def test_a_finished_run_resumes_to_the_same_results(straight, copied):
    for name in ("summary.json", "metrics.jsonl", "config.json"):
        (copied.path / name).write_text("damaged")
    run.train(copied)
    same(straight, copied)
    assert json.loads((copied.path / "config.json").read_text()) == copied.to_json()


def test_the_last_and_the_best_stay_and_the_best_is_reported(straight, monkeypatch, tmp_path):
    accuracies = iter([0.5, 0.75, 0.75, 0.25])
    config = dataclasses.replace(straight, run_dir=tmp_path, epochs=4, keep=1, checkpoint_every=3)
    original, seen = build.Program.evaluate, []

    def evaluate(self, params, stats, split):
        result = original(self, params, stats, split)
        seen.append((split, np.asarray(params["kernel"])))
        return result | {"accuracy": next(accuracies)} if split == "validation" else result

    monkeypatch.setattr(build.Program, "evaluate", evaluate)
    summary = run.train(config)
    assert steps(config) == [8, 16]
    assert [split for split, _ in seen] == ["validation"] * 4 + ["test"]
    # The test saw the parameters of the second epoch: the first of the best ones.
    np.testing.assert_array_equal(seen[-1][1], seen[1][1])
    assert (seen[-1][1] != seen[3][1]).any()
    assert summary["selected_epoch"] == 2
    assert summary["validation_accuracy"] == 0.75
    assert not [name for row in rows(config) for name in row if name.startswith("test")]


def flip(file, place):
    """Flip one bit of a file."""
    content = bytearray(file.read_bytes())
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)


def header_size(file):
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


@pytest.mark.parametrize("damage", ["half", "empty", "text", "size", "number", "checksum", "array"])
def test_a_torn_checkpoint_is_skipped_and_put_aside(damage, straight, copied, capsys):
    place = copied.path / "checkpoints" / "12.safetensors"
    content = place.read_bytes()
    if damage == "half":
        place.write_bytes(content[: len(content) // 2])
    if damage == "empty":
        place.write_bytes(b"")
    if damage == "text":
        place.write_text("no checkpoint at all")
    if damage == "size":
        flip(place, 3)
    if damage == "number":  # of the progress: the last digit of the newest step
        flip(place, 8 * (content.rindex(b'\\"step\\": 12') + len(b'\\"step\\": 1')))
    if damage == "checksum":
        flip(place, 8 * (content.index(b'sha256\\": \\"') + len(b'sha256\\": \\"')))
    if damage == "array":
        flip(place, 4 * (header_size(place) + len(content)))
    damaged = place.read_bytes()
    assert damaged != content
    _, meta = restored(copied)
    assert meta["step"] == 10
    assert (
        f"warning: skipped the unreadable checkpoint 12: {place} is damaged: "
        in capsys.readouterr().out
    )
    assert 12 not in steps(copied)
    assert place.with_name("12.safetensors.aside1").read_bytes() == damaged


def test_every_flipped_bit_of_the_metadata_is_noticed(copied):
    place = copied.path / "checkpoints" / "12.safetensors"
    content, size = place.read_bytes(), header_size(place)
    for bit in np.random.default_rng(0).integers(0, 8 * size, 200):
        flip(place, int(bit))
        with pytest.raises((sealed.DamagedFileError, sealed.ForeignFileError)):
            sealed.read(place, checkpoint.FORMAT)
        place.write_bytes(content)
    assert sealed.read(place, checkpoint.FORMAT)[1]["step"] == 12


@pytest.mark.parametrize("error", [OSError(5, "EIO"), PermissionError(13, "no"), MemoryError()])
def test_an_error_of_reading_changes_nothing(error, copied, monkeypatch):
    before = {file: file.read_bytes() for file in copied.path.rglob("*") if file.is_file()}
    original = sealed.read

    def read(path, format):
        if path.name == "12.safetensors":
            raise error
        return original(path, format)

    monkeypatch.setattr(sealed, "read", read)
    with pytest.raises(checkpoint.CheckpointError, match=r"cannot read .*12.*nothing was changed"):
        run.train(copied)
    assert {file: file.read_bytes() for file in copied.path.rglob("*") if file.is_file()} == before


def test_a_checkpoint_is_no_use_without_its_best(straight, copied, tmp_path, capsys):
    # The best is that of step 8, and 10 and 12 refer to it.
    assert restored(copied)[1]["progress"]["best"]["step"] == 8
    (copied.path / "checkpoints" / "8.safetensors").write_bytes(b"")
    with pytest.raises(checkpoint.CheckpointError, match=r"none of the 3 checkpoints"):
        run.train(copied)
    assert steps(copied) == [8, 10, 12]
    # With one that is older than the best, it goes on from there.
    more = dataclasses.replace(straight, run_dir=tmp_path / "more", keep=9)
    run.train(more)
    (more.path / "checkpoints" / "8.safetensors").write_bytes(b"")
    capsys.readouterr()
    run.train(dataclasses.replace(more, resume=True))
    assert "resumed from step 6" in capsys.readouterr().out
    same(straight, more)


def test_the_best_that_a_kept_checkpoint_refers_to_is_kept(straight, tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.75, 0.25])
    original = build.Program.evaluate

    def evaluate(self, params, stats, split):
        result = original(self, params, stats, split)
        return result | {"accuracy": next(accuracies)} if split == "validation" else result

    monkeypatch.setattr(build.Program, "evaluate", evaluate)
    config = dataclasses.replace(straight, run_dir=tmp_path, keep=2, epochs=2)
    run.train(config)
    assert steps(config) == [4, 6, 8]  # 6 refers to 4, though 8 is better


def test_what_is_not_ours_stays(straight, copied):
    root = copied.path / "checkpoints"
    (root / "2024").mkdir()
    (root / "2024" / "photo.png").write_text("mine")
    safetensors.numpy.save_file({"x": np.zeros(3)}, root / "2025.safetensors")
    safetensors.numpy.save_file({"x": np.ones(3)}, root / "4.safetensors")
    (root / "notes.txt").write_text("mine")
    shutil.copy(root / "12.safetensors", root / "0099.safetensors")
    for config in (copied, dataclasses.replace(copied, resume=False, overwrite=True)):
        run.train(config)
        assert (root / "2024" / "photo.png").read_text() == "mine"
        assert (root / "notes.txt").read_text() == "mine"
        assert (root / "0099.safetensors").exists()
        assert safetensors.numpy.load_file(root / "2025.safetensors")["x"].tolist() == [0] * 3
    # It was where the second run wrote, and has moved.
    moved = safetensors.numpy.load_file(root / "4.safetensors.aside1")
    assert moved["x"].tolist() == [1] * 3
    same(straight, copied)


def test_the_run_goes_on_after_a_torn_checkpoint(straight, copied):
    (copied.path / "checkpoints" / "12.safetensors").write_bytes(b"")
    run.train(copied)
    same(straight, copied)


def test_only_torn_checkpoints_are_an_error_and_stay(copied):
    for place in (copied.path / "checkpoints").iterdir():
        place.write_text("")
    before = steps(copied)
    with pytest.raises(checkpoint.CheckpointError, match=r"none of the \d checkpoints in .* read"):
        run.train(copied)
    assert steps(copied) == before


def test_a_checkpoint_of_another_run_is_refused_before_anything(copied, monkeypatch):
    before = rows(copied)
    other = dataclasses.replace(copied, kappa=0.5, epochs=9, keep=7, skip_nonfinite=2)
    monkeypatch.setattr(run, "compile_program", None)
    with pytest.raises(ValueError, match="belongs to another run") as error:
        run.train(other)
    assert "epochs is 3 there, 9 here" in str(error.value)
    assert "kappa is 1.0 there, 0.5 here" in str(error.value)
    assert "keep" not in str(error.value).split("another run")[1]
    assert rows(copied) == before


def test_other_shapes_and_classes_are_listed_with_their_paths(copied):
    state, expected = fresh(copied)
    params = {**state.params, "kernel": jnp.zeros((8, 100)), "extra/bias": jnp.zeros(3)}
    del params["blocks/0/gain"]
    root = copied.path / "checkpoints"
    with pytest.raises(ValueError, match="another run") as error:
        checkpoint.restore(root, state._replace(params=params), {**expected, "classes": 100})
    for text in (
        "classes is 10 there, 100 here",
        'params/kernel is [[8, 10], "float32"] there, [[8, 100], "float32"] here',
        'params/extra/bias is nothing there, [[3], "float32"] here',
        'params/blocks/0/gain is [[8], "float32"] there, nothing here',
    ):
        assert text in str(error.value)
    assert checkpoint.restore(root, state, expected)[1]["step"] == 12


def rewrite(config, change):
    """Write the newest checkpoint again, as whole as before, with other metadata."""
    place = config.path / "checkpoints" / "12.safetensors"
    arrays, meta = sealed.read(place, checkpoint.FORMAT)
    sealed.write(place, arrays, {k: v for k, v in change(meta).items() if k != "sha256"})


def test_a_checkpoint_of_another_version_is_refused(copied):
    rewrite(copied, lambda meta: meta | {"version": 99})
    with pytest.raises(ValueError, match="format version 99, this program reads 3"):
        restored(copied)
    without = {"precision": None}
    rewrite(
        copied,
        lambda meta: (
            meta
            | {
                "version": 3,
                "config": {k: v for k, v in meta["config"].items() if k not in without},
            }
        ),
    )
    with pytest.raises(ValueError, match="precision is nothing there"):
        restored(copied)
    for file in (copied.path / "checkpoints").iterdir():
        file.unlink()
    (copied.path / "checkpoints" / "10").mkdir()
    (copied.path / "checkpoints" / "10" / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(ValueError, match="format version 2, this program reads 3"):
        restored(copied)


def test_resume_without_a_checkpoint(straight, tmp_path, capsys):
    config = dataclasses.replace(straight, run_dir=tmp_path, resume=True, epochs=1)
    config.path.mkdir()
    (config.path / "metrics.jsonl").write_text("{}")
    with pytest.raises(FileExistsError, match=r"holds metrics\.jsonl, but no checkpoint"):
        run.train(config)
    (config.path / "checkpoints").mkdir()  # as on a disk that is not mounted
    (config.path / "metrics.jsonl").write_text("{}\n" * 3)
    with pytest.raises(FileExistsError, match=r"results of 3 epochs, but no checkpoint"):
        run.train(config)
    assert (config.path / "metrics.jsonl").read_text() == "{}\n" * 3
    (config.path / "metrics.jsonl").write_text("{}\n")
    run.train(config)  # killed before its first checkpoint, it begins again
    assert "notice: no checkpoint" in capsys.readouterr().out
    assert steps(config) == [2, 4]


def test_a_compiled_network_is_no_checkpoint(straight, tmp_path):
    from lorentz_jax import inference, nn

    layer = nn.LorentzLinear(3, 2, kappa=1.0, rngs=nnx.Rngs(0))
    inference.save(inference.compile_cached_v(layer), tmp_path / "run")
    config = dataclasses.replace(straight, run_dir=tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"compiled model.*Expected a training checkpoint"):
        run.train(config)
    state, expected = fresh(straight)
    with pytest.raises(ValueError, match=r"compiled model.*Expected a training checkpoint"):
        checkpoint.restore(tmp_path / "run", state, expected)


def test_a_state_that_is_not_finite_is_never_saved(straight, tmp_path):
    state, _ = fresh(straight)
    store = checkpoint.Store(tmp_path, keep=1)
    store.save(state, {})
    with jax.debug_nans(False):
        for part in ("params", "stats"):
            bad = {path: x * jnp.inf for path, x in getattr(state, part).items()}
            bad_state = state._replace(**{part: bad}, step=state.step + 1)
            with pytest.raises(
                ArithmeticError, match=rf"step 1 is not finite; .*{tmp_path}/0\.saf"
            ):
                store.save(bad_state, {})
    store.close()
    assert [place.name for place in tmp_path.iterdir()] == ["0.safetensors"]


def test_what_is_saved_is_the_state_at_that_step(straight, tmp_path):
    # The next steps donate the arrays while the checkpoint is still being written.
    state, expected = fresh(straight)
    step = jax.jit(lambda s: s._replace(params=jax.tree.map(lambda x: x + 1, s.params)),
                   donate_argnums=0)  # fmt: skip
    before = np.asarray(state.params["kernel"]).copy()
    store = checkpoint.Store(tmp_path, keep=1)
    store.save(state, {**expected, "progress": {}})
    for _ in range(20):
        state = step(state)
    store.wait()
    like, _ = fresh(straight)
    np.testing.assert_array_equal(store.restore(0, like).params["kernel"], before)
    store.close()


def test_a_failed_write_is_one_readable_error(straight, tmp_path, monkeypatch):
    state, expected = fresh(straight)
    store = checkpoint.Store(tmp_path, keep=1)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sealed, "write", full)
    store.save(state, {**expected, "progress": {"best": None}})
    with pytest.raises(
        checkpoint.CheckpointError, match=r"cannot write .*No space left.*disk full\? there is no"
    ):
        store.save(state, {})
    assert store.last() == "there is no checkpoint"
    store.close()


def test_progress_goes_through_json():
    progress = run.Progress(losses=[0.1, None], correct=3, skipped=1)
    progress.finish_epoch({"epoch": 1, "step": 2, "validation_accuracy": 0.5})
    text = json.dumps(dataclasses.asdict(progress))
    assert run.Progress(**json.loads(text)) == progress
