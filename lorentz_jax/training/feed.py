"""Where the batches of a run come from: the devices' memory, or files that are read on the way."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from lorentz_jax import data
from lorentz_jax.data.dataset import Split
from lorentz_jax.data.images import Images, read_rows
from lorentz_jax.data.stream import InOrder, ReadBatch, Shuffled, batches, check_grain
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.devices import Placement

Batch = tuple[Any, Any, Any]
"""Images, labels and indices for a step; indices are None when the images are the batch itself."""

GIB = 2**30


def open_dataset(config: TrainConfig) -> data.Dataset:
    """Open the dataset of the config; images that will be streamed stay in their files."""
    memory = {"off": None, "on": 0, "auto": int(config.data_memory * GIB)}[config.stream]
    return data.load(
        config.dataset,
        data_dir=config.data_dir,
        limit=config.limit,
        verify=config.verify,
        image_size=config.image_shape,
        memory=memory,
    )


def decide(config: TrainConfig, dataset: data.Dataset) -> tuple[bool, str]:
    """Tell whether the images of a run are streamed, and say where they are and why.

    Raises:
        ValueError: they are to be streamed, and Grain is not installed.
    """
    streamed, why = config.stream == "on", f"--stream {config.stream}"
    if config.stream == "auto":
        streamed = dataset.nbytes > config.data_memory * GIB
        why = f"{'over' if streamed else 'within'} --data-memory {config.data_memory:g} GiB"
    where = "in memory"
    if streamed:
        check_grain()
        processes = config.workers if isinstance(dataset.train_images, Images) else 0
        where = f"streamed by {processes} processes" if processes else "streamed by threads"
    return streamed, f"data: {dataset.nbytes / 2**20:,.1f} MiB of pixels {where} ({why})"


class Feed(Protocol):
    """Gives the steps their batches."""

    @property
    def waited(self) -> float | None:
        """Seconds that training has waited for batches; None if they lie ready."""

    def train(self, start: int, stop: int) -> Any:
        """Return a context with the iterator of the batches of the steps `start .. stop - 1`."""

    def evaluate(self, split: str) -> Any:
        """Return a context with the iterator of all batches of the validation or test images."""

    def train_batch(self, indices: np.ndarray) -> Batch:
        """Return the training images `indices`."""
        ...

    def eval_batch(self, indices: np.ndarray) -> Batch:
        """Return images of validation and test set, counted through."""
        ...


class InMemory:
    """All images on the devices; a batch is indices. Validation and test images are one array."""

    waited = None

    def __init__(
        self, config: TrainConfig, dataset: data.Dataset, held_out: Split,
        placement: Placement, batch_size: int,
    ) -> None:  # fmt: skip
        self._seed, self._batch_size, self._placement = config.seed, batch_size, placement
        train = np.asarray(dataset.train_images), dataset.train_labels
        self._train = placement.everywhere(train)
        images = np.concatenate([held_out.images, dataset.test_images])
        labels = np.concatenate([held_out.labels, dataset.test_labels])
        self._eval = placement.everywhere((images, labels))
        held, test = len(held_out.labels), len(dataset.test_labels)
        self._splits = {"validation": (0, held), "test": (held, test)}

    @contextmanager
    def train(self, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        """As `Feed.train`."""
        everyone = np.arange(self._batch_size)
        indices = Shuffled(self._seed, len(self._train[1]), self._batch_size, everyone)
        yield (self.train_batch(indices(step)) for step in range(start, stop))

    @contextmanager
    def evaluate(self, split: str) -> Iterator[Iterator[Batch]]:
        """As `Feed.evaluate`."""
        start, count = self._splits[split]
        indices = InOrder(count, self._batch_size, np.arange(self._batch_size))
        steps = range(-(-count // self._batch_size))
        yield (self.eval_batch((indices(step) + start).astype(np.int32)) for step in steps)

    def train_batch(self, indices: np.ndarray) -> Batch:
        """As `Feed.train_batch`."""
        return *self._train, *self._placement.split(indices)

    def eval_batch(self, indices: np.ndarray) -> Batch:
        """As `Feed.eval_batch`."""
        return *self._eval, *self._placement.split(indices)


class Streamed:
    """Images read ahead of their step: every process reads its own rows of a batch."""

    def __init__(
        self, config: TrainConfig, dataset: data.Dataset, held_out: Split,
        placement: Placement, batch_size: int,
    ) -> None:  # fmt: skip
        self.waited = 0.0
        self._seed, self._batch_size, self._workers = config.seed, batch_size, config.workers
        self._placement, self._rows = placement, placement.local_rows(batch_size)
        self._train = Split(dataset.train_images, dataset.train_labels)
        self._splits = {
            "validation": held_out, "test": Split(dataset.test_images, dataset.test_labels)
        }  # fmt: skip

    @contextmanager
    def train(self, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        """As `Feed.train`. The first batch, for which the readers start, counts as no wait."""
        if start >= stop:
            yield iter(())
            return
        order = Shuffled(self._seed, len(self._train.labels), self._batch_size, self._rows)
        read = ReadBatch(*self._train, order)

        def timed(stream: Iterator[Batch]) -> Iterator[Batch]:
            before = None
            for batch in stream:
                if before is not None:
                    self.waited += time.perf_counter() - before
                yield batch
                before = time.perf_counter()

        with batches(read, start, stop, self._workers, self._finish) as stream:
            yield timed(stream)

    @contextmanager
    def evaluate(self, split: str) -> Iterator[Iterator[Batch]]:
        """As `Feed.evaluate`, read by threads: it ends before processes have started."""
        images, labels = self._splits[split]
        order = InOrder(len(labels), self._batch_size, self._rows)
        steps = -(-len(labels) // self._batch_size)
        with batches(ReadBatch(images, labels, order), 0, steps, 0, self._finish) as stream:
            yield stream

    def train_batch(self, indices: np.ndarray) -> Batch:
        """As `Feed.train_batch`."""
        indices = indices[self._rows]
        return self._finish((read_rows(self._train.images, indices), self._train.labels[indices]))

    def eval_batch(self, indices: np.ndarray) -> Batch:
        """As `Feed.eval_batch`."""
        held, test = self._splits["validation"], self._splits["test"]
        indices, count = indices[self._rows], len(held.labels)
        late = indices >= count
        images = np.empty((len(indices), *test.images.shape[1:]), np.uint8)
        labels = np.empty(len(indices), np.int32)
        for part, where, start in ((held, ~late, 0), (test, late, count)):
            images[where] = read_rows(part.images, indices[where] - start)
            labels[where] = part.labels[indices[where] - start]
        return self._finish((images, labels))

    def _finish(self, arrays: tuple[np.ndarray, np.ndarray]) -> Batch:
        images, labels = (self._placement.join(self._batch_size, x) for x in arrays)
        return images, labels, None
