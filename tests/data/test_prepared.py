"""Directories of tensorflow-datasets, read without TensorFlow."""

import io
import json
import shutil
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from lorentz_jax import data
from lorentz_jax.data import prepared
from lorentz_jax.data.tfrecord import masked_crc
from tests.data import formats

GOLDEN = Path(__file__).parents[1] / "golden" / "prepared"
FORMATS = ["array_record", "tfrecord"]


@pytest.fixture
def toy(tmp_path):
    """A copy of the golden directory that a test may damage."""
    return Path(shutil.copytree(GOLDEN / "toy" / "1.0.0", tmp_path / "toy" / "1.0.0"))


def load(directory):
    return data.load("toy", data_dir=directory.parent.parent)


def small(shape=(5, 7, 1), counts=(6, 3), num_classes=4):
    return [formats.random_examples(i, n, shape, num_classes) for i, n in enumerate(counts)]


def write(folder, train, test, *, ids=True, shape=(5, 7, 1), test_name="test", **options):
    splits = {
        "train": formats.tfds_examples(train, "train" if ids else None),
        test_name: formats.tfds_examples(test, "test" if ids else None),
    }
    features = formats.image_features(shape, 4, ids=ids)
    return formats.write_tfds(folder, "toy", splits, features, **options)


def test_a_directory_written_with_tensorflow_is_read_without_it():
    dataset = data.load("toy", data_dir=GOLDEN)
    ramp = np.arange(72).reshape(4, 6, 3)
    np.testing.assert_array_equal(dataset.train_images, [ramp + 10 * i for i in range(8)])
    np.testing.assert_array_equal(dataset.test_images, [ramp + 10 * i for i in range(3)])
    np.testing.assert_array_equal(dataset.train_labels, np.arange(8) % 3)
    np.testing.assert_array_equal(dataset.test_labels, np.arange(3))
    assert dataset.num_classes == 3
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no-ids"])
def test_both_formats_hold_the_same(tmp_path, file_format, ids):
    train, test = small()
    directory = write(tmp_path, train, test, ids=ids, file_format=file_format, shards=2)
    assert len(list(directory.glob(f"toy-train.{file_format}-*-of-00002"))) == 2
    dataset = load(directory)
    if ids:
        np.testing.assert_array_equal(dataset.train_images, train.images)
        np.testing.assert_array_equal(dataset.train_labels, train.labels)
        np.testing.assert_array_equal(dataset.test_images, test.images)
    else:  # the order of `in_order`, whatever the order of writing
        turned = [formats.Examples(images[::-1], labels[::-1]) for images, labels in (train, test)]
        again = load(write(tmp_path / "turned", *turned, ids=False))
        np.testing.assert_array_equal(dataset.train_images, again.train_images)
        np.testing.assert_array_equal(dataset.train_labels, again.train_labels)
        want = {i.tobytes(): label for i, label in zip(*train, strict=True)}
        got = zip(dataset.train_images, dataset.train_labels, strict=True)
        assert {image.tobytes(): label for image, label in got} == want


def test_equal_ids_are_no_order(tmp_path):
    train, test = small()
    rows = formats.tfds_examples(train, "train")
    for row in rows:
        row["id"] = "same"
    splits = {"train": rows, "test": formats.tfds_examples(test, "test")}
    features = formats.image_features((5, 7, 1), 4, ids=True)
    same = load(formats.write_tfds(tmp_path / "same", "toy", splits, features))
    none = load(write(tmp_path / "none", train, test, ids=False))
    np.testing.assert_array_equal(same.train_images, none.train_images)


def test_the_newest_version_is_taken_unless_one_is_asked_for(tmp_path):
    train, test = small()
    for count, version in ((2, "3.0.9"), (4, "3.0.10"), (3, "2.9.9")):
        some = formats.Examples(train.images[:count], train.labels[:count])
        write(tmp_path, some, test, version=version)
    assert len(data.load("toy", data_dir=tmp_path).train_labels) == 4
    assert len(data.load("toy:3.0.9", data_dir=tmp_path).train_labels) == 2
    with pytest.raises(ValueError, match=r"unknown dataset 'toy:1.0.0'.*prepared in"):
        data.load("toy:1.0.0", data_dir=tmp_path)


