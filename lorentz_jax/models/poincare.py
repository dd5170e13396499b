"""Poincare layers: Ganea et al. (2018), Shimizu et al. (HNN++, 2021), van Spengler et al. (2023).

A point of the ball is stored as everywhere in this package, by the space part of the same point
of the hyperboloid (`geometry.from_poincare` and `to_poincare` are isometries). There the layers
lose most of their terms: Shimizu et al.'s (z, r) is a hyperplane with `w = 2 z` at distance 2 r,
MLR scores are distances in the "outside" scaling, the Moebius sum `x (+) y` is the translation
`T_x(y)`, the midpoint of a batch is its centroid.

A tangent vector at the centre of the ball, in the ball's coordinates, counts twice its length:
the metric there is four times the Euclidean one.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional, geometry, nn
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype
from lorentz_jax._src.conv import conv_product, window_arguments, window_sum
from lorentz_jax._src.plain import boost, exp_origin, log_origin, ratio, root
from lorentz_jax._src.scalars import divide, theta_limit
from lorentz_jax.hyperplane import Normals, check_input
from lorentz_jax.models import hcnn
from lorentz_jax.models.resnet import Layers, ResNet
from lorentz_jax.models.variance import VarianceBatchNorm, check_points, standardise
from lorentz_jax.nn import Kappa, initializers


def from_tangent(v: Any, kappa: Any) -> Array:
    """The point at a tangent vector of the ball's centre, `tanh(s|v|) v/(s|v|)` in the ball."""
    v, kappa = _checked("v", v, kappa)
    return exp_origin(2 * v.astype(kappa.dtype), kappa).astype(v.dtype)


def to_tangent(x: Any, kappa: Any) -> Array:
    """The inverse of `from_tangent`."""
    x, kappa = _checked("x", x, kappa)
    return (log_origin(x.astype(kappa.dtype), kappa) / 2).astype(x.dtype)


def _checked(name: str, x: Any, kappa: Any) -> tuple[Array, Array]:
    """Array, and kappa in the dtype to compute in, broadcasting against the array."""
    x = as_array(name, x)
    kappa = as_kappa(kappa, compute_dtype(x.dtype), x.shape[:-1])
    return x, kappa[..., None] if kappa.ndim else kappa


def plane_normals(kernel: Any, offset: Any, kappa: Any) -> Normals:
    """Hyperplanes of Shimizu et al.'s z `(..., out)` and r `(out,)`: `w = 2 z`, `b = -4 |z| r`.

    kappa is a scalar.
    """
    kernel, offset = as_array("kernel", kernel, min_ndim=2), as_array("offset", offset)
    return hcnn.plane_normals(2 * kernel, 2 * offset, kappa)


def mlr(x: Any, planes: Normals, kappa: Any) -> Array:
    """Poincare MLR (Shimizu et al., eq. 6): scores `2|z| asinh(s X o v/|w|)/s`, `(..., out)`.

    This is Ganea et al.'s MLR without its surplus parameters.
    """
    return functional.mlr(x, planes, kappa, "outside")


def linear(x: Any, planes: Normals, kappa: Any) -> Array:
    """Poincare fully connected layer (Shimizu et al., eq. 7), `(..., D_in)` to `(..., D_out)`.

    The point whose signed distances to the coordinate hyperplanes are the MLR scores v: in the
    ball `w/(1 + sqrt(1 + kappa |w|^2))` with `w = sinh(s v)/s`, so w is its space part. Scores are
    cut at `s v = theta_limit/2` (40 in float32), so that the next layer can square w. `planes`
    come from `plane_normals`.
    """
    x, column = _checked("x", x, kappa)
    finish = functools.partial(_from_products, planes=planes, s=jnp.sqrt(column))
    return functional.linear(x, planes, kappa, finish)


def _from_products(z: Array, planes: Normals, s: Array) -> Array:
    """Coordinates of the output from the products `z = X o v`: `sinh(|w| asinh(s z/|w|))/s`."""
    if planes.length is None:
        raise ValueError("a Poincare layer needs Normals that carry `norm`")
    size, limit = planes.length.astype(z.dtype), theta_limit(z.dtype) / 2
    distances = jnp.arcsinh(z * (s * divide(jnp.ones_like(size), size)))
    return jnp.sinh(jnp.clip(size * distances, -limit, limit)) / s


