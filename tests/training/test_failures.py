"""What a run does when something breaks."""

import dataclasses
import errno
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lorentz_jax import data
from lorentz_jax.data import stream
from lorentz_jax.training import build, checkpoint, devices, packing, run, run_directory
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.state import init_network, init_state
from lorentz_jax.training.step import make_train_step
from tests.training.tiny import TinyNet, stand_in

PREPARE, LOAD = data.prepare, data.load


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Ten steps in two epochs, a checkpoint after every second one."""
    stand_in(monkeypatch)
    return TrainConfig(
        epochs=2, batch_size=32, lr=0.1, kappa=1.0, name="run", run_dir=tmp_path, limit=160,
        checkpoint_every=2, keep=2, shift=0, schedule="constant",
    )  # fmt: skip


@pytest.fixture
def infinite_pixel(config, monkeypatch):
    """An image with an infinite pixel is in the batches of step 5 and of one step after it."""

    def load(name, **options):
        dataset = LOAD(name, **options)
        images = dataset.train_images.copy()
        images[stream.epoch_batches(config.seed, 1, 160, 32)[4][7], 3, 3] = 255
        return dataclasses.replace(dataset, train_images=images)

    def prepare(key, images, **options):
        return jnp.where(images == 255, jnp.inf, PREPARE(key, images, **options))

    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(data, "prepare", prepare)
    with jax.debug_nans(False):
        yield


def kept(config):
    """Every kept checkpoint's step and whether it is finite."""
    found = {}
    root = config.path / "checkpoints"
    for file in root.iterdir():
        arrays, _ = checkpoint.read_step(root, int(file.stem))
        found[int(file.stem)] = all(np.isfinite(x).all() for x in arrays.values())
    return found


def test_an_infinite_pixel_stops_the_run_at_its_step(config, infinite_pixel):
    with pytest.raises(run.NonFiniteLossError) as error:
        run.train(config)
    place = config.path / "checkpoints" / "4.safetensors"
    assert str(error.value).startswith(
        f"the loss at step 5 is nan; the last good checkpoint is {place}"
    )
    assert kept(config) == {2: True, 4: True}


def test_bad_steps_are_skipped_and_counted_up_to_a_number(config, infinite_pixel, capsys):
    summary = run.train(dataclasses.replace(config, skip_nonfinite=2))
    assert summary["skipped_steps"] == 2
    assert summary["steps"] == 10
    assert capsys.readouterr().out.count("warning: skipped step") == 2
    assert kept(config) == {8: True, 10: True}
    text = (config.path / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["skipped_steps"] for row in rows] == [1, 1]
    assert all(np.isfinite(row["train_loss"]) for row in rows)
    # With one allowed, the second stops the run, and so does it after a resume: the count is saved.
    once = dataclasses.replace(config, skip_nonfinite=1, name="once")
    for resume in (False, True):
        with pytest.raises(
            run.NonFiniteLossError, match=r"at step \d+ and 1 before it is nan; the"
        ):
            run.train(dataclasses.replace(once, resume=resume))
    # One more lets it go on, to the same end.
    run.train(dataclasses.replace(once, resume=True, skip_nonfinite=2))
    assert json.loads((once.path / "summary.json").read_text())["test_loss"] == summary["test_loss"]


def test_a_skipped_step_changes_nothing_but_the_step():
    graphdef, params, stats = init_network(lambda rngs: TinyNet(3, rngs=rngs), 0)
    optimiser = optax.sgd(0.1, momentum=0.9)
    images = jnp.ones((4, 2, 4, 1)).at[0, 0, 0].set(jnp.inf)
    labels = jnp.zeros(4, jnp.int32)
    step = make_train_step(graphdef, optimiser, lambda key, x: x, skip_nonfinite=True)
    state = init_state(params, stats, optimiser, 0)
    before = {path: np.asarray(x) for path, x in packing.flatten(state).items()}
    with jax.debug_nans(False):
        state, result = step(state, images, labels, np.arange(4))
    assert not result.finite
    after = packing.flatten(state)
    assert int(after.pop("step")) == 1
    for path, array in after.items():
        np.testing.assert_array_equal(array, before[path], err_msg=path)
    state, result = step(state, images, labels, np.arange(1, 4))
    assert result.finite
    assert (np.asarray(state.params["kernel"]) != before["params/kernel"]).any()


def test_a_gradient_that_is_not_finite_counts_too():
    @jax.custom_jvp
    def poison(x):
        return x

    poison.defjvp(lambda x, t: (x[0], t[0] * jnp.nan))

    class Net(TinyNet):
        def __call__(self, x, **options):
            return super().__call__(x, **options) + poison(0.0 * self.kernel[...][0, 0])

    graphdef, params, stats = init_network(lambda rngs: Net(3, rngs=rngs), 0)
    optimiser = optax.sgd(0.1)
    step = make_train_step(graphdef, optimiser, lambda key, x: x)
    with jax.debug_nans(False):
        _, result = step(init_state(params, stats, optimiser, 0), jnp.ones((4, 2, 4, 1)),
                         jnp.zeros(4, jnp.int32), np.arange(4))  # fmt: skip
    assert np.isfinite(result.loss)
    assert not result.finite


def test_a_full_device_is_explained(config, monkeypatch):
    def full(self, state, indices):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    monkeypatch.setattr(build.Program, "train", full)
    with pytest.raises(run.OutOfMemoryError) as error:
        run.train(config)
    message = str(error.value)
    assert "batch 32, images of 8x8x1, float32, width 16; try a smaller --batch-size" in message
    assert "--precision bfloat16" in message


def test_other_runtime_errors_pass_through():
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
        devices.explain_memory(TrainConfig(), (8, 8, 1)),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")


def test_an_absent_device_is_refused(config):
    with pytest.raises(ValueError, match=r"no tpu found: jax [\d.]+ sees only cpu"):
        run.train(dataclasses.replace(config, device="tpu"))
    assert not config.path.exists()
    devices.start(dataclasses.replace(config, device="cpu"))


def test_a_folder_that_cannot_be_written_is_refused(config, monkeypatch):
    # Root may write everywhere, so the answer of the system is replaced.
    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(PermissionError, match=r"written \(Read-only file system\), so .*deeper"):
        run_directory.check_place(config.path / "deeper")


def test_tensorboard_without_its_package_is_refused(config, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'lorentz-jax\[tensorboard\]'"):
        run.train(dataclasses.replace(config, tensorboard=True))


def test_a_validation_split_needs_images_to_train_on(config):
    with pytest.raises(ValueError, match="cannot hold 160 of 160 training images out"):
        run.train(dataclasses.replace(config, validation=160))


def test_a_dry_run_writes_nothing(config, capsys):
    run.dry_run(config)
    assert not config.path.exists()
    out = capsys.readouterr().out
    assert "batch_size 32" in out
    assert "lorentz: 256 parameters" in out
    assert "MiB a device" in out
    assert "5 steps an epoch, 10 in all" in out
    assert "one step:" in out
