"""Directories that tensorflow-datasets prepared, read without TensorFlow."""

import contextlib
import io
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lorentz_jax.data.dataset import DataError, Split, Splits, in_order

_NAME = re.compile(r"(?P<name>\w+)(?:/(?P<config>\w[\w.+-]*))?(?::(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # Pillow's names by number of channels
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


def read(directory: Path) -> Splits:
    """Read a prepared image-classification dataset with the features `image` and `label`.

    The test split is `test` or, where there is none, `validation`. Examples are sorted by the
    feature `id` where there is one, else as `in_order` does.

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
    train_split, test_split = _read_split(builder, "train"), _read_split(builder, test)
    return Splits(train_split, test_split, info.features["label"].num_classes)


def _open(directory: Path) -> Any:
    """Return the builder of tensorflow-datasets that knows what is in the directory."""
    for file in ("dataset_info.json", "features.json"):
        if not (directory / file).is_file():
            raise DataError(f"{directory} is incomplete: it holds no {file}")
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
    if dtype != np.uint8 or shape[-1] not in _MODES:
        raise ValueError(
            f"{directory} needs uint8 images of 1 to 4 channels, "
            f"it has {dtype} images of shape {shape}"
        )
    if not names["label"].num_classes:
        raise ValueError(f"{directory} does not say how many classes it has")


def _read_split(builder: Any, split: str) -> Split:
    """Read all examples of a split, decoded and in order."""
    import tensorflow_datasets as tfds

    info, images, ids = builder.info, None, []
    channels, count = info.features["image"].shape[-1], info.splits[split].num_examples
    labels = np.empty(count, np.int32)
    # Only these are parsed, whatever else an example holds.
    keys = [key for key in ("id", "image", "label") if key in info.features]
    features = tfds.features.FeaturesDict({key: info.features[key] for key in keys})
    packed = {"image": tfds.decode.SkipDecoding()}
    for i, (path, record) in enumerate(_records(builder, split)):
        try:
            example: Any = features.deserialize_example_np(record, decoders=packed)
            image = _decode(example["image"], channels)
        except Exception as error:  # of whatever kind the parsers of examples and images have
            raise DataError(f"{path} holds an example that cannot be decoded: {error}") from error
        if images is None:
            images = np.empty((count, *image.shape), np.uint8)
        if image.shape != images.shape[1:]:
            raise ValueError(
                f"{builder.data_dir} holds images of several sizes, {images.shape[1:]} and "
                f"{image.shape}: they must be resized to one"
            )
        images[i], labels[i] = image, example["label"]
        ids.append(example.get("id"))
    if images is None:
        raise DataError(f"{builder.data_dir} holds no example of the split {split}")
    return in_order(Split(images, labels), np.array(ids) if "id" in keys else None)


def _records(builder: Any, split: str) -> Iterator[tuple[Path, bytes]]:
    """Yield every serialised example of a split, with the path of its file.

    Raises:
        DataError: a missing or damaged file, or one with another number of examples than announced.
    """
    import tensorflow_datasets as tfds

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
        if file_format == "tfrecord":
            records: Any = read_tfrecord(path)
        else:
            raw = tfds.decode.DeserializeMethod.RAW_BYTES
            try:
                source = builder.as_data_source(f"{split}[{i}shard]", deserialize_method=raw)
                records = source.__getitems__(list(range(len(source))))
            except (RuntimeError, IndexError) as error:
                raise DataError(f"{path} cannot be read: {error}") from error
            except ImportError as error:
                raise DataError(f"{path} needs the package array_record: {error}") from error
        for record in records:
            count += 1
            if count > expected:
                break
            yield path, record
        if count != expected:
            more = "more" if count > expected else f"{count}"
            raise DataError(f"{path} holds {more} examples where {expected} are announced")


def _decode(content: bytes, channels: int) -> np.ndarray:
    """Decode a PNG or JPEG image to uint8 `(height, width, channels)`."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert(_MODES[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


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


# --- TFRECORD files -------------------------------------------------------------------------

_HEADER = struct.Struct("<QI")  # length, its checksum
_FOOTER = struct.Struct("<I")  # checksum of the record
_MASK_DELTA = 0xA282EAD8


def read_tfrecord(path: Path) -> Iterator[bytes]:
    """Yield the records of a TFRECORD file, with their checksums verified.

    Raises:
        DataError: the file is torn or altered.
    """
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            position = file.tell() - len(header)
            if len(header) < _HEADER.size:
                raise DataError(f"{path} ends in the middle of the record at byte {position}")
            length, checksum = _HEADER.unpack(header)
            if masked_crc(header[:8]) != checksum:
                raise DataError(f"{path} is damaged at byte {position}: wrong checksum of a length")
            record, footer = file.read(length), file.read(_FOOTER.size)
            if len(record) < length or len(footer) < _FOOTER.size:
                raise DataError(f"{path} ends in the middle of the record at byte {position}")
            if masked_crc(record) != _FOOTER.unpack(footer)[0]:
                raise DataError(f"{path} is damaged at byte {position}: wrong checksum of a record")
            yield record


def masked_crc(content: bytes) -> int:
    """Return the format's checksum: CRC-32C, rotated by 15 bits, plus a constant."""
    import google_crc32c

    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
