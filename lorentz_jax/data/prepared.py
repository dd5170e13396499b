"""Directories that tensorflow-datasets prepared, read without TensorFlow."""

import contextlib
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lorentz_jax.data.dataset import DataError, Split, Splits, in_order
from lorentz_jax.data.examples import (
    RecordReader,
    check_class_names,
    check_size,
    decode_image,
    parser,
)
from lorentz_jax.data.images import MODES, Images
from lorentz_jax.data.tfrecord import read_tfrecord

_NAME = re.compile(r"(?P<name>\w+)(?:/(?P<config>\w[\w.+-]*))?(?::(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TEST_SPLITS = ("test", "validation")


def find(data_dir: Path, name: str) -> Path | None:
    """Find the directory of a prepared dataset: its newest version, unless the name says which.

    Args:
        data_dir: where tensorflow-datasets keeps its directories.
        name: as in tensorflow-datasets: `name`, `name/config`, each perhaps with `:1.2.3`.

    Returns:
        The directory, or None when there is none.

    Raises:
        DataError: only a half-written directory is there.
        ValueError: there are several configurations, and the name does not say which.
    """
    match = _NAME.fullmatch(name)
    if not match:
        return None
    root = data_dir / match["name"]
    if match["config"]:
        root /= match["config"]
    elif not _versions(root):
        configs = [folder for folder in _folders(root) if _versions(folder)]
        if len(configs) > 1:
            choices = ", ".join(f"{match['name']}/{folder.name}" for folder in configs)
            raise ValueError(f"{root} holds several configurations; choose one of {choices}")
        root = configs[0] if configs else root
    versions = _versions(root)
    if match["version"]:
        versions = [folder for folder in versions if folder.name == match["version"]]
    if versions:
        return versions[-1]
    for folder in _folders(root):
        if folder.name.startswith("incomplete."):
            raise DataError(f"{folder} was never finished: prepare the dataset again or remove it")
    return None


def read(
    directory: Path,
    size: tuple[int, int] | None = None,
    memory: int | None = None,
    limit: int | None = None,
) -> Splits:
    """Read a prepared image-classification dataset with the features `image` and `label`.

    The test split is `test` or, where there is none, `validation`. Examples are sorted by the
    feature `id` where there is one, else as `in_order` does.

    Args:
        directory: holds its files.
        size: `(height, width)` to bring the images to; by default they must have one size.
        memory: leave images that take more than so many bytes in their array_record files. Without
            a feature `id` they then have the order of the files.
        limit: count only so many training images in that.

    Raises:
        DataError: missing or damaged files.
        ValueError: another kind of dataset, or images of several sizes.
    """
    builder = _open(directory)
    info: Any = builder.info
    _check_features(directory, info.features)
    test = next((name for name in _TEST_SPLITS if name in info.splits), None)
    if "train" not in info.splits or test is None:
        raise ValueError(
            f"{directory} needs a split train and a split test or validation, "
            f"it has {', '.join(info.splits)}"
        )
    label = info.features["label"]
    named = label.names and len(label.names) == label.num_classes
    classes = tuple(label.names) if named else None
    read_split = _read_split
    if memory is not None and info.file_format.value == "array_record":
        count = min(limit or math.inf, info.splits["train"].num_examples)
        pixels = math.prod(_shape(builder, size))
        if pixels * (count + info.splits[test].num_examples) > memory:
            read_split = _leave_split
    train_split, test_split = read_split(builder, "train", size), read_split(builder, test, size)
    return Splits(train_split, test_split, label.num_classes, classes)


def _open(directory: Path) -> Any:
    """Return the builder of tensorflow-datasets that knows what is in the directory."""
    for file in ("dataset_info.json", "features.json"):
        if not (directory / file).is_file():
            raise DataError(f"{directory} is incomplete: it holds no {file}")
    check_class_names(directory / "features.json")
    # It takes over a second to import, so only those who use it pay.
    import tensorflow_datasets as tfds

    _leave_gpu()
    try:
        return tfds.builder_from_directory(directory)
    except Exception as error:  # of whatever kind the parsers of JSON and protobuf have
        raise DataError(f"{directory} does not describe a dataset: {error}") from error


def _check_features(directory: Path, features: Any) -> None:
    """Raise unless the dataset has a uint8 image and a class label."""
    import tensorflow_datasets as tfds

    names: dict[str, Any] = dict(features.items())
    image, label = names.get("image"), names.get("label")
    image_type, label_type = tfds.features.Image, tfds.features.ClassLabel
    if not (isinstance(image, image_type) and isinstance(label, label_type)):
        raise ValueError(
            f"{directory} needs the features image (an image) and label (a class), "
            f"it has {', '.join(sorted(names))}"
        )
    shape, dtype = names["image"].shape, np.dtype(names["image"].np_dtype)
    if dtype != np.uint8 or shape[-1] not in MODES:
        raise ValueError(
            f"{directory} needs uint8 images of 1 to 4 channels, "
            f"it has {dtype} images of shape {shape}"
        )
    if not names["label"].num_classes:
        raise ValueError(f"{directory} does not say how many classes it has")


def _read_split(builder: Any, split: str, size: tuple[int, int] | None) -> Split:
    """Read all examples of a split, decoded and in order."""
    info, images, ids = builder.info, None, []
    channels, count = info.features["image"].shape[-1], info.splits[split].num_examples
    labels = np.empty(count, np.int32)
    parse = parser(info.features, "id", "image", "label")
    for i, (path, record) in enumerate(_records(builder, split)):
        example = parse(path, record)
        image = decode_image(path, example, channels, size)
        if images is None:
            images = np.empty((count, *image.shape), np.uint8)
        check_size(builder.data_dir, image.shape, images.shape[1:])
        images[i], labels[i] = image, example["label"]
        ids.append(example.get("id"))
    if images is None:
        raise DataError(f"{builder.data_dir} holds no example of the split {split}")
    return in_order(Split(images, labels), np.array(ids) if "id" in info.features else None)


def _leave_split(builder: Any, split: str, size: tuple[int, int] | None) -> Split:
    """Read labels and ids of a split, and leave the images where they are."""
    info, labels, ids = builder.info, [], []
    parse = parser(info.features, "id", "label")
    for path, record in _records(builder, split):
        example = parse(path, record)
        labels.append(example["label"])
        ids.append(example.get("id"))
    if not labels:
        raise DataError(f"{builder.data_dir} holds no example of the split {split}")
    rows = np.arange(len(labels))
    if "id" in info.features and len(np.unique(ids)) == len(ids):
        rows = np.argsort(np.array(ids), kind="stable")
    shape = _shape(builder, size)
    reader = RecordReader(Path(builder.data_dir), info.splits[split].filepaths, shape, size)
    return Split(Images(reader, shape, rows), np.array(labels, np.int32)[rows])


def _shape(builder: Any, size: tuple[int, int] | None) -> tuple[int, int, int]:
    """The shape of every image: as announced, or that of the first one."""
    info: Any = builder.info
    height, width, channels = info.features["image"].shape
    if size is not None:
        height, width = size
    if height is None or width is None:
        path, record = next(_records(builder, "train"))
        example = parser(info.features, "image")(path, record)
        height, width = decode_image(path, example, channels, None).shape[:2]
    return height, width, channels


def _records(builder: Any, split: str) -> Iterator[tuple[Path, bytes]]:
    """Yield every serialised example of a split, with the path of its file.

    Raises:
        DataError: a missing or damaged file, or one with another number of examples than announced.
    """
    file_format = builder.info.file_format.value
    if file_format not in ("array_record", "tfrecord"):
        raise ValueError(
            f"{builder.data_dir} is stored as {file_format}; array_record and tfrecord can be read"
        )
    info = builder.info.splits[split]
    for i, (path, expected) in enumerate(zip(info.filepaths, info.shard_lengths, strict=True)):
        path, count = Path(path), 0
        if not path.is_file():
            raise DataError(f"{builder.data_dir} is incomplete: it holds no {path.name}")
        tfrecord = file_format == "tfrecord"
        for record in read_tfrecord(path) if tfrecord else _array_records(builder, split, i, path):
            count += 1
            if count > expected:
                break
            yield path, record
        if count != expected:
            more = "more" if count > expected else f"{count}"
            raise DataError(f"{path} holds {more} examples where {expected} are announced")


def _array_records(builder: Any, split: str, shard: int, path: Path) -> Iterator[bytes]:
    import tensorflow_datasets as tfds

    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    try:
        source = builder.as_data_source(f"{split}[{shard}shard]", deserialize_method=raw)
        for start in range(0, len(source), 1024):
            stop = min(start + 1024, len(source))
            yield from source.__getitems__(list(range(start, stop)))
    except (RuntimeError, IndexError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except ImportError as error:
        raise DataError(f"{path} needs the package array_record: {error}") from error


def _leave_gpu() -> None:
    """Keep TensorFlow, where something has imported it, from taking the memory of the GPU."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        with contextlib.suppress(RuntimeError):  # in use already: then its user has decided
            tensorflow.config.set_visible_devices([], "GPU")


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _versions(root: Path) -> list[Path]:
    """The version directories, oldest first."""
    versions = [path for path in _folders(root) if _VERSION.fullmatch(path.name)]
    return sorted(versions, key=lambda path: [int(part) for part in path.name.split(".")])
