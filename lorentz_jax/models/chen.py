"""Lorentz layers of Chen et al., "Fully Hyperbolic Neural Networks" (ACL 2022).

A matrix acts on the whole ambient vector `(x_t, x)`, and the time of the result is whatever puts
it on the hyperboloid: `y = x_t w_t + x W + b`. The row of the matrix that would give a time is
dropped, so a layer is `functional.linear` or `functional.conv` with any row `w_t` in the place of
`-v_t`, and a bias. Nothing but the time of the input depends on kappa.

The reference code of the paper has 1/kappa for kappa in one of its two versions; this is right
at every kappa.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, nn
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype
from lorentz_jax._src.scalars import divide, safe_norm
from lorentz_jax.hyperplane import Normals

INITS = ("chen", "hcnn")


def linear(
    x: Any, kernel: Any, time: Any, kappa: Any, bias: Any = None, log_scale: Any = None,
    activation: Callable[[Array], Array] | None = None,
) -> Array:  # fmt: skip
    """Chen et al.'s linear layer, `y = h(x_t w_t + x W + b)`, from `(..., D_in)` to `(..., D_out)`.

    With `log_scale` it is their normalised layer: `kernel`, `time` and `bias` then have D_out + 1
    columns, the first of which is a gate g, and the others, h, only give the direction:
    `y = e^log_scale sigmoid(g) h/|h|`, the origin where `h = 0`.

    Args:
      x: points.
      kernel: W, `(D_in, D_out)` or `(D_in, D_out + 1)`.
      time: w_t, the weights of the time of x, one a column of `kernel`.
      kappa: may vary along the batch.
      bias: b, or None.
      log_scale: logarithm of the largest |y|, a number; None for the plain layer.
      activation: elementwise on the space part; the time follows it.

    Raises:
      ValueError: shapes that do not fit each other.
    """
    normals = _unconstrained(kernel, time, bias, log_scale)
    return functional.linear(x, normals, kappa, _finish(bias, log_scale, activation))


def conv(
    x: Any, kernel: Any, time: Any, kappa: Any, bias: Any = None, log_scale: Any = None,
    strides: int | Sequence[int] = 1, padding: functional.Padding = None,
    activation: Callable[[Array], Array] | None = None,
) -> Array:  # fmt: skip
    """`linear` of every concatenated patch of images `(..., H, W, D_in)` (HCNN's convolution).

    As the patch has time `t = sqrt(1/kappa + sum_patch |x|^2)`, this is `conv(x, W) + t w_t + b`.
    `kernel` is `(kh, kw, D_in, columns)`; strides and padding are those of `functional.conv`.
    """
    normals = _unconstrained(kernel, time, bias, log_scale)
    finish = _finish(bias, log_scale, activation)
    return functional.conv(x, normals, kappa, strides, padding, activation=finish)


def reference_linear(
    X: Any, kernel: Any, time: Any, kappa: Any, bias: Any = None, log_scale: Any = None
) -> Array:
    """The layer as the paper's experiments ran it: its ReLU comes after the time.

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
    product = ambient[..., 1:] @ weights.space - ambient[..., :1] * weights.time
    space = _finish(bias, log_scale, None)(product)
    time = jnp.sqrt(1 / kappa + jnp.sum(space * space, axis=-1, keepdims=True))
    return jnp.concatenate([time, jax.nn.relu(space)], axis=-1).astype(X.dtype)


def _unconstrained(kernel, time, bias, log_scale) -> Normals:
    """The weights in the place of normals: `z = x W - x_t v_t` with `v_t = -w_t`."""
    kernel, time = as_array("kernel", kernel, min_ndim=2), as_array("time", time)
    shapes = {"time": time.shape} | ({} if bias is None else {"bias": jnp.shape(bias)})
    for name, shape in shapes.items():
        if shape != kernel.shape[-1:]:
            raise ValueError(
                f"{name} must have shape {kernel.shape[-1:]} to go with a kernel {kernel.shape}, "
                f"got {shape}"
            )
    if log_scale is not None and kernel.shape[-1] < 2:
        raise ValueError(f"the first column is the gate: none is left of a kernel {kernel.shape}")
    return Normals(-time, kernel)


def _finish(bias, log_scale, activation):
    """What follows the matrix product, as a function of it."""

    def finish(h: Array) -> Array:
        if bias is not None:
            h = h + jnp.asarray(bias).astype(h.dtype)
        if log_scale is not None:
            size = jnp.exp(jnp.asarray(log_scale).astype(h.dtype)) * jax.nn.sigmoid(h[..., :1])
            h = h[..., 1:]
            h = size * divide(h, safe_norm(h, keepdims=True))
        return h if activation is None else activation(h)

    return finish


class _Chen(nn.HyperbolicModule):
    """What both shells share: `kernel`, `time`, `bias` and `log_scale`."""

    def __init__(
        self, shape: tuple[int, ...], normalise: bool, use_bias: bool, init: str,
        kappa: float, learn_kappa: bool, activation: nn.Activation | None, param_dtype: Any,
        rngs: nnx.Rngs,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        if init not in INITS:
            raise ValueError(f"init must be one of {INITS}, got {init!r}")
        fan_in, columns = math.prod(shape[:-1]), shape[-1] + normalise
        bound = 0.02 if init == "chen" else math.sqrt(2 / fan_in)

        def uniform(*shape: int) -> Array:
            # Drawn flat: the same numbers, but a shape of four axes takes XLA seconds to compile.
            flat = (math.prod(shape),)
            draw = jax.random.uniform(rngs.params(), flat, param_dtype, -bound, bound)
            return draw.reshape(shape)

        self.kernel = nnx.Param(uniform(*shape[:-1], columns))
        self.time = nnx.Param(uniform(columns))
        bias = jnp.zeros((columns,), param_dtype) if init == "chen" else uniform(columns)
        self.bias = nnx.Param(bias) if use_bias else None
        self.log_scale = nnx.Param(jnp.asarray(2.3, param_dtype)) if normalise else None
        self.activation = activation

    def _weights(self) -> dict[str, Any]:
        leaves = {
            "kernel": self.kernel,
            "time": self.time,
            "bias": self.bias,
            "log_scale": self.log_scale,
        }
        return {name: None if leaf is None else leaf[...] for name, leaf in leaves.items()}


class ChenLinear(_Chen):
    """`linear` from D_in to D_out space coordinates.

    Args:
      in_features, out_features: D_in, D_out.
      normalise: the normalised layer; its `log_scale` starts at 2.3, |y| below 10.
      use_bias: with a bias.
      init: "chen" draws weights from U(-0.02, 0.02) and sets the bias to 0; "hcnn" draws both
        from U(-r, r), `r = sqrt(2/fan_in)`.
      kappa, learn_kappa, activation, param_dtype, rngs: as in `nn.LorentzLinear`.
    """

    def __init__(
        self, in_features: int, out_features: int, *, kappa: float, rngs: nnx.Rngs,
        normalise: bool = False, use_bias: bool = True, init: str = "hcnn",
        learn_kappa: bool = False, activation: nn.Activation | None = None,
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (in_features, out_features)
        super().__init__(
            shape, normalise, use_bias, init, kappa, learn_kappa, activation, param_dtype, rngs
        )

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Points `(..., D_in)` to points `(..., D_out)`."""
        kappa = self.resolve_kappa(kappa)
        return linear(x, kappa=kappa, activation=self.activation, **self._weights())


class ChenConv(_Chen):
    """`conv` on NHWC images; arguments as `ChenLinear`, with kernel size and strides."""

    def __init__(
        self, in_features: int, out_features: int, kernel_size: tuple[int, int] = (3, 3), *,
        kappa: float, rngs: nnx.Rngs, strides: int | Sequence[int] = 1,
        padding: functional.Padding = None, normalise: bool = False, use_bias: bool = True,
        init: str = "hcnn", learn_kappa: bool = False, activation: nn.Activation | None = None,
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (*kernel_size, in_features, out_features)
        super().__init__(
            shape, normalise, use_bias, init, kappa, learn_kappa, activation, param_dtype, rngs
        )
        self.strides = strides if isinstance(strides, int) else tuple(strides)
        self.padding = tuple(padding) if isinstance(padding, list) else padding

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Images `(..., H, W, D_in)` to `(..., H', W', D_out)`."""
        return conv(
            x, kappa=self.resolve_kappa(kappa), strides=self.strides, padding=self.padding,
            activation=self.activation, **self._weights(),
        )  # fmt: skip
