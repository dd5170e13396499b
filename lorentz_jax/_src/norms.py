"""Weight norm, and the norms of batches and of single points, for `lorentz_jax.functional`."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from lorentz_jax._src import centering as _centering
from lorentz_jax._src.arguments import as_array, check_shapes, compute_dtype, kappa_beside, row
from lorentz_jax._src.forms import alike
from lorentz_jax._src.plain import point_time, precise, shifts, time_of, to_hyperboloid
from lorentz_jax._src.scalars import divide, safe_norm


def batch_mean(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Compute the centroid of all points of a batch, as the centring norm needs it.

    `m/(s sqrt(m_t^2 - |m|^2))` with the mean vector m (D69), the fast form of `geometry.centroid`:
    it loses about `eps e^(2 s r)` for a mean at distance r from the origin, however far the points
    are: in float32 a tight cluster has no digit left at `s r = 8`, points all around the origin
    have theirs at `s r = 16`. Whatever centres by this mean errs alike.

    Args:
        x: Points `(..., D)`.
        kappa: Minus the curvature, one number.

    Returns:
        One point, `(D,)`.

    Raises:
        ValueError: if the batch is empty.

    >>> print(functional.batch_mean(jnp.array([[1.0, 0.5], [-1.0, 0.5]]), 1.0))
    [0.     0.3536]
    """
    x = as_array("x", x)
    if x.size == 0:
        raise ValueError(f"the mean of no points is undefined, x has shape {x.shape}")
    return _batch_mean(x, kappa_beside(x, kappa)).astype(x.dtype)


def _batch_mean(x, kappa):
    axes = tuple(range(x.ndim - 1))
    points = x.astype(kappa.dtype)
    squares = jnp.sum(jnp.square(points), axis=-1)
    mean, mean_time = jnp.mean(points, axis=axes), jnp.mean(jnp.sqrt(1 / kappa + squares))
    return to_hyperboloid(mean, mean_time, kappa)


def center(x: ArrayLike, mean: ArrayLike, beta: ArrayLike, kappa: ArrayLike) -> Array:
    """Move a batch by the isometry `T_beta o T_(-mean)`, which takes mean to beta.

    Exactly the paper's centring batch norm (log at the mean, transport to the origin, transport to
    beta, exp at beta), with no transcendental function: a rank-2 update `x + a mean + b beta`,
    where with d = x.mean, e = x.beta, `a = kappa d/(1 + s mean_t) - s x_t`,
    `b = kappa (e + (mean.beta) a)/(1 + s beta_t) + kappa (mean_t x_t - d)` (D70).

    Args:
        x: Points `(..., D)`.
        mean: A point `(D,)`.
        beta: A point `(D,)`.
        kappa: Minus the curvature, one number.

    Returns:
        Points `(..., D)`.

    >>> mean, beta = jnp.array([0.75, 0.0]), jnp.array([0.0, 2.0])
    >>> print(abs(functional.center(mean[None], mean, beta, 1.0)))
    [[0. 2.]]
    """
    x, mean, beta = as_array("x", x), as_array("mean", mean), as_array("beta", beta)
    check_shapes(x.shape[-1:], f"x {x.shape}", mean=mean, beta=beta)
    return jax.checkpoint(_center)(x, mean, beta, kappa_beside(x, kappa))


def _center(x, mean, beta, kappa):
    dtype = kappa.dtype
    points, mu, beta = x.astype(dtype), mean.astype(dtype), beta.astype(dtype)
    mu_t, beta_t = point_time(mu, kappa), point_time(beta, kappa)
    # One skinny product: on a CPU it beats two reductions over the channels.
    dots = precise(points, jnp.stack([mu, beta], axis=1))
    time = time_of(points, kappa)
    a, b = shifts(dots[..., :1], dots[..., 1:], time, jnp.sum(mu * beta), mu_t, beta_t, kappa)
    return (points + a * row(mu, a) + b * row(beta, b)).astype(x.dtype)


