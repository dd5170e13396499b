"""Lorentz layers of Chen et al., "Fully Hyperbolic Neural Networks" (ACL 2022).

https://arxiv.org/abs/2105.14686, code https://github.com/chenweize1998/fully-hyperbolic-nn.

A matrix acts on the whole ambient vector `(x_t, x)`, and the time of the result is whatever puts
it on the hyperboloid: `y = x_t w_t + x W + b`. The row of the matrix that would give a time is
dropped, so a layer is `functional.linear` or `functional.conv` with any row `w_t` in the place of
`-v_t`, and a bias. Nothing but the time of the input depends on kappa.

The FGG paper's reference code has 1/kappa for kappa in one of its two versions of this layer; the
one here is right at every kappa.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, nn
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype, row
from lorentz_jax._src.scalars import divide, safe_norm
from lorentz_jax.hyperplane import Normals
from lorentz_jax.nn.initializers import check_kernel, draw_uniform
from lorentz_jax.nn.modules import freeze_window, window_shape

__all__ = ["INITS", "ChenConv", "ChenLinear", "check_units", "conv", "linear", "reference_linear"]

INITS = ("chen", "hcnn")


def linear(
    x: Any,
    kernel: Any,
    time: Any,
    kappa: Any,
    bias: Any = None,
    log_scale: Any = None,
    activation: nn.Activation | None = None,
) -> Array:
    """Apply Chen et al.'s linear layer, `y = h(x_t w_t + x W + b)`.

    With `log_scale` it is their normalised layer: `kernel`, `time` and `bias` then have D_out + 1
    columns, the first of which is a gate g, and the others, h, only give the direction:
    `y = e^log_scale sigmoid(g) h/|h|`, the origin where `h = 0`.

    Args:
        x: points `(..., D_in)`.
        kernel: W, `(D_in, D_out)` or `(D_in, D_out + 1)`.
        time: w_t, the weights of the time of x, one a column of `kernel`.
        kappa: may vary along the batch; the curvature is -kappa.
        bias: b, one a column of `kernel`, or None.
        log_scale: logarithm of the largest |y|, a number; None for the plain layer.
        activation: elementwise on the space part; the time follows it.

    Returns:
        Points `(..., D_out)`.

    Raises:
        ValueError: shapes do not fit each other.

    Example:
        >>> linear(jnp.zeros(2), jnp.ones((2, 3)), jnp.array([0.0, 1.0, 2.0]), 0.25)
        Array([0., 2., 4.], dtype=float32)
    """
    normals = _unconstrained(kernel, time, bias, log_scale)
    return functional.linear(x, normals, kappa, _finish(bias, log_scale, activation))


def conv(
    x: Any, kernel: Any, time: Any, kappa: Any, bias: Any = None, log_scale: Any = None,
    strides: int | Sequence[int] = 1, padding: functional.Padding = None,
    activation: nn.Activation | None = None,
) -> Array:  # fmt: skip
    """Apply `linear` to every concatenated patch of images `(..., H, W, D_in)`, as HCNN does.

    As the patch has time `t = sqrt(1/kappa + sum_patch |x|^2)`, this is `conv(x, W) + t w_t + b`.
    `kernel` is `(kh, kw, D_in, columns)` and kappa a scalar; strides and padding are those of
    `functional.conv`, the other arguments those of `linear`.
    """
    normals = _unconstrained(kernel, time, bias, log_scale)
    finish = _finish(bias, log_scale, activation)
    return functional.conv(x, normals, kappa, strides, padding, activation=finish)


def reference_linear(
    X: Any, kernel: Any, time: Any, kappa: Any, bias: Any = None, log_scale: Any = None
) -> Array:
    """Apply the layer as the FGG paper's experiments ran it: its ReLU comes after the time.

    Ambient vectors `(..., D_in + 1)`, used as they are, to `(..., D_out + 1)`: the time is that of
    the pre-activation, so the result is off the hyperboloid wherever ReLU cut something, and
    cannot be stored by its space part. To reproduce their figures only; `linear` with
    `activation=jax.nn.relu` is the layer that was meant. kappa is a scalar.
    """
    X = as_array("X", X)
    normals = _unconstrained(kernel, time, bias, log_scale)
    if normals.space.ndim != 2 or X.shape[-1] != normals.space.shape[0] + 1:
        raise ValueError(
            f"expected ambient vectors with {normals.space.shape[0]} + 1 coordinates to go with a "
            f"kernel {normals.space.shape}, got shape {X.shape}"
        )
    dtype = compute_dtype(X.dtype)
    kappa = as_kappa(kappa, dtype)
    ambient, weights = X.astype(dtype), jax.tree.map(lambda a: a.astype(dtype), normals)
    product = ambient[..., 1:] @ weights.space
    product = product - ambient[..., :1] * row(weights.time, product)
    space = _finish(bias, log_scale, None)(product)
    time = jnp.sqrt(1 / kappa + jnp.sum(space * space, axis=-1, keepdims=True))
    return jnp.concatenate([time, jax.nn.relu(space)], axis=-1).astype(X.dtype)


def check_units(kernel: Array, name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` has one entry for each unit (column) of the kernel."""
    if jnp.shape(value) != kernel.shape[-1:]:
        raise ValueError(
            f"{name} must have shape {kernel.shape[-1:]} to go with a kernel {kernel.shape}, "
            f"got {jnp.shape(value)}"
        )


