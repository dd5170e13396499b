"""What every public function does with its arguments before the mathematics starts.

Arrays are checked, half precision is raised to float32, and kappa becomes a strongly typed
array that broadcasts against the batch axes and never against the coordinate axis.
"""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

Activation = Callable[[Array], Array]
"""An elementwise function."""

Parameters = ParamSpec("Parameters")


def concrete(x: Any) -> bool:
    """Whether `x` has values to look at (it is not being traced)."""
    return not isinstance(x, Tracer)


def compute_dtype(dtype: Any) -> Any:
    """float32 for the half precisions, `dtype` itself otherwise."""
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else dtype


def as_array(name: str, x: Any, min_ndim: int = 1) -> Array:
    """`x` as a real floating-point array of at least `min_ndim` axes, none of length 0 at the end.

    Raises `TypeError` for integers (whose squares wrap), booleans and complex numbers.
    """
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} must be a floating-point array, got dtype {x.dtype}")
    if x.ndim < min_ndim:
        raise ValueError(f"{name} must have at least {min_ndim} axes, got shape {x.shape}")
    if min_ndim and x.shape[-1] == 0:
        raise ValueError(f"the last axis of {name} holds no coordinate, got shape {x.shape}")
    return x


def unwrapped(kappa: Any) -> Any:
    """The value of a parameter of a Flax module, and of a learned kappa; others as they are."""
    unwrap = getattr(kappa, "__jax_array__", None)
    return kappa if unwrap is None else unwrap()


def as_kappa(kappa: Any, dtype: Any, batch_shape: tuple[int, ...] | None = ()) -> Array:
    """The curvature parameter as an array of `dtype`.

    `ValueError` where a concrete value, or its inverse, is not finite and > 0 in this dtype: 1e-60
    is 0 in float32. (The square roots of what passes are far inside.)
    Its shape must broadcast to `batch_shape` without enlarging it (None: any shape), so that one
    curvature per sample can never become an outer product or meet the coordinate axis.
    """
    kappa = unwrapped(kappa)
    if concrete(kappa):
        values = np.asarray(kappa)
        if values.dtype.kind not in "fiu" and not jnp.issubdtype(values.dtype, jnp.floating):
            raise TypeError(f"kappa must be a real number or array, got {kappa!r}")
        # Numbers below `tiny` are 0 for XLA, which drops denormals.
        least = jnp.finfo(jax.dtypes.canonicalize_dtype(dtype)).tiny
        wide = values.astype(np.float64)
        bad = ~((wide >= least) & (wide <= 1 / least))
        if bad.any():
            value = values[bad].ravel()[0]
            where = f", which is out of range in {least.dtype}" if 0 < value < np.inf else ""
            raise ValueError(
                f"kappa must be finite and > 0 (the curvature is -kappa), got {value}{where}"
            )
    kappa = jnp.asarray(kappa)
    if batch_shape is not None and kappa.ndim:  # a scalar fits any batch, a symbolic one too
        try:
            fits = jnp.broadcast_shapes(kappa.shape, batch_shape) == tuple(batch_shape)
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"kappa of shape {kappa.shape} does not broadcast to the batch shape "
                f"{tuple(batch_shape)} (all axes but the coordinates)"
            )
    return jax.lax.convert_element_type(kappa, dtype)


def kappa_beside(x: Array, kappa: Any, batch_shape: tuple[int, ...] = ()) -> Array:
    """`as_kappa` in the dtype that x is computed in."""
    return as_kappa(kappa, compute_dtype(x.dtype), batch_shape)


def along_batch(kappa: Array) -> Array:
    """The curvature with a trailing axis for the coordinates; a scalar stays one."""
    return kappa[..., None] if kappa.ndim else kappa


def spec(x: Array) -> tuple[Any, ...] | None:
    """How the type of x says that it lies on a mesh of explicit axes; None where it does not."""
    if not hasattr(jax, "typeof"):  # a JAX without such types
        return None
    sharding: Any = getattr(jax.typeof(x), "sharding", None)
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    return tuple(sharding.spec) if jax.sharding.AxisType.Explicit in kinds else None


def gathered(x: Array, axis: int) -> Array:
    """`x` with this axis whole on every device, where explicit axes of a mesh share it out."""
    lies = spec(x)
    if not lies or lies[axis] is None:
        return x
    whole = [None if i == axis % x.ndim else name for i, name in enumerate(lies)]
    return jax.sharding.reshard(x, jax.sharding.PartitionSpec(*whole))


def row(v: Array, x: Array) -> Array:
    """The array with leading axes of length 1, as many as it takes to have those of x.

    NumPy's rules add them unasked, but not under `jax_numpy_rank_promotion="raise"`.
    """
    return jax.lax.expand_dims(v, tuple(range(x.ndim - v.ndim)))


