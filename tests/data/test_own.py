"""A user's own data: arrays, npz files and folders of images."""

import dataclasses
import io
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lorentz_jax import data
from lorentz_jax.data import arrays, images, own
from tests.data import formats

RNG = np.random.default_rng(0)
SPLITS = ("train_images", "train_labels", "test_images", "test_labels")


def pixels(count, *shape):
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def same(first, second):
    for field in SPLITS:
        np.testing.assert_array_equal(
            np.asarray(getattr(first, field)), np.asarray(getattr(second, field)), err_msg=field
        )
    assert (first.mean, first.std, first.classes) == (second.mean, second.std, second.classes)
    assert first.fingerprint == second.fingerprint


# --- arrays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "stored"), [((6, 9), (6, 9, 1)), ((7, 5, 1), (7, 5, 1)), ((4, 8, 3), (4, 8, 3))]
)
def test_arrays_of_any_size_keep_their_pixels(shape, stored):
    train, test, labels = pixels(10, *shape), pixels(4, *shape), np.arange(10) % 2
    made = data.Dataset.from_arrays(
        train, labels, test, labels[:4], name="mine", classes=("a", "b")
    )
    assert made.train_images.shape == (10, *stored)
    np.testing.assert_array_equal(made.train_images.reshape(train.shape), train)
    np.testing.assert_array_equal(made.test_images.reshape(test.shape), test)
    np.testing.assert_array_equal(made.train_labels, labels)
    assert made.train_labels.dtype == np.int32
    assert (made.num_classes, made.classes, made.name) == (2, ("a", "b"), "mine")
    axes = (0, 1, 2)
    np.testing.assert_allclose(made.mean, made.train_images.mean(axes))
    np.testing.assert_allclose(made.std, made.train_images.std(axes))


def test_floats_are_scaled_and_rounded():
    for dtype in (np.float16, np.float32, np.float64):
        images = np.array([0, 0.5, 0.25, 1], dtype).reshape(4, 1, 1).repeat(2, 1)
        made = data.Dataset.from_arrays(images, [0, 1, 0, 1], images, [0, 1, 0, 1], name="f")
        assert made.train_images[:, 0, 0, 0].tolist() == [0, 128, 64, 255]


def test_a_test_set_is_drawn_from_every_class_the_same_for_every_seed():
    labels = np.repeat(np.arange(4), (50, 20, 2, 1))
    images = pixels(len(labels), 3, 3)
    made = data.Dataset.from_arrays(images, labels, name="mine")
    assert np.bincount(made.test_labels, minlength=4).tolist() == [10, 4, 1, 0]
    assert np.bincount(made.train_labels).tolist() == [40, 16, 1, 1]
    both = np.concatenate([made.train_images, made.test_images])
    assert {x.tobytes() for x in both} == {x.tobytes() for x in images}
    same(made, data.Dataset.from_arrays(images, labels, name="again"))
    # Written down once, so that no new version moves an image from training to test unseen.
    assert arrays.stratified_split(labels)[1].tolist() == [
        2, 3, 4, 18, 20, 23, 24, 26, 34, 36, 50, 56, 58, 69, 70
    ]  # fmt: skip


def test_a_constant_channel_is_no_division_by_zero():
    images = pixels(8, 4, 4, 3)
    images[..., 1] = 7
    made = data.Dataset.from_arrays(images, np.arange(8) % 2, name="mine")
    assert (made.mean[1], made.std[1]) == (7, 1)
    with pytest.raises(ValueError, match="all training pixels of mine are equal"):
        data.Dataset.from_arrays(np.zeros_like(images), np.arange(8) % 2, name="mine")


GOOD = {
    "train_images": pixels(6, 4, 5, 3), "train_labels": np.arange(6) % 3,
    "test_images": pixels(3, 4, 5, 3), "test_labels": np.arange(3), "name": "mine",
}  # fmt: skip
NAN = np.full((6, 4, 5, 3), 0.5)
NAN[4, 1, 1, 1] = np.nan


