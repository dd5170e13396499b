"""Batch norms with variance: of HCNN, of the paper's "variance" networks, and of Poincare ResNet.

`variance_norm` follows Bdeir et al., "Fully Hyperbolic CNNs for Computer Vision" (ICLR 2024,
https://arxiv.org/abs/2303.15919), `midpoint_norm` van Spengler et al., "Poincare ResNet" (ICCV
2023, https://arxiv.org/abs/2303.14027).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype, row
from lorentz_jax._src.plain import blend, boost, exp_origin, log_origin, mean_point, radius, ratio
from lorentz_jax._src.scalars import theta_limit

__all__ = [
    "DEVIATIONS",
    "HCNNBatchNorm",
    "PoincareBatchNorm",
    "VarianceBatchNorm",
    "mean_of_means",
    "midpoint_norm",
    "variance_norm",
]

DEVIATIONS = ("rms", "mean")


def variance_norm(
    x: Any, mean: Any, beta: Any, gamma: Any, kappa: Any, variance: Any = None,
    deviation: str = "rms", limits: tuple[float, float] | None = None, eps: float = 1e-5,
) -> tuple[Array, Array]:  # fmt: skip
    """Normalise points by a mean and a variance (Bdeir et al., eq. 6).

    Logarithm at the mean, transport to the origin, multiplication by f, transport to beta,
    exponential there. With d the distance to the mean, `f = gamma/sqrt(v + eps)` and v = mean d^2
    for `deviation="rms"` (the paper's authors), `f = gamma/(v + eps)` and v = mean d for "mean"
    (HCNN). Computed as `T_beta o E o T_(-mean)`: the translations of the centring norm, with
    `E = exp_0(f log_0 .)` between them.

    One outlier among N equal points goes to distance `gamma sqrt(N)`, but not beyond `s d` of 40 in
    float32 (`theta_limit/2`), so that layers can square it. Equal points have v = 0: they are put
    on beta, with finite gradients.

    Args:
        x: points `(..., D)`, at least one where `variance` is None.
        mean: a point `(D,)`.
        beta: the point `(D,)` that the mean goes to.
        gamma: a number.
        kappa: a scalar; the curvature is -kappa.
        variance: v; None for that of x.
        deviation: "rms" or "mean".
        limits: f is clipped to them; None for no limits.
        eps: keeps f finite.

    Returns:
        The points `(..., D)`, and v.

    Raises:
        ValueError: shapes do not fit, or there is no such `deviation`.
    """
    x, mean, beta = _check_points(x, mean, beta)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    y, variance = _standardise(x, mean, gamma, kappa, variance, deviation, limits, eps)
    return boost(beta.astype(y.dtype), y, kappa).astype(x.dtype), variance


def midpoint_norm(
    x: Any, mean: Any, beta: Any, gamma: Any, kappa: Any, variance: Any = None, eps: float = 1e-6
) -> tuple[Array, Array]:
    """Normalise points by a mean and a variance (van Spengler et al.).

    `exp_beta(f P log_mean(x))`, with P the transport from the mean straight to beta,
    `f = gamma/sqrt(v + eps)`, and v the mean squared distance to the mean. But for P, which
    `_gyrate` turns, it is `variance_norm`; arguments and results as there. The mean of a batch is
    its midpoint, `functional.batch_mean`.
    """
    x, mean, beta = _check_points(x, mean, beta)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    y, variance = _standardise(x, mean, gamma, kappa, variance, "rms", None, eps)
    mean, beta = mean.astype(y.dtype), beta.astype(y.dtype)
    return boost(beta, _gyrate(beta, mean, y, kappa), kappa).astype(x.dtype), variance


def mean_of_means(x: Any, kappa: Any) -> Array:
    """Return HCNN's mean of a batch `(N, ..., D)`: the centroid `(D,)` of its items' centroids.

    kappa is a scalar. Raises `ValueError` for an empty batch.
    """
    x = as_array("x", x, min_ndim=2)
    if x.size == 0:
        raise ValueError(f"the mean of no points is undefined, x has shape {x.shape}")
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    items = x.astype(kappa.dtype)
    if x.ndim > 2:
        items = mean_point(items, kappa, tuple(range(1, x.ndim - 1)))
    return mean_point(items, kappa, (0,)).astype(x.dtype)


def _standardise(x, mean, gamma, kappa, variance, deviation, limits, eps):
    """Compute `(points, v)` of the first half of a norm, up to the origin, in kappa's dtype."""
    if deviation not in DEVIATIONS:
        raise ValueError(f"deviation must be one of {DEVIATIONS}, got {deviation!r}")
    y = boost(-mean.astype(kappa.dtype), x.astype(kappa.dtype), kappa)
    if variance is None:
        s = jnp.sqrt(kappa)
        distances = jnp.arcsinh(s * radius(y)) / s
        variance = jnp.mean(distances * distances if deviation == "rms" else distances)
    variance = jnp.asarray(variance).astype(kappa.dtype)
    spread = jnp.sqrt(variance + eps) if deviation == "rms" else variance + eps
    factor = jnp.asarray(gamma).astype(kappa.dtype) / spread
    if limits is not None:
        factor = jnp.clip(factor, *limits)
    return _stretch(y, factor, kappa), variance


def _stretch(y: Array, factor: Array, kappa: Array) -> Array:
    """Compute `exp_0(factor log_0 y)`, y times the number `sinh(factor s d)/(s|y|)`."""
    limit = theta_limit(y.dtype) / 2

    def stretched(r: Array) -> Array:
        return jnp.sinh(jnp.clip(factor * jnp.arcsinh(r), -limit, limit))

    return y * ratio(stretched, jnp.sqrt(kappa) * radius(y), factor)


def _gyrate(p: Array, q: Array, x: Array, kappa: Array) -> Array:
    """Rotate x by `gyr[p, -q]`: transport from q straight to p against that through the centre.

    A rotation of x `(..., D)` in the plane of the points p and q `(D,)`. Ungar's formula, with
    `u = s p/(1 + s p_t)` and `v = -s q/(1 + s q_t)`: `x + 2 (A u + B v)/C`,
    `A = (v.x)(1 + 2 u.v) - (u.x)|v|^2`, `B = -(v.x)|u|^2 - u.x`, `C = 1 + 2 u.v + |u|^2 |v|^2`.
    """
    s = jnp.sqrt(kappa)
    u, v = (row(r * s / (1 + jnp.sqrt(1 + kappa * jnp.sum(r * r))), x) for r in (p, -q))
    uu, uv, vv = jnp.sum(u * u), jnp.sum(u * v), jnp.sum(v * v)
    ux, vx = (jnp.sum(w * x, axis=-1, keepdims=True) for w in (u, v))
    a, b = vx * (1 + 2 * uv) - ux * vv, -vx * uu - ux
    return x + (a * u + b * v) * (2 / (1 + 2 * uv + uu * vv))


def _check_points(x: Any, mean: Any, beta: Any) -> tuple[Array, Array, Array]:
    """Return the three as arrays of one D."""
    x, mean, beta = as_array("x", x), as_array("mean", mean), as_array("beta", beta)
    if not x.shape[-1:] == mean.shape == beta.shape:
        raise ValueError(
            f"mean and beta must have shape {x.shape[-1:]} to go with x {x.shape}, "
            f"got {mean.shape} and {beta.shape}"
        )
    return x, mean, beta


class VarianceBatchNorm(nn.LorentzBatchNorm):
    """Batch norm with variance, as the paper's authors have it: `variance_norm` with parameters.

    In training it normalises by the centroid and the variance of the batch, in evaluation by
    running statistics, which start at the origin and at v = 1. An empty batch passes through.

    Args:
        features: D, space coordinates of the input.
        gamma: first value of gamma.
        limits: see `variance_norm`; the reference's `clamp_scale` is (0.5, 2.0).
        param_dtype: dtype of parameters and statistics.
        **kwargs: `kappa`, `rngs`, `learn_kappa`, `momentum`, `use_running_average` and `init` of
            `nn.LorentzBatchNorm`.
    """

    deviation = "rms"

    def __init__(
        self,
        features: int,
        *,
        gamma: float = 1.0,
        limits: tuple[float, float] | None = None,
        param_dtype: Any = jnp.float32,
        **kwargs: Any,
    ):
        super().__init__(features, param_dtype=param_dtype, **kwargs)
        self.gamma = nnx.Param(jnp.asarray(gamma, param_dtype))
        self.var = nnx.BatchStat(jnp.ones((), param_dtype))
        self.limits = limits

    def __call__(
        self, x: Array, kappa: Any = None, use_running_average: bool | None = None
    ) -> Array:
        """Map points `(N, ..., D)` to points of the same shape."""
        kappa = self.resolve_kappa(kappa)
        if self._averages(x, use_running_average):
            return self.normalise(x, self.running_mean(kappa), self.var[...], kappa)[0]
        mean = self.batch_mean(x, kappa)
        out, variance = self.normalise(x, mean, None, kappa)
        self.move_statistics(*jax.lax.stop_gradient((mean, variance, kappa)))
        return out

    def normalise(self, x: Array, mean: Array, variance: Any, kappa: Any) -> tuple[Array, Array]:
        """Apply the norm with given statistics; `variance` None takes that of x."""
        beta, gamma = self.beta_point(kappa), self.gamma[...]
        return variance_norm(x, mean, beta, gamma, kappa, variance, self.deviation, self.limits)

    def batch_mean(self, x: Array, kappa: Any) -> Array:
        """Return the mean `(D,)` of a batch: the centroid of all points."""
        kappa = as_kappa(kappa, compute_dtype(x.dtype))
        return mean_point(x.astype(kappa.dtype), kappa, tuple(range(x.ndim - 1)))

    def running_mean(self, kappa: Any) -> Array:
        """Return the running mean as a point `(D,)`."""
        return self.mean[...]

    def stored_mean(self, point: Array, kappa: Any) -> Array:
        """Return the form in which a running mean is kept."""
        return point

    def move_statistics(self, mean: Array, variance: Array, kappa: Any) -> None:
        """Move the running statistics towards those of a batch."""
        share, old = self.momentum, self.running_mean(kappa)
        point = blend(old, mean.astype(old.dtype), share, as_kappa(kappa, old.dtype))
        self.mean[...] = self.stored_mean(point, kappa)
        self.var[...] = (1 - share) * self.var[...] + share * variance.astype(self.var.dtype)


class HCNNBatchNorm(VarianceBatchNorm):
    """HCNN's own batch norm, the left column of the table in `models.hcnn`.

    Arguments as in `VarianceBatchNorm`.
    """

    deviation = "mean"

    def batch_mean(self, x: Array, kappa: Any) -> Array:
        """Return the centroid `(D,)` of the images' centroids."""
        return mean_of_means(x, kappa)

    def running_mean(self, kappa: Any) -> Array:
        """Return the exponential of the tangent vector that is kept."""
        return exp_origin(self.mean[...], as_kappa(kappa, self.mean.dtype))

    def stored_mean(self, point: Array, kappa: Any) -> Array:
        """Return its logarithm at the origin."""
        return log_origin(point, as_kappa(kappa, point.dtype))


class PoincareBatchNorm(VarianceBatchNorm):
    """van Spengler et al.'s norm, `midpoint_norm` about the midpoint of all pixels.

    Arguments as in `VarianceBatchNorm`. The published layer normalises by the batch in evaluation
    too, and keeps its beta as a tangent vector at the centre and gamma squared; this one has
    running statistics, a point, and gamma.
    """

    def normalise(self, x: Array, mean: Array, variance: Any, kappa: Any) -> tuple[Array, Array]:
        """Apply the norm with given statistics."""
        return midpoint_norm(x, mean, self.beta_point(kappa), self.gamma[...], kappa, variance)
