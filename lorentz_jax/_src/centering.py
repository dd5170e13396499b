"""The centring batch norm at the batch's own mean, with a hand-written backward pass.

Autodiff of `functional.center` at `functional.batch_mean` keeps or recomputes several image-sized
arrays; this keeps the input and three numbers a point. Forward mode has a rule of its own, see
`linear_map` and `tangents`. `(D69)` and so on are equations of `docs/derivations.md`, whose letters
these are.

The formulas are the same on every device. What differs is how sums over channels and over points
are asked for, and where arrays are held apart: see `Form`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lorentz_jax._src.arguments import row, spec
from lorentz_jax._src.conv import conv_images, conv_tangent, sum_inputs
from lorentz_jax._src.linear_map import linear_map
from lorentz_jax._src.plain import precise
from lorentz_jax._src.scalars import divide
from lorentz_jax._src.shifting import (
    Columns,
    Constants,
    Products,
    constants,
    pull_mean,
    pull_shifts,
    shifts,
    through_a,
)
from lorentz_jax._src.tangents import center_tangent


class Form(NamedTuple):
    """How a device likes to sum.

    Attributes:
        rows: `(y, vectors) -> sums`, the products of every point with each vector, each sum of the
            shape of y without its last axis. None in place of a vector stands for y itself.
        columns: `(numbers, y, dtype) -> (k, D)`, for k numbers a point: sums over all points of
            the number times the point.
        hold_images: returns its arguments. XLA makes none of them again for what comes behind it,
            nor joins what comes before and behind it to one kernel.
        hold_numbers: the same for arrays of one number a point.
    """

    rows: Callable[[Array, Sequence[Any]], Sequence[Array]]
    columns: Callable[[Sequence[Array], Array, Any], Array]
    hold_images: Callable[..., Sequence[Array]]
    hold_numbers: Callable[..., Sequence[Array]]


def _products(y, vectors):
    return [y * (y if v is None else row(v, y)) for v in vectors]


def _skinny_rows(y, vectors):
    flat = y.reshape(-1, y.shape[-1])
    sums = precise(flat, jnp.stack([v for v in vectors if v is not None], axis=1))
    products = iter(jnp.split(sums, sums.shape[1], axis=1))
    rows = [jnp.sum(flat * flat, axis=1) if v is None else next(products) for v in vectors]
    return [row.reshape(y.shape[:-1]) for row in rows]


def _variadic_rows(y, vectors):
    products = _products(y, vectors)
    zeros = tuple(np.zeros((), p.dtype) for p in products)
    add = lambda x, y: tuple(i + j for i, j in zip(x, y, strict=True))  # noqa: E731
    return lax.reduce(tuple(products), zeros, add, (y.ndim - 1,))


def _plain_rows(y, vectors):
    return [jnp.sum(p, axis=-1) for p in _products(y, vectors)]


def _skinny_columns(numbers, y, dtype):
    flat = jnp.stack([n.reshape(-1) for n in numbers])
    return precise(flat, y.astype(dtype).reshape(-1, y.shape[-1]))


def _plain_columns(numbers, y, dtype):
    axes = tuple(range(y.ndim - 1))
    return jnp.stack([jnp.sum(n[..., None] * y.astype(dtype), axis=axes) for n in numbers])


def _split_columns(numbers, y, dtype):
    # The sum over the first axis, of all numbers at once, is a kernel of its own in any case.
    axes = tuple(range(1, y.ndim - 1))
    parts = [jnp.sum(n[..., None] * y.astype(dtype), axis=axes) for n in numbers]
    return jnp.sum(jnp.stack(parts, axis=1), axis=0)


def _tpu_columns(numbers, y, dtype):
    # What XLA fuses there goes with width and dtype; counted for a v5e, 64 to 256 channels.
    split = y.dtype.itemsize == 2 and y.shape[-1] <= 128
    return (_split_columns if split else _plain_columns)(numbers, y, dtype)


def _hold(*arrays):
    # A JAX older than `jax.typeof` cannot map barriers.
    return lax.optimization_barrier(arrays) if hasattr(jax, "typeof") else arrays


def _pass_on(*arrays):
    return arrays


CPU = Form(_skinny_rows, _skinny_columns, _pass_on, _hold)
GPU = Form(_variadic_rows, _split_columns, _hold, _pass_on)
TPU = Form(_plain_rows, _tpu_columns, _pass_on, _pass_on)


class _Residuals(NamedTuple):
    """What the backward pass keeps.

    Attributes:
        z, scale, beta, kappa: the arguments.
        tau, d, e: time of every point y = scale z, and its products with mu and beta.
        mu: the batch mean `(D,)`.
        constants: times of mu and beta, their product m, and the length that mu was divided by.
    """

    z: Array
    scale: Array | None
    beta: Array
    kappa: Array
    tau: Array
    d: Array
    e: Array
    mu: Array
    constants: Constants


def _times(scale, vector):
    return vector if scale is None else row(scale, vector) * vector


def _mean(mean, tau, beta, kappa) -> tuple[Array, Constants]:
    """The point mu on the ray of the mean vector, and the constants (D69)."""
    # Small sums cost a device more to start than to do, so this is one.
    pairs = jnp.stack([mean * mean, mean * beta, beta * beta])
    squared, product, beta_squared = jnp.sum(pairs, axis=1)
    n = constants(squared, product, beta_squared, jnp.mean(tau), kappa)
    return mean / n.length, n


def forward(form: Form, z, scale, beta, kappa):
    """Centre the points `scale z`: `((out, mu), residuals)`. A scale of None is one of ones."""
    dtype, axes = kappa.dtype, tuple(range(z.ndim - 1))
    mean = _times(scale, jnp.mean(z.astype(dtype), axis=axes))
    again, mean = form.hold_images(z, mean)
    y = _times(scale, again.astype(dtype))
    # mu is the mean over a number, so one pass gives all products before mu is known.
    squares, along_mean, e = form.rows(y, (None, mean, beta))
    tau = jnp.sqrt(1 / kappa + squares)
    mu, n = _mean(mean, tau, beta, kappa)
    d = along_mean / n.length
    a, b = form.hold_numbers(*shifts(d, e, tau, kappa, n))
    (again,) = form.hold_images(z)
    y = _times(scale, again.astype(dtype))
    out = y + a[..., None] * row(mu, y) + b[..., None] * row(beta, y)  # (D70)
    return (out.astype(z.dtype), mu), _Residuals(z, scale, beta, kappa, tau, d, e, mu, n)


def backward(form: Form, kept: _Residuals, g):
    """The cotangents of z, beta and kappa."""
    z, scale, beta, kappa, tau, d, e, mu, n = kept
    dtype = kappa.dtype
    a, b = shifts(d, e, tau, kappa, n)
    (g,) = form.hold_images(g)
    p, q = form.rows(g.astype(dtype), (mu, beta))
    big = through_a(p, q, kappa, n)
    a, b, q, big = form.hold_numbers(a, b, q, big)
    g, z = form.hold_images(g, z)
    sums = form.columns([a, b], g, dtype), _times(scale, form.columns([big, q], z, dtype))
    sums = jnp.concatenate(sums)
    (_, a_q), _, (a_d, _), (q_d, q_e) = jnp.sum(sums[:, None] * jnp.stack([mu, beta])[None], axis=2)
    dots = Products(a_q, a_d, q_d, q_e)
    g_beta, eta, eta_t = pull_mean(Columns(*sums), dots, mu, beta, kappa, n, tau.size)
    g_d, g_e, g_tau = pull_shifts(big, q, kappa, n)
    omega = (g_tau + eta_t) / tau
    g_d, g_e, omega = form.hold_numbers(g_d, g_e, omega)
    g, z = form.hold_images(g, z)
    # (D76)
    g_y = g.astype(dtype) + g_d[..., None] * row(mu, g) + g_e[..., None] * row(beta, g)
    g_y = g_y + omega[..., None] * _times(scale, z.astype(dtype)) + row(eta, g)
    # `s out` is a function of `(s y, s beta)` alone: Euler's theorem, by numbers a point (D83).
    along = g_d * d + g_e * e + omega * (tau * tau - 1 / kappa) - a * p - b * q
    along = jnp.sum(along) + tau.size * n.length * jnp.sum(eta * mu) + jnp.sum(g_beta * beta)
    return _times(scale, g_y).astype(z.dtype), g_beta, along / (2 * kappa)


def _by_platform(function: Callable, *arguments: Any) -> Any:
    """Run `function(form, ...)` in the form of the device that it is lowered for.

    Where types tell how arrays lie on a mesh, in the form whose sums keep all axes apart.
    """
    if any(spec(leaf) for leaf in jax.tree.leaves(arguments)):
        return function(TPU, *arguments)
    forms = {"cpu": CPU, "cuda": GPU, "rocm": GPU, "tpu": TPU, "default": TPU}
    branches: Any = {name: functools.partial(function, form) for name, form in forms.items()}
    return lax.platform_dependent(*arguments, **branches)


def varying(array: Array) -> frozenset:
    """The axes of a mesh that an array varies over inside `jax.shard_map`."""
    kind: Any = jax.typeof(array)
    if hasattr(kind, "vma"):
        return kind.vma
    return getattr(getattr(kind, "mat", None), "varying", frozenset())  # from jax 0.10 on


def alike(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, all varying over the same axes of a mesh inside `jax.shard_map`.

    A derivative of one's own must return cotangents that vary as the arguments do.
    """
    if not hasattr(jax, "typeof"):  # a JAX that does not tell what varies
        return arrays
    every = frozenset().union(*map(varying, arrays))
    missing = [tuple(every - varying(array)) for array in arrays]
    pairs = zip(arrays, missing, strict=True)
    return tuple(_vary(x, axes) if axes else x for x, axes in pairs)


