"""From a configuration to a trained network and the files that describe it."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jax.experimental import multihost_utils

from lorentz_jax import data
from lorentz_jax.metrics import show
from lorentz_jax.training import checkpoint, devices, report, run_directory
from lorentz_jax.training.build import Plan, compile_plan, plan_run, say
from lorentz_jax.training.checkpoint import Store
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.devices import OutOfMemoryError
from lorentz_jax.training.loop import Loop, NonFiniteLossError, Progress, Terminated
from lorentz_jax.training.state import TrainState

__all__ = [
    "NonFiniteLossError", "OutOfMemoryError", "Terminated", "dry_run", "say", "show", "train",
]  # fmt: skip


def train(config: TrainConfig) -> dict[str, Any]:
    """Train, evaluate on the test set after every epoch, and write the files of the run.

    `config.path` gets `config.json`, `metrics.jsonl` (one line an epoch), `checkpoints/`, pictures
    and, last, `summary.json`, whose content is returned. With `config.validation` the test set is
    used once, at the end, with the parameters of the epoch that was best on the validation images;
    without, it is evaluated after every epoch, and the reported network is that of the last one:
    nothing is ever selected on the test set. The same config on the same CPU gives the same bits,
    interrupted and resumed or not.

    Raises:
        ValueError: a config, a dataset, a device or a checkpoint that does not fit; no file was
            touched.
        OSError: the folder is taken or cannot be written, or a checkpoint cannot.
        NonFiniteLossError: the loss or a gradient of a step is NaN or infinite.
        OutOfMemoryError: a device is full.
        Terminated: SIGTERM came; a checkpoint is saved.
    """
    start = time.perf_counter()
    dataset = _ready(config)
    with devices.explain_memory(config, dataset.train_images.shape[1:]):
        return _train(config, dataset, start)


def _train(config: TrainConfig, dataset: data.Dataset, start: float) -> dict[str, Any]:
    plan = plan_run(config, dataset)
    state, progress = _resume(config, plan)
    program = compile_plan(config, plan)
    if devices.is_main():
        run_directory.start(config.path, config.to_json(), keep=config.resume)
        run_directory.write_jsonl(config.path / "metrics.jsonl", progress.history)
    with (
        _store(config, progress) as store,
        _rows(config, progress) as on_row,
        _sigterm(config) as stop,
    ):
        state = Loop(config, program, progress, store, on_row, stop).run(state)
        state, selected = _select(state, progress, store)
    test = program.evaluate(state.params, state.stats, "test")
    seconds = time.perf_counter() - start
    summary = report.summarise_run(config, program, progress.history, test, selected, seconds)
    if devices.is_main():
        report.write_results(config, progress.history, test["confusion"], summary)
        if config.export:
            report.export_run(config, plan.graphdef, state.params, state.stats, summary)
    return summary


def dry_run(config: TrainConfig) -> None:
    """Print settings, sizes and memory, and run one step; writes nothing.

    Raises:
        ValueError, OSError, OutOfMemoryError: as `train`.
        NonFiniteLossError: the loss or a gradient of the step is not finite.
    """
    dataset = _ready(config)
    for field, value in config.to_json().items():
        say(f"{field:>18} {value}")
    with devices.explain_memory(config, dataset.train_images.shape[1:]):
        plan = plan_run(config, dataset)
        program = compile_plan(config, plan)
        start = time.perf_counter()
        _, result = program.train(plan.state, np.arange(plan.batch_size, dtype=np.int32))
        loss, seconds = float(result.loss), time.perf_counter() - start
    if not bool(result.finite):
        raise NonFiniteLossError(f"the loss of the first step is {loss}, or a gradient not finite")
    memory = program.train_step.bytes
    size = "unknown" if memory is None else f"{memory / 2**20:.1f} MiB a device"
    say(f"memory of a training step, the training images included: {size}")
    say(f"{plan.steps_per_epoch} steps an epoch, {plan.steps_per_epoch * config.epochs} in all")
    say(f"compiled in {program.compile_seconds:.1f} s; one step: {seconds:.3f} s, loss {loss:.4f}")


def _ready(config: TrainConfig) -> data.Dataset:
    """Refuse what can be refused at once, ready the devices, and open the dataset."""
    report.check_extras(config)
    if config.resume:
        checkpoint.refuse_file(config.path)
    if not config.dry_run:  # which writes nothing
        run_directory.check_free(config.path, config.overwrite, config.resume)
    devices.start(config)
    return data.load(
        config.dataset, data_dir=config.data_dir, limit=config.limit, verify=config.verify
    )


def _resume(config: TrainConfig, plan: Plan) -> tuple[TrainState, Progress]:
    """The newest checkpoint, or the beginning."""
    if not config.resume:
        return plan.state, Progress()
    expected = {"config": config.decisive(), "classes": plan.dataset.num_classes}
    found = checkpoint.restore(config.path / run_directory.CHECKPOINTS, plan.state, expected)
    if found is None:
        say(f"notice: no checkpoint in {config.path}, so the run starts from the beginning")
        return plan.state, Progress()
    state, meta = found
    progress = Progress(**meta["progress"])
    done = ", the end: nothing is left to train" if progress.epoch > config.epochs else ""
    say(f"resumed from step {meta['step']}{done}")
    return state, progress


def _select(state: TrainState, progress: Progress, store: Store) -> tuple[TrainState, int]:
    """The state to report, and its epoch: the best on the validation images, or the last."""
    best = progress.best
    if best is None:
        return state, len(progress.history)
    if best["step"] != int(state.step):
        state = store.restore(best["step"], state)
    return state, best["epoch"]


@contextmanager
def _store(config: TrainConfig, progress: Progress) -> Iterator[Store]:
    store = Store(config.path / run_directory.CHECKPOINTS, config.keep)
    store.best = progress.best["step"] if progress.best else None
    try:
        yield store
        store.wait()
    finally:
        store.close()


@contextmanager
def _rows(config: TrainConfig, progress: Progress) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Where the row of each epoch goes."""
    on = config.tensorboard and devices.is_main()
    first = progress.history[-1]["step"] + 1 if progress.history else 0
    events = report.Events(config.path / "tensorboard", on, first)

    def take(row: dict[str, Any]) -> None:
        if devices.is_main():
            run_directory.append_jsonl(config.path / "metrics.jsonl", row)
        events.write(row)

    try:
        yield take
    finally:
        events.close()


@contextmanager
def _sigterm(config: TrainConfig) -> Iterator[Callable[[int], bool]]:
    """Whether SIGTERM came, by step; until the loop begins it ends the process as usual."""
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
