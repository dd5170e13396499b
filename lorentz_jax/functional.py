"""The layers as pure functions of arrays, on points stored by their space part.

Conventions as in `lorentz_jax.geometry`; images are NHWC and kernels `(kh, kw, in, out)`, or with
one or three spatial axes in place of two, and normals come from `hyperplane`. A shape that does
not fit another is a `ValueError`. Layers square their inputs, so they need coordinates below the
root of the largest number: a radius s r below 45 in float32 and 355 in float64.

`(D68)` and so on are equations of `docs/derivations.md`. Examples assume what those of `geometry`
do, `import jax` and `from lorentz_jax import functional, hyperplane`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from lorentz_jax._src import centering as _centering
from lorentz_jax._src import conv as _conv
from lorentz_jax._src.aggregate import aggregate, segment_aggregate
from lorentz_jax._src.arguments import (
    Activation,
    along_batch,
    as_array,
    check_images,
    check_input,
    check_shapes,
    compute_dtype,
    kappa_beside,
    row,
)
from lorentz_jax._src.attention import SCORES, attention
from lorentz_jax._src.conv import Padding
from lorentz_jax._src.plain import point_time, precise, shifts, time_of, to_hyperboloid
from lorentz_jax._src.pooling import (
    avg_pool,
    center_groups,
    conv_transpose,
    max_pool,
    weighted_residual,
)
from lorentz_jax._src.scalars import asinh_scaled, divide, safe_norm, theta_limit
from lorentz_jax.hyperplane import Normals, signed_distance

__all__ = ["Padding", "conv", "conv_center", "linear", "mlr"]
__all__ += ["batch_mean", "center", "center_batch", "lorentzian", "weight_norm"]
__all__ += ["SCORES", "aggregate", "attention", "segment_aggregate"]
__all__ += ["avg_pool", "center_groups", "conv_transpose", "max_pool", "weighted_residual"]

for _function in (avg_pool, center_groups, conv_transpose, max_pool, weighted_residual):
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
        z = z - jnp.sqrt(1 / kappa + squares) * row(time.astype(dtype), z)
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


def batch_mean(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Compute the centroid of all points of a batch, as the centring norm needs it.

    `m/(s sqrt(m_t^2 - |m|^2))` with the mean vector m (D69), the fast form of `geometry.centroid`:
    it loses about `eps e^(2 s r)` for a mean at distance r from the origin.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number.

    Returns:
        One point, `(D,)`.

    Raises:
        ValueError: if the batch is empty.

    >>> print(functional.batch_mean(jnp.array([[1.0, 0.5], [-1.0, 0.5]]), 1.0))
    [0.     0.3536]
    """
    x = as_array("x", x)
    if x.size == 0:
        raise ValueError(f"the mean of no points is undefined, x has shape {x.shape}")
    return _batch_mean(x, kappa_beside(x, kappa)).astype(x.dtype)


def _batch_mean(x, kappa):
    axes = tuple(range(x.ndim - 1))
    points = x.astype(kappa.dtype)
    squares = jnp.sum(jnp.square(points), axis=-1)
    mean, mean_time = jnp.mean(points, axis=axes), jnp.mean(jnp.sqrt(1 / kappa + squares))
    return to_hyperboloid(mean, mean_time, kappa)


def center(x: ArrayLike, mean: ArrayLike, beta: ArrayLike, kappa: ArrayLike) -> Array:
    """Move a batch by the isometry `T_beta o T_(-mean)`, which takes mean to beta.

    Exactly the paper's centring batch norm (log at the mean, transport to the origin, transport to
    beta, exp at beta), with no transcendental function: a rank-2 update `x + a mean + b beta`,
    where with d = x.mean, e = x.beta, `a = kappa d/(1 + s mean_t) - s x_t`,
    `b = kappa (e + (mean.beta) a)/(1 + s beta_t) + kappa (mean_t x_t - d)` (D70).

    Args:
        x: Points `(..., D)`.
        mean: A point `(D,)`.
        beta: A point `(D,)`.
        kappa: Minus the curvature, one number.

    Returns:
        Points `(..., D)`.

    >>> mean, beta = jnp.array([0.75, 0.0]), jnp.array([0.0, 2.0])
    >>> print(abs(functional.center(mean[None], mean, beta, 1.0)))
    [[0. 2.]]
    """
    x, mean, beta = as_array("x", x), as_array("mean", mean), as_array("beta", beta)
    check_shapes(x.shape[-1:], f"x {x.shape}", mean=mean, beta=beta)
    return jax.checkpoint(_center)(x, mean, beta, kappa_beside(x, kappa))


def _center(x, mean, beta, kappa):
    dtype = kappa.dtype
    points, mu, beta = x.astype(dtype), mean.astype(dtype), beta.astype(dtype)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    # One skinny product: on a CPU it beats two reductions over the channels.
    dots = precise(points, jnp.stack([mu, beta], axis=1))
    time = time_of(points, kappa)
    a, b = shifts(dots[..., :1], dots[..., 1:], time, jnp.sum(mu * beta), mu_t, beta_t, kappa)
    return (points + a * row(mu, a) + b * row(beta, b)).astype(x.dtype)


