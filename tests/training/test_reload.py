"""A finished run gives its network back, and another run can begin with it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

import lorentz_jax
from lorentz_jax import data
from lorentz_jax.training import build, load_run, reload, run, sealed
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.state import merge, split
from tests.training.tiny import stand_in

ROOT = Path(__file__).parents[2]
BASE = {"batch_size": 64, "lr": 0.5, "kappa": 1.0, "limit": 300, "schedule": "constant"}
TIMES = ("train_seconds", "eval_seconds")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    stand_in(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run whose second epoch of four is the best, and its parameters by epoch."""
    config = TrainConfig(
        **BASE, epochs=4, validation=40, name="run", run_dir=tmp_path_factory.mktemp("finished")
    )
    accuracies, seen = iter([0.5, 0.75, 0.75, 0.25]), []
    original = build.Program.evaluate

    def evaluate(self, params, stats, split):
        result = original(self, params, stats, split)
        if split == "test":
            return result
        seen.append({path: np.asarray(x) for path, x in {**params, **stats}.items()})
        return result | {"accuracy": next(accuracies)}

    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        patch.setattr(build.Program, "evaluate", evaluate)
        run.train(config)
    return config, seen


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the run's folder, to damage."""
    import shutil

    return Path(shutil.copytree(finished[0].path, tmp_path / "run"))


def arrays(model):
    _, params, stats = split(model)
    return {path: np.asarray(x) for path, x in {**params, **stats}.items()}


def equal(first, second):
    assert first.keys() == second.keys()
    for path, x in first.items():
        np.testing.assert_array_equal(x, second[path], err_msg=path)


def test_the_reported_network_has_the_accuracy_of_the_summary(finished, monkeypatch):
    config, _ = finished
    dataset = data.load("digits")
    with monkeypatch.context() as patch:
        patch.setattr(data, "load", None)  # it needs no dataset
        loaded = lorentz_jax.load_run(config.path)
    summary = json.loads((config.path / "summary.json").read_text())
    assert loaded.summary == summary
    assert loaded.config == config
    assert (loaded.epoch, loaded.step) == (2, 8)
    logits = jax.jit(lambda x: loaded.model(x))(loaded.prepare(dataset.test_images))
    right = np.mean(np.argmax(logits, -1) == dataset.test_labels)
    assert right == pytest.approx(summary["test_accuracy"], abs=1e-9)


@pytest.mark.parametrize(("which", "epoch"), [("reported", 2), ("best", 2), ("last", 4)])
def test_the_epoch_that_was_asked_for_is_read(which, epoch, finished):
    config, seen = finished
    loaded = load_run(str(config.path), which)
    assert (loaded.epoch, loaded.step) == (epoch, 4 * epoch)
    equal(arrays(loaded.model), seen[epoch - 1])


def test_the_weights_need_none_of_our_code(finished):
    config, seen = finished
    script = """
import sys, numpy, safetensors.numpy
arrays = safetensors.numpy.load_file(sys.argv[1])
print(float(sum(abs(x).sum() for x in arrays.values())), "jax" in sys.modules, *sorted(arrays))
"""
    out = subprocess.run(
        [sys.executable, "-c", script, str(config.path / "model.safetensors")],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert float(out[0]) == pytest.approx(sum(float(np.abs(x).sum()) for x in seen[1].values()))
    assert out[1:] == ["False", *sorted(seen[1])]
    state = safetensors.numpy.load_file(config.path / "checkpoints" / "16.safetensors")
    equal({path: state[f"{'stats' if 'mean' in path else 'params'}/{path}"] for path in seen[3]},
          seen[3])  # fmt: skip


def test_an_unfinished_run_has_a_last_network_only(copied):
    for name in ("summary.json", "model.safetensors"):
        (copied / name).unlink()
    loaded = load_run(copied, "last")
    assert loaded.summary is None
    assert loaded.epoch == 4
    with pytest.raises(FileNotFoundError, match="has not finished; its newest checkpoint"):
        load_run(copied)


def test_without_validation_there_is_no_best(tmp_path):
    run.train(TrainConfig(**BASE, epochs=1, name="run", run_dir=tmp_path))
    assert load_run(tmp_path / "run").epoch == 1
    with pytest.raises(ValueError, match=r"no best epoch: no image was held out"):
        load_run(tmp_path / "run", "best")


@pytest.mark.parametrize("name", ["summary.json", "model.safetensors", "swapped"])
def test_a_changed_file_is_refused(name, copied):
    if name == "summary.json":
        text = (copied / name).read_text()
        (copied / name).write_text(text.replace('"selected_epoch": 2', '"selected_epoch": 3'))
        assert text != (copied / name).read_text()
    if name == "model.safetensors":
        content = bytearray((copied / name).read_bytes())
        content[-1] ^= 1
        (copied / name).write_bytes(content)
    if name == "swapped":
        (copied / "model.safetensors").write_bytes(
            (copied / "checkpoints" / "16.safetensors").read_bytes()
        )
    with pytest.raises(ValueError, match=r"do not belong together|is damaged|is no lorentz_jax"):
        load_run(copied)


def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_stays(copied):
    newest = copied / "checkpoints" / "16.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="skipped the unreadable checkpoint 16"):
        assert load_run(copied, "last").epoch == 3
    assert newest.exists()


def test_what_is_no_run_is_refused(tmp_path, copied):
    with pytest.raises(FileNotFoundError, match="there is no run"):
        load_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match="which must be one of reported, best, last"):
        load_run(copied, "first")
    (tmp_path / "empty").mkdir()
    for which in ("reported", "last"):
        with pytest.raises(FileNotFoundError, match=r"empty has no"):
            load_run(tmp_path / "empty", which)
    model = copied / "model.safetensors"
    values, meta = sealed.read(model, reload.FORMAT)
    del meta["sha256"]
    sealed.write(model, values, meta | {"version": 99})
    with pytest.raises(ValueError, match="format version 99, this program reads 1"):
        load_run(copied)
    sealed.write(model, {k: x for k, x in values.items() if k != "kernel"}, meta)
    with pytest.raises(ValueError, match=r"kernel is nothing there"):
        load_run(copied)


