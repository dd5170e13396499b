"""A run folder has one owner, and nothing is removed that is not the owner's."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from lorentz_jax import data
from lorentz_jax.training import build, lock, run, run_directory
from lorentz_jax.training.config import TrainConfig
from tests.training.tiny import stand_in

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from lorentz_jax.training.lock import locked

with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Eight steps in two epochs."""
    stand_in(monkeypatch)
    return TrainConfig(
        epochs=2, batch_size=64, lr=0.5, kappa=1.0, name="run", run_dir=tmp_path, limit=300
    )


@pytest.fixture
def finished(config):
    """The config of a run that has ended, and one of another seed that replaces it."""
    run.train(config)
    (config.path / "notes.txt").write_text("mine")
    return config, dataclasses.replace(config, seed=1, overwrite=True)


def contents(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_locked_folder_names_its_owner(tmp_path):
    folder = tmp_path / "a" / "b"
    with lock.locked(folder):
        message = rf"(b|alias) is in use by process {os.getpid()} on .*: wait"
        with pytest.raises(BlockingIOError, match=message), lock.locked(folder):
            pass
        alias = tmp_path / "alias"
        alias.symlink_to(folder)
        with pytest.raises(BlockingIOError, match=message), lock.locked(alias):
            pass
    assert not (tmp_path / "a").exists()  # it stayed empty
    folder.mkdir(parents=True)
    with lock.locked(folder):
        (folder / "result").write_text("")
    assert [file.name for file in folder.iterdir()] == ["result"]


def test_a_crash_gives_the_lock_back(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(BlockingIOError, match=f"process {holder.pid} "), lock.locked(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with lock.locked(tmp_path):
        owner = json.loads((tmp_path / lock.NAME).read_text())
    assert owner["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, capsys):
    def flock(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with lock.locked(tmp_path):
        assert "cannot be locked (No locks available): let no" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["plain", "resume", "overwrite"])
def test_a_second_run_in_the_folder_of_a_live_one_changes_nothing(option, config, monkeypatch):
    original, refused = build.Program.train, []

    def train(self, state, indices):
        if not refused:
            before = contents(config.path)
            other = dataclasses.replace(config, seed=3)
            if option != "plain":
                other = dataclasses.replace(other, **{option: True})
            with pytest.raises(BlockingIOError, match="in use by process") as error:
                run.train(other)
            refused.append(error)
            assert contents(config.path) == before
        return original(self, state, indices)

    monkeypatch.setattr(build.Program, "train", train)
    summary = run.train(config)
    assert refused
    assert json.loads((config.path / "summary.json").read_text()) == summary


def test_a_refused_run_leaves_no_folder(config, monkeypatch):
    def broken(*arguments, **options):
        raise ValueError("no such thing")

    monkeypatch.setattr(data, "load", broken)
    with pytest.raises(ValueError, match="no such thing"):
        run.train(dataclasses.replace(config, run_dir=config.run_dir / "runs"))
    assert not list(config.run_dir.iterdir())


@pytest.mark.parametrize("failure", ["compile", "error", "nan"])
def test_overwrite_removes_nothing_before_the_first_step_is_done(failure, finished, monkeypatch):
    config, other = finished
    before = contents(config.path)
    original = build.Program.train

    def broken(*arguments):
        raise ArithmeticError("no such program")

    def nan(self, state, indices):
        state, result = original(self, state, indices)
        return state, result._replace(loss=jnp.float32(jnp.nan), finite=jnp.bool_(False))

    if failure == "compile":
        monkeypatch.setattr(run, "compile_program", broken)
    else:
        monkeypatch.setattr(build.Program, "train", nan if failure == "nan" else broken)
    with jax.debug_nans(False), pytest.raises(ArithmeticError):
        run.train(other)
    assert contents(config.path) == before


def test_overwrite_replaces_all_of_the_old_run_and_nothing_else(finished):
    config, other = finished
    trace = "plugins/profile/2026_11_29/host.xplane.pb"
    for folder, ours in (("tensorboard", "events.out.tfevents.1.host"), ("profile", trace)):
        (config.path / folder / ours).parent.mkdir(parents=True)
        (config.path / folder / ours).write_text("old")
        (config.path / folder / "mine" / "plugins").mkdir(parents=True)
        (config.path / folder / "mine" / Path(ours).name).write_text("mine")
    summary = run.train(dataclasses.replace(other, epochs=1))
    assert json.loads((config.path / "summary.json").read_text()) == summary
    assert len((config.path / "metrics.jsonl").read_text().splitlines()) == 1
    assert [file.name for file in (config.path / "checkpoints").iterdir()] == ["4.safetensors"]
    assert (config.path / "notes.txt").read_text() == "mine"
    for folder in ("tensorboard", "profile"):
        (left,) = contents(config.path / folder)
        assert left.parent.name == "mine"


def test_overwrite_keeps_the_events_of_its_own_first_steps(config):
    run.train(dataclasses.replace(config, tensorboard=True))
    (old,) = (config.path / "tensorboard").iterdir()
    old.rename(old.with_name("events.out.tfevents.0.old"))
    run.train(dataclasses.replace(config, tensorboard=True, overwrite=True))
    (new,) = (config.path / "tensorboard").iterdir()
    assert new.name != "events.out.tfevents.0.old"


@pytest.mark.parametrize("mark", ["none", "other", "torn"])
def test_overwrite_refuses_what_no_run_made(mark, config):
    config.path.mkdir()
    (config.path / "summary.json").write_text("mine")
    if mark != "none":
        (config.path / "config.json").write_text('{"model": "mine"}' if mark == "other" else "{")
    before = contents(config.path)
    with pytest.raises(FileExistsError, match=r"no config.json of a run, so --overwrite might"):
        run.train(dataclasses.replace(config, overwrite=True))
    assert contents(config.path) == before


@pytest.mark.parametrize("option", ["overwrite", "resume"])
def test_checkpoints_may_be_a_link_to_another_disk(option, config, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    config.path.mkdir()
    (config.path / "checkpoints").symlink_to(scratch)
    begin = dataclasses.replace(config, resume=True)
    run.train(begin)
    (scratch / "notes.txt").write_text("mine")
    before = {file.name for file in scratch.iterdir()}
    assert "8.safetensors" in before
    with lock.locked(scratch), pytest.raises(BlockingIOError, match="in use"):
        run.train(begin)  # another run may have the same link
    if option == "overwrite":
        run.train(dataclasses.replace(config, overwrite=True, epochs=1))
        assert {file.name for file in scratch.iterdir()} == {"4.safetensors", "notes.txt"}
    else:
        run.train(begin)
        assert {file.name for file in scratch.iterdir()} == before
    assert (config.path / "checkpoints").is_symlink()
    shutil.rmtree(scratch)
    before = contents(config.path)
    with pytest.raises(NotADirectoryError, match="checkpoints is a link to nowhere"):
        run.train(dataclasses.replace(config, **{option: True}))
    assert contents(config.path) == before


def test_a_folder_where_a_file_should_be_is_refused(finished):
    config, other = finished
    (config.path / "curves.png").mkdir()
    before = contents(config.path)
    with pytest.raises(FileExistsError, match=r"curves.png is a folder, where a run writes a file"):
        run.train(other)
    assert contents(config.path) == before


def test_the_leftovers_of_a_killed_writer_are_removed(config):
    config.path.mkdir()
    ours = [config.path / f".part-abc_0123-{name}" for name in run_directory.FILES]
    mine = [config.path / name for name in (".part-abc_0123-thesis.tex", ".part-time")]
    for file in (*ours, *mine):
        file.write_text("")
    run.train(config)
    assert not any(file.exists() for file in ours)
    assert all(file.exists() for file in mine)
