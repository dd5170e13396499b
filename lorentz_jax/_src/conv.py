"""Convolution of images of points, and its fusion with the centring batch norm.

`conv_center` is `functional.conv` followed by `functional.center` at the batch's own mean, in one
step with a hand-written backward pass. Autodiff of the two keeps or recomputes several image-sized
arrays; this keeps the input, the convolution's result, the output and seven numbers per pixel.
Forward mode has a rule of its own, see `linear_map` and `tangents`. `(D68)` and so on are equations
of `docs/derivations.md`, whose letters these are.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lorentz_jax._src.arguments import check_sizes, row
from lorentz_jax._src.linear_map import linear_map
from lorentz_jax._src.plain import point_time, precise, shifts, time_of, to_hyperboloid
from lorentz_jax._src.scalars import divide
from lorentz_jax._src.tangents import center_tangent

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


def conv_product(x, space, time, t, window: Window):
    """`X o v` of every patch, whose time is `t`, with every unit; in the dtype of `t`.

    Its backward pass keeps x, which the convolution keeps anyway, and the few channels of t.
    """
    return conv_images(x, space, window, t.dtype) + rank_one(t, -time)


def sum_inputs(x):
    """Sum over all axes but the last."""
    return jnp.sum(x, axis=tuple(range(x.ndim - 1)))


class _Residuals(NamedTuple):
    """What the backward pass keeps: arguments, then rows of one number a pixel and the result.

    Attributes:
        t, tau: times of the patch and of the pixel `(pixels, 1)`.
        d, e, f: products of the pixel with mu, beta and the time row.
        a, b: by how much of mu and of beta the pixel moves (`plain.shifts`).
        stored: the convolution, an image as `out` is.
        mu, length: the batch mean `(D,)`, and the Lorentz length that it was divided by.
    """

    x: Array
    space: Array
    unit_scale: Array
    time: Array
    beta: Array
    kappa: Array
    t: Array
    stored: Array
    tau: Array
    d: Array
    e: Array
    f: Array
    a: Array
    b: Array
    mu: Array
    length: Array
    out: Array


class _Constants(NamedTuple):
    """Numbers of the whole batch (D70)."""

    s: Array
    mu_t: Array
    beta_t: Array
    m: Array
    k1: Array
    k2: Array


def _constants(kept: _Residuals) -> _Constants:
    mu, beta, kappa = kept.mu, kept.beta, kept.kappa
    s, mu_t, beta_t = jnp.sqrt(kappa), point_time(mu, kappa), point_time(beta, kappa)
    m, k1, k2 = jnp.sum(mu * beta), kappa / (1 + s * mu_t), kappa / (1 + s * beta_t)
    return _Constants(s, mu_t, beta_t, m, k1, k2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(6,))
def conv_center(x, space, unit_scale, time, beta, kappa, window):
    """The centred convolution and the batch mean that it was centred at."""
    return _forward(x, space, unit_scale, time, beta, kappa, window)[0]


def _forward(x, space, unit_scale, time, beta, kappa, window):
    dtype = kappa.dtype
    t = patch_time(x, kappa, space.shape[:-2], window)
    product = conv_images(x, space, window, dtype)
    stored = (row(unit_scale, t) * product - t * row(time, t)).astype(x.dtype)  # (D68)
    shape, t = stored.shape, t.reshape(-1, 1)
    y = stored.astype(dtype).reshape(-1, shape[-1])
    tau = time_of(y, kappa)
    mean, mean_t = jnp.mean(y, axis=0), jnp.mean(tau)
    mu = to_hyperboloid(mean, mean_t, kappa)  # (D69)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    vectors = jnp.stack([mu, beta, time], axis=1)
    # One skinny product for three row sums; f = y.time only serves the backward pass.
    d, e, f = jnp.split(precise(y, vectors), 3, axis=1)
    a, b = shifts(d, e, tau, jnp.sum(mu * beta), mu_t, beta_t, kappa)
    out = (y + a * mu[None] + b * beta[None]).astype(x.dtype).reshape(shape)  # (D70)
    arguments = (x, space, unit_scale, time, beta, kappa)
    kept = _Residuals(*arguments, t, stored, tau, d, e, f, a, b, mu, mean_t / mu_t, out)
    return (out, mu), kept


def _pixel_cotangents(g, kept: _Residuals, n: _Constants):
    """Cotangents of d, e and tau; A (`through_a`); and q and r, products with beta and the time."""
    vectors = jnp.stack([kept.mu, kept.beta, kept.time], axis=1)
    p, q, r = jnp.split(precise(g, vectors), 3, axis=1)
    through_a = p + n.k2 * n.m * q  # (D71)
    g_d, g_e = n.k1 * through_a - kept.kappa * q, n.k2 * q
    g_tau = kept.kappa * n.mu_t * q - n.s * through_a
    return g_d, g_e, g_tau, through_a, q, r


def _point_cotangents(g, y, pixels, kept: _Residuals, n: _Constants):
    """Cotangents of mu, with its time, and of beta; and three sums that the time row needs (D77).

    Those ride in the same two skinny products, which read g and y once.
    """
    g_d, g_e, g_tau, through_a, q, _ = pixels
    t, tau, d, e, a, b = kept.t, kept.tau, kept.d, kept.e, kept.a, kept.b
    kappa, s = kept.kappa, n.s
    a_g, b_g, t_g = precise(jnp.concatenate([a, b, t], axis=1).T, g)
    columns = jnp.concatenate([g_d, g_e, g_tau * t / tau, t / tau], axis=1)
    d_y, e_y, tau_y, lean_y = precise(columns.T, y)
    g_m = n.k2 * jnp.sum(a * q)  # (D72)
    g_mu, g_beta = a_g + d_y + g_m * kept.beta, b_g + e_y + g_m * kept.mu  # (D73)
    # (D74)
    g_mu_t = kappa * jnp.sum(tau * q) - s / kappa * n.k1**2 * jnp.sum(d * through_a)
    g_beta_t = -s / kappa * n.k2**2 * jnp.sum((e + n.m * a) * q)
    g_beta = g_beta + g_beta_t * kept.beta / n.beta_t
    return g_mu, g_mu_t, g_beta, (t_g, tau_y, lean_y)


def _mean_cotangent(g_mu, g_mu_t, kept: _Residuals, n: _Constants):
    """Cotangent, space and time, of each point through the mean (D75)."""
    mu, length, kappa, pixels = kept.mu, kept.length, kept.kappa, kept.t.size
    radial = (jnp.sum(g_mu * mu) + g_mu_t * n.mu_t) / length
    eta = (g_mu / length + kappa * radial * mu) / pixels
    eta_t = (g_mu_t / length - kappa * radial * n.mu_t) / pixels
    return eta, eta_t


def _unit_scale_cotangent(g_space, g_y, g_time, kept: _Residuals):
    """(D80), from the kernel or from the image, whichever is smaller."""
    if kept.space.size < kept.out.size:
        return divide(sum_inputs(g_space * kept.space), kept.unit_scale)
    dtype = kept.kappa.dtype
    along_y = sum_inputs(g_y.astype(dtype) * kept.stored.astype(dtype))
    return divide(divide(along_y, kept.unit_scale) - kept.time * g_time, kept.unit_scale)


def _kappa_by_euler(g, g_x, g_beta, kept: _Residuals):
    """`s out` is a function of `(s x, s beta)` alone: Euler's theorem (D81)."""
    dtype = kept.kappa.dtype
    euler = jnp.sum(g_x * kept.x.astype(dtype)) + jnp.sum(g_beta * kept.beta)
    return (euler - jnp.sum(g * kept.out.astype(dtype).reshape(g.shape))) / (2 * kept.kappa)