def moebius_linear(x: Any, kernel: Any, bias: Any, kappa: Any) -> Array:
    """Ganea et al.'s layer, `exp_0(log_0(x) W) (+) b`, with W `(D_in, D_out)` and a point b."""
    x, kernel = as_array("x", x), as_array("kernel", kernel, min_ndim=2)
    product = geometry.exp0(geometry.log0(x, kappa) @ kernel.astype(x.dtype), kappa)
    return geometry.translate(product, bias, kappa)


def beta_ratio(features: int, pixels: int) -> float:
    """`B(n/2, 1/2)/B(n_i/2, 1/2)` for `pixels` vectors of n_i = `features` coordinates, n in all.

    By this factor concatenation keeps the mean length of random vectors (Shimizu et al.).
    """

    def log_beta(n: int) -> float:
        return math.lgamma(n / 2) + math.lgamma(1 / 2) - math.lgamma((n + 1) / 2)

    return math.exp(log_beta(features * pixels) - log_beta(features))


def conv(
    x: Any, planes: Normals, kappa: Any, strides: int | Sequence[int] = 1,
    padding: functional.Padding = None,
) -> Array:  # fmt: skip
    """Poincare convolution: `linear` of the beta-concatenation of each patch.

    The patch's tangent vectors at the centre, times `beta_ratio`, make one tangent vector u, whose
    point has time `cosh(s|u|)/s` and space part `sinhc(s|u|) u`. So with `q = coth(s|u|) |u|`
    `X o v = sinhc(s|u|) (conv(u, v) - q v_t)`: an ordinary convolution, a window sum over one
    channel. Arguments as in `functional.conv`.
    """
    x = check_input(x, planes, axes=3)
    window = planes.space.shape[:2]
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    s = jnp.sqrt(kappa)
    strides, pads = window_arguments(strides, padding, window)
    images = x.reshape((-1, *x.shape[-3:])).astype(kappa.dtype)
    tangents = log_origin(images, kappa) * beta_ratio(x.shape[-1], math.prod(window))
    squares = jnp.sum(tangents * tangents, axis=-1, keepdims=True)
    angle = s * root(window_sum(squares, window, strides, pads))
    stretch = ratio(jnp.sinh, angle, 1)
    q = jnp.cosh(angle) / (s * stretch)
    product = conv_product(tangents.astype(x.dtype), planes.space, planes.time, q, strides, pads)
    y = _from_products(stretch * product, planes, s).astype(x.dtype)
    return y.reshape(x.shape[:-3] + y.shape[1:])


def relu(x: Any, kappa: Any) -> Array:
    """ReLU of the tangent vector at the centre, `exp_0(relu(log_0 x))`."""
    x, kappa = _checked("x", x, kappa)
    tangents = log_origin(x.astype(kappa.dtype), kappa)
    return exp_origin(jax.nn.relu(tangents), kappa).astype(x.dtype)


def add(x: Any, y: Any, kappa: Any) -> Array:
    """Moebius sum `x (+) y` of points of one shape: the translation `T_x(y)`; kappa is a scalar.

    The plain form of `geometry.translate`, for points that a layer can square.
    """
    x, y = as_array("x", x), as_array("y", y)
    if x.shape != y.shape:
        raise ValueError(f"the points to add must have one shape, got {x.shape} and {y.shape}")
    dtype = compute_dtype(x.dtype)
    out = boost(x.astype(dtype), y.astype(dtype), as_kappa(kappa, dtype))
    return out.astype(x.dtype)


def pool(x: Any, kappa: Any) -> Array:
    """Point of the mean tangent vector of the pixels, `(..., H, W, D)` to `(..., D)`."""
    x = as_array("x", x, min_ndim=3)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    tangents = log_origin(x.astype(kappa.dtype), kappa)
    return exp_origin(jnp.mean(tangents, axis=(-3, -2)), kappa).astype(x.dtype)


