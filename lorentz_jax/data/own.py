"""A user's own data: a folder of images, or arrays in an npz file."""

import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lorentz_jax.data.arrays import SPLIT_SEED
from lorentz_jax.data.dataset import DataError, DataNotFoundError, Dataset, Split, own_dataset
from lorentz_jax.data.images import PEEK, Images, decode, spread

KINDS = ("folder", "npz")
_ENDINGS = (".png", ".jpg", ".jpeg")
_TEST_FOLDERS = ("test", "validation", "val")
_GREY = {"1", "L", "LA", "I;16", "I;16B"}  # modes of Pillow without colour


def split_name(name: str) -> tuple[str | None, str]:
    """Return `(kind, path)` of `folder:PATH` or `npz:PATH`, and `(None, name)` of another name."""
    kind, colon, path = name.partition(":")
    return (kind, path) if colon and kind in KINDS else (None, name)


def short_name(name: str) -> str:
    """Return the name of a dataset without the path of its files."""
    kind, path = split_name(name)
    if kind is None:
        return name
    return _absolute(path).stem if kind == "npz" else _absolute(path).name


def _absolute(path: str | Path) -> Path:
    if not os.fspath(path):
        raise ValueError("a dataset needs a path after folder: or npz:")
    return Path(os.path.abspath(Path(path).expanduser()))


def open_folder(path: str | Path, size: tuple[int, int] | None = None) -> Dataset:
    """Open a folder of images per class, perhaps in `train/` and `test/`; the images stay there.

    Files whose name begins with a dot are passed over. The classes are sorted by name. Without
    `test/` (or `validation/`, or `val/`) a fifth of every class becomes the test set. The images
    are greyscale if the sampled ones are, else RGB, and turned as EXIF says.

    Args:
        path: the folder.
        size: `(height, width)` to bring the images to; by default they must have one size.

    Raises:
        DataNotFoundError: there is no such folder.
        DataError: images that cannot be decoded.
        ValueError: no images, other files among them, or images of several sizes.
    """
    root = _absolute(path)
    if not root.is_dir():
        raise DataNotFoundError(f"no folder {root}")
    folders = [Path()]
    if _classes(root / "train"):
        tests = [Path(name) for name in _TEST_FOLDERS if _classes(root / name)]
        folders = [Path("train"), *tests[:1]]
    classes = _classes(root / folders[0])
    if not classes:
        raise ValueError(f"{root} holds no folders of classes")
    for folder in folders[1:]:
        if unknown := sorted({*_classes(root / folder)} - {*classes}):
            raise ValueError(f"{root / folder} holds the class {unknown[0]}, {folders[0]} does not")
    listed = [_list(root, folder, classes) for folder in folders]
    names = np.concatenate([names for names, _ in listed])
    reader = FolderReader(root, names, size)
    splits, start = [], 0
    for part, labels in listed:
        rows = np.arange(start, start + len(part))
        # Classes mixed, so that the first images are no biased sample.
        order = np.random.default_rng(SPLIT_SEED).permutation(len(part))
        splits.append(Split(Images(reader, reader.shape, rows[order]), labels[order]))
        start += len(part)
    return own_dataset(root.name, splits, len(classes), tuple(classes))


class FolderReader:
    """Reads the files `names` in the folder `root`, bringing them to `size`."""

    def __init__(self, root: Path, names: np.ndarray, size: tuple[int, int] | None) -> None:
        self._root, self._names, self._size = root, names, size
        colour = any(map(self._has_colour, spread(len(names), PEEK)))
        self._channels = 3 if colour else 1
        height, width = size or self._first_size()
        self.shape = (height, width, self._channels)

    def __call__(self, row: int) -> np.ndarray:
        """Return one image."""
        path = self._path(row)
        image = decode(path, path, self._channels, self._size, upright=True)
        if image.shape != self.shape:
            raise ValueError(
                f"{path} has {image.shape[0]} x {image.shape[1]} pixels, others have "
                f"{self.shape[0]} x {self.shape[1]}; bring all to one size with --image-size"
            )
        return image

    def digest(self, rows: np.ndarray, update: Callable[[bytes], object]) -> None:
        """Update with name and size of each file, and the content of a sample."""
        for row in rows:
            update(b"%s/%d/" % (bytes(self._names[row]), self._path(row).stat().st_size))
        for i in spread(len(rows), PEEK):
            update(b"%d" % zlib.crc32(self._path(int(rows[i])).read_bytes()))

    def _path(self, row: int) -> Path:
        return self._root / os.fsdecode(bytes(self._names[row]))

    def _has_colour(self, row: int) -> bool:
        from PIL import Image

        try:
            with Image.open(self._path(row)) as image:
                return image.mode not in _GREY
        except Exception:  # whoever reads this image names it
            return False

    def _first_size(self) -> tuple[int, int]:
        for row in range(len(self._names)):
            try:
                return decode(self._path(row), "", self._channels, upright=True).shape[:2]
            except DataError:
                continue  # whoever reads this image names it
        raise DataError(f"{self._root} holds {len(self._names)} files, and none can be decoded")


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _list(root: Path, folder: Path, classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the files below `folder`, named from `root` on, and the labels."""
    found: list[tuple[bytes, int]] = []
    for label, name in enumerate(classes):
        before = len(found)
        for here, folders, files in os.walk(root / folder / name):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            for file in sorted(f for f in files if not f.startswith(".")):
                path = Path(here, file)
                if path.suffix.lower() not in _ENDINGS:
                    raise ValueError(f"{path} is no PNG or JPEG file; take it out of the folder")
                found.append((os.fsencode(path.relative_to(root)), label))
        if len(found) == before and folder.name not in _TEST_FOLDERS:
            raise ValueError(f"{root / folder / name} holds no PNG or JPEG file")
    if not found:
        raise ValueError(f"{root / folder} holds no PNG or JPEG file")
    # Of fixed width: a million strings of Python would take ten times the memory.
    return np.array([name for name, _ in found]), np.array([label for _, label in found], np.int32)


def open_npz(path: str | Path) -> Dataset:
    """Read `train_images`, `train_labels` and perhaps `test_images`, `test_labels`, `classes`.

    They are as for `Dataset.from_arrays`.

    Raises:
        DataNotFoundError: there is no such file.
        DataError: it is damaged, or holds Python objects.
        TypeError, ValueError: other arrays, as `Dataset.from_arrays` raises them.
    """
    path = _absolute(path)
    if not path.is_file():
        raise DataNotFoundError(f"no file {path}")
    needed, other = ("train_images", "train_labels"), ("test_images", "test_labels", "classes")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is no npz file")
    found: dict[str, Any] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            names = file.files
            if {*needed} <= {*names}:
                found = {name: file[name] for name in (*needed, *other) if name in names}
    except MemoryError:
        raise
    except Exception as error:  # of whatever kind zip files and arrays have
        raise DataError(f"{path} is no readable npz file: {error}") from error
    if not found:
        raise ValueError(
            f"{path} needs {' and '.join(needed)}, it has {', '.join(names) or 'none'}"
        )
    classes = found.pop("classes", None)
    try:
        return Dataset.from_arrays(**found, name=path.stem, classes=classes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None
