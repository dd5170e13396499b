"""Batch norm with variance: what HCNN, the paper's "normal" networks and Poincare ResNet share."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype
from lorentz_jax._src.plain import blend, boost, mean_point, radius, ratio
from lorentz_jax._src.scalars import theta_limit

DEVIATIONS = ("rms", "mean")


def stretch(y: Array, factor: Array, kappa: Array) -> Array:
    """`exp_0(factor log_0 y)`: y times one number a point, `sinh(factor s d)/(s|y|)`.

    Distances are cut at `s d = theta_limit/2` (40 in float32), so that layers can square the
    coordinates of the result.
    """
    limit = theta_limit(y.dtype) / 2

    def stretched(r: Array) -> Array:
        return jnp.sinh(jnp.clip(factor * jnp.arcsinh(r), -limit, limit))

    return y * ratio(stretched, jnp.sqrt(kappa) * radius(y), factor)


def standardise(
    x: Array, mean: Array, gamma: Any, kappa: Array, variance: Any, deviation: str,
    limits: tuple[float, float] | None, eps: float,
) -> tuple[Array, Array]:  # fmt: skip
    """The first half of `variance_norm`, up to the origin; `(points, v)` in kappa's dtype."""
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
    return stretch(y, factor, kappa), variance


def variance_norm(
    x: Any, mean: Any, beta: Any, gamma: Any, kappa: Any, variance: Any = None,
    deviation: str = "rms", limits: tuple[float, float] | None = None, eps: float = 1e-5,
) -> tuple[Array, Array]:  # fmt: skip
    """Lorentz batch norm with variance (Bdeir et al., eq. 6): `(points, v)` of points `(..., D)`.

    Logarithm at the mean, transport to the origin, multiplication by f, transport to beta,
    exponential there; `f = gamma/sqrt(v + eps)` with v = mean d^2 (`deviation="rms"`, the paper's
    authors), or `gamma/(v + eps)` with v = mean d ("mean", HCNN), d the distance to the mean.
    Computed as `T_beta o E o T_(-mean)`, the translations of the centring norm with
    `E = stretch` by f between them.

    Args:
      x: points, at least one where `variance` is None.
      mean, beta: points `(D,)`.
      gamma: a number.
      kappa: a scalar.
      variance: v; None for that of x.
      limits: f is clipped to them.

    One outlier among N equal points goes to distance `gamma sqrt(N)`, or as far as `stretch` lets
    it. Equal points have v = 0: they are put on beta, with finite gradients.
    """
    x, mean, beta = check_points(x, mean, beta)
    kappa = as_kappa(kappa, compute_dtype(x.dtype))
    y, variance = standardise(x, mean, gamma, kappa, variance, deviation, limits, eps)
    return boost(beta.astype(y.dtype), y, kappa).astype(x.dtype), variance


def check_points(x: Any, mean: Any, beta: Any) -> tuple[Array, Array, Array]:
    """The three as arrays of one D."""
    x, mean, beta = as_array("x", x), as_array("mean", mean), as_array("beta", beta)
    if not x.shape[-1:] == mean.shape == beta.shape:
        raise ValueError(
            f"mean and beta must have shape {x.shape[-1:]} to go with x {x.shape}, "
            f"got {mean.shape} and {beta.shape}"
        )
    return x, mean, beta


class VarianceBatchNorm(nn.LorentzBatchNorm):
    """Batch norm with variance, as the paper's authors have it (their "normal" norm).

    `variance_norm` about the batch's centroid in training, with running statistics in evaluation;
    these start at the origin and at v = 1. Parameters: `beta` and `gamma`.

    Args:
      features, kappa, rngs, ...: as in `nn.LorentzBatchNorm`.
      gamma: first value of gamma.
      limits: see `variance_norm`; the reference's `clamp_scale` is (0.5, 2.0).
    """

    deviation = "rms"

    def __init__(
        self, features: int, *, gamma: float = 1.0, limits: tuple[float, float] | None = None,
        param_dtype: Any = jnp.float32, **kwargs: Any,
    ):  # fmt: skip
        super().__init__(features, param_dtype=param_dtype, **kwargs)
        self.gamma = nnx.Param(jnp.asarray(gamma, param_dtype))
        self.var = nnx.BatchStat(jnp.ones((), param_dtype))
        self.limits = limits

    def __call__(
        self, x: Array, kappa: Any = None, use_running_average: bool | None = None
    ) -> Array:
        """Points `(N, ..., D)` to points of the same shape."""
        kappa = self.resolve_kappa(kappa)
        if self.uses_running_average(x, use_running_average):
            return self.normalise(x, self.running_mean(kappa), self.var[...], kappa)[0]
        mean = self.batch_mean(x, kappa)
        out, variance = self.normalise(x, mean, None, kappa)
        self.move_statistics(*jax.lax.stop_gradient((mean, variance, kappa)))
        return out

    def normalise(self, x: Array, mean: Array, variance: Any, kappa: Any) -> tuple[Array, Array]:
        """The norm with given statistics."""
        beta, gamma = self.beta_point(kappa), self.gamma[...]
        return variance_norm(x, mean, beta, gamma, kappa, variance, self.deviation, self.limits)

    def batch_mean(self, x: Array, kappa: Any) -> Array:
        """What this norm takes for the mean of a batch: the centroid of all points."""
        kappa = as_kappa(kappa, compute_dtype(x.dtype))
        return mean_point(x.astype(kappa.dtype), kappa, tuple(range(x.ndim - 1)))

    def running_mean(self, kappa: Any) -> Array:
        """The running mean as a point."""
        return self.mean[...]

    def stored_mean(self, point: Array, kappa: Any) -> Array:
        """The form in which the running mean is kept."""
        return point

    def move_statistics(self, mean: Array, variance: Array, kappa: Any) -> None:
        """Move the running statistics towards those of a batch."""
        share, old = self.momentum, self.running_mean(kappa)
        point = blend(old, mean.astype(old.dtype), share, as_kappa(kappa, old.dtype))
        self.mean[...] = self.stored_mean(point, kappa)
        self.var[...] = (1 - share) * self.var[...] + share * variance.astype(self.var.dtype)
