"""Batches read from their files while the device works, through Grain.

Which images a step takes is a function of the seed and the step's number. So where a run stands is
its step, and a run that goes on from there reads what it would have read.
"""

import contextlib
import functools
import importlib.util
import multiprocessing.connection
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from lorentz_jax.data.images import DataError, Images, read_rows

THREADS, AHEAD = 4, 2  # readers without worker processes, and batches that lie ready


def epoch_batches(seed: int, epoch: int, count: int, batch_size: int) -> np.ndarray:
    """Return the indices `(count // batch_size, batch_size)` of an epoch, shuffled by the seed."""
    order = np.random.default_rng((seed, epoch)).permutation(count).astype(np.int32)
    steps = count // batch_size
    return order[: steps * batch_size].reshape(steps, batch_size)


class Shuffled(NamedTuple):
    """The images of every step of a run, those `rows` of the batch that this process holds."""

    seed: int
    count: int
    batch_size: int
    rows: np.ndarray

    def __call__(self, step: int) -> np.ndarray:
        """Return the indices of step 0, 1, ... of the run."""
        epoch, position = divmod(step, self.count // self.batch_size)
        return _epoch(self.seed, epoch + 1, self.count, self.batch_size)[position][self.rows]


@functools.lru_cache(2)
def _epoch(*arguments: int) -> np.ndarray:
    return epoch_batches(*arguments)


class InOrder(NamedTuple):
    """All images in order, the last batch filled up with the first image; as `Shuffled`."""

    count: int
    batch_size: int
    rows: np.ndarray

    def __call__(self, step: int) -> np.ndarray:
        """Return the indices of batch 0, 1, ..."""
        indices = np.arange(step * self.batch_size, (step + 1) * self.batch_size)[self.rows]
        return np.where(indices < self.count, indices, 0)


class ReadBatch(NamedTuple):
    """Reads the images and labels of a step."""

    images: np.ndarray | Images
    labels: np.ndarray
    order: Callable[[int], np.ndarray]

    def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return uint8 `(rows, height, width, channels)` and int32 `(rows,)`."""
        indices = self.order(int(step))
        return read_rows(self.images, indices), self.labels[indices]


def check_grain() -> None:
    """Raise `ValueError`, with what to install, where Grain is absent."""
    if importlib.util.find_spec("grain") is None:
        raise ValueError(
            "streaming needs the package grain: pip install 'lorentz-jax[stream]', or keep all "
            "images in memory with --stream off"
        )


@contextlib.contextmanager
def batches(
    read: ReadBatch, start: int, stop: int, workers: int, finish: Callable[[Any], Any]
) -> Iterator[Iterator[Any]]:
    """Read the batches of the steps `start .. stop - 1` ahead of their use, in order.

    Args:
        read: of a step; what lies in memory is read by threads, since sending it takes longer.
        start: first step.
        stop: step before which to end.
        workers: processes that read and decode; 0 for threads of this one.
        finish: called on every batch in a thread of this process, to put it on the device.

    Returns:
        A context with the iterator of the finished batches. It raises `DataError` or `ValueError`
        for what cannot be read.
    """
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # Grain reads its own, which no program of ours parses
        flags.FLAGS.mark_as_parsed()
    grain.config.update("py_traceback_filtering", "off")  # which would add lines to our messages
    workers = min(workers, stop - start) if isinstance(read.images, Images) else 0
    threads = 1 if workers else THREADS
    pipeline = grain.MapDataset.range(start, stop).map(read)
    pipeline = pipeline.to_iter_dataset(grain.ReadOptions(threads, threads))
    # Through pipes: shared memory is 64 MB in many containers, and full means a crash there.
    options = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    pipeline = grain.experimental.WithOptionsIterDataset(pipeline, options)
    pipeline = pipeline.mp_prefetch(
        grain.MultiprocessingOptions(workers, per_worker_buffer_size=AHEAD), _in_worker
    )
    pipeline = grain.experimental.ThreadPrefetchIterDataset(
        pipeline.map(finish), prefetch_buffer_size=AHEAD
    )
    iterator = iter(pipeline)

    def explained() -> Iterator[Any]:
        try:
            with _starting_processes():  # all of them run when each has sent its first batch
                first = [next(iterator) for _ in range(workers)]
            yield from first
            yield from iterator
        except (DataError, ValueError, MemoryError):
            raise
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error):  # of a device, which the caller explains
                raise
            raise DataError(f"a batch cannot be read: {error}") from error

    try:
        yield explained()
    finally:
        iterator.close()


@contextlib.contextmanager
def _starting_processes() -> Iterator[None]:
    """Keep processes that are started here apart from the terminal and the program of this one.

    A new process would run the user's script once more, unless that is guarded by its name, and
    take the signals of Ctrl-C and of a batch system, which are for this process to act on.
    """
    ours, signals = sys.modules["__main__"], {signal.SIGINT, signal.SIGTERM}
    mask = getattr(signal, "pthread_sigmask", None)
    before = mask(signal.SIG_BLOCK, signals) if mask else None  # threads and processes inherit it
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = ours
        if mask:
            mask(signal.SIG_SETMASK, before)


def _in_worker(index: int, count: int) -> None:
    """Let a process that reads end with the one it reads for, even if that one is killed."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
