"""From a configuration to a trained network and the files that describe it."""

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from jax.experimental import multihost_utils

from lorentz_jax import data
from lorentz_jax.training import checkpoint, devices, feed, report, run_directory
from lorentz_jax.training.build import Plan, compile_program, identity, make_plan
from lorentz_jax.training.checkpoint import Store
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.devices import OutOfMemoryError, is_main, print_main
from lorentz_jax.training.loop import Loop, NonFiniteLossError, Progress, Terminated
from lorentz_jax.training.state import TrainState

__all__ = ["NonFiniteLossError", "OutOfMemoryError", "Terminated", "dry_run", "train"]


def train(config: TrainConfig, dataset: data.Dataset | None = None) -> dict[str, Any]:
    """Train a network as `train.py` does: print the progress and write the files of the run.

    `config.path` gets `config.json`, `metrics.jsonl` (one line an epoch), `checkpoints/`, pictures
    and, last, `summary.json`. The same config on the same CPU gives the same bits, interrupted and
    resumed or not.

    With `config.validation` the network of the best epoch on the validation images is reported, and
    the test set is used once, at the end. Without, the test set is evaluated after every epoch, and
    the network of the last one is reported. Nothing is ever selected on the test set.

    Args:
        config: all settings.
        dataset: what to train on, as from `data.Dataset.from_arrays`; by default `config.dataset`
            is opened. `limit` and `validation` apply to it, and `config.json` gets its name.

    Returns:
        The content of `summary.json`: `test_accuracy`, `test_loss`, `steps`, `seconds` and more.

    Raises:
        ValueError: a config, a dataset, a device or a checkpoint does not fit; no file was touched.
        OSError: the folder is taken or cannot be written, or a checkpoint cannot.
        NonFiniteLossError: the loss or a gradient of a step is NaN or infinite.
        OutOfMemoryError: a device is full.
        Terminated: SIGTERM came; a checkpoint is saved.

    >>> summary = train(TrainConfig(name="digits"))  # doctest: +SKIP
    >>> round(summary["test_accuracy"], 2)  # doctest: +SKIP
    0.99
    """
    start = time.perf_counter()
    config, dataset = _prepare(config, dataset)
    with devices.explain_memory(config, dataset.train_images.shape[1:]):
        return _train(config, dataset, start)


def _train(config: TrainConfig, dataset: data.Dataset, start: float) -> dict[str, Any]:
    plan = make_plan(config, dataset)
    print_main(report.describe_plan(config, plan))
    state, progress = _starting_point(config, plan)
    print_main("compiling the steps")
    program = compile_program(config, plan)
    if is_main():
        run_directory.start(config.path, config.to_json(), keep=config.resume)
        run_directory.write_jsonl(config.path / "metrics.jsonl", progress.history)
    with (
        _open_store(config, progress) as store,
        closing(_open_events(config, progress)) as events,
        _sigterm_watcher(config) as stop,
    ):

        def on_row(row: dict[str, Any]) -> None:
            if is_main():
                run_directory.append_jsonl(config.path / "metrics.jsonl", row)
            events.write(row)

        state = Loop(config, program, progress, store, on_row, stop).run(state)
        state, epoch = _reported_state(state, progress, store)
    test = program.evaluate(state.params, state.stats, "test")
    seconds = time.perf_counter() - start
    summary = report.summarise_run(config, program, progress.history, test, epoch, seconds)
    if is_main():
        report.write_results(config, progress.history, test["confusion"], summary)
        if config.export:
            report.export_run(config, plan.graphdef, state.params, state.stats, summary)
    return summary


def dry_run(config: TrainConfig, dataset: data.Dataset | None = None) -> None:
    """Print settings, sizes and memory, and run one step; writes nothing.

    Args:
        config: all settings, also those of what `train` would write.
        dataset: as for `train`.

    Raises:
        ValueError, OSError, OutOfMemoryError: as `train`.
        NonFiniteLossError: the loss or a gradient of the step is not finite.

    >>> dry_run(TrainConfig(stages=(2, 2, 2, 2), width=64))  # doctest: +SKIP
    """
    config, dataset = _prepare(config, dataset)
    for field, value in config.to_json().items():
        print_main(f"{field:>18} {value}")
    with devices.explain_memory(config, dataset.train_images.shape[1:]):
        plan = make_plan(config, dataset)
        print_main(report.describe_plan(config, plan))
        print_main("compiling the steps")
        program = compile_program(config, plan)
        start = time.perf_counter()
        _, result = program.train(plan.state, program.feed.train_batch(plan.first_batch))
        loss, seconds = float(result.loss), time.perf_counter() - start
    if not bool(result.finite):
        raise NonFiniteLossError(f"the loss of the first step is {loss}, or a gradient not finite")
    print_main(report.describe_step(config, program, loss, seconds))


def _prepare(config: TrainConfig, dataset: data.Dataset | None) -> tuple[TrainConfig, data.Dataset]:
    """Refuse what can be refused at once, ready the devices, and open the dataset."""
    report.check_extras(config)
    if dataset is not None:
        if config.image_size is not None:
            raise ValueError("image_size goes with a dataset that is opened by its name")
        config = dataclasses.replace(config, dataset=dataset.name)
    if config.resume:
        checkpoint.refuse_file(config.path)
    if not config.dry_run:  # which writes nothing
        run_directory.check_free(config.path, config.overwrite, config.resume)
    devices.start(config)
    if dataset is None:
        return config, feed.open_dataset(config)
    return config, dataset if config.limit is None else dataset.take(config.limit)


def _starting_point(config: TrainConfig, plan: Plan) -> tuple[TrainState, Progress]:
    """The newest checkpoint if the run is resumed, else the beginning."""
    if not config.resume:
        return plan.state, Progress()
    root = config.path / run_directory.CHECKPOINTS
    newest = checkpoint.restore(root, plan.state, identity(config, plan))
    if newest is None:
        print_main(f"notice: no checkpoint in {config.path}, so the run starts from the beginning")
        return plan.state, Progress()
    state, meta = newest
    progress = Progress(**meta["progress"])
    done = ", the end: nothing is left to train" if progress.epoch > config.epochs else ""
    print_main(f"resumed from step {meta['step']}{done}")
    return state, progress


def _reported_state(state: TrainState, progress: Progress, store: Store) -> tuple[TrainState, int]:
    """The state to report, and its epoch: the best on the validation images, or the last."""
    best = progress.best
    if best is None:
        return state, len(progress.history)
    if best["step"] != int(state.step):
        state = store.restore(best["step"], state)
    return state, best["epoch"]


@contextmanager
def _open_store(config: TrainConfig, progress: Progress) -> Iterator[Store]:
    store = Store(config.path / run_directory.CHECKPOINTS, config.keep)
    store.best = progress.best["step"] if progress.best else None
    try:
        yield store
        store.wait()
    finally:
        store.close()


def _open_events(config: TrainConfig, progress: Progress) -> report.Events:
    first_step = progress.history[-1]["step"] + 1 if progress.history else 0
    on = config.tensorboard and is_main()
    return report.Events(config.path / "tensorboard", on, first_step)


@contextmanager
def _sigterm_watcher(config: TrainConfig) -> Iterator[Callable[[int], bool]]:
    """A function that tells by step whether SIGTERM came; outside SIGTERM ends the process."""
    if config.multihost:
        # All processes must save the same step: JAX passes the news on and agrees on one.
        yield multihost_utils.reached_preemption_sync_point
        return
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False  # only the main thread can handle signals
        return
    came = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: came.set())
    try:
        yield lambda step: came.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)
