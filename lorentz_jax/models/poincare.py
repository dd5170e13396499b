"""Poincare layers: Ganea et al. (2018), Shimizu et al. (HNN++, 2021), van Spengler et al. (2023).

- Ganea et al., "Hyperbolic Neural Networks" (NeurIPS 2018), https://arxiv.org/abs/1805.09112
- Shimizu et al., "Hyperbolic Neural Networks++" (ICLR 2021), https://arxiv.org/abs/2006.08210
- van Spengler et al., "Poincare ResNet" (ICCV 2023), https://arxiv.org/abs/2303.14027, code
  https://github.com/maxvanspengler/poincare-resnet

A point of the ball is stored as everywhere in this package, by the space part of the same point
of the hyperboloid (`geometry.from_poincare` and `to_poincare` are isometries). There the layers
lose most of their terms: Shimizu et al.'s (z, r) is a hyperplane with `w = 2 z` at distance 2 r,
MLR scores are distances in the "outside" scaling, the Moebius sum `x (+) y` is the translation
`T_x(y)`, the midpoint of a batch is its centroid.

A tangent vector at the centre of the ball, in the ball's coordinates, counts twice its length:
the metric there is four times the Euclidean one.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, geometry, nn
from lorentz_jax._src.arguments import along_batch, as_array, as_kappa, compute_dtype, row
from lorentz_jax._src.conv import conv_product, window_arguments, window_sum
from lorentz_jax._src.lorentzian import distances_scaled
from lorentz_jax._src.plain import boost, exp_origin, log_origin, ratio, root
from lorentz_jax._src.scalars import divide
from lorentz_jax.hyperplane import Normals, check_input
from lorentz_jax.models import hcnn
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.models.variance import PoincareBatchNorm
from lorentz_jax.nn import initializers
from lorentz_jax.nn.modules import first_value, freeze_window, own_kappa, window_shape

__all__ = [
    "PoincareConv",
    "PoincareHead",
    "PoincareLinear",
    "PoincareMLR",
    "PoincareResNet",
    "add",
    "beta_ratio",
    "conv",
    "from_tangent",
    "linear",
    "mlr",
    "moebius_linear",
    "plane_normals",
    "pool",
    "relu",
    "to_tangent",
]


def from_tangent(v: Any, kappa: Any) -> Array:
    """Map tangent vectors of the ball's centre to points, `tanh(s|v|) v/(s|v|)` in the ball."""
    v, kappa = _checked("v", v, kappa)
    return exp_origin(2 * v.astype(kappa.dtype), kappa).astype(v.dtype)


def to_tangent(x: Any, kappa: Any) -> Array:
    """Invert `from_tangent`."""
    x, kappa = _checked("x", x, kappa)
    return (log_origin(x.astype(kappa.dtype), kappa) / 2).astype(x.dtype)


def _checked(name: str, x: Any, kappa: Any) -> tuple[Array, Array]:
    """Return the array, and kappa in the dtype to compute in, broadcasting against it."""
    x = as_array(name, x)
    return x, along_batch(as_kappa(kappa, compute_dtype(x.dtype), x.shape[:-1]))


def plane_normals(kernel: Any, offset: Any, kappa: Any) -> Normals:
    """Return the normals of Shimizu et al.'s z `(..., out)` and r `(out,)`: `w = 2z`, `b = -4|z|r`.

    kappa is a scalar.
    """
    kernel, offset = as_array("kernel", kernel, min_ndim=2), as_array("offset", offset)
    return hcnn.plane_normals(2 * kernel, 2 * offset, kappa)


def mlr(x: Any, normals: Normals, kappa: Any) -> Array:
    """Return the scores `(..., out)` of Poincare MLR, `2|z| asinh(s X o v/|w|)/s` (Shimizu, eq. 6).

    This is Ganea et al.'s MLR without its surplus parameters.
    """
    return functional.mlr(x, normals, kappa, "outside")


def linear(x: Any, normals: Normals, kappa: Any) -> Array:
    """Apply the Poincare fully connected layer (Shimizu et al., eq. 7).

    The result is the point whose signed distances to the coordinate hyperplanes are the MLR scores
    v: in the ball `w/(1 + sqrt(1 + kappa |w|^2))` with `w = sinh(s v)/s`, so w is its space part.
    Scores are cut at `s v` of 40 in float32 (`theta_limit/2`), so that the next layer can square w.

    Args:
        x: points `(..., D_in)`.
        normals: D_out of them, from `plane_normals`.
        kappa: may vary along the batch; the curvature is -kappa.

    Raises:
        ValueError: shapes do not fit, or the normals carry no `length`.

    Example:
        >>> normals = plane_normals(jnp.eye(2), jnp.zeros(2), 1.0)
        >>> linear(jnp.zeros((1, 2)), normals, 1.0)
        Array([[0., 0.]], dtype=float32)
    """
    x, column = _checked("x", x, kappa)
    finish = partial(_from_products, normals=normals, s=jnp.sqrt(column))
    return functional.linear(x, normals, kappa, finish)


