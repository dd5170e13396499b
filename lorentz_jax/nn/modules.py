"""Bases of the layers: a kappa, fixed or learned, and the parameters of hyperplanes."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, hyperplane
from lorentz_jax._src.arguments import as_kappa, check_sizes, compute_dtype, concrete, row
from lorentz_jax._src.conv import window_arguments
from lorentz_jax.hyperplane import Normals
from lorentz_jax.nn import initializers
from lorentz_jax.nn.compiling import Frozen, check_kappa, note

__all__ = [
    "NORMALS",
    "Activation",
    "HyperbolicModule",
    "HyperplaneLayer",
    "Kappa",
    "normal_arrays",
    "resolve_kappa",
]

Activation = Callable[[Array], Array]

nnx.register_data_type(Normals)  # they may be an attribute of any module

NORMALS = ("time", "space", "length", "excess")
"""The names of the arrays of `Normals`."""


class Kappa(nnx.Module):
    """A learnable kappa inside the open interval (1e-3, 1e2).

    `log kappa` is a sigmoid of the parameter `raw`, between the logarithms of the bounds, so that
    no step of an optimiser can leave them.

    Layers share one where each is given the module itself, `kappa=Kappa(0.5)`.

    Args:
        kappa: first value; or an `nnx.Variable`, such as an `nnx.Param`, which then is `raw` and
            kappa itself, without bounds.
        param_dtype: dtype of the parameter.

    Raises:
        ValueError: `kappa` is outside the bounds.

    Example:
        >>> round(float(Kappa(0.5)()), 4)
        0.5
    """

    bounds = (1e-3, 1e2)

    def __init__(self, kappa: float | nnx.Variable, param_dtype: Any = jnp.float32):
        self.value: float | None = None  # in a compiled model, where `raw` is gone
        self.bounded = not isinstance(kappa, nnx.Variable)
        if isinstance(kappa, nnx.Variable):
            as_kappa(kappa, jnp.float32)
            self.raw: Any = kappa
            return
        low, high = self.bounds
        if not low < kappa < high:
            raise ValueError(f"a learnable kappa must start inside ({low}, {high}), got {kappa}")
        share = math.log(kappa / low) / math.log(high / low)
        self.raw = nnx.Param(jnp.asarray(math.log(share / (1 - share)), param_dtype))

    def __call__(self) -> Any:
        """Return the present value."""
        if self.value is not None:
            return self.value
        if not self.bounded:
            return jnp.asarray(self.raw.get_value())
        low, high = self.bounds
        return low * jnp.exp(math.log(high / low) * jax.nn.sigmoid(self.raw[...]))

    def __jax_array__(self) -> Array:
        """Stand for its present value in the functions of the pure modules."""
        return jnp.asarray(self())


def resolve_kappa(own: Any, given: Any = None) -> Any:
    """Return the kappa to compute with: `given` unless it is None, else the value of `own`.

    Args:
        own: a number, an array, a learned `Kappa`, or None where a module has no kappa.
        given: the argument `kappa` of a call; any of these.

    Example:
        >>> resolve_kappa(0.5), resolve_kappa(0.5, 2.0)
        (0.5, 2.0)
    """
    kappa = own if given is None else given
    if isinstance(kappa, nnx.Variable):
        return kappa.get_value()
    return kappa() if isinstance(kappa, Kappa) else kappa


def own_kappa(kappa: Any, learn: bool = False, param_dtype: Any = jnp.float32) -> float | Kappa:
    """Return what a module stores of its argument `kappa`: a number, or a `Kappa`.

    An `nnx.Variable` is learned in any case, and a `Kappa` is shared with whoever has it.
    """
    if isinstance(kappa, Kappa):
        return kappa
    if learn or isinstance(kappa, nnx.Variable):
        return Kappa(kappa, param_dtype)
    as_kappa(kappa, jnp.float32)
    return float(kappa)


def first_value(kappa: Any) -> float:
    """Return the value of an argument `kappa` as a number, for layers that are always given one.

    A traced one has none: 1 stands for it.
    """
    value = resolve_kappa(kappa)
    return float(value) if concrete(value) else 1.0


class HyperbolicModule(nnx.Module):
    """Base of every layer: a module with a kappa of its own, fixed or learned.

    A subclass creates its parameters after `super().__init__`, takes an optional `kappa` in its
    call, and computes with `self.resolve_kappa(kappa)`. `HyperplaneLayer` has an example.

    Args:
        kappa: curvature parameter; the curvature is -kappa. A number, a 0-d array, an `nnx.Param`
            that holds it, or a `Kappa` to share.
        learn_kappa: make it a parameter, see `Kappa`.
        param_dtype: dtype of that parameter.

    Attributes:
        scaled: whether offsets (b of a hyperplane, beta of a norm) are stored times
            `sqrt(1 + kappa D)`. An offset moves the output of a point x by `sqrt(1 + kappa |x|^2)`
            times its own step, so that a scaled one learns at the rate of a Euclidean bias.
        frozen: what a layer of a compiled model was made for, else None; see `compiling`.

    Raises:
        ValueError: `kappa` is not positive, or a learned one starts outside its bounds.
    """

    scaled = False
    frozen: Frozen | None = None

    def __init__(self, kappa: Any, learn_kappa: bool = False, param_dtype: Any = jnp.float32):
        self.kappa = own_kappa(kappa, learn_kappa, param_dtype)

    def resolve_kappa(self, kappa: Any = None) -> Any:
        """Return `kappa` unless it is None, else the module's own."""
        kappa = resolve_kappa(self.kappa, kappa)
        note(self, kappa)
        return kappa

    def kept_normals(self, kappa: Any) -> Normals:
        """Return the normals that a frozen layer holds, made for this kappa."""
        check_kappa(self.frozen, self.resolve_kappa(kappa))
        held = ((name, getattr(self, name, None)) for name in NORMALS)
        arrays: Any = {name: None if v is None else v[...] for name, v in held}
        return Normals(**arrays)

    def unscale(self, stored: Array, dim: int, kappa: Any = None) -> Array:
        """Return the offset that is stored as `stored`, for inputs of `dim` space coordinates."""
        if not self.scaled:
            return stored
        dtype = compute_dtype(stored.dtype)
        kappa = as_kappa(self.resolve_kappa(kappa), dtype)
        return (stored.astype(dtype) / jnp.sqrt(1 + kappa * dim)).astype(stored.dtype)


