"""From a configuration to a trained network and the files that describe it."""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from jax.experimental import multihost_utils

from lorentz_jax import data
from lorentz_jax._src.signals import WATCH
from lorentz_jax.training import checkpoint, devices, feed, reload, report, run_directory
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
        BlockingIOError: another process trains in this folder.
        OSError: the folder is taken or cannot be written, or a checkpoint cannot.
        NonFiniteLossError: the loss or a gradient of a step is NaN or infinite.
        OutOfMemoryError: a device is full.
        Terminated: SIGTERM or SIGINT (Ctrl-C) came; a checkpoint is saved.

    >>> summary = train(TrainConfig(name="digits"))  # doctest: +SKIP
    >>> round(summary["test_accuracy"], 2)  # doctest: +SKIP
    0.99
    """
    start = time.perf_counter()
    config = _check(config, dataset)
    with _owned(config):
        dataset = _opened(config, dataset)
        with devices.explain_memory(config, dataset.train_images.shape[1:]):
            return _train(config, dataset, start)


def _train(config: TrainConfig, dataset: data.Dataset, start: float) -> dict[str, Any]:
    plan = make_plan(config, dataset)
    print_main(report.describe_plan(config, plan))
    state, progress = _starting_point(config, plan)
    print_main("compiling the steps")
    program = compile_program(config, plan)
    root = config.path / run_directory.CHECKPOINTS

    @functools.cache
    def begin() -> None:
        """Write the first files, in place of those to overwrite: the first step is done."""
        if is_main():
            checkpoint.discard_unfinished(root)
            if config.overwrite:
                checkpoint.remove_all(root)
            kept = not config.overwrite
            run_directory.start(config.path, config.to_json(), progress.history, kept)

    def on_row(row: dict[str, Any]) -> None:
        if is_main():
            run_directory.append_jsonl(config.path / "metrics.jsonl", row)
        events.write(row)

    with (
        _open_store(config) as store,
        closing(_open_events(config, progress)) as events,
        _stop_signals(config) as stop,
    ):
        state = Loop(config, program, progress, store, begin, on_row, stop).run(state)
        begin()  # where no step was left
        state, epoch = _reported_state(state, progress, store)
    test = program.evaluate(state.params, state.stats, "test")
    seconds = time.perf_counter() - start
    summary = report.summarise_run(config, program, progress.history, test, epoch, seconds)
    if is_main():
        step = int(state.step)
        reload.save_model(config, plan.dataset, state.params, state.stats, step, summary)
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
    config = _check(config, dataset)
    dataset = _opened(config, dataset)
    for field, value in config.to_json().items():
        print_main(f"{field:>18} {value}")
    with devices.explain_memory(config, dataset.train_images.shape[1:]):
        plan = make_plan(config, dataset)
        print_main(report.describe_plan(config, plan))
        print_main("compiling the steps")
        program = compile_program(config, plan)
        start = time.perf_counter()
        first = program.feed.train_batch(plan.first_batch)
        _, result = program.train(_first_state(config, plan), first)
        loss, seconds = float(result.loss), time.perf_counter() - start
    if not bool(result.finite):
        raise NonFiniteLossError(f"the loss of the first step is {loss}, or a gradient not finite")
    print_main(report.describe_step(config, program, loss, seconds))


def _check(config: TrainConfig, dataset: data.Dataset | None) -> TrainConfig:
    """Refuse what can be refused at once, ready the devices; the config names the dataset."""
    report.check_extras(config)
    if dataset is not None:
        if config.image_size is not None:
            raise ValueError("image_size goes with a dataset that is opened by its name")
        config = dataclasses.replace(config, dataset=dataset.name)
    if config.resume:
        checkpoint.refuse_file(config.path)
    if config.init_from is not None and not config.init_from.is_dir():
        raise FileNotFoundError(f"init_from: there is no run {config.init_from}")
    devices.start(config)
    return config


@contextmanager
def _owned(config: TrainConfig) -> Iterator[None]:
    """Own the folder of the run; only the main process does, and all go on or none."""
    claim = run_directory.claimed(config.path, config.overwrite, config.resume)
    with ExitStack() as stack:
        devices.from_main(lambda: stack.enter_context(claim))
        yield


def _opened(config: TrainConfig, dataset: data.Dataset | None) -> data.Dataset:
    if dataset is None:
        return feed.open_dataset(config)
    return dataset if config.limit is None else dataset.take(config.limit)


def _starting_point(config: TrainConfig, plan: Plan) -> tuple[TrainState, Progress]:
    """The newest checkpoint if the run is resumed, else the beginning."""
    if not config.resume:
        return _first_state(config, plan), Progress()
    root = config.path / run_directory.CHECKPOINTS
    newest = checkpoint.restore(root, plan.state, identity(config, plan))
    if newest is None:
        devices.from_main(lambda: run_directory.check_progress(config.path))
        print_main(f"notice: no checkpoint in {config.path}, so the run starts from the beginning")
        return _first_state(config, plan), Progress()
    state, meta = newest
    progress = Progress(**meta["progress"])
    begun = progress.epoch if progress.losses else progress.epoch - 1
    if begun > config.epochs:
        raise ValueError(
            f"the run in {config.path} is in epoch {begun} already, epochs is {config.epochs}"
        )
    done = ", the end: nothing is left to train" if progress.epoch > config.epochs else ""
    print_main(f"resumed from step {meta['step']}{done}")
    return state, progress


def _first_state(config: TrainConfig, plan: Plan) -> TrainState:
    """The state before the first step, with the weights of another run if there is one."""
    if config.init_from is None:
        return plan.state
    params, stats, source = reload.initial_weights(config, plan)
    print_main(f"initial weights from {source}")
    return plan.state._replace(params=params, stats=stats)


def _reported_state(state: TrainState, progress: Progress, store: Store) -> tuple[TrainState, int]:
    """The state to report, and its epoch: the best on the validation images, or the last."""
    best = progress.best
    if best is None:
        return state, len(progress.history)
    if best["step"] != int(state.step):
        state = store.restore(best["step"], state)
    return state, best["epoch"]


@contextmanager
def _open_store(config: TrainConfig) -> Iterator[Store]:
    store = Store(config.path / run_directory.CHECKPOINTS, config.keep)
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
def _stop_signals(config: TrainConfig) -> Iterator[Callable[[int], bool]]:
    """A function that tells by step whether SIGTERM or SIGINT came."""
    if config.multihost:
        # All processes must save the same step: JAX passes SIGTERM on and agrees on one.
        yield multihost_utils.reached_preemption_sync_point
    elif threading.current_thread() is not threading.main_thread():
        yield lambda step: False  # only the main thread can handle signals
    else:
        with WATCH.hold():
            yield lambda step: WATCH.came is not None
