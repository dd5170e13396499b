"""Transposed convolution, pooling, the centring group norm and the weighted residual sum.

For `lorentz_jax.functional`, which re-exports them and has their conventions.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import (
    Activation,
    along_batch,
    as_array,
    check_images,
    check_pixels,
    check_shapes,
    check_sizes,
    compute_dtype,
    concrete,
    kappa_beside,
    row,
    spec,
)
from lorentz_jax._src.centering import center_batch
from lorentz_jax._src.conv import (
    Padding,
    Window,
    dimension_numbers,
    per_axis,
    rank_one,
    window_arguments,
    window_sum,
)
from lorentz_jax._src.forms import alike
from lorentz_jax._src.pairs import minkowski
from lorentz_jax._src.plain import combine, lorentz_length


def transposed_padding(padding: Any, axes: int) -> Any:
    """The padding of a transposed convolution as `lax` takes it; `ValueError` for any other."""
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise ValueError(f'padding must be "SAME", "VALID" or pairs, got {padding!r}')
        return padding
    if padding is None or isinstance(padding, int):
        raise ValueError(f'padding must be "SAME", "VALID" or pairs, got {padding!r}')
    return window_arguments(1, padding, (1,) * axes).pads


def conv_transpose(
    x: ArrayLike,
    normals: Any,
    kappa: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    activation: Activation | None = None,
) -> Array:
    """Apply the transposed Lorentz convolution, which makes images larger, as a decoder does.

    It is `conv` of the image with origins between its pixels: `strides - 1` along every axis. So
    the patch of an output pixel is the pixels that reach it, `t = sqrt(1/kappa + sum |x|^2)` over
    these, and `y = h(conv_transpose(x, v) - t v_t)`, with `lax.conv_transpose`.

    Args:
        x: Images `(..., H, W, C_in)`, with one to three spatial axes as the kernel has.
        normals: One plane per output channel, space part `(kh, kw, C_in, C_out)`; the kernel is
            not turned round.
        kappa: Minus the curvature, one number.
        strides: One, or one per axis: by how much the image grows.
        padding: "SAME" for `strides` times the size, "VALID", or pairs as `lax` takes them.
        activation: h, elementwise on space parts; None for none.

    Returns:
        Images `(..., H', W', C_out)`.

    Raises:
        ValueError: if strides or padding do not name the spatial axes.

    >>> v = hyperplane.normals(jnp.ones((2, 2, 3, 4)), jnp.zeros(4), 1.0)
    >>> functional.conv_transpose(jnp.zeros((8, 5, 5, 3)), v, 1.0, strides=2).shape
    (8, 10, 10, 4)
    """
    x = check_images(x, normals)
    kappa = kappa_beside(x, kappa)
    axes = normals.space.ndim - 1
    strides, numbers = per_axis("strides", strides, axes - 1), dimension_numbers(axes - 1)
    pads = transposed_padding(padding, axes - 1)
    images = x.reshape((-1, *x.shape[-axes:]))

    def spread(images: Array, kernel: Array, **options) -> Array:
        return lax.conv_transpose(
            images, kernel, strides, pads, dimension_numbers=numbers, **options
        )

    dtype, space = kappa.dtype, normals.space.astype(x.dtype)
    z = spread(images, space, preferred_element_type=dtype)
    if normals.time is not None:
        squares = jnp.sum(jnp.square(images.astype(dtype)), axis=-1, keepdims=True)
        ones = jnp.ones((*space.shape[:-2], 1, 1), dtype)
        sums = spread(squares, ones, precision=lax.Precision.HIGHEST)
        z = z - rank_one(jnp.sqrt(1 / kappa + sums), normals.time)
    y = (z if activation is None else activation(z)).astype(x.dtype)
    return y.reshape(x.shape[:-axes] + y.shape[1:])


def _window_size(window: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(window, Sequence) or not 1 <= len(window) <= 3:
        raise ValueError(f"window must have one to three sizes, one an axis, got {window!r}")
    return per_axis("window", window, len(window))


def _pooled(x: ArrayLike, window: Sequence[int], strides, padding) -> tuple[Array, Array, Window]:
    """Checked images, the same with one batch axis, and how the window moves."""
    size = window
    x = as_array("x", x, min_ndim=len(size) + 1)
    check_pixels(x.shape, len(size))
    arguments = window_arguments(size if strides is None else strides, padding, size)
    return x, x.reshape((-1, *x.shape[-len(size) - 1 :])), arguments


def avg_pool(
    x: ArrayLike,
    window: Sequence[int],
    kappa: ArrayLike,
    strides: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """Pool images by the centroid of every window, `M/(s sqrt(-M o M))` of the sum M of its points.

    Equivariant under every isometry. The fast form: it loses about `eps e^(2 s r)` for windows
    whose centroid is at distance r from the origin, however far its points are; `geometry.centroid`
    is exact.

    Args:
        x: Images `(..., H, W, C)`, with as many spatial axes as the window has sizes.
        window: Its size along every axis, one to three.
        kappa: Minus the curvature, one number.
        strides: One, or one per axis; None for the window itself.
        padding: See `Padding`. Padding is with the origin, which counts as a point.

    Returns:
        Images `(..., H', W', C)`.

    Raises:
        ValueError: if strides or padding do not name the axes of the window.

    >>> x = jnp.stack([jnp.full((4, 4), 0.75), jnp.zeros((4, 4))], axis=-1)
    >>> functional.avg_pool(x, (2, 2), 1.0).shape
    (2, 2, 2)
    """
    size = _window_size(window)
    x, images, moves = _pooled(x, size, strides, padding)
    kappa = kappa_beside(x, kappa)
    points = images.astype(kappa.dtype)
    time = jnp.sqrt(1 / kappa + jnp.sum(points * points, axis=-1, keepdims=True))
    rise = time - 1 / jnp.sqrt(kappa)  # 0 for the origins of the padding
    total = window_sum(points, size, moves)
    count = float(np.prod(size))
    time = count / jnp.sqrt(kappa) + window_sum(rise, size, moves)
    mean, time = total / count, time / count
    squared = jnp.sum(mean * mean, axis=-1, keepdims=True)
    y = (mean / lorentz_length(squared, time, kappa)).astype(x.dtype)
    return y.reshape(x.shape[: -len(size) - 1] + y.shape[1:])


def max_pool(
    x: ArrayLike,
    window: Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """Pool images by the largest value of every space coordinate in a window.

    As ReLU it acts on coordinates, so rotations do not commute with it. It has no kappa.

    Args:
        x: Images `(..., H, W, C)`, with as many spatial axes as the window has sizes.
        window: Its size along every axis, one to three.
        strides: One, or one per axis; None for the window itself.
        padding: See `Padding`. What is padded never is the largest.

    Returns:
        Images `(..., H', W', C)`.

    Raises:
        ValueError: if strides or padding do not name the axes of the window.

    >>> functional.max_pool(jnp.zeros((8, 6, 6, 2)), (2, 2)).shape
    (8, 3, 3, 2)
    """
    size = _window_size(window)
    x, images, moves = _pooled(x, size, strides, padding)
    pads = moves.pads if isinstance(moves.pads, str) else [(0, 0), *moves.pads, (0, 0)]
    least = np.asarray(-np.inf, x.dtype)
    y = lax.reduce_window(images, least, lax.max, (1, *size, 1), (1, *moves.strides, 1), pads)
    return y.reshape(x.shape[: -len(size) - 1] + y.shape[1:])


def center_groups(
    x: ArrayLike, beta: ArrayLike, kappa: ArrayLike, groups: int = 1
) -> tuple[Array, Array]:
    """Centre every example by itself: `center_batch` over its pixels, group of channels by group.

    A group of channels is a point of its own, which moves to its part of beta. Batches may be as
    small as one, and training and evaluation do the same. Precision as of `batch_mean`, with the
    mean of an example for that of the batch.

    Args:
        x: Examples `(N, ..., C)`, with at least one axis of pixels.
        beta: C numbers, a point for each group, `(C,)`.
        kappa: Minus the curvature, one number.
        groups: Into how many points the channels are split.

    Returns:
        Examples `(N, ..., C)`, and the means `(N, C)`, which carry no gradient.

    Raises:
        ValueError: if an example has no pixel, or groups do not divide the channels.

    >>> x = jnp.array([[[1.0, 0.5], [-1.0, 0.5]]])
    >>> y, mean = functional.center_groups(x, jnp.zeros(2), 1.0)
    >>> print(mean)
    [[0.     0.3536]]
    """
    x, beta = as_array("x", x, min_ndim=3), as_array("beta", beta)
    check_shapes(x.shape[-1:], f"x {x.shape}", beta=beta)
    check_sizes(groups=groups)
    features = x.shape[-1]
    if features % groups or 0 in x.shape[1:]:
        raise ValueError(
            f"expected examples with pixels and channels that {groups} groups divide, got {x.shape}"
        )
    kappa = kappa_beside(x, kappa)
    pixels = x.reshape(*x.shape[:-1], groups, features // groups)
    parts = beta.astype(kappa.dtype).reshape(groups, -1)
    pixels, parts, kappa = alike(pixels, parts, kappa)
    of_groups = jax.vmap(center_batch, (x.ndim - 2, 0, None), (x.ndim - 2, 0))
    of_examples = jax.vmap(of_groups, (0, None, None))
    lies = spec(pixels)
    if lies and lies[0] is not None:  # every device centres its own examples
        share, names = PartitionSpec(lies[0]), lies[0]
        of_examples = jax.shard_map(
            of_examples, in_specs=(share, PartitionSpec(), PartitionSpec()), out_specs=share,
            axis_names={names} if isinstance(names, str) else set(names),
        )  # fmt: skip
    y, mean = of_examples(pixels, parts, kappa)
    return y.reshape(x.shape), lax.stop_gradient(mean).reshape(x.shape[0], features)


def weighted_residual(x: ArrayLike, y: ArrayLike, weight: ArrayLike, kappa: ArrayLike) -> Array:
    """Add y to x on the hyperboloid: the centroid of x and y with the weights 1 and `weight`.

    The residual of LResNet (He et al., 2024), `M/(s sqrt(-M o M))` with `M = X + weight Y`. It is
    equivariant under every isometry, and lies between x and y, so that residual sums cannot send
    points out. It is exact at every radius. The networks of `models` add space parts, `x + y`.

    Args:
        x, y: Points `(..., D)`.
        weight: At least 0; one number, or of the batch shape.
        kappa: Minus the curvature, one number or of the batch shape.

    Returns:
        Points `(..., D)`.

    Raises:
        ValueError: if a concrete weight is negative or not finite.

    >>> x, y = jnp.array([0.75, 0.0]), jnp.array([0.0, 0.0])
    >>> print(functional.weighted_residual(x, y, 1.0, 1.0))
    [0.3536 0.    ]
    """
    x, y = as_array("x", x), as_array("y", y)
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"x and y must agree in their last axis, got {x.shape} and {y.shape}")
    if concrete(weight):
        values = np.asarray(weight, np.float64)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(f"weight must be finite and at least 0, got {weight}")
    dtype, out = compute_dtype(jnp.result_type(x, y)), jnp.result_type(x, y)
    batch = jnp.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    x, y = (jnp.broadcast_to(p, (*batch, p.shape[-1])).astype(dtype) for p in (x, y))
    kappa = row(along_batch(kappa_beside(x, kappa, batch)), x)
    weight = row(along_batch(jnp.asarray(weight, dtype)), x)
    both = -kappa * minkowski(x, y, kappa)  # exact, where the plain product of far points is not
    return combine(x, y, 1 / (1 + weight), weight / (1 + weight), both).astype(out)
