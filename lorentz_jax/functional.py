"""The layers as pure functions of arrays, on points stored by their space part.

Conventions as in `lorentz_jax.geometry`; images are NHWC and kernels `(kh, kw, in, out)`, or with
one or three spatial axes in place of two, and normals come from `hyperplane`. A shape that does
not fit another is a `ValueError`. Layers square their inputs, so they need coordinates below the
root of the largest number: a radius s r below 45 in float32 and 355 in float64.

`(D68)` and so on are equations of `docs/derivations.md`. Examples assume what those of `geometry`
do, `import jax` and `from lorentz_jax import functional, hyperplane`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from lorentz_jax._src import biased as _biased
from lorentz_jax._src import centering as _centering
from lorentz_jax._src import conv as _conv
from lorentz_jax._src import fused as _fused
from lorentz_jax._src.aggregate import aggregate, segment_aggregate
from lorentz_jax._src.arguments import (
    Activation,
    along_batch,
    as_array,
    check_images,
    check_input,
    check_shapes,
    kappa_beside,
)
from lorentz_jax._src.attention import SCORES, attention
from lorentz_jax._src.conv import Padding
from lorentz_jax._src.forms import alike as _alike
from lorentz_jax._src.forms import relu as _relu
from lorentz_jax._src.forms import relu_before_time as _relu_before_time
from lorentz_jax._src.fused import kernels
from lorentz_jax._src.lorentzian import lorentzian, scale_distance
from lorentz_jax._src.norms import batch_mean, center, center_batch, layer_norm, weight_norm
from lorentz_jax._src.pooling import (
    avg_pool,
    center_groups,
    conv_transpose,
    max_pool,
    weighted_residual,
)
from lorentz_jax.hyperplane import Normals, signed_distance

__all__ = ["Padding", "conv", "conv_center", "linear", "mlr"]
__all__ += ["batch_mean", "center", "center_batch", "layer_norm", "lorentzian", "weight_norm"]
__all__ += ["SCORES", "aggregate", "attention", "segment_aggregate"]
__all__ += ["kernels", "scale_distance"]
__all__ += ["avg_pool", "center_groups", "conv_transpose", "max_pool", "weighted_residual"]

for _function in (
    avg_pool, batch_mean, center, center_batch, center_groups, conv_transpose, kernels, layer_norm,
    lorentzian, max_pool, scale_distance, weight_norm, weighted_residual,
):  # fmt: skip
    _function.__module__ = __name__


def _identity(x: Array) -> Array:
    return x


def linear(
    x: ArrayLike, normals: Normals, kappa: ArrayLike, activation: Activation | None = None
) -> Array:
    """Apply the Lorentz fully connected layer, `y = h(x.v - x_t v_t)` (eq. FC).

    This is all of it: the asinh of the signed distance, the Lorentzian activation and the sinh of
    the output cancel (D63).

    Args:
        x: Points `(..., D_in)`.
        normals: One plane per output coordinate, space part `(D_in, D_out)`; any normals.
        kappa: Minus the curvature, one number or of the batch shape.
        activation: h, elementwise on space parts; None for none.

    Returns:
        Points `(..., D_out)`.

    >>> v = hyperplane.normals(jnp.eye(2), jnp.zeros(2), 1.0)
    >>> print(functional.linear(jnp.array([0.5, -0.5]), v, 1.0, jax.nn.relu))
    [0.5 0. ]
    """
    x = check_input(x, normals, axes=1)
    kappa = along_batch(kappa_beside(x, kappa, x.shape[:-1]))
    z = _product(x, normals.space, normals.time, kappa)
    return (activation or _identity)(z).astype(x.dtype)


@functools.partial(jax.jit, inline=True)
def _product(x, space, time, kappa):
    dtype = kappa.dtype
    z = jnp.matmul(x, space.astype(x.dtype), preferred_element_type=dtype)
    if time is not None:
        squares = jnp.sum(jnp.square(x.astype(dtype)), axis=-1, keepdims=True)
        z = _conv.less_rank_one(z, jnp.sqrt(1 / kappa + squares), time)
    return z


def conv(
    x: ArrayLike,
    normals: Normals,
    kappa: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: Padding = None,
    activation: Activation | None = None,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Apply the Lorentz convolution: `linear` on the concatenated points of each patch.

    The concatenation has time `t = sqrt(1/kappa + sum_patch |x|^2)`, so `y = h(conv(x, v) - t v_t)`
    (D68): an ordinary convolution, a window sum over one channel and a rank-1 term; no patch is
    ever formed. Padding with zeros is padding with the origin. The kernel says whether there are
    one, two or three spatial axes.

    Args:
        x: Images `(..., H, W, C_in)`.
        normals: One plane per output channel, space part `(kh, kw, C_in/groups, C_out)`.
        kappa: Minus the curvature, one number.
        strides: One, or one per axis.
        padding: See `Padding`.
        activation: h, elementwise on space parts; None for none.
        dilation: From one pixel of the window to the next; one number, or one per axis.
        groups: Into how many points the channels of a pixel are split. Each is convolved apart, as
            in `lax`; with `groups = C_in` the convolution is depthwise.

    Returns:
        Images `(..., H', W', C_out)`.

    Raises:
        ValueError: if strides, padding or dilation do not name the spatial axes, or groups do not
            divide the channels.

    >>> v = hyperplane.normals(jnp.ones((3, 3, 2, 4)), jnp.zeros(4), 1.0)
    >>> functional.conv(jnp.zeros((8, 6, 6, 2)), v, 1.0, strides=2).shape
    (8, 3, 3, 4)
    """
    x = check_images(x, normals, groups)
    kappa = kappa_beside(x, kappa)
    size = normals.space.shape[:-2]
    window = _conv.window_arguments(strides, padding, size, dilation, groups)
    axes = len(size) + 1
    images = x.reshape((-1, *x.shape[-axes:]))
    if normals.time is None:
        z = _conv.conv_images(images, normals.space, window).astype(kappa.dtype)
    else:
        t = _conv.patch_time(images, kappa, size, window)
        z = _conv.conv_product(images, normals.space, normals.time, t, window)
    y = (activation or _identity)(z).astype(x.dtype)
    return y.reshape(x.shape[:-axes] + y.shape[1:])