def center_batch(x: ArrayLike, beta: ArrayLike, kappa: ArrayLike) -> tuple[Array, Array]:
    """Apply `center(x, batch_mean(x), beta)` in one step, as the batch norm does in training.

    Its hand-written backward pass keeps x and three numbers a point, and is arranged for the device
    that it is compiled for; forward mode (`jax.jvp`) works too. Gradients flow through the mean and
    reach kappa; the returned mean is for running statistics and carries none.

    Args:
        x: Points `(..., D)`.
        beta: A point `(D,)`.
        kappa: Minus the curvature, one number.

    Returns:
        Points `(..., D)` and the mean `(D,)`.

    Raises:
        ValueError: if the batch is empty.

    >>> y, mean = functional.center_batch(jnp.array([[1.0, 0.5], [-1.0, 0.5]]), jnp.zeros(2), 1.0)
    >>> print(mean)
    [0.     0.3536]
    """
    x, beta = as_array("x", x), as_array("beta", beta)
    check_shapes(x.shape[-1:], f"x {x.shape}", beta=beta)
    if x.size == 0:
        raise ValueError(f"the mean of no points is undefined, x has shape {x.shape}")
    kappa = kappa_beside(x, kappa)
    points = x[None] if x.ndim == 1 else x
    arguments = _centering.alike(points, beta.astype(kappa.dtype), kappa)
    y, mean = _centering.center_batch(*arguments)
    return y.reshape(x.shape), lax.stop_gradient(mean)


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
) -> tuple[Array, Array]:
    """Apply `y = conv(x)` and `center(y, batch_mean(y), beta)` in one step.

    Its hand-written backward pass keeps fewer arrays than autodiff of the three; forward mode works
    too. Gradients flow through the mean and reach kappa; the returned mean is for running
    statistics and carries none.

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
    results: Any
    if normals.time is None:
        arguments = _centering.alike(x, space, scale, beta, kappa)
        results = _centering.conv_center(*arguments, window)
    else:
        time = normals.time.astype(kappa.dtype)
        arguments = _centering.alike(x, space, scale, time, beta, kappa)
        results = _conv.conv_center(*arguments, window)
    return results[0], lax.stop_gradient(results[1])


def weight_norm(direction: ArrayLike, gain: ArrayLike) -> Array:
    """Make weights `w = g a/|a|` of a direction a and a gain g per unit.

    (The reference code passes `softplus(g)` as the gain.) `a = 0` gives 0 with gradient 0; a
    negative gain turns w round.

    Args:
        direction: a, `(..., out)`; the norm is over all axes but the last.
        gain: g, `(out,)`.

    Returns:
        w, shaped as a.

    >>> print(functional.weight_norm(jnp.array([[3.0], [4.0]]), jnp.array([2.0]))[:, 0])
    [1.2 1.6]
    """
    a, g = as_array("direction", direction, min_ndim=2), as_array("gain", gain)
    check_shapes(a.shape[-1:], gain=g)
    dtype = compute_dtype(jnp.result_type(a, g))
    size = safe_norm(a.astype(dtype), tuple(range(a.ndim - 1)))
    return (row(divide(g.astype(dtype), size), a) * a.astype(dtype)).astype(jnp.result_type(a, g))


def lorentzian(h: Activation) -> Callable[[ArrayLike, ArrayLike], Array]:
    """Make the Lorentzian activation of h, `asinh(s h(sinh(s x)/s))/s`, for signed distances.

    Where sinh would overflow, h is continued by its power law there (its value and logarithmic
    slope at the last representable sinh), which is exact for ReLU-like, bounded and polynomial h.

    Args:
        h: An elementwise function.

    Returns:
        A function of x, of any shape, and of a kappa that broadcasts to it; the result is like x.

    >>> relu = functional.lorentzian(jax.nn.relu)
    >>> print(relu(jnp.array([-2.0, 2.0, 1000.0]), 1.0))
    [   0.    2. 1000.]
    """

    def activation(x: ArrayLike, kappa: ArrayLike) -> Array:
        x = as_array("x", x, min_ndim=0)
        kappa = kappa_beside(x, kappa, x.shape)
        return _lorentzian(h, x.astype(kappa.dtype), kappa).astype(x.dtype)

    return activation


def _lorentzian(h, x, kappa):
    s = jnp.sqrt(kappa)
    scaled = s * x
    limit = theta_limit(x.dtype) / 2  # leaves room for h to square its argument
    edge = jnp.clip(scaled, -limit, limit)
    u = jnp.sinh(edge) / s
    value, slope = jax.jvp(h, (u,), (jnp.ones_like(u),))
    # Not arcsinh(s value): its derivative is 0 where the square of s value overflows.
    near = asinh_scaled(value, s, jnp.zeros_like(value))
    # log|h(u)| = log|h(u_edge)| + power (|s x| - limit) beyond the edge.
    beyond = jnp.abs(scaled) > limit
    power = divide(u * slope, value)
    ratio = jnp.abs(divide(value, u))
    log_ratio = jnp.log(jnp.where(beyond & (ratio > 0), ratio, 1))
    grown = log_ratio + limit + power * (jnp.abs(scaled) - limit)
    grows = beyond & (jnp.abs(s * value) > 1) & (power > 0)
    return jnp.where(grows, jnp.sign(value) * grown, near) / s


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