def _from_products(z: Array, normals: Normals, s: Array) -> Array:
    """Compute coordinates of the output from `z = X o v`: `sinh(|w| asinh(s z/|w|))/s`."""
    if normals.length is None:
        raise ValueError("a Poincare layer needs Normals that carry `length`")
    size = row(normals.length.astype(z.dtype), z)
    return distances_scaled(z * divide(jnp.ones_like(size), size), size, s)


def moebius_linear(x: Any, kernel: Any, bias: Any, kappa: Any) -> Array:
    """Apply Ganea et al.'s layer, `exp_0(log_0(x) W) (+) b`, with W `(D_in, D_out)`, b a point."""
    x, kernel = as_array("x", x), as_array("kernel", kernel, min_ndim=2)
    product = geometry.exp0(geometry.log0(x, kappa) @ kernel.astype(x.dtype), kappa)
    return geometry.translate(product, bias, kappa)


def beta_ratio(features: int, pixels: int) -> float:
    """Return `B(n/2, 1/2)/B(m/2, 1/2)`, m = `features`, n = `features * pixels`.

    By this factor concatenation keeps the mean length of random vectors (Shimizu et al.).
    """

    def log_beta(n: int) -> float:
        return math.lgamma(n / 2) + math.lgamma(1 / 2) - math.lgamma((n + 1) / 2)

    return math.exp(log_beta(features * pixels) - log_beta(features))


def conv(
    x: Any,
    normals: Normals,
    kappa: Any,
    strides: int | Sequence[int] = 1,
    padding: functional.Padding = None,
) -> Array:
    """Apply `linear` to the beta-concatenation of each patch; arguments as in `functional.conv`.

    The patch's tangent vectors at the centre, times `beta_ratio`, make one tangent vector u, whose
    point has time `cosh(s|u|)/s` and space part `sinhc(s|u|) u`. So with `q = coth(s|u|) |u|`
    `X o v = sinhc(s|u|) (conv(u, v) - q v_t)`: an ordinary convolution, a window sum over one
    channel.
    """
    x = check_input(x, normals, axes=3)
    size = normals.space.shape[:2]
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    s = jnp.sqrt(kappa)
    window = window_arguments(strides, padding, size)
    images = x.reshape((-1, *x.shape[-3:])).astype(kappa.dtype)
    tangents = log_origin(images, kappa) * beta_ratio(x.shape[-1], math.prod(size))
    squares = jnp.sum(tangents * tangents, axis=-1, keepdims=True)
    angle = s * root(window_sum(squares, size, window))
    stretch = ratio(jnp.sinh, angle, 1)
    q = jnp.cosh(angle) / (s * stretch)
    product = conv_product(tangents.astype(x.dtype), normals.space, normals.times, q, window)
    y = _from_products(stretch * product, normals, s).astype(x.dtype)
    return y.reshape(x.shape[:-3] + y.shape[1:])


def relu(x: Any, kappa: Any) -> Array:
    """Apply ReLU to the tangent vector at the centre, `exp_0(relu(log_0 x))`."""
    x, kappa = _checked("x", x, kappa)
    tangents = log_origin(x.astype(kappa.dtype), kappa)
    return exp_origin(jax.nn.relu(tangents), kappa).astype(x.dtype)


def add(x: Any, y: Any, kappa: Any) -> Array:
    """Return the Moebius sum `x (+) y` of points of one shape: the translation `T_x(y)`.

    The plain form of `geometry.translate`, for points that a layer can square; kappa is a scalar.
    """
    x, y = as_array("x", x), as_array("y", y)
    if x.shape != y.shape:
        raise ValueError(f"the points to add must have one shape, got {x.shape} and {y.shape}")
    dtype = compute_dtype(x.dtype)
    out = boost(x.astype(dtype), y.astype(dtype), as_kappa(kappa, dtype))
    return out.astype(x.dtype)


def pool(x: Any, kappa: Any) -> Array:
    """Return the point of the pixels' mean tangent vector, `(..., H, W, D)` to `(..., D)`."""
    x = as_array("x", x, min_ndim=3)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    tangents = log_origin(x.astype(kappa.dtype), kappa)
    return exp_origin(jnp.mean(tangents, axis=(-3, -2)), kappa).astype(x.dtype)


