"""Images that stay in their files until they are asked for."""

import io
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's names by number of channels
# Images that stand for all of them where reading all would take too long: for the statistics of
# their pixels, and to tell whether they have colour and are still the same.
SAMPLE, PEEK = 10_000, 1_000


class DataError(OSError):
    """A dataset's file is damaged, incomplete, not the official one, or cannot be fetched."""


class Reader(Protocol):
    """Reads single images. It can be pickled, for other processes, and called by many threads."""

    def __call__(self, row: int) -> np.ndarray:
        """Return uint8 `(height, width, channels)`."""
        ...

    def digest(self, rows: np.ndarray, update: Callable[[bytes], object]) -> None:
        """Call `update` with bytes that change when these images do."""
        ...


class Images:
    """Looks like a uint8 array `(N, height, width, channels)`, and reads what it is asked for.

    A slice or an array of indices gives other `Images`, and reads nothing. `np.asarray` reads them
    all, in several threads.

    Args:
        reader: of single images, by row.
        shape: `(height, width, channels)` of every image.
        rows: those that belong to it, in order.
    """

    dtype, ndim = np.dtype(np.uint8), 4

    def __init__(self, reader: Reader, shape: tuple[int, int, int], rows: np.ndarray) -> None:
        self._reader, self._rows = reader, rows
        self.shape = (len(rows), *shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | np.ndarray) -> "Images":
        return Images(self._reader, self.shape[1:], self._rows[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        images, errors = np.empty(self.shape, np.uint8), []

        def fill(start: int) -> None:
            for i in range(start, min(start + 64, len(self))):
                try:
                    images[i] = self.read(i)
                except (DataError, ValueError) as error:
                    errors.append((i, error))

        with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
            list(pool.map(fill, range(0, len(self), 64)))
        if errors:
            _, first = min(errors, key=lambda entry: entry[0])
            others = f"; {len(errors) - 1} more are refused" if len(errors) > 1 else ""
            raise type(first)(f"{first}{others}")
        return images if dtype is None else images.astype(dtype, copy=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape)

    def read(self, i: int) -> np.ndarray:
        """Return one image.

        Raises:
            DataError: it cannot be read.
            ValueError: it has another shape.
        """
        return self._reader(int(self._rows[i]))

    def digest(self, update: Callable[[bytes], object]) -> None:
        """Call `update` with bytes that change when the images do."""
        self._reader.digest(self._rows, update)


def read_rows(images: "np.ndarray | Images", rows: np.ndarray) -> np.ndarray:
    """Return the images `rows`, read one after the other."""
    if isinstance(images, np.ndarray):
        return images[rows]
    out = np.empty((len(rows), *images.shape[1:]), np.uint8)
    for i, row in enumerate(rows):
        out[i] = images.read(row)
    return out


def spread(count: int, most: int) -> np.ndarray:
    """Return at most `most` of `count` indices, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def decode(
    source: Path | bytes,
    name: object,
    channels: int,
    size: tuple[int, int] | None = None,
    upright: bool = False,
) -> np.ndarray:
    """Decode a PNG or JPEG image to uint8 `(height, width, channels)`.

    Args:
        source: the file, or its content.
        name: for messages.
        channels: 1 to 4; greyscale and colour are converted, and transparency is left out.
        size: `(height, width)` to bring it to: scaled until it covers them, and cut to its middle.
        upright: turn it as its EXIF orientation says.

    Raises:
        DataError: it cannot be decoded.
    """
    from PIL import Image, ImageOps

    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=("PNG", "JPEG")) as image:
            if size is not None:  # a JPEG is decoded at half its size and so on, if that suffices
                image.draft(None, (2 * max(size), 2 * max(size)))
            if upright:
                ImageOps.exif_transpose(image, in_place=True)
            image = _convert(image, MODES[channels])
    except Exception as error:  # of whatever kind the parsers of images have
        raise DataError(f"{name} cannot be decoded: {error}") from error
    if size is not None and image.size != size[::-1]:
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], channels)


def _convert(image: Any, mode: str) -> Any:
    from PIL import Image

    if image.mode.startswith("I;16"):  # older Pillow cuts the values off
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits (mode {image.mode})")
    if image.mode == "P":  # a palette may have transparent colours, which RGB alone cannot say
        image = image.convert("RGBA")
    return image.convert(mode)
