"""Datasets as uint8 arrays in memory, and their augmentation on the device."""

from collections.abc import Callable

from lorentz_jax.data.augment import normalise, prepare, random_shift
from lorentz_jax.data.dataset import Dataset
from lorentz_jax.data.digits import load_digits

__all__ = ["DATASETS", "Dataset", "load", "normalise", "prepare", "random_shift"]

DATASETS: dict[str, Callable[[], Dataset]] = {"digits": load_digits}


def load(name: str, *, limit: int | None = None) -> Dataset:
    """Open a dataset by name.

    Args:
        name: a key of `DATASETS`.
        limit: keep only the first so many training images. The test set stays whole.

    Raises:
        ValueError: an unknown name, labels outside the classes, or `limit < 1`.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown dataset {name!r}; known: {', '.join(sorted(DATASETS))}")
    dataset = DATASETS[name]()
    return dataset if limit is None else dataset.take(limit)
