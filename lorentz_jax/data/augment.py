"""Prepare images on the device, inside jit, a whole batch at a time."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array


def normalise(images: Array, mean: Sequence[float], std: Sequence[float]) -> Array:
    """Return `(images - mean) / std` as float32.

    Args:
        images: uint8 `(..., channels)`.
        mean: one number a channel, in units of the uint8 pixels.
        std: one number a channel, in units of the uint8 pixels.

    Raises:
        TypeError: the images are not uint8, for example normalised already.

    >>> print(normalise(jnp.array([[0, 16]], jnp.uint8), mean=[8.0, 8.0], std=[4.0, 4.0]))
    [[-2.  2.]]
    """
    if images.dtype != jnp.uint8:
        raise TypeError(f"expected uint8 images, got {images.dtype}")
    shift, scale = jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32)
    return (images.astype(jnp.float32) - shift) / scale


def random_shift(key: Array, images: Array, pixels: int) -> Array:
    """Move every image by its own whole number of pixels, filling with zeros.

    Both offsets are uniform in `-pixels .. pixels`; this is the usual crop of a padded image.

    Args:
        key: random key.
        images: `(N, height, width, channels)`, of any dtype.
        pixels: the largest shift; 0 returns the images as they are.
    """
    if pixels == 0:
        return images
    margin = ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0))
    padded = jnp.pad(images, margin)
    corners = jax.random.randint(key, (images.shape[0], 2), 0, 2 * pixels + 1)

    def crop(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), images.shape[1:])

    return jax.vmap(crop)(padded, corners)


def random_flip(key: Array, images: Array) -> Array:
    """Mirror every image from left to right with probability one half, each by its own coin.

    Args:
        key: random key.
        images: `(N, height, width, channels)`, of any dtype.
    """
    coins = jax.random.bernoulli(key, shape=(images.shape[0], 1, 1, 1))
    return jnp.where(coins, images[:, :, ::-1], images)


def prepare(
    key: Array | None,
    images: Array,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    shift: int,
    flip: bool = False,
) -> Array:
    """Return a uint8 batch as the network's input, augmented only with a `key`.

    Args:
        key: random key, or None to leave the images where they are.
        images: uint8 `(N, height, width, channels)`.
        mean: as for `normalise`.
        std: as for `normalise`.
        shift: as `pixels` for `random_shift`; what is filled in is a black pixel.
        flip: mirror half of the images.

    Returns:
        float32 of the shape of `images`.
    """
    if key is not None and flip:
        key, flip_key = jax.random.split(key)
        images = random_flip(flip_key, images)
    if key is not None:
        images = random_shift(key, images, shift)
    return normalise(images, mean, std)
