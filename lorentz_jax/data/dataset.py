"""The one shape that every dataset has, checked when it is opened."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of one dataset, whole, as NumPy arrays.

    Attributes:
        name: how reports call it.
        train_images, test_images: uint8, `(N, height, width, channels)`.
        train_labels, test_labels: int32, `(N,)`, in `0 .. num_classes - 1`.
        num_classes: size of the classifier.
        mean, std: of the training pixels, one number a channel, in units of the stored uint8.

    Raises:
        ValueError: an empty split, shapes that do not fit, or a label outside the classes.
        TypeError: images that are not uint8, labels that are not int32.
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
        """The same dataset with only the first `limit` training images.

        `mean` and `std` stay those of the full training set.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        return dataclasses.replace(
            self, train_images=self.train_images[:limit], train_labels=self.train_labels[:limit]
        )

    def hold_out(self, count: int, seed: int) -> tuple["Dataset", tuple[np.ndarray, np.ndarray]]:
        """Set `count` training images aside for validation, drawn by the seed.

        `mean` and `std` stay those of the full training set.

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
        left = dataclasses.replace(
            self, train_images=self.train_images[rest], train_labels=self.train_labels[rest]
        )
        return left, (self.train_images[held], self.train_labels[held])


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
