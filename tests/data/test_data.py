"""Datasets and augmentation."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.data.arrays import pixel_statistics


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def small(labels, num_classes=10, split="train"):
    images = np.zeros((len(labels), 4, 4, 1), np.uint8)
    other = (np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2, np.int32))
    this = (images, np.asarray(labels, np.int32))
    train, test = (this, other) if split == "train" else (other, this)
    return data.Dataset("small", *train, *test, num_classes, (0.5,), (1.0,))


def test_digits_are_the_real_ones_and_the_split_is_fixed(digits):
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.uint8
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 16
    # Stratified: 360 of 1797, so each class within one of a fifth of its size.
    whole = np.bincount(digits.train_labels) + np.bincount(digits.test_labels)
    np.testing.assert_array_equal(whole, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert np.abs(np.bincount(digits.test_labels) - whole * 360 / 1797).max() < 1
    # Written down once, so that another version of scikit-learn cannot move the split unseen.
    assert zlib.crc32(digits.test_images.tobytes()) == 1814970648
    assert digits.mean == pytest.approx((digits.train_images.mean(),))
    assert digits.std == pytest.approx((digits.train_images.std(),))


def test_no_test_image_is_trained_on(digits):
    train = {image.tobytes() for image in digits.train_images}
    assert not any(image.tobytes() in train for image in digits.test_images)


def test_limit_keeps_the_first_training_images_and_the_whole_test_set(digits):
    limited = data.load("digits", limit=100)
    np.testing.assert_array_equal(limited.train_images, digits.train_images[:100])
    np.testing.assert_array_equal(limited.train_labels, digits.train_labels[:100])
    assert len(limited.test_labels) == 360
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        data.load("digits", limit=0)


def test_unknown_name_lists_the_known_ones(tmp_path):
    known = "known: cifar10, cifar100, digits, fashion_mnist, or any .* prepared in "
    with pytest.raises(ValueError, match=f"unknown dataset 'digit'; {known}{tmp_path}"):
        data.load("digit", data_dir=tmp_path)
    for name in ("", "a b", "../digits", "/digits", "digits/"):
        with pytest.raises(ValueError, match="unknown dataset"):
            data.load(name, data_dir=tmp_path)


@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_outside_the_head_are_named(split):
    with pytest.raises(ValueError, match=rf"label 57 >= 10 classes \({split} example 1\)"):
        small([3, 57], split=split)
    with pytest.raises(ValueError, match=rf"label -1 < 0 \({split} example 2\)"):
        small([3, 9, -1], split=split)
    assert small([0, 9], split=split).num_classes == 10


def test_data_of_other_kinds_is_refused():
    good = small([1, 2])
    with pytest.raises(TypeError, match="uint8 images and int32 labels, got float32"):
        dataclasses.replace(good, train_images=good.train_images.astype(np.float32))
    with pytest.raises(ValueError, match=r"\(N, H, W, C\)"):
        dataclasses.replace(good, test_images=good.test_images[..., 0])
    with pytest.raises(ValueError, match=r"got \(2, 4, 4, 1\) and \(3,\)"):
        dataclasses.replace(good, train_labels=np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="test data holds no example"):
        dataclasses.replace(
            good, test_images=good.test_images[:0], test_labels=good.test_labels[:0]
        )
    with pytest.raises(ValueError, match="test images"):
        dataclasses.replace(good, test_images=good.test_images[:, :3])
    with pytest.raises(ValueError, match="1 channels"):
        dataclasses.replace(good, mean=(0.5, 0.5))
    with pytest.raises(ValueError, match="std must be positive"):
        dataclasses.replace(good, std=(0.0,))


def test_normalise_is_per_channel_and_refuses_anything_but_uint8():
    images = jnp.asarray([[[[0, 200]]], [[[16, 10]]]], jnp.uint8)
    out = jax.jit(lambda x: data.normalise(x, (8.0, 100.0), (4.0, 50.0)))(images)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, [[[[-2, 2]]], [[[2, -1.8]]]])
    for dtype in (jnp.int32, jnp.float32):
        with pytest.raises(TypeError, match="expected uint8 images"):
            data.normalise(images.astype(dtype), (8.0, 100.0), (4.0, 50.0))


def test_random_shift_moves_each_image_as_a_whole():
    images = np.zeros((400, 5, 6, 2), np.uint8)
    images[:, 2, 3] = (7, 9)  # one bright pixel, two steps at least from every border
    out = np.asarray(jax.jit(data.random_shift, static_argnums=2)(jax.random.key(0), images, 2))
    assert out.dtype == np.uint8
    assert out.shape == images.shape
    assert (out.sum((1, 2)) == (7, 9)).all()  # nothing lost, channels move together
    _, rows, columns = np.nonzero(out[..., 0])
    moves = np.stack([rows - 2, columns - 3], axis=1)
    # All 25 shifts occur (each is missed with probability 8e-8), and none beyond two pixels.
    assert {tuple(m) for m in moves} == {(i, j) for i in range(-2, 3) for j in range(-2, 3)}


def test_random_shift_fills_with_zeros_and_depends_on_the_key_only():
    images = np.full((64, 3, 3, 1), 255, np.uint8)
    out = np.asarray(data.random_shift(jax.random.key(1), images, 1))
    assert set(np.unique(out)) == {0, 255}
    assert set(np.unique((out == 255).sum((1, 2, 3)))) == {4, 6, 9}
    np.testing.assert_array_equal(out, data.random_shift(jax.random.key(1), images, 1))
    assert (out != data.random_shift(jax.random.key(2), images, 1)).any()
    assert data.random_shift(jax.random.key(1), images, 0) is images


def test_random_flip_mirrors_each_image_by_its_own_coin():
    images = np.zeros((400, 3, 5, 2), np.uint8)
    images[:, 1, 0] = (7, 9)
    out = np.asarray(jax.jit(data.random_flip)(jax.random.key(0), images))
    assert out.dtype == np.uint8
    assert (out[:, 1, 0] + out[:, 1, 4] == (7, 9)).all()  # at either end, channels together
    assert out.sum() == images.sum()
    assert 150 < (out[:, 1, 4, 0] == 7).sum() < 250  # five standard deviations
    np.testing.assert_array_equal(out, data.random_flip(jax.random.key(0), images))
    assert (out != data.random_flip(jax.random.key(1), images)).any()


@pytest.mark.parametrize("shape", [(28, 28, 1), (5, 9, 3), (7, 4, 1), (1, 1, 2)])
def test_images_of_any_shape_are_augmented(shape):
    images = np.random.default_rng(0).integers(1, 256, (16, *shape), dtype=np.uint8)
    options = {"mean": (0.0,) * shape[-1], "std": (1.0,) * shape[-1], "shift": 4, "flip": True}
    out = np.asarray(data.prepare(jax.random.key(3), jnp.asarray(images), **options))
    assert out.shape == images.shape
    for image, new in zip(images, out, strict=True):  # a window of the image or of its mirror
        candidates = [
            np.pad(side, ((4, 4), (4, 4), (0, 0)))[i : i + shape[0], j : j + shape[1]]
            for side in (image, image[:, ::-1])
            for i in range(9)
            for j in range(9)
        ]
        assert any((new == candidate).all() for candidate in candidates)


def test_shift_and_flip_are_independent_and_the_shift_alone_keeps_its_key():
    images = np.zeros((4000, 5, 9, 1), np.uint8)
    images[:, 2, 3] = 1  # mirrored it stands in column 5; shifted by one, in 2 to 4 or in 4 to 6
    images[:, 2, 4] = 2
    key, options = jax.random.key(5), {"mean": (0.0,), "std": (1.0,), "shift": 1}
    plain = data.prepare(key, jnp.asarray(images), **options)
    np.testing.assert_array_equal(plain, data.random_shift(key, images, 1).astype(np.float32))
    np.testing.assert_array_equal(
        plain, data.prepare(key, jnp.asarray(images), **options, flip=False)
    )
    out = np.asarray(data.prepare(key, jnp.asarray(images), **options, flip=True))[..., 0]
    one, two = (np.argwhere(out == value)[:, 1:] for value in (1, 2))
    mirrored = one[:, 1] > two[:, 1]
    counts = np.zeros((2, 3, 3), int)
    np.add.at(counts, (mirrored.astype(int), two[:, 0] - 1, two[:, 1] - 3), 1)
    # Eighteen equal cells of 222, deviation 14.5: all within five of these.
    assert np.abs(counts - 4000 / 18).max() < 73


def test_the_usual_augmentation_of_a_dataset():
    assert data.augmentation("digits") == (1, False)
    assert data.augmentation("cifar10") == data.augmentation("cifar100") == (4, True)
    assert data.augmentation("svhn_cropped") == (4, False)


def test_a_validation_split_is_drawn_by_the_seed(digits):
    left, (images, labels) = digits.hold_out(137, seed=3)
    assert len(left.train_labels) == 1300
    assert images.shape == (137, 8, 8, 1)
    assert (left.mean, left.std) == (digits.mean, digits.std)
    np.testing.assert_array_equal(left.test_images, digits.test_images)

    def pairs(images, labels):
        return sorted((image.tobytes(), label) for image, label in zip(images, labels, strict=True))

    whole = pairs(digits.train_images, digits.train_labels)
    both = pairs(left.train_images, left.train_labels) + pairs(images, labels)
    assert sorted(both) == whole
    np.testing.assert_array_equal(digits.hold_out(137, seed=3)[1][0], images)
    assert (digits.hold_out(137, seed=4)[1][0] != images).any()
    assert len(digits.hold_out(0, seed=3)[1][1]) == 0
    for count in (1437, 2000, -1):
        with pytest.raises(ValueError, match=f"cannot hold {count} of 1437 training images out"):
            digits.hold_out(count, seed=3)


def test_statistics_are_those_of_each_channel():
    images = np.random.default_rng(0).integers(0, 256, (2500, 3, 2, 3), dtype=np.uint8)
    images[..., 1] //= 3
    mean, std = pixel_statistics(images)
    np.testing.assert_allclose(mean, images.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, images.std((0, 1, 2)), rtol=1e-12)


def test_prepare_augments_only_with_a_key():
    images = np.full((8, 3, 3, 1), 4, np.uint8)
    options = {"mean": (4.0,), "std": (2.0,), "shift": 1}
    np.testing.assert_array_equal(data.prepare(None, jnp.asarray(images), **options), 0)
    shifted = data.prepare(jax.random.key(0), jnp.asarray(images), **options)
    assert set(np.unique(shifted)) == {-2, 0}