def gyrate(p: Array, q: Array, x: Array, kappa: Array) -> Array:
    """`gyr[p, -q] x`: by what transport from q straight to p differs from that through the centre.

    A rotation of x `(..., D)` in the plane of the points p and q `(D,)`. Ungar's formula, with
    `u = s p/(1 + s p_t)` and `v = -s q/(1 + s q_t)`: `x + 2 (A u + B v)/C`,
    `A = (v.x)(1 + 2 u.v) - (u.x)|v|^2`, `B = -(v.x)|u|^2 - u.x`, `C = 1 + 2 u.v + |u|^2 |v|^2`.
    """
    s = jnp.sqrt(kappa)
    u, v = (r * s / (1 + jnp.sqrt(1 + kappa * jnp.sum(r * r))) for r in (p, -q))
    uu, uv, vv = jnp.sum(u * u), jnp.sum(u * v), jnp.sum(v * v)
    ux, vx = (jnp.sum(w * x, axis=-1, keepdims=True) for w in (u, v))
    a, b = vx * (1 + 2 * uv) - ux * vv, -vx * uu - ux
    return x + (a * u + b * v) * (2 / (1 + 2 * uv + uu * vv))


def midpoint_norm(
    x: Any, mean: Any, beta: Any, gamma: Any, kappa: Any, variance: Any = None, eps: float = 1e-6
) -> tuple[Array, Array]:
    """Batch norm of van Spengler et al.: `(points, v)` of points `(..., D)`.

    `exp_beta(f P log_mean(x))`, with P the transport from the mean straight to beta,
    `f = gamma/sqrt(v + eps)`, and v the mean squared distance to the mean. But for P, which
    `gyrate` turns, it is `variance.variance_norm`; arguments as there. The mean is the midpoint,
    `functional.batch_mean`.
    """
    x, mean, beta = check_points(x, mean, beta)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    y, variance = standardise(x, mean, gamma, kappa, variance, "rms", None, eps)
    mean, beta = mean.astype(y.dtype), beta.astype(y.dtype)
    return boost(beta, gyrate(beta, mean, y, kappa), kappa).astype(x.dtype), variance


class _Planes(nn.HyperbolicModule):
    """What the layers with hyperplanes share: `kernel` (z) and `bias` (r)."""

    def __init__(self, shape, kappa: float, learn_kappa: bool, init: str, param_dtype: Any, rngs):
        super().__init__(kappa, learn_kappa, param_dtype)
        fan_in = math.prod(shape[:-1])
        fast = initializers.check_preset(init) == "fast"
        deviation = 1 / math.sqrt(2 * fan_in) if fast else 1 / math.sqrt(2 * fan_in * shape[-1])
        # Drawn flat: the same numbers, but a shape of four axes takes XLA seconds to compile.
        kernel = jax.random.normal(rngs.params(), (math.prod(shape),), param_dtype).reshape(shape)
        self.kernel = nnx.Param(kernel * jnp.asarray(deviation, param_dtype))
        self.bias = nnx.Param(jnp.zeros(shape[-1:], param_dtype))

    needs_length = True

    def constants(self, kappa: Any) -> dict[str, Array]:
        """The normals, in the place of kernel and bias."""
        return nn.normal_arrays(self.normals(kappa))

    def normals(self, kappa: Any) -> Normals:
        """The normals of the units."""
        if self.frozen is not None:
            return self.kept_normals(kappa)
        return plane_normals(self.kernel[...], self.bias[...], kappa)


