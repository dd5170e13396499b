"""Convolution of images of points: an ordinary one, and what the time of a patch adds to it."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from lorentz_jax._src.arguments import check_sizes, row
from lorentz_jax._src.forms import hold, on_gpu

Padding = str | int | Sequence[int | tuple[int, int]] | None
"""None for (k - 1)//2 on both sides, an int, an int or a pair for each axis, or "SAME"/"VALID"."""


class Window(NamedTuple):
    """How the window of a convolution moves; hashable.

    Attributes:
        strides: one for each spatial axis.
        pads: pairs for the axes, or a word, as `lax` takes them.
        dilation: the distance between the pixels of a window, one for each axis.
        groups: how many groups of channels are convolved apart.
    """

    strides: tuple[int, ...]
    pads: Any
    dilation: tuple[int, ...]
    groups: int = 1


def per_axis(name: str, value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """One positive number for each of `axes` spatial axes; a single one stands for all."""
    try:
        values = (operator.index(value),) * axes  # type: ignore[arg-type]
    except TypeError:
        try:
            values = tuple(map(operator.index, value))  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"{name} must be whole numbers, got {value!r}") from None
    if len(values) != axes or min(values) < 1:
        raise ValueError(f"{name} must be one positive number or {axes} of them, got {value}")
    return values


def window_arguments(
    strides: int | Sequence[int],
    padding: Padding,
    window: Sequence[int],
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Window:
    """What `lax` needs to know of a convolution with a kernel of this window.

    A padding of None is (k - 1)//2 on both sides, whatever the stride (the reference's), times the
    dilation.
    """
    axes = len(window)
    strides = per_axis("strides", strides, axes)
    dilation = per_axis("dilation", dilation, axes)
    check_sizes(groups=groups)
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "SAME_LOWER", "VALID"):
            raise ValueError(
                f'padding must be "SAME" or "VALID" where it is a word, got {padding!r}'
            )
        return Window(strides, padding, dilation, groups)
    if padding is None:
        padding = [d * (k - 1) // 2 for d, k in zip(dilation, window, strict=True)]
    pairs = [padding] * axes if isinstance(padding, int) else list(padding)
    if len(pairs) != axes:
        raise ValueError(f"padding must name {axes} spatial axes, got {padding!r}")
    pads = tuple((p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in pairs)
    return Window(strides, pads, dilation, groups)


def window_sum(x, size, window: Window):
    """Sum over windows of this size, channel by channel, of images `(N, ..., C)`."""
    zero = np.zeros((), x.dtype)  # a traced one would hide that this is a sum
    pads = window.pads if isinstance(window.pads, str) else [(0, 0), *window.pads, (0, 0)]
    sizes, strides, dilation = ((1, *n, 1) for n in (size, window.strides, window.dilation))
    return lax.reduce_window(x, zero, lax.add, sizes, strides, pads, None, dilation)


def patch_time(x, kappa, size, window: Window):
    """Time of the concatenated point of each patch, in kappa's dtype.

    `(N, ..., groups)`: a group of channels is a point of its own.
    """
    squares = jnp.square(x.astype(kappa.dtype))
    by_group = (*x.shape[:-1], window.groups, x.shape[-1] // window.groups)
    squares = jnp.sum(squares.reshape(by_group), axis=-1)
    return jnp.sqrt(1 / kappa + window_sum(squares, size, window))


def dimension_numbers(axes: int) -> tuple[str, str, str]:
    """Images with the channels last, kernels `(..., in, out)`."""
    names = "DHW"[-axes:]
    return (f"N{names}C", f"{names}IO", f"N{names}C")


def conv_images(x, kernel, window: Window, dtype=None):
    """Convolve images `(N, ..., C)` with a kernel `(..., in, out)`; the result has `dtype`."""
    return lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        window.strides,
        window.pads,
        rhs_dilation=window.dilation,
        dimension_numbers=dimension_numbers(x.ndim - 2),
        feature_group_count=window.groups,
        preferred_element_type=dtype,
    )


def conv_tangent(x, dx, kernel, dkernel, like, window: Window):
    """Tangent of `conv_images`, an array like `like`; None for a tangent is 0."""
    out = jnp.zeros_like(like)
    if dx is not None:
        out = out + conv_images(dx, kernel, window, like.dtype)
    return out if dkernel is None else out + conv_images(x, dkernel, window, like.dtype)


def rank_one(t, time):
    """`t v_t` of every unit: t `(..., groups)` is the time that the units of each group see."""
    if t.shape[-1] == 1:
        # A product of matrices: the backward pass of `t * time` would write out the cotangent and
        # sum it slowly. In full precision, since it may cancel with another term.
        return jnp.matmul(t, time.astype(t.dtype)[None], precision=lax.Precision.HIGHEST)
    by_group = time.astype(t.dtype).reshape(t.shape[-1], -1)
    return (t[..., None] * row(by_group, t[..., None])).reshape(*t.shape[:-1], time.size)


@jax.custom_jvp
def less_rank_one(z: Array, t: Array, time: Array) -> Array:
    """`z - t v_t`, for products of matrices z of points whose times t are `(..., 1)`.

    On a GPU it is `(z/t - v_t) t`: XLA takes a number or a vector into the kernel of the product,
    but not what is made of both.
    """
    return on_gpu(_in_steps, _less_rank_one, z, t, time.astype(z.dtype))


def _in_steps(z, t, time):
    (t,) = hold(t)  # or its sum would split the chain
    return (z / t - row(time, z)) * t


def _less_rank_one(z, t, time):
    return z + rank_one(t, -time)


def _less_rank_one_jvp(primals, tangents):
    live = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

    def of_live(*values):
        given = dict(zip(live, values, strict=True))
        return _less_rank_one(*(given.get(i, primal) for i, primal in enumerate(primals)))

    of, along = ([values[i] for i in live] for values in (primals, tangents))
    return less_rank_one(*primals), jax.jvp(of_live, of, along)[1]


less_rank_one.defjvp(_less_rank_one_jvp, symbolic_zeros=True)


def conv_product(x, space, time, t, window: Window):
    """`X o v` of every patch, whose time is `t`, with every unit; in the dtype of `t`.

    Its backward pass keeps x, which the convolution keeps anyway, and the few channels of t.
    """
    return conv_images(x, space, window, t.dtype) + rank_one(t, -time)


def sum_inputs(x):
    """Sum over all axes but the last."""
    return jnp.sum(x, axis=tuple(range(x.ndim - 1)))