def conv_center(
    x: ArrayLike,
    normals: Normals,
    beta: ArrayLike,
    kappa: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: Padding = None,
    unit_scale: ArrayLike | None = None,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    relu: bool = False,
    residual: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Apply `y = conv(x)` and `center(y, batch_mean(y), beta)` in one step.

    Its hand-written backward pass keeps fewer arrays than autodiff of the three, and is arranged
    for the device that it is compiled for; forward mode works too. Gradients flow through the mean
    and reach kappa; the returned mean is for running statistics and carries none. In half precision
    a GPU or TPU rounds the ordinary convolution before it takes `t v_t` away, a CPU afterwards.

    Args:
        x: Images `(N, H, W, C_in)`.
        normals: One plane per output channel, space part `(kh, kw, C_in/groups, C_out)`.
        beta: A point `(C_out,)`.
        kappa: Minus the curvature, one number.
        strides: One, or one per axis.
        padding: See `Padding`.
        unit_scale: Multiplies the space part of the normals, `(C_out,)`; see
            `hyperplane.factored_normals`. Where it is 0 it gets no gradient.
        dilation: As in `conv`.
        groups: As in `conv`; more than one needs normals without a time.
        relu: Apply ReLU to the space parts last; the mean is that of `conv(x)`.
        residual: Points of the result's shape, to add to its space parts before that. `kernels`
            tells how both can be one step with the norm.

    Returns:
        Images `(N, H', W', C_out)` and the mean `(C_out,)`.

    Raises:
        ValueError: if x is empty, or there are groups and a time.

    >>> v = hyperplane.normals(jnp.ones((3, 3, 2, 4)), jnp.zeros(4), 1.0)
    >>> y, mean = functional.conv_center(jnp.ones((8, 6, 6, 2)), v, jnp.zeros(4), 1.0)
    >>> y.shape, mean.shape
    ((8, 6, 6, 4), (4,))
    """
    x, space = check_images(x, normals, groups), normals.space
    beta = as_array("beta", beta)
    if x.ndim != space.ndim or x.size == 0:
        raise ValueError(
            f"expected images of {space.ndim} axes (N, ..., C_in) with pixels in them, "
            f"got {x.shape}"
        )
    if groups > 1 and normals.time is not None:
        raise ValueError(
            "groups > 1 need normals without a time (b = 0); use conv and center_batch"
        )
    ones = jnp.ones(space.shape[-1:], space.dtype)
    scale = ones if unit_scale is None else as_array("unit_scale", unit_scale)
    check_shapes(ones.shape, beta=beta)
    check_shapes(ones.shape, unit_scale=scale)
    kappa = kappa_beside(x, kappa)
    window = _conv.window_arguments(strides, padding, space.shape[:-2], dilation, groups)
    space, scale, beta = (a.astype(kappa.dtype) for a in (space, scale, beta))
    shape = jax.eval_shape(functools.partial(_conv.conv_images, window=window), x, space).shape
    if 0 in shape:
        raise ValueError(
            f"the mean of no points is undefined: the window {space.shape[:-2]} fits nowhere in "
            f"images of shape {x.shape}"
        )
    added: Any = residual if residual is None else as_array("residual", residual)
    if added is not None:
        check_shapes(shape, residual=added)
    results: Any
    if normals.time is not None:
        time = normals.time.astype(kappa.dtype)
        arguments = _alike(x, space, scale, time, beta, kappa)
        results = _biased.conv_center(*arguments, window)
    elif _fused.takes(x, space, scale, beta, kappa, *([] if added is None else [added])):
        arguments = x, space, scale, beta, kappa, added, window, _fused.Step(relu)
        results = _fused.conv_center(*arguments)
        return results[0], lax.stop_gradient(results[1])
    else:
        arguments = _alike(x, space, scale, beta, kappa)
        results = _centering.conv_center(*arguments, window)
    out = results[0] if added is None else results[0] + added
    ramp = _relu if normals.time is None else _relu_before_time
    return ramp(out) if relu else out, lax.stop_gradient(results[1])


def mlr(x: ArrayLike, normals: Normals, kappa: ArrayLike, scale: str | None = "inside") -> Array:
    """Compute the logits of Lorentz multinomial regression: the signed distances to the planes.

    Args:
        x: Points `(..., D)`.
        normals: One plane per class, space part `(D, classes)`.
        kappa: Minus the curvature, one number or of the batch shape.
        scale: Which distance, as in `hyperplane.signed_distance`.

    Returns:
        Logits `(..., classes)`.

    >>> v = hyperplane.normals(jnp.array([[1.0], [0.0]]), jnp.zeros(1), 1.0)
    >>> print(functional.mlr(jnp.array([0.75, 0.0]), v, 1.0))
    [0.6931]
    """
    return signed_distance(x, normals, kappa, scale)