@pytest.mark.parametrize(
    ("kind", "message", "changes"),
    [
        (TypeError, r"uint8, or floats in \[0, 1\], got int64",
         {"train_images": np.ones((6, 4, 5), int)}),
        (TypeError, "test images must be uint8", {"test_images": np.ones((3, 4, 5, 3), bool)}),
        (ValueError, r"floats from 0 to 255, expected \[0, 1\]",
         {"train_images": np.linspace(0, 255, 360).reshape(6, 4, 5, 3)}),
        (ValueError, "train image 4 holds NaN", {"train_images": NAN}),
        (ValueError, r"train images must be \(N, height, width\)", {"train_images": pixels(6, 4)}),
        (ValueError, "channels first", {"train_images": pixels(6, 3, 32, 32)}),
        (ValueError, "no array, of one size each",
         {"train_images": [np.ones((2, 2)), np.ones((3, 2))]}),
        (ValueError, r"train images are \(4, 5, 3\), test images \(4, 4, 3\)",
         {"test_images": pixels(3, 4, 4, 3)}),
        (TypeError, "train labels must be whole numbers, got float64",
         {"train_labels": np.ones(6)}),
        (ValueError, r"one for each of 6 images, got \(5,\)", {"train_labels": np.arange(5)}),
        (ValueError, "count from 0, got -1 to 2", {"train_labels": np.arange(6) % 4 - 1}),
        (ValueError, "mine has no training image of class 1; labels count from 0 to 2",
         {"train_labels": np.array([0, 2] * 3)}),
        (ValueError, "no training image of class 3",
         {"train_labels": np.array([0, 1, 2, 0, 2, 2**31 - 1])}),
        (ValueError, r"no training image of class 2 \(c\)",
         {"train_labels": np.arange(6) % 2, "classes": "abc"}),
        (ValueError, "label 2 >= 2 classes", {"train_labels": np.arange(6) % 3, "classes": "ab"}),
        (ValueError, "label 5 >= 2 classes", {"train_labels": np.array([0, 5] * 3),
         "classes": "ab"}),
        (ValueError, r"label 3 >= 3 classes \(test example 1\)",
         {"test_labels": np.array([0, 3, 1]), "classes": "abc"}),
        (ValueError, "at least 2 classes, it has 1",
         {"train_labels": np.zeros(6, int), "test_labels": np.zeros(3, int)}),
        (ValueError, "at least 2 classes, it has 0",
         {"train_images": pixels(0, 4, 5, 3), "train_labels": np.zeros(0, int),
          "test_images": None, "test_labels": None}),
        (ValueError, "classes must be different names", {"classes": "aba"}),
        (ValueError, "test_images and test_labels go together", {"test_labels": None}),
        (ValueError, "name must be a plain name, got 'a/b'", {"name": "a/b"}),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused_with_the_reason(kind, message, changes):
    with pytest.raises(kind, match=message):
        data.Dataset.from_arrays(**{**GOOD, **changes})


def test_the_fingerprint_knows_data_by_what_they_are():
    made = data.Dataset.from_arrays(**GOOD)
    renamed = data.Dataset.from_arrays(**{**GOOD, "name": "other"})
    assert made.fingerprint == renamed.fingerprint
    seen = {made.fingerprint}
    for field in SPLITS:
        changed = getattr(made, field).copy()
        changed.flat[-1] = (changed.flat[-1] + 1) % 3
        seen.add(dataclasses.replace(made, **{field: changed}).fingerprint)
    seen.add(dataclasses.replace(made, classes=("a", "b", "c")).fingerprint)
    seen.add(made.take(5).fingerprint)
    assert len(seen) == 7


# --- npz --------------------------------------------------------------------------------------


def test_an_npz_file_holds_the_same_arrays(tmp_path):
    given = {key: value for key, value in GOOD.items() if key != "name"}
    np.savez(tmp_path / "mine.npz", **given, classes=["a", "b", "c"], notes="more")
    np.savez_compressed(tmp_path / "packed.npz", **given, classes=["a", "b", "c"])
    expected = data.Dataset.from_arrays(**GOOD, classes=("a", "b", "c"))
    same(data.load(f"npz:{tmp_path}/mine.npz"), expected)
    same(data.load(f"npz:{tmp_path}/packed.npz"), expected)
    assert data.load(f"npz:{tmp_path}/mine.npz", limit=4).train_labels.tolist() == [0, 1, 2, 0]


def test_an_npz_file_that_is_none_is_named(tmp_path):
    path = tmp_path / "mine.npz"
    name = f"npz:{path}"
    with pytest.raises(data.DataNotFoundError, match=f"no file {path}"):
        data.load(name)
    np.save(tmp_path / "mine.npy", GOOD["train_images"])
    with pytest.raises(data.DataError, match=r"mine\.npy is no npz file"):
        data.load(f"npz:{tmp_path}/mine.npy")
    np.savez(path, images=GOOD["train_images"])
    with pytest.raises(ValueError, match=f"{path} needs train_images and train_labels, it has im"):
        data.load(name)
    objects = np.array([{"a": 1}] * 6, object)
    np.savez(path, train_images=GOOD["train_images"], train_labels=objects)
    with pytest.raises(data.DataError, match=f"{path} is no readable npz file: Object arrays"):
        data.load(name)
    np.savez(path, train_images=GOOD["train_images"], train_labels=np.ones(6))
    with pytest.raises(TypeError, match=f"{path}: train labels must be whole"):
        data.load(name)
    np.savez(path, train_images=GOOD["train_images"], train_labels=GOOD["train_labels"])
    with pytest.raises(ValueError, match="image_size is for folders"):
        data.load(name, image_size=(4, 4))
    whole = path.read_bytes()
    for position in range(0, len(whole), 37):  # a torn file is no other data
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(bytes(damaged))
        try:
            made = data.load(name)
        except (data.DataError, ValueError):
            continue
        np.testing.assert_array_equal(
            np.sort(np.concatenate([made.train_images, made.test_images]), axis=0),
            np.sort(GOOD["train_images"], axis=0),
        )


# --- folders ----------------------------------------------------------------------------------


def write(root, images, kind="PNG"):
    """Write `{"class/name": pixels}`."""
    for name, image in images.items():
        path = root / f"{name}.{kind.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(formats.encode(image, kind))
    return root


@pytest.fixture
def folder(tmp_path):
    images = {f"{c}/{i}": pixels(1, 6, 9, 3)[0] for c in ("dog", "cat", "ant") for i in range(10)}
    return write(tmp_path / "pets", images)


def test_a_folder_has_its_classes_in_order(folder):
    made = data.load(f"folder:{folder}")
    assert (made.name, made.classes) == ("pets", ("ant", "cat", "dog"))
    assert made.train_images.shape == (24, 6, 9, 3)
    assert made.test_images.shape == (6, 6, 9, 3)
    assert isinstance(made.train_images, np.ndarray)
    both = [*zip(made.train_images, made.train_labels, strict=True)]
    both += zip(made.test_images, made.test_labels, strict=True)
    for image, label in both:
        files = folder / made.classes[label]
        assert any((np.asarray(Image.open(f)) == image).all() for f in files.iterdir())
    # Mixed, so that a limit leaves images of every class.
    assert len(set(made.take(8).train_labels)) == 3


def test_a_folder_with_train_and_test_keeps_them_apart(tmp_path):
    for split, count in (("train", 6), ("test", 2)):
        write(
            tmp_path / split,
            {f"{c}/{i}": pixels(1, 4, 4, 1)[0] for c in "ab" for i in range(count)},
        )
    made = data.load(f"folder:{tmp_path}")
    assert (len(made.train_labels), len(made.test_labels), made.channels) == (12, 4, 1)
    test = {x.tobytes() for x in made.test_images}
    assert test == {np.asarray(Image.open(p)).tobytes() for p in tmp_path.glob("test/*/*")}
    (tmp_path / "test").rename(tmp_path / "val")
    same(data.load(f"folder:{tmp_path}", memory=10**9).in_memory(), data.load(f"folder:{tmp_path}"))
    write(tmp_path / "val", {"c/0": pixels(1, 4, 4, 1)[0]})
    with pytest.raises(ValueError, match=r"val holds the class c, train does not"):
        data.load(f"folder:{tmp_path}")


def test_images_of_any_size_and_mode_are_brought_to_one(tmp_path):
    """Half of each image is dark, left or top; what is cut off is at its sides."""
    grey = np.zeros((8, 40), np.uint8)
    grey[:, 20:] = 200
    colours = Image.fromarray(np.stack([grey] * 3, -1))
    variants = {
        "grey": Image.fromarray(grey), "rgb": colours, "rgba": colours.convert("RGBA"),
        "palette": colours.quantize(4), "bits": Image.fromarray(grey > 0),
        "wide": Image.fromarray(grey.astype(np.uint16) * 256 + 17), "cmyk": colours.convert("CMYK"),
    }  # fmt: skip
    (tmp_path / "a").mkdir()
    for name, image in variants.items():
        image.save(tmp_path / "a" / (f"{name}.JPG" if name == "cmyk" else f"{name}.png"))
    turned = Image.fromarray(np.rot90(grey))  # as a camera held upright stores it
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "a" / "turned.jpeg", exif=exif, quality=95)
    write(tmp_path, {f"b/{i}": pixels(1, 5 + i, 7, 1)[0] for i in range(3)})
    made = data.load(f"folder:{tmp_path}", image_size=(4, 6))
    assert made.train_images.shape[1:] == (4, 6, 3)
    images = np.concatenate([made.train_images, made.test_images])
    labels = np.concatenate([made.train_labels, made.test_labels])
    assert (labels == 0).sum() == len(variants) + 1
    for image in images[labels == 0]:
        assert image[:, :2].max() < 20, image[..., 0]
        assert image[:, 4:].min() > 180, image[..., 0]
    with pytest.raises(ValueError, match=r"pixels, others have 8 x 40; bring all .* --image-size"):
        data.load(f"folder:{tmp_path}")


def test_a_large_photo_is_scaled_like_a_small_one(tmp_path):
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    image = np.broadcast_to(ramp[:, None, None], (512, 512, 3))
    write(tmp_path, {"a/0": image, "b/0": image}, "JPEG")
    write(tmp_path, {"a/1": image, "b/1": image})
    made = data.load(f"folder:{tmp_path}", image_size=(8, 8))
    both = np.concatenate([made.train_images, made.test_images]).astype(int)
    assert abs(both - both[0]).max() <= 2  # decoded at a lower size, a JPEG is the same picture
    np.testing.assert_allclose(both[0, :, 4, 1], ramp.reshape(8, 64).mean(1), atol=4)


def test_what_is_hidden_is_passed_over_and_other_files_are_named(folder):
    plain = data.load(f"folder:{folder}")
    (folder / ".thumbnails").mkdir()
    (folder / ".thumbnails" / "0.png").write_bytes(b"")
    (folder / "cat" / "._0.png").write_bytes(b"")
    (folder / "cat" / ".DS_Store").write_bytes(b"")
    (folder / "cat" / ".cache").mkdir()
    (folder / "cat" / ".cache" / "notes.txt").write_text("")
    (folder / "LICENSE").write_text("")
    same(data.load(f"folder:{folder}"), plain)
    (folder / "cat" / "deeper").mkdir()
    (folder / "cat" / "9.png").rename(folder / "cat" / "deeper" / "9.png")
    assert len(data.load(f"folder:{folder}").train_labels) == 24
    (folder / "cat" / "Thumbs.db").write_bytes(b"")
    with pytest.raises(ValueError, match=r"cat/Thumbs\.db is no PNG or JPEG file"):
        data.load(f"folder:{folder}")


def test_damaged_images_are_named_in_one_line(folder):
    whole = (folder / "dog" / "3.png").read_bytes()
    (folder / "dog" / "3.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(data.DataError, match=rf"^{folder}/dog/3\.png cannot be decoded: .*") as one:
        data.load(f"folder:{folder}")
    assert "more are refused" not in str(one.value)
    (folder / "ant" / "1.png").write_bytes(b"")
    (folder / "ant" / "2.png").write_bytes(b"GIF89a no image of ours")
    with pytest.raises(data.DataError, match=r"cannot be decoded: .*; 2 more are refused"):
        data.load(f"folder:{folder}")
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(data.DataError, match="holds 30 files, and none can be decoded"):
        data.load(f"folder:{folder}")


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("no folder ", lambda root: root.rename(root.with_name("elsewhere"))),
        ("pets/fox holds no PNG or JPEG file", lambda root: (root / "fox").mkdir()),
        ("at least 2 classes, it has 1",
         lambda root: [(root / c).rename(root / f".{c}") for c in ("cat", "dog")]),
        ("holds no folders of classes",
         lambda root: [p.rename(root / f".{p.name}") for p in sorted(root.iterdir())]),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_dataset_is_refused(folder, message, change):
    change(folder)
    with pytest.raises((ValueError, data.DataError), match=message):
        data.load(f"folder:{folder}")


def test_images_that_stay_in_their_files_are_the_same(folder):
    lazy, read = data.load(f"folder:{folder}", memory=0), data.load(f"folder:{folder}")
    assert isinstance(lazy.train_images, data.Images)
    assert lazy.nbytes == read.nbytes == 30 * 6 * 9 * 3
    same(lazy, read)
    again = pickle.loads(pickle.dumps(lazy.train_images))
    np.testing.assert_array_equal(again.read(5), read.train_images[5])
    (small, held), (want, want_held) = lazy.hold_out(7, 3), read.hold_out(7, 3)
    np.testing.assert_array_equal(np.asarray(small.train_images), want.train_images)
    np.testing.assert_array_equal(np.asarray(held.images), want_held.images)
    # What does not take more than the memory that is allowed is read at once.
    assert isinstance(data.load(f"folder:{folder}", memory=30 * 162).train_images, np.ndarray)
    assert isinstance(data.load(f"folder:{folder}", memory=30 * 162 - 1).train_images, data.Images)
    assert isinstance(
        data.load(f"folder:{folder}", memory=26 * 162, limit=20).train_images, np.ndarray
    )


def test_a_folder_is_known_by_its_files(folder):
    first = data.load(f"folder:{folder}", memory=0).fingerprint
    moved = folder.rename(folder.with_name("moved"))
    assert data.load(f"folder:{moved}", memory=0).fingerprint == first
    image = np.asarray(Image.open(moved / "cat" / "0.png")).copy()
    image[0, 0, 0] ^= 1
    write(moved, {"cat/0": image})
    second = data.load(f"folder:{moved}", memory=0).fingerprint
    (moved / "cat").rename(moved / "cow")
    assert len({first, second, data.load(f"folder:{moved}", memory=0).fingerprint}) == 3


def test_statistics_of_many_images_come_from_a_sample(folder, monkeypatch):
    full = data.load(f"folder:{folder}")
    monkeypatch.setattr(images, "SAMPLE", 6)
    lazy, read = data.load(f"folder:{folder}", memory=0), data.load(f"folder:{folder}")
    assert lazy.mean == read.mean != full.mean
    sampled = full.train_images[np.linspace(0, 23, 6).astype(int)]
    np.testing.assert_allclose(lazy.mean, sampled.mean((0, 1, 2)))


# --- prepared directories ---------------------------------------------------------------------


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no-ids"])
def test_array_record_files_are_read_one_by_one(tmp_path, ids):
    train, test = (formats.random_examples(i, n, (5, 7, 3), 4) for i, n in enumerate((9, 4)))
    splits = {
        name: formats.tfds_examples(some, name if ids else None)
        for name, some in (("train", train), ("test", test))
    }
    features = formats.image_features((None, None, 3), 4, ids=ids)
    formats.write_tfds(tmp_path, "toy", splits, features, shards=2)
    lazy, read = (data.load("toy", data_dir=tmp_path, memory=m) for m in (0, 10**9))
    assert isinstance(lazy.train_images, data.Images)
    assert isinstance(read.train_images, np.ndarray)
    order = [np.arange(9)] * 2
    if not ids:  # then the files have an order of their own
        order = [
            np.argsort([x.tobytes() for x in d.train_images]) for d in (lazy.in_memory(), read)
        ]
    np.testing.assert_array_equal(
        np.asarray(lazy.train_images)[order[0]], read.train_images[order[1]]
    )
    np.testing.assert_array_equal(lazy.train_labels[order[0]], read.train_labels[order[1]])
    assert lazy.mean == read.mean
    again = pickle.loads(pickle.dumps(lazy.train_images))  # open files stay behind
    np.testing.assert_array_equal(again.read(3), lazy.train_images.read(3))
    assert lazy.fingerprint != lazy.take(8).fingerprint
    small = data.load("toy", data_dir=tmp_path, memory=0, image_size=(3, 4))
    assert small.in_memory().test_images.shape == (4, 3, 4, 3)
    path = next((tmp_path / "toy" / "3.0.2").glob("toy-train.array_record-00001*"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(data.DataError, match="cannot be read"):
        data.load("toy", data_dir=tmp_path, memory=0)


def test_names_of_own_data_are_told_from_others():
    assert data.split_name("folder:a:b") == ("folder", "a:b")
    assert data.split_name("npz:~/x.npz") == ("npz", "~/x.npz")
    for name in ("digits", "toy:1.0.0", "folder", ""):
        assert data.split_name(name) == (None, name)
        assert data.short_name(name) == name
    assert data.short_name("npz:~/x.y.npz") == "x.y"
    assert data.short_name("folder:a/b.c/../d.e/") == "d.e"
    assert data.short_name("folder:.") == Path.cwd().name
    with pytest.raises(ValueError, match="needs a path after folder:"):
        data.load("folder:")


def test_a_decoder_takes_png_and_jpeg_alone():
    buffer = io.BytesIO()
    Image.fromarray(pixels(1, 4, 4)[0]).save(buffer, "TIFF")
    with pytest.raises(data.DataError, match=re.escape("x.png cannot be decoded")):
        own.decode(buffer.getvalue(), "x.png", 3)