def _unconstrained(kernel, time, bias, log_scale) -> Normals:
    """Put the weights in the place of normals: `z = x W - x_t v_t` with `v_t = -w_t`."""
    kernel, time = as_array("kernel", kernel, min_ndim=2), as_array("time", time)
    check_units(kernel, "time", time)
    if bias is not None:
        check_units(kernel, "bias", bias)
    if log_scale is not None and kernel.shape[-1] < 2:
        raise ValueError(f"the first column is the gate: none is left of a kernel {kernel.shape}")
    return Normals(-time, kernel)


def _finish(bias, log_scale, activation):
    """Return what follows the matrix product, as a function of it."""

    def finish(h: Array) -> Array:
        if bias is not None:
            h = h + row(jnp.asarray(bias).astype(h.dtype), h)
        if log_scale is not None:
            size = jnp.exp(jnp.asarray(log_scale).astype(h.dtype)) * jax.nn.sigmoid(h[..., :1])
            h = h[..., 1:]
            h = size * divide(h, safe_norm(h, keepdims=True))
        return h if activation is None else activation(h)

    return finish


class _Chen(nn.HyperbolicModule):
    """Parameters of both layers: `kernel`, `time`, `bias` and `log_scale`."""

    def __init__(
        self, shape, kappa, rngs, normalise, use_bias, init, learn_kappa, activation, dtype
    ):
        super().__init__(kappa, learn_kappa, dtype)
        if init not in INITS:
            raise ValueError(f"init must be one of {INITS}, got {init!r}")
        fan_in, columns = math.prod(check_kernel(shape)[:-1]), shape[-1] + normalise
        bound = 0.02 if init == "chen" else math.sqrt(2 / fan_in)

        def uniform(*shape: int) -> Array:
            return draw_uniform(rngs.params(), shape, bound, dtype)

        self.kernel = nnx.Param(uniform(*shape[:-1], columns))
        self.time = nnx.Param(uniform(columns))
        bias = jnp.zeros((columns,), dtype) if init == "chen" else uniform(columns)
        self.bias = nnx.Param(bias) if use_bias else None
        self.log_scale = nnx.Param(jnp.asarray(2.3, dtype)) if normalise else None
        self.activation = activation

    def weights(self) -> dict[str, Any]:
        """Return the arguments of `linear` and `conv` that are parameters."""
        leaves = {name: getattr(self, name) for name in ("kernel", "time", "bias", "log_scale")}
        return {name: None if leaf is None else leaf[...] for name, leaf in leaves.items()}


class ChenLinear(_Chen):
    """Chen et al.'s linear layer, `linear` with parameters; other arguments as `nn.LorentzLinear`.

    Args:
        normalise: the normalised layer; its `log_scale` starts at 2.3, so that |y| is below 10.
        use_bias: with a bias.
        init: "chen" draws weights from U(-0.02, 0.02) and sets the bias to 0; "hcnn" draws both
            from U(-r, r), `r = sqrt(2/fan_in)`.

    Example:
        >>> ChenLinear(3, 5, kappa=1.0, rngs=nnx.Rngs(0))(jnp.ones((2, 3))).shape
        (2, 5)
    """

    def __init__(
        self, in_features: int, out_features: int, *, kappa: float, rngs: nnx.Rngs,
        normalise: bool = False, use_bias: bool = True, init: str = "hcnn",
        learn_kappa: bool = False, activation: nn.Activation | None = None,
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        options = (normalise, use_bias, init, learn_kappa, activation, param_dtype)
        super().__init__((in_features, out_features), kappa, rngs, *options)

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map points `(..., D_in)` to points `(..., D_out)`."""
        kappa = self.resolve_kappa(kappa)
        return linear(x, kappa=kappa, activation=self.activation, **self.weights())


class ChenConv(_Chen):
    """HCNN's convolution of NHWC images, `conv` with parameters.

    Arguments as in `ChenLinear`, and `kernel_size`, `strides` and `padding` as in `nn.LorentzConv`.
    """

    def __init__(
        self, in_features: int, out_features: int, kernel_size: int | Sequence[int] = 3, *,
        kappa: float, rngs: nnx.Rngs, strides: int | Sequence[int] = 1,
        padding: functional.Padding = None, normalise: bool = False, use_bias: bool = True,
        init: str = "hcnn", learn_kappa: bool = False, activation: nn.Activation | None = None,
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        options = (normalise, use_bias, init, learn_kappa, activation, param_dtype)
        super().__init__(
            (*window_shape(kernel_size), in_features, out_features), kappa, rngs, *options
        )
        self.strides, self.padding = freeze_window(strides, padding)

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map images `(..., H, W, D_in)` to `(..., H', W', D_out)`."""
        window = {"strides": self.strides, "padding": self.padding}
        kappa, h = self.resolve_kappa(kappa), self.activation
        return conv(x, kappa=kappa, activation=h, **window, **self.weights())
