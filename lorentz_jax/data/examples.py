"""Examples that tensorflow-datasets wrote: their features, their images, and how to stream them."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lorentz_jax.data.images import PEEK, DataError, decode, spread


def check_class_names(path: Path) -> None:
    """Refuse features whose classes tensorflow-datasets would import from elsewhere.

    Raises:
        DataError: such a class, or no JSON.
    """
    try:
        names = list(_class_names(json.loads(path.read_text())))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    for name in names:
        if not name.startswith("tensorflow_datasets.core.features."):
            raise DataError(f"{path} names {name!r}, no feature of tensorflow-datasets")


def _class_names(node: Any) -> Iterator[str]:
    """Yield every name that `FeatureConnector.from_json` would look up."""
    if isinstance(node, dict):
        old = ("type",) if "content" in node else ()
        for key, value in node.items():
            if key in ("pythonClassName", "python_class_name", *old):
                yield str(value)
            elif key == "json" and isinstance(value, str):
                yield from _class_names(json.loads(value))
            else:
                yield from _class_names(value)
    elif isinstance(node, list):
        for value in node:
            yield from _class_names(value)


class RecordReader:
    """Reads images of the array_record files `paths` of the prepared dataset in `directory`."""

    def __init__(
        self, directory: Path, paths: list, shape: tuple[int, int, int], size: Any
    ) -> None:
        self._directory, self._paths = directory, [os.fspath(path) for path in paths]
        self._shape, self._size = shape, size

    def __call__(self, row: int) -> np.ndarray:
        """Return one image."""
        example = self._parse(self._directory, self._record(row))
        image = decode_image(self._directory, example, self._shape[-1], self._size)
        check_size(self._directory, image.shape, self._shape)
        return image

    def digest(self, rows: np.ndarray, update: Callable[[bytes], object]) -> None:
        """Update with the sizes of the files, the order, and a sample of the records."""
        update(repr([os.path.getsize(path) for path in self._paths]).encode() + rows.tobytes())
        for i in spread(len(rows), PEEK):
            update(self._record(int(rows[i])))

    def __getstate__(self) -> dict[str, Any]:
        # The open files stay in their process.
        return {k: v for k, v in vars(self).items() if k not in ("_source", "_parse")}

    def _record(self, row: int) -> bytes:
        try:
            return self._source[int(row)]
        except (RuntimeError, IndexError, ValueError) as error:
            raise DataError(f"{self._directory} cannot be read: {error}") from error

    @functools.cached_property
    def _source(self) -> Any:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        return ArrayRecordDataSource(self._paths)

    @functools.cached_property
    def _parse(self) -> Any:
        import tensorflow_datasets as tfds

        check_class_names(self._directory / "features.json")
        return parser(tfds.features.FeatureConnector.from_config(str(self._directory)), "image")


def parser(features: Any, *names: str) -> Callable[[Path, bytes], dict[str, Any]]:
    """Return a function `(path, record) -> example` with those of the named features there are."""
    import tensorflow_datasets as tfds

    # Only these are parsed, whatever else an example holds.
    wanted = tfds.features.FeaturesDict({key: features[key] for key in names if key in features})
    packed = {"image": tfds.decode.SkipDecoding()} if "image" in names else None

    def parse(path: Path, record: bytes) -> dict[str, Any]:
        try:
            example: Any = wanted.deserialize_example_np(record, decoders=packed)
            return example
        except Exception as error:  # of whatever kind the parsers of examples have
            raise DataError(f"{path} holds an example that cannot be decoded: {error}") from error

    return parse


def decode_image(
    path: Path, example: Any, channels: int, size: tuple[int, int] | None
) -> np.ndarray:
    """Return the image of an example, brought to `size` if there is one."""
    return decode(example["image"], f"{path} holds an example that", channels, size)


def check_size(directory: Any, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raise `ValueError` for an image of another shape."""
    if shape != expected:
        raise ValueError(
            f"{directory} holds images of several sizes, {expected} and {shape}: they must be "
            "resized to one with --image-size"
        )