class HyperplaneLayer(HyperbolicModule):
    """Base of the layers with hyperplanes: kernel, gain and bias, and the normals made of them.

    A subclass draws the initial values, and calls `functional` with `self.normals(kappa)`.

    Args:
        values: initial values, from `initializers.affine` or `initializers.head`.
        kappa: curvature parameter.
        learn_kappa: make it a parameter, see `Kappa`.
        activation: stored for the subclass to apply, None for none.
        init: the preset that `values` come from; it decides how the bias is stored.
        use_bias: without, all planes pass through the origin.
        distance_gain: train a gain on the distance of every unit, `e^g` with g = 0 at first.

    Raises:
        ValueError: `kappa` is not positive, or a learned one starts outside its bounds.

    Example:
        >>> from lorentz_jax import functional, nn
        >>> class GraphLayer(nn.HyperplaneLayer):
        ...     def __init__(self, in_features, out_features, *, kappa, rngs):
        ...         shape = (in_features, out_features)
        ...         super().__init__(nn.initializers.affine(rngs.params(), shape), kappa)
        ...
        ...     def __call__(self, x, adjacency, kappa=None):
        ...         kappa = self.resolve_kappa(kappa)  # sums of space parts are points
        ...         return functional.linear(adjacency @ x, self.normals(kappa), kappa)
        >>> layer = GraphLayer(3, 5, kappa=1.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((4, 3)), jnp.eye(4)).shape
        (4, 5)
    """

    def __init__(
        self,
        values: initializers.Affine,
        kappa: float,
        learn_kappa: bool = False,
        activation: Activation | None = None,
        init: str = "fast",
        use_bias: bool = True,
        distance_gain: bool = False,
    ):
        super().__init__(kappa, learn_kappa, values.kernel.dtype)
        self.scaled = initializers.check_preset(init) == "fast"
        self.kernel = nnx.Param(values.kernel)
        self.gain = None if values.gain is None else nnx.Param(values.gain)
        self.bias = nnx.Param(values.bias) if use_bias else None
        if distance_gain:
            self.distance_gain = nnx.Param(jnp.zeros_like(values.bias))
        self.activation = activation

    distance_gain: nnx.Param | None = None

    def apply_gain(self, y: Array, kappa: Any, units: slice = slice(None)) -> Array:
        """Return what some units put out with their distance gains; y itself without any."""
        if self.distance_gain is None:
            return y
        return functional.scale_distance(y, jnp.exp(self.distance_gain[units]), kappa)

    def biases(self, kappa: Any = None) -> Array:
        """Return b of every unit, `(out,)`."""
        if self.bias is None:
            return jnp.zeros(self.kernel.shape[-1:], self.kernel.dtype)
        return self.unscale(self.bias[...], math.prod(self.kernel.shape[:-1]), kappa)

    def weights(self, kappa: Any = None) -> tuple[Array, Array]:
        """Return the Euclidean form `(w, b)`, `(..., out)` and `(out,)`, weight norm applied."""
        kernel = self.kernel[...]
        if self.gain is not None:
            kernel = functional.weight_norm(kernel, jax.nn.softplus(self.gain[...]))
        return kernel, self.biases(kappa)

    def normals(self, kappa: Any = None) -> Normals:
        """Return the Minkowski normals V of the units, see `hyperplane.normals`."""
        if self.frozen is not None:
            return self.kept_normals(kappa)
        normals, unit_scale = self.factored_normals(kappa)
        if unit_scale is None:
            return normals
        return replace(normals, space=normals.space * row(unit_scale, normals.space))

    def factored_normals(self, kappa: Any = None) -> tuple[Normals, Array | None]:
        """Return the normals with their space part over a `unit_scale`, and that `(out,)`.

        It is None without weight norm. See `hyperplane.factored_normals`.
        """
        if self.frozen is not None:
            return self.kept_normals(kappa), None
        kernel, b, kappa = self.kernel[...], self.biases(kappa), self.resolve_kappa(kappa)
        b = None if self.bias is None else b
        if self.gain is None:
            return hyperplane.normals(kernel, b, kappa), None
        return hyperplane.factored_normals(kernel, jax.nn.softplus(self.gain[...]), b, kappa)

    def constants(self, kappa: Any) -> dict[str, Array]:
        """Return V, which stands for kernel, gain and bias in a compiled model."""
        arrays = normal_arrays(self.normals(kappa))
        gain = self.distance_gain
        return arrays if gain is None else arrays | {"distance_gain": gain[...]}


