"""The one shape that every dataset has, checked when it is opened, and the digits."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lorentz_jax.data import arrays
from lorentz_jax.data.images import DataError, Images


class DataNotFoundError(DataError, FileNotFoundError):
    """None of the places where a dataset could be holds it."""


class Split(NamedTuple):
    """Images uint8 `(N, height, width, channels)` and labels int32 `(N,)`."""

    images: np.ndarray | Images
    labels: np.ndarray


class Splits(NamedTuple):
    """What every source of a dataset gives."""

    train: Split
    test: Split
    num_classes: int
    classes: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """All images and labels of a dataset, as NumPy arrays or as images that stay in their files.

    Attributes:
        name: its name in reports.
        train_images, test_images: uint8 `(N, height, width, channels)`.
        train_labels, test_labels: int32 `(N,)`, in `0 .. num_classes - 1`.
        num_classes: size of the classifier.
        mean, std: of the training pixels, one number a channel, in units of the stored uint8.
        classes: their names, if they are known.

    Raises:
        ValueError: an empty split, shapes that do not fit, or a label outside the classes.
        TypeError: images that are not uint8, or labels that are not int32.
    """

    name: str
    train_images: np.ndarray | Images = dataclasses.field(repr=False)
    train_labels: np.ndarray = dataclasses.field(repr=False)
    test_images: np.ndarray | Images = dataclasses.field(repr=False)
    test_labels: np.ndarray = dataclasses.field(repr=False)
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] | None = None

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
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise ValueError(f"{self.num_classes} classes have {len(self.classes)} names")

    @classmethod
    def from_arrays(
        cls,
        train_images: Any,
        train_labels: Any,
        test_images: Any = None,
        test_labels: Any = None,
        *,
        name: str,
        classes: Iterable[str] | None = None,
    ) -> "Dataset":
        """Make a dataset of your own arrays.

        Mean and deviation are those of the training pixels; of a constant channel the deviation
        counts as 1. Without a test set a fifth of every class becomes one, at least one image, the
        same for the same labels.

        Args:
            train_images: uint8, or floats in [0, 1] that are scaled by 255 and rounded, `(N,
                height, width)` or `(N, height, width, channels)`. A memory map stays on disk.
            train_labels: whole numbers `(N,)`, from 0; every class needs an image.
            test_images: as `train_images`, of the same height, width and channels.
            test_labels: as `train_labels`.
            name: in reports, and in the default name of a run's folder.
            classes: names of the classes, by label.

        Raises:
            TypeError: images or labels of another dtype.
            ValueError: shapes that do not fit, NaN, a label outside the classes, or an empty class.

        >>> images = np.random.default_rng(0).random((10, 8, 6))
        >>> mine = Dataset.from_arrays(images, np.arange(10) % 2, name="mine", classes=["a", "b"])
        >>> mine.train_images.shape, mine.test_images.shape, mine.num_classes
        ((8, 8, 6, 1), (2, 8, 6, 1), 2)
        """
        if not name or "/" in name or not name.isprintable():
            raise ValueError(f"name must be a plain name, got {name!r}")
        if (test_images is None) != (test_labels is None):
            raise ValueError("test_images and test_labels go together")
        splits = []
        for split, images, labels in (
            ("train", train_images, train_labels), ("test", test_images, test_labels)
        ):  # fmt: skip
            if images is not None:
                images = arrays.to_images(split, images)
                splits.append(Split(images, arrays.to_labels(split, labels, len(images))))
        names = arrays.to_classes(classes)
        last = max((int(split.labels.max(initial=-1)) for split in splits), default=-1)
        count = last + 1 if names is None else len(names)
        return own_dataset(name, splits, count, names)

    @property
    def channels(self) -> int:
        """Number of image channels."""
        return self.train_images.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""
        return self.train_images.nbytes + self.test_images.nbytes

    @functools.cached_property
    def fingerprint(self) -> str:
        """Sixteen digits that differ for other images, labels or classes, whatever their name.

        Of images in files it covers their names and sizes, and the content of `images.PEEK`.
        """
        digest = hashlib.blake2b(digest_size=8)
        digest.update(repr((self.num_classes, self.classes)).encode())
        for images, labels in (
            (self.train_images, self.train_labels), (self.test_images, self.test_labels)
        ):  # fmt: skip
            digest.update(repr(images.shape).encode() + labels.tobytes())
            if isinstance(images, Images):
                images.digest(digest.update)
            else:
                for start in range(0, len(images), arrays.CHUNK):
                    digest.update(np.ascontiguousarray(images[start : start + arrays.CHUNK]).data)
        return digest.hexdigest()

    def in_memory(self) -> "Dataset":
        """Return the dataset with its images read.

        Raises:
            DataError: files that cannot be read.
            ValueError: images of another size.
        """
        train, test = np.asarray(self.train_images), np.asarray(self.test_images)
        dataset = dataclasses.replace(self, train_images=train, test_images=test)
        # The same data, so that a run may go on with it wherever its images lie.
        dataset.__dict__["fingerprint"] = self.fingerprint
        return dataset

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


def _check_split(
    split: str, images: np.ndarray | Images, labels: np.ndarray, num_classes: int
) -> None:
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
    mean, std = arrays.pixel_statistics(splits.train.images)
    return Dataset(name, *splits.train, *splits.test, splits.num_classes, mean, std, splits.classes)


def own_dataset(
    name: str, splits: Sequence[Split], num_classes: int, classes: tuple[str, ...] | None
) -> Dataset:
    """Return the checked dataset of a training and perhaps a test set, else the first is split."""
    train, *others = splits
    if not others:
        rest, held = arrays.stratified_split(train.labels)
        others = [Split(train.images[held], train.labels[held])]
        train = Split(train.images[rest], train.labels[rest])
    arrays.check_classes(name, train.labels, num_classes, classes)
    mean, std = arrays.pixel_statistics(train.images)
    if not any(std):
        raise ValueError(f"all training pixels of {name} are equal")
    std = tuple(s or 1.0 for s in std)  # a constant channel becomes 0
    return Dataset(name, *train, *others[0], num_classes, mean, std, classes)


def in_order(split: Split, ids: np.ndarray | None = None) -> Split:
    """Sort the examples, so that their order does not depend on the file that they came from.

    Sorted by id; without ids, or when two are equal, by a digest of pixels and label, which looks
    random, so that the first examples are no biased sample.
    """
    if ids is None or ids.ndim != 1 or len(np.unique(ids)) < len(ids):
        examples = zip(np.asarray(split.images), split.labels, strict=True)
        ids = np.array([_digest(*example) for example in examples], "S16")
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
