"""The Lorentz layers: linear, convolution, classifier, and the batch norm that centres."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax import functional
from lorentz_jax._src import forms
from lorentz_jax._src.arguments import as_kappa, check_sizes, compute_dtype
from lorentz_jax._src.conv import per_axis
from lorentz_jax._src.plain import blend, boost_by
from lorentz_jax._src.polar import polar
from lorentz_jax.nn import initializers
from lorentz_jax.nn.compiling import check_kappa, check_mode, definer
from lorentz_jax.nn.modules import (
    NORMALS,
    Activation,
    HyperbolicModule,
    HyperplaneLayer,
    check_groups,
    freeze_window,
    window_shape,
)

__all__ = ["LorentzBatchNorm", "LorentzConv", "LorentzLinear", "LorentzMLR", "conv_norm"]


class LorentzLinear(HyperplaneLayer):
    """Lorentz fully connected layer, `functional.linear` with parameters.

    Args:
        in_features: D_in, space coordinates of the input.
        out_features: D_out, space coordinates of the output.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernel.
        learn_kappa: make kappa a parameter, see `Kappa`.
        activation: elementwise on space parts, None for none.
        weight_norm: train direction and length of a unit apart, `w = softplus(g) a/|a|`.
        use_bias: with b. Before a centring norm it is redundant: the norm takes away what it adds.
        distance_gain: multiply the distance of every unit by a trained gain, which is 1 at first,
            before the activation; see `functional.scale_distance`.
        init: preset of `initializers`; "fast" learns quickly, "paper" is the reference's.
        param_dtype: dtype of the parameters; the output has the dtype of the input.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), no such `init`, or a
            size below 1.

    Example:
        >>> layer = LorentzLinear(3, 5, kappa=1.0, activation=jax.nn.relu, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 3))).shape
        (2, 5)
    """

    def __init__(
        self, in_features: int, out_features: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, activation: Activation | None = None, weight_norm: bool = True,
        use_bias: bool = True, distance_gain: bool = False, init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (in_features, out_features)
        values = initializers.affine(rngs.params(), shape, init, weight_norm, param_dtype)
        super().__init__(values, kappa, learn_kappa, activation, init, use_bias, distance_gain)

    compiles, constant_names = True, (*NORMALS, "push", "pull", "distance_gain")

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map points `(..., D_in)` to points `(..., D_out)`."""
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        return functional.linear(x, normals, kappa, _finish(self, kappa))

    def fold(self, norm: nnx.Module, kappa: float) -> dict[str, Array] | None:
        """Return constants of the layer and the norm after it, see `fold_norm`."""
        return fold_norm(self, norm, kappa)


