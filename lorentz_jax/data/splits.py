"""The arrays of a dataset between the files that they come from and `Dataset`."""

import hashlib
from typing import NamedTuple

import numpy as np

from lorentz_jax.data.dataset import Dataset

_CHUNK = 1024  # images whose pixels are counted at once: bounds the temporary memory


class Split(NamedTuple):
    """Images uint8 `(N, height, width, channels)` and labels int32 `(N,)`."""

    images: np.ndarray
    labels: np.ndarray


class Splits(NamedTuple):
    """What every source of a dataset gives."""

    train: Split
    test: Split
    num_classes: int


def to_dataset(name: str, splits: Splits) -> Dataset:
    """The checked dataset, with the mean and deviation of its training pixels."""
    mean, std = pixel_statistics(splits.train.images)
    return Dataset(name, *splits.train, *splits.test, splits.num_classes, mean, std)


def pixel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 `(N, height, width, channels)`.

    They come from counts of the 256 values, so they are exact and need little memory.
    """
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), _CHUNK):
        for channel in range(channels):
            pixels = images[start : start + _CHUNK, ..., channel].ravel()
            counts[channel] += np.bincount(pixels, minlength=256)
    weights = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    mean = weights @ np.arange(256.0)
    std = np.sqrt((weights * (np.arange(256.0) - mean[:, np.newaxis]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(std.tolist())


def in_order(split: Split, ids: np.ndarray | None = None) -> Split:
    """The examples in an order that does not depend on the file that they came from.

    Sorted by id; without ids, or when two are equal, by a digest of pixels and label, which looks
    random, so that the first examples are no biased sample.
    """
    if ids is None or ids.ndim != 1 or len(np.unique(ids)) < len(ids):
        ids = np.array([_digest(*example) for example in zip(*split, strict=True)], "S16")
    order = np.argsort(ids, kind="stable")
    return Split(split.images[order], split.labels[order])


def _digest(image: np.ndarray, label: np.integer) -> bytes:
    """Sixteen hexadecimal digits: NumPy drops zero bytes at the end, so no raw digest."""
    content = image.tobytes() + int(label).to_bytes(4, "little", signed=True)
    return hashlib.blake2b(content, digest_size=8).hexdigest().encode()