def center_batch(x: ArrayLike, beta: ArrayLike, kappa: ArrayLike) -> tuple[Array, Array]:
    """Apply `center(x, batch_mean(x), beta)` in one step, as the batch norm does in training.

    Its hand-written backward pass keeps x and three numbers a point, and is arranged for the device
    that it is compiled for; forward mode (`jax.jvp`) works too. Gradients flow through the mean and
    reach kappa; the returned mean is for running statistics and carries none.

    Args:
        x: Points `(..., D)`.
        beta: A point `(D,)`.
        kappa: Minus the curvature, one number.

    Returns:
        Points `(..., D)` and the mean `(D,)`.

    Raises:
        ValueError: if the batch is empty.

    >>> y, mean = functional.center_batch(jnp.array([[1.0, 0.5], [-1.0, 0.5]]), jnp.zeros(2), 1.0)
    >>> print(mean)
    [0.     0.3536]
    """
    x, beta = as_array("x", x), as_array("beta", beta)
    check_shapes(x.shape[-1:], f"x {x.shape}", beta=beta)
    if x.size == 0:
        raise ValueError(f"the mean of no points is undefined, x has shape {x.shape}")
    kappa = kappa_beside(x, kappa)
    points = x[None] if x.ndim == 1 else x
    arguments = alike(points, beta.astype(kappa.dtype), kappa)
    y, mean = _centering.center_batch(*arguments)
    return y.reshape(x.shape), lax.stop_gradient(mean)


def weight_norm(direction: ArrayLike, gain: ArrayLike) -> Array:
    """Make weights `w = g a/|a|` of a direction a and a gain g per unit.

    (The reference code passes `softplus(g)` as the gain.) `a = 0` gives 0 with gradient 0; a
    negative gain turns w round.

    Args:
        direction: a, `(..., out)`; the norm is over all axes but the last.
        gain: g, `(out,)`.

    Returns:
        w, shaped as a.

    >>> print(functional.weight_norm(jnp.array([[3.0], [4.0]]), jnp.array([2.0]))[:, 0])
    [1.2 1.6]
    """
    a, g = as_array("direction", direction, min_ndim=2), as_array("gain", gain)
    check_shapes(a.shape[-1:], gain=g)
    dtype = compute_dtype(jnp.result_type(a, g))
    size = safe_norm(a.astype(dtype), tuple(range(a.ndim - 1)))
    return (row(divide(g.astype(dtype), size), a) * a.astype(dtype)).astype(jnp.result_type(a, g))


def layer_norm(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    epsilon: float = 1e-6,
) -> Array:
    """Normalise every point by itself: `scale (x - m)/sqrt(v + epsilon) + bias` of its space part.

    m and v are mean and variance of the D coordinates: LayerNorm, and the time is what follows from
    its output. (Hypformer's norm, Yang et al., 2024, at one curvature.) It has no kappa, so it is
    its own flat limit. Without scale and bias it is a map of hyperbolic geometry: x goes to the
    nearest point of the hyperplane of points whose coordinates sum to 0, and from there along the
    geodesic through the origin until it is `asinh(s sqrt(D))/s` from it (D165). So a norm by the
    distance to the origin would differ by the projection alone. It is no isometry, but it fixes
    how far out the next layer works, whatever residual sums have added up to.

    A point of equal coordinates, such as the origin, goes to bias, with the gradient of
    `(x - m)/sqrt(epsilon)`.

    Args:
        x: Points `(..., D)`.
        scale: Factor of every coordinate, `(D,)`; None for 1.
        bias: Added to every coordinate, `(D,)`; None for 0.
        epsilon: What is added to the variance, positive.

    Returns:
        Points `(..., D)`.

    Raises:
        ValueError: if scale or bias have another shape, or epsilon is not positive.

    >>> print(functional.layer_norm(jnp.array([[3.0, 1.0], [0.0, 0.0]])))
    [[ 1. -1.]
     [ 0.  0.]]
    """
    x = as_array("x", x)
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    given = {"scale": scale, "bias": bias}
    arrays = {name: as_array(name, a) for name, a in given.items() if a is not None}
    check_shapes(x.shape[-1:], f"x {x.shape}", **arrays)
    points = x.astype(compute_dtype(x.dtype))
    # Not the mean of squares less the square of the mean, which cancels.
    points = points - jnp.mean(points, axis=-1, keepdims=True)
    # Over their size: the square of a far point, or that in a derivative, is out of range.
    size = lax.stop_gradient(jnp.max(jnp.abs(points), axis=-1, keepdims=True))
    size = jnp.maximum(size, 1)
    points = points / size
    variance = jnp.mean(jnp.square(points), axis=-1, keepdims=True)
    out = points * lax.rsqrt(variance + epsilon / size / size)
    weights = {name: row(a.astype(out.dtype), out) for name, a in arrays.items()}
    out = out * weights["scale"] if "scale" in weights else out
    return (out + weights["bias"] if "bias" in weights else out).astype(x.dtype)
