"""Bring a user's arrays to the one shape of a dataset, and split them."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lorentz_jax.data import images as files
from lorentz_jax.data.images import Images, spread

TEST_SHARE, SPLIT_SEED = 0.2, 0  # the split belongs to the data: it does not move with a run's seed
CHUNK = 1024  # images worked on at once: bounds the temporary memory


def to_images(split: str, images: Any) -> np.ndarray:
    """Return images as uint8 `(N, height, width, channels)`.

    Args:
        split: for messages.
        images: uint8, or floats in [0, 1], which are scaled by 255 and rounded; `(N, height,
            width)` is greyscale.

    Raises:
        TypeError: of another dtype.
        ValueError: of another shape, or floats that are NaN or outside [0, 1].
    """
    try:
        images = np.asanyarray(images)  # a memory map stays one
    except ValueError as error:
        raise ValueError(f"{split} images are no array, of one size each: {error}") from None
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise TypeError(
            f"{split} images must be uint8, or floats in [0, 1], got {images.dtype}; "
            "convert numbers from 0 to 255 with .astype(np.uint8)"
        )
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(
            f"{split} images must be (N, height, width) or (N, height, width, channels), "
            f"got {images.shape}"
        )
    if images.shape[1] in (1, 3) and images.shape[3] > 4:
        raise ValueError(
            f"{split} images of shape {images.shape} have their channels first; "
            "move them last with np.moveaxis(images, 1, -1)"
        )
    return images if images.dtype == np.uint8 else _from_floats(split, images)


def _from_floats(split: str, images: np.ndarray) -> np.ndarray:
    out = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK]
        if np.isnan(part).any():
            first = int(np.flatnonzero(np.isnan(part).any(axis=(1, 2, 3)))[0])
            raise ValueError(f"{split} image {start + first} holds NaN")
        if part.min() < 0 or part.max() > 1:
            raise ValueError(
                f"{split} images are floats from {part.min():g} to {part.max():g}, expected "
                "[0, 1]; pass numbers from 0 to 255 as uint8"
            )
        out[start : start + len(part)] = np.rint(part * 255)
    return out


def to_labels(split: str, labels: Any, count: int) -> np.ndarray:
    """Return labels as int32 `(count,)`.

    Raises:
        TypeError: they are no whole numbers.
        ValueError: of another shape, or negative.
    """
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"{split} labels must be whole numbers, got {labels.dtype}")
    if labels.shape != (count,):
        raise ValueError(
            f"{split} labels must be one for each of {count} images, got {labels.shape}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < 2**31:
        raise ValueError(f"{split} labels must count from 0, got {labels.min()} to {labels.max()}")
    return labels.astype(np.int32)


def to_classes(classes: Iterable[Any] | None) -> tuple[str, ...] | None:
    """Return the names of the classes, checked.

    Raises:
        ValueError: one is empty or comes twice.
    """
    if classes is None:
        return None
    names = tuple(map(str, classes))
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f"classes must be different names, got {names}")
    return names


def check_classes(name: str, labels: np.ndarray, count: int, names: Any) -> None:
    """Refuse a classification that cannot be learned.

    Raises:
        ValueError: fewer than two classes, a label beyond them, or one without a training image.
    """
    if count < 2:
        raise ValueError(f"{name} needs at least 2 classes, it has {count}")
    present = np.unique(labels)
    if names is not None and present.max(initial=0) >= count:
        raise ValueError(f"{name} has a training label {present.max()} >= {count} classes")
    present = present[present < count]
    if len(present) < count:
        absent = int(np.append(np.flatnonzero(present != np.arange(len(present))), len(present))[0])
        label = f"{absent}" if names is None else f"{absent} ({names[absent]})"
        raise ValueError(
            f"{name} has no training image of class {label}; labels count from 0 to {count - 1}"
        )


def stratified_split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of a training and a test set.

    Of every class, `TEST_SHARE` goes to the test set, rounded, drawn by `SPLIT_SEED`: at least one
    image, and none of a class that has only one.
    """
    rng, held = np.random.default_rng(SPLIT_SEED), []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        held.append(members[: min(max(1, round(TEST_SHARE * len(members))), len(members) - 1)])
    test = np.sort(np.concatenate([*held, np.empty(0, np.int64)])).astype(np.int64)
    return np.setdiff1d(np.arange(len(labels)), test), test


def pixel_statistics(images: np.ndarray | Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 `(N, height, width, channels)`.

    They come from counts of the 256 values, so they are exact and need little memory. Of images in
    files `images.SAMPLE` are read, evenly spread.
    """
    if isinstance(images, Images):
        images = images[spread(len(images), files.SAMPLE)]
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), CHUNK):
        part = np.asarray(images[start : start + CHUNK])
        for channel in range(channels):
            counts[channel] += np.bincount(part[..., channel].ravel(), minlength=256)
    weights = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    mean = weights @ np.arange(256.0)
    std = np.sqrt((weights * (np.arange(256.0) - mean[:, np.newaxis]) ** 2).sum(axis=1))
    return tuple(mean.tolist()), tuple(std.tolist())
