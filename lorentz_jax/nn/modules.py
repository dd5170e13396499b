"""Flax NNX shells: they create parameters and make one call into `functional`.

Parameter names: `kernel` (the weight-norm direction, or the weights where there is no weight norm),
`gain` (raw; the column norm is its softplus), `bias`, `beta`, and `raw` (a learnable kappa). The
only other state is the `BatchStat` `mean`. Every layer takes points `(..., D)` by their space
part, and an optional `kappa` that overrides its own: a network passes one curvature to all.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax import functional
from lorentz_jax._src.arguments import as_kappa, compute_dtype
from lorentz_jax._src.plain import boost_by, point_time, to_hyperboloid
from lorentz_jax._src.polar import polar
from lorentz_jax.hyperplane import Normals, factored_normals, normals
from lorentz_jax.nn import compiling, initializers
from lorentz_jax.nn.compiling import Frozen, check_kappa, check_mode, definer, value

Activation = Callable[[Array], Array]
NORMALS = ("space", "time", "length", "excess")
FOLDED_NORMALS = (*NORMALS, "push", "pull")


def normal_arrays(normals: Normals) -> dict[str, Array]:
    """Normals as arrays by name."""
    arrays = {name: getattr(normals, name) for name in NORMALS}
    return {name: array for name, array in arrays.items() if array is not None}


class Kappa(nnx.Module):
    """A learnable kappa inside the open interval (1e-3, 1e2).

    `log kappa` is a sigmoid of the raw parameter, between the logarithms of the bounds.
    """

    bounds = (1e-3, 1e2)

    def __init__(self, kappa: float, param_dtype: Any = jnp.float32):
        low, high = self.bounds
        if not low < kappa < high:
            raise ValueError(f"a learnable kappa must start inside ({low}, {high}), got {kappa}")
        share = math.log(kappa / low) / math.log(high / low)
        self.raw = nnx.Param(jnp.asarray(math.log(share / (1 - share)), param_dtype))
        self.value: float | None = None  # in a compiled network, where raw is gone

    def __call__(self) -> Any:
        """The value of kappa."""
        if self.value is not None:
            return self.value
        low, high = self.bounds
        return low * jnp.exp(math.log(high / low) * jax.nn.sigmoid(self.raw[...]))


def resolve_kappa(own: Any, given: Any = None) -> Any:
    """The kappa to compute with: `given` where it is not None, else the present value of `own`.

    Args:
      own: a number, an array, a learned `Kappa`, or None where a module has no kappa.
      given: what the caller passed.
    """
    if given is not None:
        return given
    return own() if isinstance(own, Kappa) else own


class HyperbolicModule(nnx.Module):
    """A module with a kappa of its own, fixed or learnable.

    With `scaled` (`init="fast"` here) an offset (b of a hyperplane, beta of a norm) is stored times
    `sqrt(1 + kappa D)`: it moves the output of a point x by `sqrt(1 + kappa |x|^2)` times its own
    step, where the offset of a Euclidean layer moves it by the step.
    """

    scaled = False
    frozen: Frozen | None = None  # in a compiled model, see `compiling`

    def __init__(self, kappa: float, learn_kappa: bool, param_dtype: Any):
        as_kappa(kappa, jnp.float32)
        self.kappa = Kappa(kappa, param_dtype) if learn_kappa else float(kappa)

    def resolve_kappa(self, kappa: Any = None) -> Any:
        """`kappa` where it is given, else the module's own."""
        kappa = resolve_kappa(self.kappa, kappa)
        compiling.note(self, kappa)
        return kappa

    def kept_normals(self, kappa: Any) -> Normals:
        """The normals that a frozen layer holds."""
        assert self.frozen is not None
        check_kappa(self.frozen, self.resolve_kappa(kappa))
        names = ("time", "space", "length", "excess")
        return Normals(*(value(getattr(self, name, None)) for name in names))

    def unscale(self, stored: Array, dim: int, kappa: Any) -> Array:
        """The offset whose stored value this is, for inputs of `dim` space coordinates."""
        if not self.scaled:
            return stored
        dtype = compute_dtype(stored.dtype)
        kappa = as_kappa(self.resolve_kappa(kappa), dtype)
        return (stored.astype(dtype) / jnp.sqrt(1 + kappa * dim)).astype(stored.dtype)