def _push(window, kept: _Residuals, tangents):
    """The tangent of the centred convolution; None for a tangent is 0."""
    dx, dspace, dscale, dtime, dbeta, dkappa = tangents
    x, t, dtype = kept.x, kept.t, kept.kappa.dtype
    y = kept.stored.astype(dtype).reshape(t.size, -1)
    # (D164)
    wide = jnp.zeros(kept.stored.shape, dtype)
    product = conv_tangent(x, dx, kept.space, dspace, wide, window).reshape(y.shape)
    unit_scale, time = kept.unit_scale[None], kept.time[None]
    dy = unit_scale * product
    if dscale is not None:
        dy = dy + dscale[None] * divide(y + t * time, unit_scale)
    if dtime is not None:
        dy = dy - t * dtime[None]
    squares = jnp.zeros_like(t)
    if dx is not None:
        along = jnp.sum(2 * x.astype(dtype) * dx.astype(dtype), axis=-1, keepdims=True)
        squares = window_sum(along, kept.space.shape[:-2], window).reshape(t.shape)
    if dkappa is not None:
        squares = squares - dkappa / (kept.kappa * kept.kappa)
    dy = dy - squares / (2 * t) * time
    numbers = kept.tau, kept.d, kept.e, kept.mu, kept.length
    out = center_tangent(y, dy, *numbers, kept.beta, dbeta, kept.kappa, dkappa)
    return out.astype(x.dtype).reshape(kept.out.shape)