def test_configurations_are_told_apart(toy):
    root = toy.parent
    (root / "plain").mkdir()
    toy.rename(root / "plain" / "1.0.0")
    assert len(data.load("toy", data_dir=root.parent).train_labels) == 8  # there is only this one
    shutil.copytree(root / "plain", root / "other")
    with pytest.raises(ValueError, match="choose one of toy/other, toy/plain"):
        data.load("toy", data_dir=root.parent)
    assert len(data.load("toy/other", data_dir=root.parent).train_labels) == 8
    assert len(data.load("toy/other:1.0.0", data_dir=root.parent).train_labels) == 8
    assert prepared.find(root.parent, "../toy") is None
    assert prepared.find(root.parent, "toy/../toy") is None


def test_the_validation_split_stands_in_for_a_missing_test_split(tmp_path):
    train, test = small()
    dataset = load(write(tmp_path, train, test, test_name="validation"))
    np.testing.assert_array_equal(dataset.test_images, test.images)
    directory = write(tmp_path / "extra", train, test, test_name="extra")
    with pytest.raises(ValueError, match=r"split test or validation, it has train, extra"):
        load(directory)


def test_images_of_another_mode_are_converted(tmp_path):
    """A greyscale JPEG or a palette among colour images, as collections from the web have them."""
    grey = np.full((8, 8, 1), 200, np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), (9, 90, 190), np.uint8)).quantize(4).save(buffer, "PNG")
    files = [formats.encode(grey, "JPEG"), buffer.getvalue()]
    rows = [{"image": io.BytesIO(file), "label": i} for i, file in enumerate(files)]
    features = formats.image_features((None, None, 3), 4)
    test = [{**row, "image": io.BytesIO(row["image"].getvalue())} for row in rows]
    dataset = load(formats.write_tfds(tmp_path, "toy", {"train": rows, "test": test}, features))
    by_label = dataset.train_images[np.argsort(dataset.train_labels)]
    np.testing.assert_allclose(by_label[0], 200, atol=1)
    assert (by_label[1] == (9, 90, 190)).all()


def test_images_of_several_sizes_are_refused(tmp_path):
    rows = [
        {"image": io.BytesIO(formats.encode(np.zeros((4, size, 3), np.uint8))), "label": 0}
        for size in (4, 5)
    ]
    test = formats.tfds_examples(small((4, 4, 3))[1])
    features = formats.image_features((None, None, 3), 4)
    directory = formats.write_tfds(tmp_path, "toy", {"train": rows, "test": test}, features)
    with pytest.raises(ValueError, match="images of several sizes"):
        load(directory)


def edit_features(directory, edit):
    path = directory / "features.json"
    content = json.loads(path.read_text())
    edit(content["featuresDict"]["features"])
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("message", "edit"),
    [
        ("it has id, label, picture", lambda f: f.update(picture=f.pop("image"))),
        ("it has id, image, label", lambda f: f.update(label=f["id"])),
        ("it has uint16 images", lambda f: f["image"]["image"].update(dtype="uint16")),
        (r"images of shape \(4, 6, None\)",
         lambda f: f["image"]["image"]["shape"]["dimensions"].__setitem__(2, "-1")),
        ("does not say how many classes", lambda f: f["label"]["classLabel"].clear()),
    ],
)  # fmt: skip
def test_other_kinds_of_dataset_are_refused(toy, message, edit):
    edit_features(toy, edit)
    with pytest.raises(ValueError, match=rf"{toy} .*{message}"):
        load(toy)


def test_a_directory_that_was_never_finished_is_named(toy):
    torn = toy.rename(toy.with_name("incomplete.ABCDEF_1.0.0"))
    with pytest.raises(data.DataError, match=f"{torn} was never finished"):
        load(toy)
    # Another one, complete, may be in preparation beside it.
    shutil.copytree(GOLDEN / "toy" / "1.0.0", toy)
    assert len(load(toy).train_labels) == 8


@pytest.mark.parametrize(
    "file", ["dataset_info.json", "features.json", "toy-train.tfrecord-00001-of-00002"]
)
def test_a_missing_file_is_named(toy, file):
    (toy / file).unlink()
    with pytest.raises(data.DataError, match=f"{toy} is incomplete: it holds no {file}"):
        load(toy)