class HyperplaneLayer(HyperbolicModule):
    """What the layers with hyperplanes share: kernel, gain, bias and the normals made of them."""

    def __init__(
        self, values: initializers.Affine, kappa, learn_kappa, activation, param_dtype, init
    ):
        super().__init__(kappa, learn_kappa, param_dtype)
        self.scaled = init == "fast"
        self.kernel = nnx.Param(values.kernel)
        self.gain = None if values.gain is None else nnx.Param(values.gain)
        self.bias = nnx.Param(values.bias)
        self.activation = activation

    def biases(self, kappa: Any = None) -> Array:
        """The b of every unit."""
        return self.unscale(self.bias[...], math.prod(self.kernel.shape[:-1]), kappa)

    def weights(self, kappa: Any = None) -> tuple[Array, Array]:
        """The Euclidean form (w, b), weight norm applied."""
        kernel = self.kernel[...]
        if self.gain is not None:
            kernel = functional.weight_norm(kernel, jax.nn.softplus(self.gain[...]))
        return kernel, self.biases(kappa)

    def normals(self, kappa: Any = None) -> Normals:
        """The Minkowski normals V of the units."""
        if self.frozen is not None:
            return self.kept_normals(kappa)
        planes, scale = self.factored_normals(kappa)
        return planes if scale is None else replace(planes, space=planes.space * scale)

    def factored_normals(self, kappa: Any = None) -> tuple[Normals, Array | None]:
        """The normals with their space part over a scale per unit, None without weight norm."""
        if self.frozen is not None:
            return self.kept_normals(kappa), None
        kernel, b, kappa = self.kernel[...], self.biases(kappa), self.resolve_kappa(kappa)
        if self.gain is None:
            return normals(kernel, b, kappa), None
        return factored_normals(kernel, jax.nn.softplus(self.gain[...]), b, kappa)

    def constants(self, kappa: Any) -> dict[str, Array]:
        """V, in the place of kernel, gain and bias."""
        return normal_arrays(self.normals(kappa))

    def fold(self, norm: nnx.Module, kappa: Any) -> dict[str, Array] | None:
        """V and a boost, with the centring norm after the layer folded in; None if it cannot be.

        The rotation R of the norm's polar form goes into the normals: `R (x o v) = x o (R v)`,
        where R acts on the output axis. The boost is left, see `_src.polar`.
        """
        if not isinstance(norm, LorentzBatchNorm) or definer(norm) is not LorentzBatchNorm:
            return None
        if self.activation is not None:  # it stands between the two
            return None
        mean, beta = (np.asarray(p, np.float64) for p in (norm.mean[...], norm.beta_point(kappa)))
        rotation, point = polar(beta, mean, float(kappa))
        push, normals = np.sqrt(float(kappa)) * point, self.normals(kappa)
        arrays = {
            "space": np.asarray(normals.space, np.float64) @ rotation.T,
            "time": np.asarray(normals.time, np.float64) @ rotation.T,
            "push": push,
            "pull": push / (1 + np.sqrt(1 + push @ push)),
        }
        return {name: jnp.asarray(a, normals.space.dtype) for name, a in arrays.items()}

    def finish(self, kappa: Any) -> Activation | None:
        """What follows `x o v`: the activation, or the boost of a norm that was folded in."""
        if self.frozen is None or not self.frozen.folded:
            return self.activation
        return partial(boost_by, push=self.push[...], pull=self.pull[...], kappa=kappa)