def _pull(window, kept: _Residuals, cotangent):
    x, space, time, mu, beta, t = kept.x, kept.space, kept.time, kept.mu, kept.beta, kept.t
    dtype = kept.kappa.dtype
    g, y = (i.astype(dtype).reshape(t.size, -1) for i in (cotangent, kept.stored))
    n = _constants(kept)
    pixels = _pixel_cotangents(g, kept, n)
    g_d, g_e, g_tau, _, _, r = pixels
    g_mu, g_mu_t, g_beta, (t_g, tau_y, lean_y) = _point_cotangents(g, y, pixels, kept, n)
    eta, eta_t = _mean_cotangent(g_mu, g_mu_t, kept, n)
    omega = (g_tau + eta_t) / kept.tau  # (D76), times the unit scale: the cotangent of conv(x)
    g_y = g + g_d * mu[None] + g_e * beta[None] + omega * y + eta[None]
    g_y = kept.unit_scale[None] * g_y
    g_y = g_y.astype(x.dtype).reshape(kept.out.shape)
    # (D77): without another pass over g_y.
    along = jnp.sum(t * g_d) * mu + jnp.sum(t * g_e) * beta + jnp.sum(t) * eta
    g_time = -(t_g + along + tau_y + eta_t * lean_y)
    mu_v, beta_v, eta_v = (jnp.sum(point * time) for point in (mu, beta, eta))
    g_t = -(r + g_d * mu_v + g_e * beta_v + omega * kept.f + eta_v)  # (D78)
    # (D79)
    (g_x,) = jax.linear_transpose(lambda x: conv_images(x, space, window), x)(g_y)
    (g_space,) = jax.linear_transpose(lambda k: conv_images(x, k, window), space)(g_y)
    g_unit_scale = _unit_scale_cotangent(g_space, g_y, g_time, kept)
    sums = functools.partial(window_sum, size=space.shape[:-2], window=window)
    # An array, not its shape: that would lose over which axes of a mesh it varies.
    squares = jnp.zeros_like(x[..., :1], dtype)
    by_square = (g_t / (2 * t)).reshape(*kept.out.shape[:-1], 1)
    (g_squares,) = jax.linear_transpose(sums, squares)(by_square)
    g_x = g_x.astype(dtype) + 2 * x.astype(dtype) * g_squares
    g_kappa = _kappa_by_euler(g, g_x, g_beta, kept)
    return g_x.astype(x.dtype), g_space, g_unit_scale, g_time, g_beta, g_kappa


def _conv_center_jvp(window, primals, tangents):
    (out, mu), kept = _forward(*primals, window=window)
    push, pull = functools.partial(_push, window), functools.partial(_pull, window)
    return (out, mu), (linear_map(push, pull, kept, tangents, out), jnp.zeros_like(mu))


conv_center.defjvp(_conv_center_jvp, symbolic_zeros=True)