@pytest.mark.parametrize("place", ["root", "feature", "old root", "old feature", "other spelling"])
def test_no_class_outside_tensorflow_datasets_is_imported(toy, tmp_path, monkeypatch, place):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "crafted.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    content = json.loads((toy / "features.json").read_text())
    old = {"type": "crafted.Feature", "content": {}}
    features = content["featuresDict"]["features"]
    if place == "root":
        content["pythonClassName"] = "crafted.Feature"
    elif place == "feature":
        features["id"]["pythonClassName"] = "crafted.Feature"
    elif place == "old root":
        content = old
    elif place == "old feature":  # JSON inside of a string of JSON
        del content["featuresDict"]
        content["jsonFeature"] = {"json": json.dumps({"id": old})}
    else:
        del features["id"]["pythonClassName"]
        features["id"]["python_class_name"] = "crafted.Feature"
    (toy / "features.json").write_text(json.dumps(content))
    with pytest.raises(
        data.DataError, match=r"features\.json names 'crafted\.Feature', no feature"
    ):
        load(toy)


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}'])
def test_a_torn_description_is_named(toy, file, content):
    (toy / file).write_text(content)
    with pytest.raises((data.DataError, ValueError), match=str(toy)):
        load(toy)


def test_every_cut_of_a_tfrecord_file_is_noticed(toy):
    path = toy / "toy-train.tfrecord-00000-of-00002"
    whole = path.read_bytes()
    for size in (0, 1, 11, 12, 80, len(whole) // 2, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(data.DataError, match=f"{path} (ends in|holds 0|holds 2)"):
            load(toy)
    path.write_bytes(whole * 2)
    with pytest.raises(data.DataError, match=f"{path} holds more examples where 4 are announced"):
        load(toy)


@pytest.mark.parametrize("position", [0, 7, 8, 40, -1])
def test_every_flipped_bit_of_a_tfrecord_file_is_noticed(toy, position):
    path = toy / "toy-train.tfrecord-00000-of-00002"
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(data.DataError, match=f"{path} is damaged at byte"):
        load(toy)


def test_a_crafted_length_in_a_tfrecord_file_takes_no_memory(toy):
    path = toy / "toy-train.tfrecord-00000-of-00002"
    length = struct.pack("<Q", 2**62)
    path.write_bytes(length + struct.pack("<I", masked_crc(length)) + bytes(100))
    with pytest.raises(data.DataError, match=f"{path} ends in the middle of the record at byte 0"):
        load(toy)


def test_the_checksum_is_that_of_the_format():
    # CRC-32C of these digits is 0xE3069283 in every catalogue of checksums.
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "zeros"])
def test_a_damaged_array_record_file_is_named(tmp_path, damage):
    directory = write(tmp_path, *small((32, 32, 3)), shape=(32, 32, 3), shards=2)
    path = directory / "toy-train.array_record-00001-of-00002"
    whole = bytearray(path.read_bytes())
    if damage == "flip":
        whole[300] ^= 4
    contents = {"cut": whole[:-20], "empty": b"", "flip": whole, "zeros": bytes(len(whole))}
    path.write_bytes(bytes(contents[damage]))
    with pytest.raises(data.DataError, match=f"{path} cannot be read"):
        load(directory)


def test_an_example_that_is_no_image_is_named(toy):
    path = toy / "toy-test.tfrecord-00001-of-00002"
    for record in (b"no example", b""):
        path.write_bytes(formats.frame(record))
        with pytest.raises(data.DataError, match=f"{path} holds an example that cannot be decoded"):
            load(toy)


def test_formats_that_need_tensorflow_are_refused(toy):
    formats.edit_info(toy, fileFormat="riegeli")
    with pytest.raises(ValueError, match="riegeli; array_record and tfrecord can be read"):
        load(toy)


def test_labels_outside_the_classes_are_found_on_opening(toy):
    edit_features(toy, lambda f: f["label"]["classLabel"].update(numClasses="2"))
    with pytest.raises(ValueError, match=r"label 2 >= 2 classes \(train example 2\)"):
        load(toy)


@pytest.mark.parametrize("busy", [False, True])
def test_tensorflow_is_kept_from_the_gpu_where_it_is_imported(monkeypatch, busy):
    calls = []

    def set_visible_devices(devices, kind):
        calls.append((devices, kind))
        if busy:
            raise RuntimeError("Visible devices cannot be modified after being initialized")

    config = SimpleNamespace(set_visible_devices=set_visible_devices)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    assert len(data.load("toy", data_dir=GOLDEN).train_labels) == 8
    assert calls == [([], "GPU")]