def _vary(x: Array, axes: tuple) -> Array:
    module: Any = lax  # of which each version has one
    if hasattr(module, "pcast"):
        return module.pcast(x, axes, to="varying")
    return module.pvary(x, axes)


@jax.custom_jvp
def center_batch(y: Array, beta: Array, kappa: Array) -> tuple[Array, Array]:
    """The points moved by `T_beta o T_(-mean)`, and their mean, whose tangent is left out."""
    return keep(y, None, beta, kappa)[0]


def keep(*arguments: Any) -> Any:
    """`forward` in the form of the device."""
    return _by_platform(forward, *arguments)


def pull_back(kept: _Residuals, g: Array) -> tuple[Array, Array, Array]:
    """`backward` in the form of the device: the transpose of `push_forward`."""
    return _by_platform(backward, kept, g)


def push_forward(kept: _Residuals, dz: Array, dscale: Any, dbeta: Any, dkappa: Any) -> Array:
    """The tangent of the centred points; None for a tangent is 0."""
    z, scale, beta, kappa, tau, d, e, mu, n = kept
    z, dz = z.astype(kappa.dtype), dz.astype(kappa.dtype)
    y, dy = _times(scale, z), _times(scale, dz)
    dy = dy if dscale is None else dy + row(dscale, z) * z
    tau, d, e = (numbers[..., None] for numbers in (tau, d, e))
    out = center_tangent(y, dy, tau, d, e, mu, n.length, beta, dbeta, kappa, dkappa)
    return out.astype(kept.z.dtype)


