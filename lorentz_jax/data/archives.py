"""The official archives of CIFAR and Fashion-MNIST, read as they are distributed."""

import contextlib
import gzip
import hashlib
import math
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lorentz_jax.data.dataset import DataError, Split, Splits, in_order


class Archive(NamedTuple):
    """One official file.

    Attributes:
        name: its file name; an IDX file may also lie there unpacked, without the `.gz`.
        url: where it is published.
        sha256: checksum of the file, or of its unpacked content when the name ends in
            `idx?-ubyte.gz`, because distributions pack the same content again.
    """

    name: str
    url: str
    sha256: str


class Source(NamedTuple):
    """The official distribution of one dataset.

    Attributes:
        version: of the same data in tensorflow-datasets.
        folders: where the files may be, relative to the data directory.
        target: the folder that a download goes to.
        archives: the files; all are needed.
        read: function from a folder that holds them to the arrays.
    """

    version: str
    folders: tuple[str, ...]
    target: str
    archives: tuple[Archive, ...]
    read: Callable[[Path], Splits]


def locate(folder: Path, archive: Archive) -> Path | None:
    """Return the path of the archive in the folder, packed if both are there, or None."""
    names = [archive.name]
    if _is_idx(archive.name):
        names.append(archive.name.removesuffix(".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def verify(path: Path, archive: Archive) -> None:
    """Compare the file with the official one.

    Raises:
        DataError: another checksum, or a torn file.
    """
    with _readable(path), _open(path) if _is_idx(archive.name) else path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]
    if digest != archive.sha256:
        raise DataError(
            f"{path} is incomplete or not the official file: its SHA-256 is {digest}, "
            f"expected {archive.sha256}"
        )


def read_cifar10(folder: Path) -> Splits:
    """Read the binary archive of CIFAR-10: `(32, 32, 3)`, 10 classes."""
    train = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    test = ["cifar-10-batches-bin/test_batch.bin"]
    path = folder / "cifar-10-binary.tar.gz"
    return _read_cifar(path, train, test, label_bytes=1, num_classes=10)


def read_cifar100(folder: Path) -> Splits:
    """Read the binary archive of CIFAR-100: `(32, 32, 3)`, its 100 fine classes."""
    path, inside = folder / "cifar-100-binary.tar.gz", "cifar-100-binary"
    train, test = [f"{inside}/train.bin"], [f"{inside}/test.bin"]
    return _read_cifar(path, train, test, label_bytes=2, num_classes=100)


def read_fashion_mnist(folder: Path) -> Splits:
    """Read the four IDX files of Fashion-MNIST: `(28, 28, 1)`, 10 classes."""

    def split(prefix: str) -> Split:
        images_path = folder / f"{prefix}-images-idx3-ubyte.gz"
        labels_path = folder / f"{prefix}-labels-idx1-ubyte.gz"
        images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
        if len(images) != len(labels):
            raise DataError(f"{images_path} has {len(images)} images, but {len(labels)} labels")
        return in_order(Split(images[..., np.newaxis], labels.astype(np.int32)))

    return Splits(split("train"), split("t10k"), 10)


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Read an IDX file of bytes with `ndim` axes, packed at `path` or unpacked without its `.gz`.

    Raises:
        DataError: the file is torn, or of another kind.
    """
    if not path.exists():
        path = path.with_suffix("")
    with _readable(path), _open(path) as file:
        content = _Limited(file, path, _LARGEST_IDX).read()
    header = 4 + 4 * ndim
    if len(content) < header or content[:4] != bytes([0, 0, 8, ndim]):
        raise DataError(f"{path} is no IDX file of bytes with {ndim} axes")
    shape = np.frombuffer(content, ">u4", ndim, offset=4).tolist()
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"{path} holds {len(content) - header} bytes of data, "
            f"its header announces {math.prod(shape)}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read_cifar(
    path: Path, train: list[str], test: list[str], *, label_bytes: int, num_classes: int
) -> Splits:
    """Read the records of every file in turn: labels, the fine one last, and pixels.

    Their order is that of the ids in tensorflow-datasets. No other member of the archive is read,
    and no link followed.
    """
    contents: dict[str, bytes] = {}
    with _readable(path), gzip.open(path, "rb") as whole:
        limited: Any = _Limited(whole, path, _LARGEST_TAR)
        with tarfile.open(fileobj=limited, mode="r|") as archive:
            for member in archive:
                if member.name in contents:
                    raise DataError(f"{path} holds {member.name} twice")
                if member.name in {*train, *test} and member.isreg():
                    file = archive.extractfile(member)
                    contents[member.name] = file.read() if file is not None else b""
    record = label_bytes + 32 * 32 * 3

    def split(names: list[str]) -> Split:
        for name in names:
            if name not in contents:
                raise DataError(f"{path} holds no {name}")
            if len(contents[name]) % record:
                raise DataError(f"{name} in {path} is not made of records of {record} bytes")
        data = np.frombuffer(b"".join(contents[name] for name in names), np.uint8)
        data = data.reshape(-1, record)
        images = data[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return Split(np.ascontiguousarray(images), data[:, label_bytes - 1].astype(np.int32))

    return Splits(split(train), split(test), num_classes)


class _Limited:
    """A binary file that is refused when more than `limit` bytes come out of it."""

    def __init__(self, file: Any, path: Path, limit: int) -> None:
        self._file, self._path, self._limit, self._left = file, path, limit, limit

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, all of them without a size."""
        content = self._file.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(content)
        if self._left < 0:
            raise DataError(f"{self._path} unfolds to more than {self._limit:,} bytes")
        return content


def _is_idx(name: str) -> bool:
    return name.endswith("-ubyte.gz")


def _open(path: Path):
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what the libraries raise on a torn archive into one error that names the file."""
    try:
        yield
    except DataError:
        raise
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


_LARGEST_TAR, _LARGEST_IDX = 256 * 2**20, 64 * 2**20  # the official ones have 185 and 47 MB
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_SHA256 = {
    "train-images-idx3": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def _cifar(classes: int, sha256: str, read: Callable[[Path], Splits]) -> Source:
    name = f"cifar-{classes}-binary.tar.gz"
    archive = Archive(name, _CIFAR_URL + name, sha256)
    return Source("3.0.2", (".", f"cifar{classes}"), ".", (archive,), read)


SOURCES = {
    "cifar10": _cifar(
        10, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", read_cifar10
    ),
    "cifar100": _cifar(
        100, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", read_cifar100
    ),
    "fashion_mnist": Source(
        version="3.0.1",
        folders=("fashion-mnist", "fashion_mnist", "."),
        target="fashion-mnist",
        archives=tuple(
            Archive(f"{name}-ubyte.gz", f"{_FASHION_URL}{name}-ubyte.gz", sha256)
            for name, sha256 in _FASHION_SHA256.items()
        ),
        read=read_fashion_mnist,
    ),
}
