"""Datasets as uint8 arrays in memory, and their augmentation on the device.

>>> digits = load("digits")
>>> digits.train_images.shape, digits.num_classes
((1437, 8, 8, 1), 10)
"""

from lorentz_jax._src.extras import require

require("lorentz_jax.data", "train", "sklearn", "google_crc32c", "PIL")

from pathlib import Path

from lorentz_jax.data.augment import normalise, prepare, random_flip, random_shift
from lorentz_jax.data.dataset import DataError, DataNotFoundError, Dataset, load_digits, to_dataset
from lorentz_jax.data.official import default_data_dir, read_splits

__all__ = [
    "AUGMENTATION",
    "DataError",
    "DataNotFoundError",
    "Dataset",
    "augmentation",
    "default_data_dir",
    "load",
    "normalise",
    "prepare",
    "random_flip",
    "random_shift",
]

AUGMENTATION: dict[str, tuple[int, bool]] = {
    "digits": (1, False),
    "cifar10": (4, True),
    "cifar100": (4, True),
    "fashion_mnist": (4, True),
}
"""Usual augmentation by dataset: the largest shift in pixels, and whether to mirror."""


def augmentation(name: str) -> tuple[int, bool]:
    """Return `(shift, flip)` for `prepare`: from `AUGMENTATION`, else a shift of 4 and no flip."""
    return AUGMENTATION.get(name, (4, False))


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    verify: bool = True,
    download: bool = True,
) -> Dataset:
    """Open a dataset by name. The examples have the same order whatever they are read from.

    Args:
        name: `digits` (comes with scikit-learn), `cifar10`, `cifar100` (fine labels),
            `fashion_mnist`, or the name of an image-classification dataset that
            tensorflow-datasets has prepared in `data_dir`.
        data_dir: holds prepared directories or official archives; default `default_data_dir()`.
        limit: keep only the first N training images. The test set stays whole.
        verify: refuse official archives with another checksum. A download is always verified.
        download: fetch an official archive that is missing, if its server answers in 5 seconds.

    Raises:
        ValueError: an unknown name, labels outside the classes, or `limit < 1`.
        DataNotFoundError: the files are nowhere; the message says where they were looked for.
        DataError: a damaged, incomplete or unofficial file, which the message names.
    """
    if name == "digits":
        dataset = load_digits()
    else:
        folder = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
        dataset = to_dataset(name, read_splits(name, folder, check=verify, download=download))
    return dataset if limit is None else dataset.take(limit)
