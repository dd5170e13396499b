"""From a configuration to a trained network and the files that describe it."""

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax import Array
from tqdm import tqdm

from lorentz_jax import data
from lorentz_jax.models import build_model
from lorentz_jax.training import metrics, run_files
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.metrics import show
from lorentz_jax.training.optimiser import describe_decay, make_optimiser, make_schedule
from lorentz_jax.training.plots import save_curves
from lorentz_jax.training.state import TrainState, build, init_state
from lorentz_jax.training.step import compile_all, make_eval_step, make_train_step


class NonFiniteLossError(ArithmeticError):
    """The loss became NaN or infinite; training stops at the step that the message names."""


class Setup(NamedTuple):
    """What a run is made of, compiled and on the device, before its first step."""

    state: TrainState
    train_step: Callable
    eval_step: Callable
    train_set: tuple[Array, Array]
    test_set: tuple[Array, Array]
    schedule: Callable[[int], Any]
    batch_size: int
    steps_per_epoch: int
    parameters: int
    build_seconds: float
    compile_seconds: float


def train(config: TrainConfig) -> dict[str, Any]:
    """Train, evaluate on the test set after every epoch, and write the files of the run.

    `config.path` gets `config.json`, `metrics.jsonl` (one line an epoch), `curves.png` and, last,
    `summary.json`, whose content is returned. The reported accuracy is that of the last epoch:
    nothing is selected on the test set. The same config on the same CPU gives the same bits.

    Raises:
        ValueError: a config or a dataset that cannot be trained; no file was touched.
        OSError: the folder is taken or cannot be written.
        NonFiniteLossError: the loss of a step is NaN or infinite.
    """
    start = time.perf_counter()
    run_files.check_free(config.path, config.overwrite)
    dataset = data.load(config.dataset, limit=config.limit)
    setup = set_up(config, dataset)
    run_files.start(config.path, config.to_json())
    history = []
    for row in _epochs(config, setup):
        run_files.append_jsonl(config.path / "metrics.jsonl", row)
        history.append(row)
    save_curves(config.path / "curves.png", history, config.run_name)
    summary = _summary(config, setup, history, time.perf_counter() - start)
    run_files.write_json(config.path / "summary.json", summary)
    return summary


def set_up(config: TrainConfig, dataset: data.Dataset) -> Setup:
    """Build and compile everything; says on standard output what will be trained."""
    images, labels = dataset.train_images, dataset.train_labels
    batch_size = min(config.batch_size, len(labels))
    if batch_size < config.batch_size:
        print(f"notice: only {len(labels)} training images, so the batch size is {batch_size}")

    def make_model(rngs: nnx.Rngs) -> nnx.Module:
        return build_model(
            config, num_classes=dataset.num_classes, in_channels=dataset.channels, rngs=rngs
        )

    start = time.perf_counter()
    graphdef, params, stats = build(make_model, config.seed)
    build_seconds = time.perf_counter() - start
    parameters = sum(p.size for p in params.values())
    steps_per_epoch = len(labels) // batch_size
    optimiser = make_optimiser(config, params, steps_per_epoch)
    state = init_state(params, stats, optimiser, config.seed)
    print(f"{dataset.name}: {len(labels)} training, {len(dataset.test_labels)} test images")
    print(f"{config.model}: {parameters:,} parameters, {describe_decay(params, config)}")

    train_set = jax.device_put((images, labels))
    test_set = jax.device_put((dataset.test_images, dataset.test_labels))
    prepare = functools.partial(
        data.prepare, mean=dataset.mean, std=dataset.std, shift=config.shift
    )
    start = time.perf_counter()
    indices, mask = next(metrics.ragged_batches(batch_size, batch_size))
    train_step = make_train_step(graphdef, optimiser, prepare)
    eval_step = make_eval_step(graphdef, prepare, dataset.num_classes)
    compiled_train, compiled_eval = compile_all(
        train_step.lower(state, *train_set, indices),
        eval_step.lower(state.params, state.stats, *test_set, indices, mask),
    )
    return Setup(
        state=state,
        train_step=compiled_train,
        eval_step=compiled_eval,
        train_set=train_set,
        test_set=test_set,
        schedule=make_schedule(config, steps_per_epoch),
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        parameters=parameters,
        build_seconds=build_seconds,
        compile_seconds=time.perf_counter() - start,
    )