def normal_arrays(normals: Normals) -> dict[str, Array]:
    """Return normals as arrays by name."""
    arrays = {name: getattr(normals, name) for name in NORMALS}
    return {name: array for name, array in arrays.items() if array is not None}


def call(module: Any, x: Array, kappa: Any, **options: Any) -> Array:
    """Call a module with kappa if it takes one, as layers of ours do and those of Flax do not."""
    curved = "kappa" in inspect.signature(type(module).__call__).parameters
    return module(x, kappa, **options) if curved else module(x, **options)


def set_length(layer: HyperplaneLayer, length: float) -> None:
    """Scale the initial weights of every unit from the length of "fast", root 2, to this one."""
    if layer.gain is None:
        layer.kernel[...] = layer.kernel[...] * (length / math.sqrt(2))
    else:
        layer.gain[...] = jnp.full_like(layer.gain[...], initializers.raw_gain(length))


def window_shape(kernel_size: int | Sequence[int], axes: Sequence[int] = (2,)) -> tuple[int, ...]:
    """Return the sizes of a window, of which there may be as many as `axes` says.

    One number stands for two axes, height and width.
    """
    sizes = tuple(kernel_size) if isinstance(kernel_size, Sequence) else (kernel_size,) * 2
    if len(sizes) not in axes:
        known = "two" if tuple(axes) == (2,) else f"{min(axes)} to {max(axes)} of them"
        raise ValueError(f"kernel_size must be one number or {known}, got {kernel_size!r}")
    return sizes


def check_groups(groups: int, in_features: int, out_features: int) -> None:
    """Raise `ValueError` unless the groups divide the features on both sides."""
    names = {"the input features": in_features, "the output features": out_features}
    check_sizes(groups=groups, **names)
    if in_features % groups or out_features % groups:
        raise ValueError(
            f"groups must divide the features, got {groups} groups of {in_features} input and "
            f"{out_features} output features"
        )


def freeze_window(
    strides: int | Sequence[int], padding: functional.Padding, axes: int = 2
) -> tuple[Any, Any]:
    """Return strides and padding as static attributes of a module: sequences become tuples.

    Raises:
        ValueError: they do not name the spatial axes, or there is no such padding.
    """
    window_arguments(strides, padding, (1,) * axes)
    return (
        strides if isinstance(strides, int) else tuple(strides),
        tuple(padding) if isinstance(padding, list) else padding,
    )