def rows(config):
    lines = (config.path / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def test_more_epochs_go_on_as_if_they_had_been_asked_for_at_once(finished, tmp_path):
    config = TrainConfig(**BASE, epochs=1, name="a", run_dir=tmp_path)
    run.train(config)
    more = dataclasses.replace(config, epochs=3)
    run.train(dataclasses.replace(more, resume=True))
    straight = dataclasses.replace(more, name="b")
    run.train(straight)
    assert rows(more) == rows(straight)
    equal(*(arrays(load_run(c.path).model) for c in (more, straight)))
    fewer = dataclasses.replace(config, epochs=2, resume=True)
    with pytest.raises(ValueError, match=r"in epoch 3 already, epochs is 2"):
        run.train(fewer)
    assert rows(more) == rows(straight)


def test_steps_may_go_on_but_a_cosine_may_not(tmp_path):
    settings = BASE | {"schedule": "step", "milestones": (1, 2)}
    config = TrainConfig(**settings, epochs=2, name="step", run_dir=tmp_path)
    run.train(config)
    summary = run.train(dataclasses.replace(config, epochs=3, resume=True))
    assert summary["epochs"] == 3
    cosine = TrainConfig(**BASE | {"schedule": "cosine"}, epochs=1, name="c", run_dir=tmp_path)
    run.train(cosine)
    with pytest.raises(ValueError, match=r"epochs is 1 there, 2 here; the cosine schedule depends"):
        run.train(dataclasses.replace(cosine, epochs=2, resume=True))


def test_a_run_may_begin_with_the_weights_of_another(finished, tmp_path, capsys, monkeypatch):
    config, seen = finished
    first = []
    original = build.Program.train

    def train(self, state, indices):
        if not first:
            first.append({p: np.asarray(x) for p, x in {**state.params, **state.stats}.items()})
            assert int(state.step) == 0
        return original(self, state, indices)

    monkeypatch.setattr(build.Program, "train", train)
    tuned = TrainConfig(
        **BASE, epochs=2, seed=7, init_from=config.path, name="tuned", run_dir=tmp_path
    )
    run.train(tuned)
    equal(first[0], seen[1])  # the reported ones, of the second epoch
    assert f"initial weights from {config.path}, epoch 2 (reported)" in capsys.readouterr().out
    # A resumed run is the same run, and does not look at the other again.
    straight = rows(tuned)
    (tmp_path / "tuned" / "checkpoints" / "8.safetensors").unlink()
    monkeypatch.setattr(reload, "initial_weights", None)
    run.train(dataclasses.replace(tuned, resume=True))
    assert rows(tuned) == straight
    with pytest.raises(ValueError, match=r"init_from is .* there, null here"):
        run.train(dataclasses.replace(tuned, init_from=None, resume=True))


def test_weights_of_another_network_are_refused(finished, tmp_path, monkeypatch):
    config, _ = finished
    base = TrainConfig(**BASE, epochs=1, init_from=config.path, name="x", run_dir=tmp_path)
    for change, message in (
        ({"kappa": 2.0}, r"another network: kappa is 1.0 there, 2.0 here"),
        ({"width": 8, "stages": (1,)}, r"stages is \[2, 2, 2\] there, \[1\] here; width is 16 th"),
        ({"distance_gain": True}, "another network: distance_gain is False there, True here"),
        ({"model": "lorentz-vit", "heads": 2}, "model is .*-vit here; .*heads is 4 there, 2"),
        ({"init_from": tmp_path / "no"}, "init_from: there is no run"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            run.train(dataclasses.replace(base, **change))
    load = data.load

    def eleven(name, **options):
        return dataclasses.replace(load(name, **options), num_classes=11)

    monkeypatch.setattr(data, "load", eleven)
    with pytest.raises(ValueError, match=r"has 10 classes, the dataset has 11.*fine_tuning\.md"):
        run.train(base)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("learn", [False, True])
def test_a_real_network_comes_back(learn, tmp_path, monkeypatch):
    monkeypatch.undo()
    config = TrainConfig(
        stages=(1,), width=4, epochs=1, limit=64, batch_size=32, learn_kappa=learn,
        name="real", run_dir=tmp_path,
    )  # fmt: skip
    dataset = data.load("digits", limit=64)
    plan = build.make_plan(config, dataset)
    params, stats = plan.state.params, {k: x + 0.25 for k, x in plan.state.stats.items()}
    assert stats
    (tmp_path / "real").mkdir()
    summary = {"selected_epoch": 1}
    reload.save_model(config, dataset, params, stats, 2, summary)
    (tmp_path / "real" / "summary.json").write_text(json.dumps(summary))
    loaded = load_run(tmp_path / "real")
    equal(arrays(loaded.model), {k: np.asarray(x) for k, x in {**params, **stats}.items()})
    # Its norms use the running means, without being told.
    images = loaded.prepare(dataset.test_images[:3])
    expected = merge(plan.graphdef, params, stats)(images, train=False)
    np.testing.assert_allclose(loaded.model(images), expected, rtol=1e-6)