class LorentzConv(HyperplaneLayer):
    """Lorentz convolution of images of points, channels last: `functional.conv` with parameters.

    Args:
        in_features: D_in, space coordinates of a pixel.
        out_features: D_out, space coordinates of a pixel of the output.
        kernel_size: height and width of the window, or one number for both. A sequence of one or
            three numbers is for images with one or three spatial axes.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernel.
        strides: one number, or one for each axis.
        padding: an int, an int or a pair for each axis, "SAME" or "VALID"; None pads (k - 1)//2 on
            every side, as the reference does. Padding is with the origin.
        dilation: from one pixel of the window to the next; one number, or one for each axis.
        groups: into how many points the channels of a pixel are split, to be convolved apart.
        learn_kappa: make kappa a parameter, see `Kappa`.
        activation: elementwise on space parts, None for none.
        weight_norm: `w = softplus(g) a/|a|`, with the length |a| over window and channels.
        use_bias: with b. Before a centring norm it is redundant, and without it the convolution is
            an ordinary one.
        distance_gain: as of `LorentzLinear`. `conv_norm` then calls the norm by itself.
        init: preset of `initializers`; "fast" learns quickly, "paper" is the reference's.
        param_dtype: dtype of the parameters; the output has the dtype of the input.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), no such `init`, or a
            size below 1.

    Example:
        >>> conv = LorentzConv(3, 8, strides=2, kappa=1.0, rngs=nnx.Rngs(0))
        >>> conv(jnp.ones((2, 6, 6, 3))).shape
        (2, 3, 3, 8)
    """

    def __init__(
        self, in_features: int, out_features: int, kernel_size: int | Sequence[int] = 3, *,
        kappa: float, rngs: nnx.Rngs, strides: int | Sequence[int] = 1,
        padding: functional.Padding = None, dilation: int | Sequence[int] = 1, groups: int = 1,
        learn_kappa: bool = False, activation: Activation | None = None, weight_norm: bool = True,
        use_bias: bool = True, distance_gain: bool = False, init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        size = window_shape(kernel_size, (1, 2, 3))
        check_groups(groups, in_features, out_features)
        shape = (*size, in_features // groups, out_features)
        values = initializers.affine(rngs.params(), shape, init, weight_norm, param_dtype)
        super().__init__(values, kappa, learn_kappa, activation, init, use_bias, distance_gain)
        self.strides, self.padding = freeze_window(strides, padding, len(size))
        self.dilation, self.groups = per_axis("dilation", dilation, len(size)), groups

    compiles, constant_names = True, (*NORMALS, "push", "pull", "distance_gain")

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map images `(..., H, W, D_in)` to `(..., H', W', D_out)`."""
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        window = {"dilation": self.dilation, "groups": self.groups}
        finish = _finish(self, kappa)
        return functional.conv(x, normals, kappa, self.strides, self.padding, finish, **window)

    def fold(self, norm: nnx.Module, kappa: float) -> dict[str, Array] | None:
        """Return constants of the layer and the norm after it, see `fold_norm`."""
        return fold_norm(self, norm, kappa)


class LorentzMLR(HyperplaneLayer):
    """Lorentz multinomial regression, `functional.mlr` with parameters and without weight norm.

    The logits `(..., classes)` of points `(..., D)` are their signed distances to hyperplanes.

    Args:
        in_features: D, space coordinates of the input.
        num_classes: number of logits.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernel.
        learn_kappa: make kappa a parameter, see `Kappa`.
        scale: of the distances, "inside" (the paper's choice), "outside" or None, see
            `hyperplane.signed_distance`.
        init: preset of `initializers`; "fast" learns quickly, "paper" is the reference's.
        param_dtype: dtype of the parameters; the logits have the dtype of the input.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), no such `init`, or a
            size below 1.

    Example:
        >>> LorentzMLR(3, 10, kappa=1.0, rngs=nnx.Rngs(0))(jnp.ones((2, 3))).shape
        (2, 10)
    """

    def __init__(
        self, in_features: int, num_classes: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, scale: str | None = "inside", init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        values = initializers.head(rngs.params(), (in_features, num_classes), init, param_dtype)
        super().__init__(values, kappa, learn_kappa, None, init)
        self.scale = scale

    compiles, constant_names, half = True, NORMALS, False

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Return logits `(..., classes)` of points `(..., D)`."""
        if self.frozen is not None:  # logits deserve no half precision
            x = x.astype(compute_dtype(x.dtype))
        with jax.named_scope("logits"):
            return functional.mlr(x, self.normals(kappa), self.resolve_kappa(kappa), self.scale)

    @property
    def needs_length(self) -> bool:
        """Whether the layer itself, not only `inference.restore`, uses |w|."""
        return self.scale != "inside"


class LorentzBatchNorm(HyperbolicModule):
    """Batch norm that centres: move the batch mean to beta by an isometry (`functional.center`).

    In training the mean is the centroid of the batch, and the running mean moves to the centroid
    of old and new with weights `(1 - momentum, momentum)`. In evaluation it is the running mean,
    which starts at the origin: the layer is the identity then. An empty batch passes through and
    leaves the running mean alone.

    Args:
        features: D, space coordinates of the input.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: not used; every factory of a layer takes it.
        learn_kappa: make kappa a parameter, see `Kappa`.
        momentum: weight of the new batch in the running mean.
        use_running_average: evaluation mode, which `train()` and `eval()` set.
        init: "fast" stores `beta sqrt(1 + kappa D)`, "paper" the space part of beta itself.
        param_dtype: dtype of beta and of the running mean.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), `momentum` is
            outside [0, 1], no such `init`, or no feature.

    Example:
        >>> y = LorentzBatchNorm(2, kappa=1.0)(jnp.array([[1.0, 2.0], [3.0, 0.0]]))
        >>> bool(jnp.allclose(functional.batch_mean(y, 1.0), 0, atol=1e-6))
        True
    """

    def __init__(
        self, features: int, *, kappa: float, rngs: nnx.Rngs | None = None,
        learn_kappa: bool = False, momentum: float = 0.1, use_running_average: bool = False,
        init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        check_sizes(features=features)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie in [0, 1], got {momentum}")
        self.beta = nnx.Param(jnp.zeros((features,), param_dtype))
        self.mean = nnx.BatchStat(jnp.zeros((features,), param_dtype))
        self.momentum, self.use_running_average = momentum, use_running_average
        self.scaled = initializers.check_preset(init) == "fast"

    def beta_point(self, kappa: Any = None) -> Array:
        """Return the point beta, by its space part `(D,)`."""
        if self.frozen is not None:
            return self.beta[...]
        return self.unscale(self.beta[...], self.beta.shape[0], kappa)

    compiles, constant_names = True, ("mean", "beta")

    def constants(self, kappa: Any) -> dict[str, Array]:
        """Return the running mean, and beta as a point."""
        return {"mean": self.mean[...], "beta": self.beta_point(kappa)}

    def __call__(
        self, x: Array, kappa: Any = None, use_running_average: bool | None = None
    ) -> Array:
        """Map points `(..., D)` to points `(..., D)`.

        `use_running_average` overrides the mode that `train()` or `eval()` set.
        """
        kappa = self.resolve_kappa(kappa)
        if self.frozen is not None:
            check_mode(self.frozen, use_running_average)
            if self.frozen.folded:
                return x
            check_kappa(self.frozen, kappa)
        if self._averages(x, use_running_average):
            return functional.center(x, self.mean[...], self.beta_point(kappa), kappa)
        y, mean = functional.center_batch(x, self.beta_point(kappa), kappa)
        self.update(mean, kappa)
        return y

    # Not public: `nnx.tabulate` runs public methods under `jit`, where a bool becomes an array.
    def _averages(self, x: Array, use_running_average: bool | None) -> bool:
        """Return whether a call with these arguments centres at the running mean."""
        if self.frozen is not None:
            return True
        if use_running_average is None:
            use_running_average = self.use_running_average
        return x.size == 0 or use_running_average

    def update(self, mean: Array, kappa: Any) -> None:
        """Move the running mean towards the mean `(D,)` of a batch."""
        # As `batch_mean` has it. `geometry.centroid`, exact for far points too, compiles so slowly
        # that a network takes a third longer.
        dtype, share = compute_dtype(self.mean.dtype), self.momentum
        old, new = self.mean[...].astype(dtype), jax.lax.stop_gradient(mean).astype(dtype)
        kappa = jax.lax.stop_gradient(as_kappa(kappa, dtype))
        self.mean[...] = blend(old, new, share, kappa).astype(self.mean.dtype)


def fold_norm(layer: Any, norm: nnx.Module, kappa: float) -> dict[str, Array] | None:
    """Return V and a boost that stand for a linear layer and its norm; None if they cannot.

    The rotation R of the norm's polar form goes into the normals: `R (x o v) = x o (R v)`, where R
    acts on the output axis. The boost to p is left, as `push = s p` and `pull = s p/(1 + s p_t)`.

    Args:
        layer: a `LorentzLinear` or `LorentzConv`.
        norm: what is applied to its output. Only a `LorentzBatchNorm` folds, and not behind an
            activation or groups.
        kappa: of both.
    """
    if definer(norm) is not LorentzBatchNorm or layer.activation is not None:
        return None
    if getattr(layer, "groups", 1) > 1:
        return None  # R would mix the units of different groups
    if layer.distance_gain is not None:
        return None  # it stands between V and R
    centre: Any = norm
    mean, beta = (np.asarray(p, np.float64) for p in (centre.mean[...], centre.beta_point(kappa)))
    rotation, point = polar(beta, mean, kappa)
    push, normals = np.sqrt(kappa) * point, layer.normals(kappa)
    arrays = {
        "space": np.asarray(normals.space, np.float64) @ rotation.T,
        "push": push,
        "pull": push / (1 + np.sqrt(1 + push @ push)),
    }
    if normals.time is not None:
        arrays["time"] = np.asarray(normals.time, np.float64) @ rotation.T
    return {name: jnp.asarray(a, normals.space.dtype) for name, a in arrays.items()}


def _finish(layer: Any, kappa: Any) -> Activation | None:
    """Return what follows `x o v`: gain and activation, or the boost of a norm folded in."""
    if layer.frozen is None or not layer.frozen.folded:
        if layer.distance_gain is None:
            return layer.activation
        activation = layer.activation or (lambda y: y)
        return lambda z: activation(layer.apply_gain(z, kappa))
    return partial(boost_by, push=layer.push[...], pull=layer.pull[...], kappa=kappa)


def conv_norm(
    conv: LorentzConv,
    norm: LorentzBatchNorm,
    x: Array,
    kappa: Any = None,
    use_running_average: bool | None = None,
    relu: bool = False,
    residual: Array | None = None,
) -> Array:
    """Compute `norm(conv(x))`; in training by the fused `functional.conv_center`.

    Args:
        conv: the convolution; with an activation, a distance gain, or a kappa that is not that of
            the norm, the two are called one after the other.
        norm: the norm of its output.
        x: images `(N, H, W, D_in)`.
        kappa: overrides the kappa of both modules.
        use_running_average: overrides the mode of the norm.
        relu: apply ReLU to the space parts last.
        residual: points to add to the space parts before that.

    Example:
        >>> conv = LorentzConv(3, 8, kappa=1.0, rngs=nnx.Rngs(0))
        >>> conv_norm(conv, LorentzBatchNorm(8, kappa=1.0), jnp.ones((2, 6, 6, 3))).shape
        (2, 6, 6, 8)
    """
    apart = not isinstance(conv, LorentzConv) or conv.activation is not None
    apart = apart or conv.distance_gain is not None
    apart = apart or (conv.groups > 1 and conv.bias is not None)
    # Points that pass between two curvatures: the fused function knows one.
    own, its = (getattr(layer.kappa, "raw", layer.kappa) for layer in (conv, norm))
    apart = apart or (kappa is None and own is not its and conv.kappa != norm.kappa)
    if apart or norm._averages(x, use_running_average):
        out = norm(conv(x, kappa), kappa, use_running_average)
        out = out if residual is None else out + residual
        return forms.relu(out) if relu else out
    kappa = conv.resolve_kappa(kappa)
    normals, unit_scale = conv.factored_normals(kappa)
    window = conv.strides, conv.padding, unit_scale, conv.dilation, conv.groups
    beta = norm.beta_point(kappa)
    out, mean = functional.conv_center(x, normals, beta, kappa, *window, relu, residual)
    norm.update(mean, kappa)
    return out