class _Hyperplanes(nn.HyperbolicModule):
    """Parameters of the layers with hyperplanes: `kernel` (z) and `bias` (r)."""

    needs_length = True

    def __init__(self, shape, kappa, rngs, learn_kappa, init, dtype):
        super().__init__(kappa, learn_kappa, dtype)
        units = 1 if initializers.check_preset(init) == "fast" else shape[-1]
        deviation = 1 / math.sqrt(2 * math.prod(initializers.check_kernel(shape)[:-1]) * units)
        self.kernel = nnx.Param(initializers.draw_normal(rngs.params(), shape, deviation, dtype))
        self.bias = nnx.Param(jnp.zeros(shape[-1:], dtype))

    def normals(self, kappa: Any = None) -> Normals:
        """Return the normals of the units."""
        if self.frozen is not None:
            return self.kept_normals(kappa)
        kappa = self.resolve_kappa(kappa)
        return plane_normals(self.kernel[...], self.bias[...], kappa)

    def constants(self, kappa: Any) -> dict[str, Array]:
        """Return the normals, which stand for kernel and bias in a compiled model."""
        return nn.normal_arrays(self.normals(kappa))


class PoincareLinear(_Hyperplanes):
    """Shimizu et al.'s layer, `linear` with parameters: `(..., D_in)` to `(..., D_out)`.

    Arguments as in `nn.LorentzLinear`. z starts in N(0, 1/(2 D_in)), so that w = 2 z has columns
    of norm about sqrt 2; with `init="paper"` in N(0, 1/(2 D_in D_out)), the published choice
    beside the identity.
    """

    def __init__(
        self, in_features: int, out_features: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (in_features, out_features)
        super().__init__(shape, kappa, rngs, learn_kappa, init, param_dtype)

    compiles, constant_names = True, nn.NORMALS

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map points `(..., D_in)` to points `(..., D_out)`."""
        kappa = self.resolve_kappa(kappa)
        return linear(x, self.normals(kappa), kappa)


class PoincareMLR(PoincareLinear):
    """Poincare MLR, `mlr` with parameters; arguments as in `PoincareLinear`."""

    compiles, constant_names, half = True, nn.NORMALS, False

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Return the scores `(..., D_out)` of points `(..., D_in)`."""
        kappa = self.resolve_kappa(kappa)
        return mlr(x, self.normals(kappa), kappa)


class PoincareHead(PoincareLinear):
    """Classifier of Poincare ResNet: the tangent vector at the centre of a linear layer's output.

    Arguments as in `PoincareLinear`.
    """

    compiles, constant_names, half = True, nn.NORMALS, False

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Return the logits `(..., D_out)` of points `(..., D_in)`."""
        return to_tangent(super().__call__(x, kappa), self.resolve_kappa(kappa))


class PoincareConv(_Hyperplanes):
    """Shimizu et al.'s convolution of NHWC images, `conv` with parameters.

    Arguments as in `nn.LorentzConv`, initial values as in `PoincareLinear`.
    """

    def __init__(
        self, in_features: int, out_features: int, kernel_size: int | Sequence[int] = 3, *,
        kappa: float, rngs: nnx.Rngs, strides: int | Sequence[int] = 1,
        padding: functional.Padding = None, learn_kappa: bool = False, init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (*window_shape(kernel_size), in_features, out_features)
        super().__init__(shape, kappa, rngs, learn_kappa, init, param_dtype)
        self.strides, self.padding = freeze_window(strides, padding)

    compiles, constant_names = True, nn.NORMALS

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Map images `(..., H, W, D_in)` to `(..., H', W', D_out)`."""
        kappa = self.resolve_kappa(kappa)
        return conv(x, self.normals(kappa), kappa, self.strides, self.padding)


class PoincareResNet(ResNet):
    """The ResNet of van Spengler et al.; their 20 layers are `stages=(3, 3, 3)`.

    Poincare convolutions, midpoint batch norm, ReLU on tangent vectors at the centre, and the
    Moebius sum of branch and shortcut. The stride of a block is on its first convolution, a
    shortcut has no norm, and the mean tangent vector of the pixels is classified. Pixels enter as
    tangent vectors at the centre. Published with kappa = 0.1 and widths 8, 16, 32.

    Unlike the published code this adds over the channels in the residual sum (there: over the
    width of the image, since its channels come first), and has running statistics.

    Arguments as in `LorentzResNet`; `init="paper"` has the published normal values.
    """

    def __init__(
        self, stages: Sequence[int] = (3, 3, 3), width: int = 8, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 0.1, learn_kappa: bool = False, init: str = "fast",
        momentum: float = 0.1, param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        shared = own_kappa(kappa, learn_kappa, param_dtype)
        kappa = first_value(kappa)
        common: Any = {"kappa": kappa, "init": init, "param_dtype": param_dtype}
        layers = Layers(
            conv=partial(PoincareConv, **common),
            norm=partial(PoincareBatchNorm, momentum=momentum, **common),
            head=partial(PoincareHead, **common),
            relu=relu,
            residual=add,
            entry=from_tangent,
            pool=pool,
            stride_first=True,
            shortcut_norm=False,
        )
        options = {"kappa": kappa, "learn_kappa": isinstance(shared, nn.Kappa), "init": init}
        super().__init__(layers, stages, width, num_classes, in_channels, shared, rngs, options)
