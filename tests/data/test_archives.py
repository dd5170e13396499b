"""The official archives, as their publishers pack them."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.data import archives
from tests.data import formats

DEBIAN = Path("/usr/share/datasets")  # package dataset-fashion-mnist

CIFAR = {
    "cifar10": [formats.random_examples(i, n, (32, 32, 3), 10) for i, n in enumerate((12, 4))],
    "cifar100": [formats.random_examples(i, n, (32, 32, 3), 100) for i, n in enumerate((7, 3))],
}
FASHION = [formats.random_examples(i, n, (28, 28, 1), 10) for i, n in enumerate((9, 4))]


def load(name, folder):
    return data.load(name, data_dir=folder, verify=False, download=False)


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize("place", [".", "own"])
def test_cifar_is_read_in_the_order_of_the_archive(tmp_path, name, place):
    train, test = CIFAR[name]
    formats.write_cifar(
        tmp_path / (name if place == "own" else ""), *CIFAR[name], fine="00" in name
    )
    dataset = load(name, tmp_path)
    assert dataset.num_classes == (100 if name == "cifar100" else 10)
    np.testing.assert_array_equal(dataset.train_images, train.images)
    np.testing.assert_array_equal(dataset.train_labels, train.labels)  # the fine ones
    np.testing.assert_array_equal(dataset.test_images, test.images)
    np.testing.assert_array_equal(dataset.test_labels, test.labels)
    assert dataset.mean == pytest.approx(train.images.mean((0, 1, 2)))
    assert dataset.std == pytest.approx(train.images.std((0, 1, 2)))


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize("place", ["fashion_mnist", "fashion-mnist", "."])
def test_idx_files_have_an_order_of_their_own(tmp_path, packed, place):
    formats.write_idx(tmp_path / place, *FASHION, packed=packed)
    dataset = load("fashion_mnist", tmp_path)
    for images, labels, want in (
        (dataset.train_images, dataset.train_labels, FASHION[0]),
        (dataset.test_images, dataset.test_labels, FASHION[1]),
    ):
        got = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
        assert got == {i.tobytes(): label for i, label in zip(*want, strict=True)}
        assert images.shape == want.images.shape
    # Written in another order, they come back in the same one.
    turned = [formats.Examples(images[::-1], labels[::-1]) for images, labels in FASHION]
    formats.write_idx(tmp_path / "turned", *turned, packed=packed)
    again = load("fashion_mnist", tmp_path / "turned")
    np.testing.assert_array_equal(again.train_images, dataset.train_images)
    np.testing.assert_array_equal(again.train_labels, dataset.train_labels)


def test_another_archive_than_the_official_one_is_refused(tmp_path):
    cifar = formats.write_cifar(tmp_path, *CIFAR["cifar10"], fine=False)
    with pytest.raises(data.DataError, match=rf"{cifar} is incomplete or not the official file"):
        data.load("cifar10", data_dir=tmp_path, download=False)
    for packed in (True, False):
        first = formats.write_idx(tmp_path / str(packed), *FASHION, packed=packed)[0]
        with pytest.raises(data.DataError, match=rf"{first} is incomplete or not"):
            data.load("fashion_mnist", data_dir=tmp_path / str(packed), download=False)


@pytest.mark.skipif(not (DEBIAN / "fashion-mnist").is_dir(), reason="package not installed")
def test_debian_packs_the_official_fashion_mnist():
    dataset = data.load("fashion_mnist", data_dir=DEBIAN)
    assert dataset.train_images.shape == (60000, 28, 28, 1)
    assert dataset.test_images.shape == (10000, 28, 28, 1)
    assert (np.bincount(dataset.train_labels) == 6000).all()
    # The mean and deviation that others quote for pixels from 0 to 1.
    assert dataset.mean[0] / 255 == pytest.approx(0.2860, abs=5e-5)
    assert dataset.std[0] / 255 == pytest.approx(0.3530, abs=5e-5)


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.6, 0.999])
def test_a_torn_cifar_archive_is_named(tmp_path, kept):
    path = formats.write_cifar(tmp_path, *CIFAR["cifar10"], fine=False)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(data.DataError, match=rf"{path} "):
        load("cifar10", tmp_path)
    with pytest.raises(data.DataError, match=f"{path} is incomplete or not the official"):
        data.load("cifar10", data_dir=tmp_path, download=False)


def test_a_cifar_archive_with_other_content_is_named(tmp_path):
    path = tmp_path / "cifar-100-binary.tar.gz"
    formats.write_tar(path, {"cifar-100-binary/train.bin": bytes(3074)})
    train, test = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
    with pytest.raises(data.DataError, match=rf"{path} holds no {test}"):
        load("cifar100", tmp_path)
    formats.write_tar(path, {train: bytes(3074), test: bytes(3073)})
    with pytest.raises(data.DataError, match=rf"test.bin in {path} is not made of records of 3074"):
        load("cifar100", tmp_path)
    # Only the exact names count, wherever else a file of that name lies.
    formats.write_tar(path, {train: bytes(3074), "a/test.bin": bytes(3074)})
    with pytest.raises(data.DataError, match=rf"{path} holds no {test}"):
        load("cifar100", tmp_path)
    path.write_bytes(b"<html>not here</html>")
    with pytest.raises(data.DataError, match=f"{path} cannot be read"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize("kind", ["twice", "link", "huge member", "huge header", "huge idx"])
def test_a_crafted_archive_is_refused_at_a_bounded_size(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(archives, "_LARGEST_TAR", 100_000)
    monkeypatch.setattr(archives, "_LARGEST_IDX", 100_000)
    if kind == "huge idx":
        paths = formats.write_idx(tmp_path, *FASHION)
        header = struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 1)
        paths[0].write_bytes(gzip.compress(header + bytes(10_000_000)))
        with pytest.raises(data.DataError, match=f"{paths[0]} unfolds to more than 100,000 bytes"):
            load("fashion_mnist", tmp_path)
        return
    path, raw = tmp_path / "cifar-100-binary.tar.gz", io.BytesIO()
    train, test = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:

        def add(name, content=bytes(3074), **fields):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))

        add(train)
        if kind == "huge header":  # tarfile itself reads such a name into memory
            add("x" * 10_000_000)
        if kind == "huge member":
            add("cifar-100-binary/readme.html", bytes(10_000_000))
        if kind == "link":
            add(test, b"", type=tarfile.SYMTYPE, linkname=train)
        else:
            add(test)
        if kind == "twice":
            add(train, bytes(2 * 3074))
    path.write_bytes(formats.pack(raw.getvalue()))
    message = {"twice": f"holds {train} twice", "link": f"holds no {test}"}
    message = message.get(kind, "unfolds to more than 100,000 bytes")
    with pytest.raises(data.DataError, match=f"{path} {message}"):
        load("cifar100", tmp_path)


def test_labels_outside_the_classes_are_found_on_opening(tmp_path):
    train, test = CIFAR["cifar10"]
    labels = train.labels.copy()
    labels[4] = 57
    formats.write_cifar(tmp_path, formats.Examples(train.images, labels), test, fine=False)
    with pytest.raises(ValueError, match=r"label 57 >= 10 classes \(train example 4\)"):
        load("cifar10", tmp_path)


def test_a_damaged_idx_file_is_named(tmp_path):
    paths = formats.write_idx(tmp_path, *FASHION)
    whole = paths[0].read_bytes()
    for content in (whole[:-9], whole[:50], b"", gzip.compress(gzip.decompress(whole)[:-1])):
        paths[0].write_bytes(content)
        with pytest.raises(data.DataError, match=f"{paths[0]} "):
            load("fashion_mnist", tmp_path)
    paths[0].write_bytes(gzip.compress(formats.idx(FASHION[0].images[:-1, ..., 0])))
    with pytest.raises(data.DataError, match=f"{paths[0]} has 8 images, but 9 labels"):
        load("fashion_mnist", tmp_path)
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(data.DataError, match=f"{paths[0]} is no IDX file of bytes with 3 axes"):
        load("fashion_mnist", tmp_path)


def test_a_missing_idx_file_is_named(tmp_path):
    for path in formats.write_idx(tmp_path, *FASHION)[1:3]:
        path.unlink()
    missing = "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz"
    with pytest.raises(data.DataNotFoundError, match=f"{tmp_path} holds only.* lacks {missing}"):
        load("fashion_mnist", tmp_path)


def test_every_archive_has_its_own_checksum():
    sums = [archive.sha256 for source in archives.SOURCES.values() for archive in source.archives]
    assert len(set(sums)) == len(sums) == 6
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in sums)