def _push_points(kept, tangents):
    dy, dbeta, dkappa = tangents
    dy = jnp.zeros_like(kept.z) if dy is None else dy
    return push_forward(kept, dy, None, dbeta, dkappa)


def _center_batch_jvp(primals, tangents):
    y, beta, kappa = primals
    (out, mu), kept = keep(y, None, beta, kappa)
    return (out, mu), (linear_map(_push_points, pull_back, kept, tangents, out), jnp.zeros_like(mu))


center_batch.defjvp(_center_batch_jvp, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(5,))
def conv_center(x, space, scale, beta, kappa, window):
    """The centred convolution `scale conv(x)` without a bias, and the mean."""
    return _keep_conv(x, space, scale, beta, kappa, window)[0]


def _keep_conv(x, space, scale, beta, kappa, window):
    # Held, for the sum of `pull_conv`: made again it would be brought to another order.
    (kernel,) = _hold(space.astype(x.dtype))
    results, kept = keep(conv_images(x, kernel, window), scale, beta, kappa)
    return results, (x, kernel, kept)


def _push_conv(window, residuals, tangents):
    x, kernel, kept = residuals
    dx, dspace, dscale, dbeta, dkappa = tangents
    dz = conv_tangent(x, dx, kernel, dspace, kept.z, window)
    return push_forward(kept, dz, dscale, dbeta, dkappa)


def _pull_back_conv(window, residuals, g):
    x, kernel, kept = residuals
    g_z, g_beta, g_kappa = pull_back(kept, g)
    return (*pull_conv(x, kernel, kept.scale, g_z, window), g_beta, g_kappa)


def pull_conv(x, kernel, scale, g_z, window):
    """The cotangents of x, kernel and scale, from that of the convolution."""
    dtype = scale.dtype
    (g_x,) = jax.linear_transpose(lambda x: conv_images(x, kernel, window), x)(g_z)
    (g_kernel,) = jax.linear_transpose(lambda k: conv_images(x, k, window), kernel)(g_z)
    # The kernel as the convolution has it: a GPU keeps it in an order of axes of its own.
    along = sum_inputs(g_kernel.astype(dtype) * kernel.astype(dtype))
    return g_x, g_kernel.astype(dtype), divide(along, scale)  # (D80)


def _conv_center_jvp(window, primals, tangents):
    (out, mu), kept = _keep_conv(*primals, window=window)
    push = functools.partial(_push_conv, window)
    pull = functools.partial(_pull_back_conv, window)
    return (out, mu), (linear_map(push, pull, kept, tangents, out), jnp.zeros_like(mu))


conv_center.defjvp(_conv_center_jvp, symbolic_zeros=True)