class LorentzLinear(HyperplaneLayer):
    """`functional.linear` from D_in to D_out space coordinates.

    Args:
      in_features, out_features: D_in, D_out.
      kappa: curvature parameter; `learn_kappa` makes it a parameter (see `Kappa`).
      activation: elementwise on space parts, None for none.
      weight_norm: `w = softplus(g) a/|a|`.
      init: preset of `initializers`.
      param_dtype, rngs: as in Flax.
    """

    def __init__(
        self, in_features: int, out_features: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, activation: Activation | None = None, weight_norm: bool = True,
        init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (in_features, out_features)
        values = initializers.affine(rngs.params(), shape, init, weight_norm, param_dtype)
        super().__init__(values, kappa, learn_kappa, activation, param_dtype, init)

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Points `(..., D_in)` to points `(..., D_out)`."""
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        return functional.linear(x, normals, kappa, self.finish(kappa))

    compiles, constant_names = True, FOLDED_NORMALS


class LorentzConv(HyperplaneLayer):
    """`functional.conv` on NHWC images; arguments as `LorentzLinear`, with kernel size and strides.

    `padding=None` pads (k - 1)//2 on every side.
    """

    def __init__(
        self, in_features: int, out_features: int, kernel_size: tuple[int, int] = (3, 3), *,
        kappa: float, rngs: nnx.Rngs, strides: int | Sequence[int] = 1,
        padding: functional.Padding = None, learn_kappa: bool = False,
        activation: Activation | None = None, weight_norm: bool = True, init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (*kernel_size, in_features, out_features)
        values = initializers.affine(rngs.params(), shape, init, weight_norm, param_dtype)
        super().__init__(values, kappa, learn_kappa, activation, param_dtype, init)
        self.strides = strides if isinstance(strides, int) else tuple(strides)
        self.padding = tuple(padding) if isinstance(padding, list) else padding

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Images `(..., H, W, D_in)` to `(..., H', W', D_out)`."""
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        return functional.conv(
            x, normals, kappa, self.strides, self.padding, activation=self.finish(kappa)
        )

    compiles, constant_names = True, FOLDED_NORMALS


class LorentzMLR(HyperplaneLayer):
    """`functional.mlr`: logits `(..., classes)` of points `(..., D)`, without weight norm."""

    def __init__(
        self, in_features: int, num_classes: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, scale: str | None = "inside", init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        values = initializers.head(rngs.params(), (in_features, num_classes), init, param_dtype)
        super().__init__(values, kappa, learn_kappa, None, param_dtype, init)
        self.scale = scale

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Signed distances of each point to the hyperplane of each class."""
        if self.frozen is not None:  # logits deserve no half precision
            x = x.astype(compute_dtype(x.dtype))
        with jax.named_scope("logits"):
            return functional.mlr(x, self.normals(kappa), self.resolve_kappa(kappa), self.scale)

    compiles, constant_names, half = True, NORMALS, False

    def fold(self, norm: nnx.Module, kappa: Any) -> None:
        """Nothing is folded into logits."""

    @property
    def needs_length(self) -> bool:
        """Whether the layer itself, not only `restore`, uses |w|."""
        return self.scale != "inside"


class LorentzBatchNorm(HyperbolicModule):
    """Centring batch norm: moves the batch mean to beta by an isometry (`functional.center`).

    In training the centroid of the batch is the mean, and the running mean moves to the centroid
    of (old, batch) with weights (1 - momentum, momentum); in evaluation the running mean is used.
    It starts at the origin, where the layer is the identity for beta = 0. An empty batch passes
    through and leaves the running mean alone. With `init="fast"` the parameter is
    `beta sqrt(1 + kappa D)`, with "paper" the space part of beta itself.
    """

    def __init__(
        self, features: int, *, kappa: float, rngs: nnx.Rngs | None = None,
        learn_kappa: bool = False, momentum: float = 0.1, use_running_average: bool = False,
        init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie in [0, 1], got {momentum}")
        self.beta = nnx.Param(jnp.zeros((features,), param_dtype))
        self.mean = nnx.BatchStat(jnp.zeros((features,), param_dtype))
        self.momentum, self.use_running_average = momentum, use_running_average
        self.scaled = initializers.check_preset(init) == "fast"

    def beta_point(self, kappa: Any = None) -> Array:
        """The point beta, by its space part."""
        if self.frozen is not None:
            return self.beta[...]
        return self.unscale(self.beta[...], self.beta.shape[0], kappa)

    def __call__(
        self, x: Array, kappa: Any = None, use_running_average: bool | None = None
    ) -> Array:
        """Points `(..., D)` to points `(..., D)`."""
        kappa = self.resolve_kappa(kappa)
        if self.frozen is not None:
            check_mode(self.frozen, use_running_average)
            if self.frozen.folded:
                return x
            check_kappa(self.frozen, kappa)
        if self.uses_running_average(x, use_running_average):
            mean = self.mean[...]
        else:
            mean = functional.batch_mean(x, kappa)
            self.update(mean, kappa)
        return functional.center(x, mean, self.beta_point(kappa), kappa)

    def uses_running_average(self, x: Array, use_running_average: bool | None) -> bool:
        """Whether this call centres at the running mean; so for an empty batch."""
        if self.frozen is not None:
            return True
        own = self.use_running_average
        return x.size == 0 or (own if use_running_average is None else use_running_average)

    compiles, constant_names = True, ("mean", "beta")

    def constants(self, kappa: Any) -> dict[str, Array]:
        """The running mean, and beta as a point."""
        return {"mean": self.mean[...], "beta": self.beta_point(kappa)}

    def update(self, mean: Array, kappa: Any) -> None:
        """Move the running mean towards the mean of a batch."""
        # As `batch_mean` has it. `geometry.centroid`, exact for far points too, compiles so slowly
        # that a network takes a third longer.
        dtype = compute_dtype(self.mean.dtype)
        old, mean = self.mean[...].astype(dtype), jax.lax.stop_gradient(mean).astype(dtype)
        kappa = jax.lax.stop_gradient(as_kappa(kappa, dtype))
        space, time = (
            (1 - self.momentum) * p + self.momentum * q
            for p, q in ((old, mean), (point_time(old, kappa), point_time(mean, kappa)))
        )
        moved = to_hyperboloid(space, time, kappa)
        self.mean[...] = moved.astype(self.mean.dtype)


def conv_norm(
    conv: LorentzConv, norm: LorentzBatchNorm, x: Array, kappa: Any = None,
    use_running_average: bool | None = None,
) -> Array:  # fmt: skip
    """`norm(conv(x))`; in training the fused form of it (`functional.conv_center`)."""
    if conv.activation is not None or norm.uses_running_average(x, use_running_average):
        return norm(conv(x, kappa), kappa, use_running_average)
    kappa = conv.resolve_kappa(kappa)
    planes, scale = conv.factored_normals(kappa)
    beta = norm.beta_point(kappa)
    out, mean = functional.conv_center(x, planes, beta, kappa, conv.strides, conv.padding, scale)
    norm.update(mean, kappa)
    return out