def epoch_batches(seed: int, epoch: int, count: int, batch_size: int) -> np.ndarray:
    """Indices `(count // batch_size, batch_size)` of one epoch, shuffled by `(seed, epoch)`."""
    order = np.random.default_rng((seed, epoch)).permutation(count).astype(np.int32)
    steps = count // batch_size
    return order[: steps * batch_size].reshape(steps, batch_size)


def _epochs(config: TrainConfig, setup: Setup) -> Iterator[dict[str, Any]]:
    """Train epoch by epoch; yields the lines of `metrics.jsonl`."""
    state, count = setup.state, len(setup.train_set[1])
    test_count = len(setup.test_set[1])
    with tqdm(total=config.epochs * setup.steps_per_epoch, unit="step", disable=None) as bar:
        for epoch in range(1, config.epochs + 1):
            start = time.perf_counter()
            batches = epoch_batches(config.seed, epoch, count, setup.batch_size)
            first_step = (epoch - 1) * setup.steps_per_epoch + 1
            state, trained = _train_epoch(setup, state, batches, first_step, bar)
            middle = time.perf_counter()
            eval_step = functools.partial(
                setup.eval_step, state.params, state.stats, *setup.test_set
            )
            test = metrics.evaluate(eval_step, test_count, setup.batch_size)
            last_step = first_step + len(batches) - 1
            _check_finite(test["loss"], f"the test loss after step {last_step}")
            row = {
                "epoch": epoch,
                "step": last_step,
                "train_loss": trained["loss"],
                "train_accuracy": trained["accuracy"],
                "test_loss": test["loss"],
                "test_accuracy": test["accuracy"],
                "test_count": test["count"],
                "test_class_accuracy": test["class_accuracy"],
                "lr": float(setup.schedule(last_step - 1)),
                "train_seconds": middle - start,
                "eval_seconds": time.perf_counter() - middle,
            }
            bar.write(_line(row, config.epochs))
            yield row


def _train_epoch(
    setup: Setup, state: TrainState, batches: np.ndarray, first_step: int, bar: tqdm
) -> tuple[TrainState, dict[str, float]]:
    """The steps of one epoch, and their mean loss and accuracy before each update."""
    losses, correct = [], 0

    def note(step_metrics) -> None:
        nonlocal correct
        losses.append(float(step_metrics.loss))
        _check_finite(losses[-1], f"the loss at step {first_step + len(losses) - 1}")
        correct += int(step_metrics.correct)
        accuracy = correct / (len(losses) * batches.shape[1])
        bar.set_postfix(loss=f"{losses[-1]:.3f}", accuracy=f"{accuracy:.3f}", refresh=False)
        bar.update()

    pending = None
    for indices in batches:
        state, current = setup.train_step(state, *setup.train_set, indices)
        if pending is not None:
            note(pending)  # one step late, so that the device never waits for the host
        pending = current
    note(pending)
    return state, {"loss": math.fsum(losses) / len(losses), "accuracy": correct / batches.size}


def _check_finite(loss: float | None, what: str) -> None:
    if loss is not None and not math.isfinite(loss):
        raise NonFiniteLossError(f"{what} is {loss}; try a smaller learning rate")


def _line(row: dict[str, Any], epochs: int) -> str:
    return (
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}"
        f"  loss {row['train_loss']:.4f}  accuracy {row['train_accuracy']:.4f}"
        f"  test loss {show(row['test_loss'])}  test accuracy {show(row['test_accuracy'])}"
        f"  lr {row['lr']:.2g}  {row['train_seconds'] + row['eval_seconds']:.1f} s"
    )


def _summary(
    config: TrainConfig, setup: Setup, history: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    last, device = history[-1], jax.devices()[0]
    return {
        "test_accuracy": last["test_accuracy"],
        "test_loss": last["test_loss"],
        "test_count": last["test_count"],
        "test_class_accuracy": last["test_class_accuracy"],
        "train_loss": last["train_loss"],
        "train_accuracy": last["train_accuracy"],
        "epochs": last["epoch"],
        "steps": last["step"],
        "batch_size": setup.batch_size,
        "parameters": setup.parameters,
        "seconds": seconds,
        "build_seconds": setup.build_seconds,
        "compile_seconds": setup.compile_seconds,
        "train_seconds": math.fsum(row["train_seconds"] for row in history),
        "eval_seconds": math.fsum(row["eval_seconds"] for row in history),
        "device": f"{device.platform}: {device.device_kind}",
        "versions": run_files.versions(),
        "config": config.to_json(),
    }
