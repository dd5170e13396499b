"""How each kind of device likes to sum over channels and over points, and which one it is.

The formulas of `centering` and `biased` are the same on every device. What differs is how sums are
asked for, and where arrays are held apart: see `Form`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lorentz_jax._src.arguments import row, spec
from lorentz_jax._src.plain import precise


class Form(NamedTuple):
    """How a device likes to sum.

    Attributes:
        rows: `(y, vectors) -> sums`, the products of every point with each vector, each sum of the
            shape of y without its last axis. None in place of a vector stands for y itself.
        columns: `(numbers, y, dtype) -> (k, D)`, for k numbers a point: sums over all points of
            the number times the point.
        totals: `(numbers, t) -> (k,)`, for k numbers a point: sums over all points of the number
            times another number t.
        hold_images: returns its arguments. XLA makes none of them again for what comes behind it,
            nor joins what comes before and behind it to one kernel.
        hold_numbers: the same for arrays of one number a point.
    """

    rows: Callable[[Array, Sequence[Any]], Sequence[Array]]
    columns: Callable[[Sequence[Array], Array, Any], Array]
    totals: Callable[[Sequence[Array], Array], Array]
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
    return _sum_together(*_products(y, vectors))


# JAX's own rule cannot take some products with a tangent and others without.
@jax.custom_jvp
def _sum_together(*products):
    zeros = tuple(np.zeros((), p.dtype) for p in products)
    add = lambda x, y: tuple(i + j for i, j in zip(x, y, strict=True))  # noqa: E731
    return tuple(lax.reduce(products, zeros, add, (products[0].ndim - 1,)))


@_sum_together.defjvp
def _sum_together_jvp(products, tangents):
    return _sum_together(*products), tuple(jnp.sum(t, axis=-1) for t in tangents)


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


def _gpu_columns(numbers, y, dtype):
    # A kernel has room for two of these sums. A product reads the points once for any number.
    return (_split_columns if len(numbers) < 3 else _skinny_columns)(numbers, y, dtype)


def _tpu_columns(numbers, y, dtype):
    # What XLA fuses there goes with width and dtype; counted for a v5e, 64 to 256 channels.
    split = y.dtype.itemsize == 2 and y.shape[-1] <= 128
    return (_split_columns if split else _plain_columns)(numbers, y, dtype)


def _flat_totals(numbers, t):
    # Of the array that the product for the columns reads; small sums cost more to start than to do.
    flat = jnp.stack([n.reshape(-1) for n in numbers])
    return jnp.sum(flat * t.reshape(1, -1), axis=1)


def _plain_totals(numbers, t):
    return jnp.stack([jnp.sum(n * t) for n in numbers])


def hold(*arrays):
    # A JAX older than `jax.typeof` cannot map barriers.
    return lax.optimization_barrier(arrays) if hasattr(jax, "typeof") else arrays


def _pass_on(*arrays):
    return arrays


CPU = Form(_skinny_rows, _skinny_columns, _flat_totals, _pass_on, hold)
GPU = Form(_variadic_rows, _gpu_columns, _flat_totals, hold, _pass_on)
TPU = Form(_plain_rows, _tpu_columns, _plain_totals, _pass_on, _pass_on)


def by_platform(function: Callable, *arguments: Any, cpu: Callable | None = None) -> Any:
    """Run `function(form, ...)` in the form of the device that it is lowered for.

    On a CPU run `cpu(...)` where that is given. Where types tell how arrays lie on a mesh, run it
    everywhere, or else the form whose sums keep all axes apart.
    """
    if any(spec(leaf) for leaf in jax.tree.leaves(arguments)):
        return cpu(*arguments) if cpu else function(TPU, *arguments)
    forms = {"cpu": CPU, "cuda": GPU, "rocm": GPU, "tpu": TPU, "default": TPU}
    branches: Any = {name: functools.partial(function, form) for name, form in forms.items()}
    return lax.platform_dependent(*arguments, **branches | ({"cpu": cpu} if cpu else {}))


def on_gpu(gpu: Callable, other: Callable, *arguments: Any) -> Any:
    """Run `gpu(...)` where it is lowered for a GPU, and `other(...)` elsewhere.

    Where types tell how arrays lie on a mesh, that is everywhere.
    """
    if any(spec(leaf) for leaf in jax.tree.leaves(arguments)):
        return other(*arguments)
    branches: Any = {"cuda": gpu, "rocm": gpu, "default": other}
    return lax.platform_dependent(*arguments, **branches)


@jax.custom_jvp
def relu(x: Array) -> Array:
    """ReLU; where it is differentiated it is a choice between x and 0. The derivative at 0 is 0.

    XLA's code for a CPU makes a maximum with a constant, which has one array as its argument, again
    for everyone who reads it, with all that leads to it: the gradient of the next kernel reads it
    in an order that suits no cache. A choice has two arrays, so it is made once. Without
    derivatives one kernel reads it, and a library takes a maximum in, but no choice.
    """
    return jax.nn.relu(x)


def choose(x: Array) -> Array:
    """`relu` as a choice, for what is traced without derivatives and yet kept for them.

    NaN stays NaN.
    """
    return jnp.where(x <= 0, 0, x)


@relu.defjvp
def _relu_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return choose(x), jnp.where(x > 0, dx, 0)


@jax.custom_jvp
def relu_before_time(x: Array) -> Array:
    """`relu` of points whose squares come next, as the time of the next layer's patches needs them.

    On a GPU its derivative looks at the result, which that layer keeps. Else x would be written,
    too, and a second kernel would read it for the result and its squares.
    """
    return relu(x)


@relu_before_time.defjvp
def _relu_before_time_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    out = choose(x)
    seen = on_gpu(lambda x, out: hold(out)[0], lambda x, out: x, x, out)
    return out, jnp.where(seen > 0, dx, 0)


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