def check_sizes(**sizes: Any) -> None:
    """Raise `ValueError` for a size below 1, and `TypeError` for one that is no whole number."""
    for name, size in sizes.items():
        try:
            good = operator.index(size) >= 1
        except TypeError:
            raise TypeError(f"{name} must be a whole number, got {size!r}") from None
        if not good:
            raise ValueError(f"{name} must be at least 1, got {size}")


def check_normals(normals: Any) -> None:
    """Raise `TypeError` unless these are `Normals`, and `ValueError` unless their shapes fit."""
    space: Any = getattr(normals, "space", None)  # `Normals` itself stands in a later module
    if not hasattr(normals, "time") or not hasattr(space, "shape"):
        got = type(normals).__name__
        raise TypeError(f"normals must be Normals, as hyperplane.normals makes them, got {got}")
    names = ("time", "length", "excess")
    units = {name: a for name in names if (a := getattr(normals, name, None)) is not None}
    check_shapes(space.shape[-1:], f"normals with a space part {space.shape}", **units)


def check_pixels(shape: tuple[Any, ...], axes: int = 2) -> None:
    """Raise `ValueError` for images `(..., *axes, C)` without a pixel; a symbolic size has some."""
    if any(isinstance(size, int) and size < 1 for size in shape[-1 - axes : -1]):
        raise ValueError(f"expected images with pixels, got shape {shape}")


def check_shapes(shape: tuple[int, ...], beside: str = "", **arrays: Array) -> None:
    """Raise `ValueError` unless all arrays have this shape, which that of `beside` asks for."""
    if any(array.shape != tuple(shape) for array in arrays.values()):
        names, beside = " and ".join(arrays), beside and f" to go with {beside}"
        got = " and ".join(str(array.shape) for array in arrays.values())
        raise ValueError(f"{names} must have shape {tuple(shape)}{beside}, got {got}")


def check_input(x: Any, normals: Any, axes: int) -> Array:
    """`x` as an array whose last axis fits the kernel; `axes` is 1 (dense) or 3 (convolution)."""
    check_normals(normals)
    kernel = normals.space.shape
    if len(kernel) != axes + 1:
        raise ValueError(f"expected normals with a space part of {axes + 1} axes, got {kernel}")
    x = as_array("x", x, min_ndim=axes)
    if x.shape[-1] != kernel[-2]:
        raise ValueError(
            f"expected points with D_in = {kernel[-2]} space coordinates in the last axis, "
            f"got shape {x.shape}"
        )
    if axes == 3:
        check_pixels(x.shape)
    return x


def check_images(x: Any, normals: Any, groups: int = 1) -> Array:
    """`x` as images `(..., *spatial, D_in)` that fit a kernel `(*window, D_in/groups, D_out)`."""
    check_normals(normals)
    check_sizes(groups=groups)
    kernel = normals.space.shape
    axes = len(kernel) - 2
    if not 1 <= axes <= 3:
        raise ValueError(
            f"expected normals with a space part of 3 to 5 axes (window, in, out), got {kernel}"
        )
    x, per_group = as_array("x", x, min_ndim=axes + 1), f" = {kernel[-2]} * {groups} groups"
    if x.shape[-1] != kernel[-2] * groups:
        raise ValueError(
            f"expected points with D_in = {kernel[-2] * groups}{per_group if groups > 1 else ''} "
            f"space coordinates in the last axis, got shape {x.shape}"
        )
    if kernel[-1] % groups:
        raise ValueError(f"{groups} groups do not divide the {kernel[-1]} units of the kernel")
    check_pixels(x.shape, axes)
    return x


def operation(function: Callable[Parameters, Array]) -> Callable[Parameters, Array]:
    """Public form of `function(*arrays, kappa)`, a formula over arrays `(..., D)` of one D.

    The formula sees compute-dtype arrays and a kappa that already broadcasts against them; its
    result is cast back to the input dtype. Called outside jit it runs compiled, and kappa's
    spelling (float, NumPy scalar, array) does not compile it again.
    """
    compiled = jax.jit(function, inline=True)
    signature = inspect.signature(function)
    names = list(signature.parameters)[:-1]

    @functools.wraps(function)
    def public(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Array:
        bound = signature.bind(*args, **kwargs).arguments
        arrays = [as_array(name, bound[name]) for name in names]
        dimensions = {name: x.shape[-1] for name, x in zip(names, arrays, strict=True)}
        if len(set(dimensions.values())) > 1:
            raise ValueError(
                "arguments must agree in their last axis (the D space coordinates), "
                f"got {dimensions}"
            )
        try:
            batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in arrays))
        except ValueError:
            shapes = {name: x.shape for name, x in zip(names, arrays, strict=True)}
            raise ValueError(f"batch shapes do not broadcast: {shapes}") from None
        dtype = jnp.result_type(*arrays)
        inner = compute_dtype(dtype)
        kappa = along_batch(as_kappa(bound["kappa"], inner, batch))
        most = max(arrays, key=jnp.ndim)
        out = compiled(*(row(x, most).astype(inner) for x in arrays), row(kappa, most))
        return out.astype(dtype)

    return public