class PoincareLinear(_Planes):
    """`linear` from D_in to D_out coordinates.

    Arguments as in `nn.LorentzLinear`. z starts in N(0, 1/(2 D_in)), so that w = 2 z has columns
    of norm about sqrt 2; with `init="paper"` in N(0, 1/(2 D_in D_out)), the published choice
    beside the identity.
    """

    def __init__(
        self, in_features: int, out_features: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, init: str = "fast", param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (in_features, out_features)
        super().__init__(shape, kappa, learn_kappa, init, param_dtype, rngs)

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Points `(..., D_in)` to points `(..., D_out)`."""
        kappa = self.resolve_kappa(kappa)
        return linear(x, self.normals(kappa), kappa)

    compiles, constant_names = True, nn.NORMALS


class PoincareMLR(PoincareLinear):
    """`mlr`: scores `(..., D_out)` of points `(..., D_in)`; arguments as its parent's."""

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """The score of each class."""
        kappa = self.resolve_kappa(kappa)
        return mlr(x, self.normals(kappa), kappa)

    compiles, constant_names, half = True, nn.NORMALS, False


class PoincareConv(_Planes):
    """`conv` on NHWC images; arguments as `PoincareLinear`, with kernel size and strides."""

    def __init__(
        self, in_features: int, out_features: int, kernel_size: tuple[int, int] = (3, 3), *,
        kappa: float, rngs: nnx.Rngs, strides: int | Sequence[int] = 1,
        padding: functional.Padding = None, learn_kappa: bool = False, init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (*kernel_size, in_features, out_features)
        super().__init__(shape, kappa, learn_kappa, init, param_dtype, rngs)
        self.strides = strides if isinstance(strides, int) else tuple(strides)
        self.padding = tuple(padding) if isinstance(padding, list) else padding

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Images `(..., H, W, D_in)` to `(..., H', W', D_out)`."""
        kappa = self.resolve_kappa(kappa)
        return conv(x, self.normals(kappa), kappa, self.strides, self.padding)

    compiles, constant_names = True, nn.NORMALS


class PoincareBatchNorm(VarianceBatchNorm):
    """`midpoint_norm`, about the midpoint of all pixels; arguments as its parent's.

    The published layer normalises by the batch in evaluation too, and keeps its beta as a tangent
    vector at the centre and gamma squared; this one has running statistics, a point, and gamma.
    """

    def normalise(self, x: Array, mean: Array, variance: Any, kappa: Any) -> tuple[Array, Array]:
        """The norm with given statistics."""
        return midpoint_norm(x, mean, self.beta_point(kappa), self.gamma[...], kappa, variance)


class _Head(PoincareLinear):
    """A Poincare linear layer; its logits are the tangent vector of the output at the centre."""

    def __call__(self, x: Array, kappa: Any = None) -> Array:
        """Points `(N, D)` to logits `(N, classes)`."""
        return to_tangent(super().__call__(x, kappa), self.resolve_kappa(kappa))

    compiles, constant_names, half = True, nn.NORMALS, False


class PoincareResNet(ResNet):
    """The ResNet of van Spengler et al. (ICCV 2023); their 20 layers are `stages=(3, 3, 3)`.

    Poincare convolutions, midpoint batch norm, ReLU on tangent vectors at the centre, and the
    Moebius sum of branch and shortcut. The stride of a block is on its first convolution, a
    shortcut has no norm, and the mean tangent vector of the pixels is classified. Pixels enter as
    tangent vectors at the centre. Published with kappa = 0.1 and widths 8, 16, 32.

    Unlike the published code this adds over the channels in the residual sum (there: over the
    width of the image, since its channels come first), and has running statistics.

    Args:
      stages, width, num_classes, in_channels, kappa, learn_kappa, momentum: as in `LorentzResNet`.
      init: "paper" for the published normal values.
    """

    def __init__(
        self, stages: Sequence[int] = (3, 3, 3), width: int = 8, num_classes: int = 10,
        in_channels: int = 3, *, kappa: float = 0.1, learn_kappa: bool = False,
        init: str = "fast", momentum: float = 0.1, param_dtype: Any = jnp.float32, rngs: nnx.Rngs,
    ):  # fmt: skip
        common: Any = {"kappa": kappa, "init": init, "param_dtype": param_dtype}

        def conv(in_features, out_features, size, strides, rngs):
            return PoincareConv(
                in_features, out_features, size, strides=strides, rngs=rngs, **common
            )

        def norm(features, rngs):
            return PoincareBatchNorm(features, momentum=momentum, rngs=rngs, **common)

        def head(in_features, classes, rngs):
            return _Head(in_features, classes, rngs=rngs, **common)

        own = Kappa(kappa, param_dtype) if learn_kappa else kappa
        layers = Layers(
            conv, norm, head, relu=relu, residual=add,
            entry=from_tangent, pool=pool, stride_first=True,
            shortcut_norm=False,
        )  # fmt: skip
        options = {"kappa": kappa, "learn_kappa": learn_kappa, "init": init}
        super().__init__(layers, stages, width, num_classes, in_channels, own, rngs, options)
