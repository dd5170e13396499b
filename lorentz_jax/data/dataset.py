"""The one shape that every dataset has, checked when it is opened, and the digits."""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np


class DataError(OSError):
    """A dataset's file is damaged, incomplete, not the official one, or cannot be fetched."""


class DataNotFoundError(DataError, FileNotFoundError):
    """None of the places where a dataset could be holds it."""


class Split(NamedTuple):
    """Images uint8 `(N, height, width, channels)` and labels int32 `(N,)`."""

    images: np.ndarray
    labels: np.ndarray


class Splits(NamedTuple):
    """What every source of a dataset gives."""

    train: Split
    test: Split
    num_classes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """All images and labels of a dataset, as NumPy arrays in memory.

    Attributes:
        name: its name in reports.
        train_images, test_images: uint8 `(N, height, width, channels)`.
        train_labels, test_labels: int32 `(N,)`, in `0 .. num_classes - 1`.
        num_classes: size of the classifier.
        mean, std: of the training pixels, one number a channel, in units of the stored uint8.

    Raises:
        ValueError: an empty split, shapes that do not fit, or a label outside the classes.
        TypeError: images that are not uint8, or labels that are not int32.
    """

    name: str
    train_images: np.ndarray = dataclasses.field(repr=False)
    train_labels: np.ndarray = dataclasses.field(repr=False)
    test_images: np.ndarray = dataclasses.field(repr=False)
    test_labels: np.ndarray = dataclasses.field(repr=False)
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_split("train", self.train_images, self.train_labels, self.num_classes)
        _check_split("test", self.test_images, self.test_labels, self.num_classes)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError(
                f"train images are {self.train_images.shape[1:]}, "
                f"test images {self.test_images.shape[1:]}"
            )
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(
                f"{self.channels} channels need as many means and deviations, "
                f"got {len(self.mean)} and {len(self.std)}"
            )
        if not all(s > 0 for s in self.std):
            raise ValueError(f"std must be positive, got {self.std}")

    @property
    def channels(self) -> int:
        """Number of image channels."""
        return self.train_images.shape[-1]

    def take(self, limit: int) -> "Dataset":
        """Return the dataset with only the first `limit` training images.

        `mean` and `std` stay those of the full training set.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        return self._with_training_images(slice(limit))

    def hold_out(self, count: int, seed: int) -> tuple["Dataset", Split]:
        """Set `count` training images aside for validation, drawn by the seed.

        `mean` and `std` stay those of the full training set.

        Args:
            count: number of images; 0 for none.
            seed: the same seed draws the same images.

        Returns:
            The dataset with the other training images, and the images and labels set aside; both
            keep their order.

        Raises:
            ValueError: `count < 0`, or nothing would be left to train on.
        """
        total = len(self.train_labels)
        if not 0 <= count < total:
            raise ValueError(f"cannot hold {count} of {total} training images out")
        order = np.random.default_rng((seed, total)).permutation(total)
        held, rest = np.sort(order[:count]), np.sort(order[count:])
        held_out = Split(self.train_images[held], self.train_labels[held])
        return self._with_training_images(rest), held_out

    def _with_training_images(self, indices: np.ndarray | slice) -> "Dataset":
        return dataclasses.replace(
            self, train_images=self.train_images[indices], train_labels=self.train_labels[indices]
        )


def _check_split(split: str, images: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    if images.dtype != np.uint8 or labels.dtype != np.int32:
        raise TypeError(
            f"{split} data must be uint8 images and int32 labels, "
            f"got {images.dtype} and {labels.dtype}"
        )
    if images.ndim != 4 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{split} data must be (N, H, W, C) images and (N,) labels, "
            f"got {images.shape} and {labels.shape}"
        )
    if not len(labels):
        raise ValueError(f"{split} data holds no example")
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if outside.size:
        label = labels[outside[0]]
        relation = f">= {num_classes} classes" if label >= num_classes else "< 0"
        raise ValueError(f"label {label} {relation} ({split} example {outside[0]})")


def to_dataset(name: str, splits: Splits) -> Dataset:
    """Return the checked dataset, with the mean and deviation of its training pixels."""
    mean, std = pixel_statistics(splits.train.images)
    return Dataset(name, *splits.train, *splits.test, splits.num_classes, mean, std)


_CHUNK = 1024  # images whose pixels are counted at once: bounds the temporary memory


def pixel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 `(N, height, width, channels)`.

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
    """Sort the examples, so that their order does not depend on the file that they came from.

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


_DIGITS_TEST_SIZE = 360
_DIGITS_SPLIT_SEED = 0  # the split belongs to the dataset: it does not move with the run's seed


def load_digits() -> Dataset:
    """Return 1437 training and 360 test images `(8, 8, 1)` of 10 classes, stratified by class.

    Pixels are counts of ink from 0 to 16; they are kept as they are, so 16, not 255, is white.
    """
    # scikit-learn takes over a second to import, so only those who use it pay.
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    digits: Any = datasets.load_digits()
    images = digits.images.astype(np.uint8)[..., np.newaxis]
    labels = digits.target.astype(np.int32)
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=_DIGITS_TEST_SIZE,
        stratify=labels,
        random_state=_DIGITS_SPLIT_SEED,
    )
    return Dataset(
        name="digits",
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        num_classes=10,
        mean=(float(images[train].mean()),),
        std=(float(images[train].std()),),
    )
