"""Datasets of uint8 images, in memory or in their files, and their augmentation on the device.

>>> digits = load("digits")
>>> digits.train_images.shape, digits.num_classes
((1437, 8, 8, 1), 10)
"""

from lorentz_jax._src.extras import require

require("lorentz_jax.data", "train", "sklearn", "google_crc32c", "PIL")

from pathlib import Path

from lorentz_jax.data.augment import normalise, prepare, random_flip, random_shift
from lorentz_jax.data.dataset import DataError, DataNotFoundError, Dataset, load_digits, to_dataset
from lorentz_jax.data.images import Images
from lorentz_jax.data.official import default_data_dir, read_splits
from lorentz_jax.data.own import open_folder, open_npz, short_name, split_name

__all__ = [
    "AUGMENTATION",
    "DataError",
    "DataNotFoundError",
    "Dataset",
    "Images",
    "augmentation",
    "default_data_dir",
    "load",
    "normalise",
    "prepare",
    "random_flip",
    "random_shift",
    "short_name",
    "split_name",
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
    image_size: tuple[int, int] | None = None,
    memory: int | None = None,
) -> Dataset:
    """Open a dataset by name. The examples have the same order whatever they are read from.

    Args:
        name: `digits` (comes with scikit-learn), `cifar10`, `cifar100` (fine labels),
            `fashion_mnist`, the name of an image-classification dataset that tensorflow-datasets
            has prepared in `data_dir`, `folder:PATH` (PNG or JPEG files by class, perhaps in
            `train/` and `test/`), or `npz:PATH` (arrays named as in `Dataset.from_arrays`).
        data_dir: holds prepared directories or official archives; default `default_data_dir()`.
        limit: keep only the first N training images. The test set stays whole.
        verify: refuse official archives with another checksum. A download is always verified.
        download: fetch an official archive that is missing, if its server answers in 5 seconds.
        image_size: `(height, width)` to bring the images of a folder or of a prepared dataset to.
        memory: leave images that take more than so many bytes in their files, where they are in a
            folder or in array_record files; by default read them all.

    Raises:
        ValueError: an unknown name, labels outside the classes, images of several sizes, or
            `limit < 1`.
        DataNotFoundError: the files are nowhere; the message says where they were looked for.
        DataError: a damaged, incomplete or unofficial file, which the message names.
    """
    kind, path = split_name(name)
    if image_size is not None and (kind == "npz" or name == "digits"):
        raise ValueError(f"image_size is for folders and prepared datasets, not for {name}")
    if kind == "folder":
        dataset = open_folder(path, image_size)
    elif kind == "npz":
        dataset = open_npz(path)
    elif name == "digits":
        dataset = load_digits()
    else:
        folder = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
        options = {"size": image_size, "memory": memory, "limit": limit}
        splits = read_splits(name, folder, check=verify, download=download, **options)
        dataset = to_dataset(name, splits)
    dataset = dataset if limit is None else dataset.take(limit)
    if kind == "folder" and (memory is None or dataset.nbytes <= memory):
        return dataset.in_memory()
    return dataset
