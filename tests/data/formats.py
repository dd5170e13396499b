"""Small datasets in the real formats of the big ones."""

import gzip
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from lorentz_jax.data.tfrecord import masked_crc


class Examples(NamedTuple):
    """Images uint8 `(N, height, width, channels)` and labels `(N,)`."""

    images: np.ndarray
    labels: np.ndarray


def random_examples(seed: int, count: int, shape: tuple[int, ...], num_classes: int) -> Examples:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return Examples(images, rng.integers(0, num_classes, count))


def write_cifar(folder: Path, train: Examples, test: Examples, *, fine: bool) -> Path:
    """A binary tar.gz of CIFAR-100 (`fine`) or CIFAR-10, whose training set is in five files."""
    if fine:
        name, prefix = "cifar-100-binary.tar.gz", "cifar-100-binary"
        files = {"train.bin": train, "test.bin": test}
    else:
        name, prefix = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
        files = {"test_batch.bin": test}
        for i, rows in enumerate(np.array_split(np.arange(len(train.labels)), 5)):
            files[f"data_batch_{i + 1}.bin"] = Examples(train.images[rows], train.labels[rows])
    members = {file: cifar_records(examples, fine) for file, examples in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    return write_tar(folder / name, {f"{prefix}/{file}": data for file, data in members.items()})


def cifar_records(examples: Examples, fine: bool) -> bytes:
    records = []
    for image, label in zip(*examples, strict=True):
        labels = [label // 5, label] if fine else [label]  # the coarse label comes first
        records.append(bytes(labels) + image.transpose(2, 0, 1).tobytes())
    return b"".join(records)


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    path.write_bytes(pack(whole.getvalue()))
    return path


def pack(content: bytes) -> bytes:
    """Compressed without the time, so that a file written twice has one checksum."""
    return gzip.compress(content, mtime=0)


def write_idx(folder: Path, train: Examples, test: Examples, *, packed: bool = True) -> list[Path]:
    """The four IDX files of a greyscale dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for prefix, (images, labels) in (("train", train), ("t10k", test)):
        for name, array in (
            (f"{prefix}-images-idx3-ubyte", images[..., 0]),
            (f"{prefix}-labels-idx1-ubyte", labels.astype(np.uint8)),
        ):
            content = idx(array)
            paths.append(folder / (f"{name}.gz" if packed else name))
            paths[-1].write_bytes(pack(content) if packed else content)
    return paths


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def encode(image: np.ndarray, kind: str = "PNG") -> bytes:
    """A PNG or JPEG file of the image."""
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, kind)
    return buffer.getvalue()


def write_tfds(
    data_dir: Path,
    name: str,
    splits: dict[str, list[dict]],
    features: dict,
    *,
    file_format: str = "array_record",
    shards: int = 1,
    version: str = "3.0.2",
) -> Path:
    """A directory of tensorflow-datasets, by its own writer; returns it.

    That writer needs TensorFlow for TFRECORD files, so for these its records are packed again.
    """
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    attributes = {
        "name": name,
        "VERSION": tfds.core.Version(version),
        "_info": lambda self: tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        ),
        "_split_generators": lambda self, manager: {
            split: self._generate_examples(examples) for split, examples in splits.items()
        },
        "_generate_examples": lambda self, examples: enumerate(examples),
    }
    base = tfds.core.GeneratorBasedBuilder
    builder = type("Builder", (base,), attributes, skip_registration=True)(
        data_dir=data_dir, file_format="array_record"
    )
    config = tfds.download.DownloadConfig(num_shards=shards)
    builder.download_and_prepare(download_config=config)
    directory = Path(builder.data_dir)
    if file_format == "tfrecord":
        to_tfrecord(directory)
    return directory


def to_tfrecord(directory: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordReader

    for path in directory.glob("*.array_record-*"):
        reader = ArrayRecordReader(str(path))
        records = [frame(reader.read([i])[0]) for i in range(reader.num_records())]
        reader.close()
        new = path.with_name(path.name.replace("array_record", "tfrecord"))
        new.write_bytes(b"".join(records))
        path.unlink()
    edit_info(directory, fileFormat="tfrecord")


def frame(record: bytes) -> bytes:
    """A record as it stands in a TFRECORD file."""
    length = struct.pack("<Q", len(record))
    checksums = [struct.pack("<I", masked_crc(part)) for part in (length, record)]
    return length + checksums[0] + record + checksums[1]


def edit_info(directory: Path, **changes) -> None:
    path = directory / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def tfds_examples(examples: Examples, prefix: str | None = None) -> list[dict]:
    """The examples as a generator of tensorflow-datasets gives them, with ids or without."""
    rows = []
    for i, (image, label) in enumerate(zip(*examples, strict=True)):
        rows.append({"image": io.BytesIO(encode(image)), "label": int(label)})
        if prefix is not None:
            rows[-1]["id"] = f"{prefix}_{i:05d}"
    return rows


def image_features(shape: tuple[int | None, ...], num_classes: int, *, ids: bool = False) -> dict:
    import tensorflow_datasets as tfds

    return {
        "image": tfds.features.Image(shape=shape),
        "label": tfds.features.ClassLabel(num_classes=num_classes),
        **({"id": tfds.features.Text()} if ids else {}),
    }
