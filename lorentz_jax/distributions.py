"""Random points of the hyperboloid; needs JAX alone.

Conventions as in `lorentz_jax.geometry`: points are stored by their space part, and densities are
those of the Riemannian volume. `(D190)` and so on are equations of `docs/derivations.md`. Examples
assume what those of `geometry` do, `import jax` and `from lorentz_jax import distributions`.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax import geometry
from lorentz_jax._src.arguments import (
    along_batch,
    as_array,
    as_kappa,
    compute_dtype,
    concrete,
    row,
    unwrapped,
)
from lorentz_jax._src.scalars import safe_norm

__all__ = ["WrappedNormal", "log_sinhc"]


def _log_sinhc_series(terms: int) -> list[float]:
    """Return the coefficients of `log(sinh(x)/x)` in x^2, from x^2 on (D190)."""
    # With f the series of sinh(x)/x, the logarithm g has f g' = f', term by term.
    f = [Fraction(1, math.factorial(2 * n + 1)) for n in range(terms + 1)]
    g = [Fraction(0)]
    for n in range(1, terms + 1):
        known = sum((k * g[k] * f[n - k] for k in range(1, n)), Fraction(0))
        g.append(f[n] - known / n)
    return [float(c) for c in g[1:]]


_SERIES = _log_sinhc_series(17)  # 1e-17 of the result at |x| = 1: they fall as pi^(-2 n)


def _log_sinhc(square: Array, size: Array) -> Array:
    """`log(sinh(x)/x)` from x^2 and from |x|: each where it is good, in value and derivatives."""
    near = size < 1
    q, x = jnp.where(near, square, 0), jnp.where(near, 1, size)
    total = jnp.zeros_like(q)
    for c in reversed(_SERIES):
        total = (total + jnp.asarray(c, q.dtype)) * q
    far = x - jnp.log(x) - math.log(2) + jnp.log1p(-jnp.exp(-2 * x))  # 2 x may overflow
    return jnp.where(near, total, far)


def log_sinhc(x: ArrayLike) -> Array:
    """Compute `log(sinh(x)/x)`, 0 at 0, without overflow or cancellation (D190).

    The exponential map at the origin stretches volumes by `(sinh(s r)/(s r))^(D - 1)` at distance
    r. Derivatives of every order are right at 0.

    Args:
        x: Numbers of any shape.

    Returns:
        Numbers like x.

    >>> print(distributions.log_sinhc(jnp.array([0.0, 1.0, 100.0])))
    [ 0.      0.1614 94.7017]
    """
    x = as_array("x", x, min_ndim=0)
    wide = x.astype(compute_dtype(x.dtype))
    small = jnp.where(jnp.abs(wide) < 1, wide, 0)  # the square of the others may overflow
    return _log_sinhc(small * small, jnp.abs(wide)).astype(x.dtype)


@jax.tree_util.register_pytree_node_class
class WrappedNormal:
    """The wrapped normal distribution: a normal one at the origin, moved by exp and translation.

    `x = T_mean(exp_0(v))` with `v_i ~ N(0, scale_i^2)` independent. With `u = log_0(T_(-mean)(x))`,
    the density is `N(u; 0, scale^2) / sinhc(s|u|)^(D - 1)` (D191). As kappa -> 0 it is the normal
    distribution around the mean. (Nagano et al., 2019.)

    Attributes:
        mean: Points `(..., D)`, by their space part: where v = 0 goes.
        scale: Standard deviations of the coordinates of v, positive; one number, or an array
            that broadcasts against mean.
        kappa: Minus the curvature, one number or of the batch shape; an `nnx.Param` or a
            `nn.Kappa` stands for its present value.

    Raises:
        ValueError: A scale is not finite and positive, shapes do not broadcast.
        TypeError: mean or scale is not of floating point.

    >>> normal = distributions.WrappedNormal(jnp.zeros(2), 1.0, 1.0)
    >>> x = normal.sample(jax.random.key(0), (5,))
    >>> x.shape, normal.log_prob(x).shape
    ((5, 2), (5,))
    """

    mean: Array
    scale: Array
    kappa: Any

    def __init__(self, mean: ArrayLike, scale: ArrayLike, kappa: ArrayLike):
        self.mean = as_array("mean", mean)
        scale = jnp.asarray(scale, self.mean.dtype) if np.ndim(scale) == 0 else scale
        self.scale = as_array("scale", scale, min_ndim=0)
        self.kappa = unwrapped(kappa)  # its value now: a parameter goes on to train
        if concrete(self.scale):
            values = np.asarray(self.scale, np.float64)
            if not (np.isfinite(values) & (values > 0)).all():
                raise ValueError(f"scale must be finite and positive, got {scale}")
        try:
            shape = jnp.broadcast_shapes(self.mean.shape, self.scale.shape)
        except ValueError:
            shape = ()
        if shape[-1:] != self.mean.shape[-1:]:
            raise ValueError(
                f"scale of shape {self.scale.shape} does not broadcast against the coordinates of "
                f"mean, {self.mean.shape}"
            )
        as_kappa(self.kappa, compute_dtype(self.dtype), shape[:-1])

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Return the three attributes as the leaves of a pytree."""
        return (self.mean, self.scale, self.kappa), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Sequence[Any]) -> "WrappedNormal":
        """Put leaves of any kind together, unchecked."""
        self = object.__new__(cls)
        self.mean, self.scale, self.kappa = leaves
        return self

    @property
    def dtype(self) -> Any:
        """The dtype of samples."""
        return jnp.result_type(self.mean, self.scale)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the distributions."""
        return jnp.broadcast_shapes(self.mean.shape, self.scale.shape)[:-1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """`(D,)`."""
        return self.mean.shape[-1:]

    def sample(self, key: Array, shape: Sequence[int] = ()) -> Array:
        """Draw points; they are differentiable in mean, scale and kappa.

        Args:
            key: A random key.
            shape: How many of each distribution.

        Returns:
            Points `(*shape, *batch_shape, D)`.

        >>> normal = distributions.WrappedNormal(jnp.zeros((3, 2)), 0.1, 1.0)
        >>> normal.sample(jax.random.key(0), (5,)).shape
        (5, 3, 2)
        """
        return self._point(self._draw(key, shape))

    def sample_and_log_prob(self, key: Array, shape: Sequence[int] = ()) -> tuple[Array, Array]:
        """Draw points, and the logarithms of their densities without the way back to the origin.

        Args:
            key: A random key.
            shape: How many of each distribution.

        Returns:
            Points `(*shape, *batch_shape, D)`, log-densities `(*shape, *batch_shape)`.

        >>> normal = distributions.WrappedNormal(jnp.zeros(2), 1.0, 1.0)
        >>> x, log_prob = normal.sample_and_log_prob(jax.random.key(0))
        >>> print(jnp.abs(normal.log_prob(x) - log_prob) < 1e-5)
        True
        """
        z = self._draw(key, shape)
        log_prob = self._log_prob(z, row(self.scale, z).astype(z.dtype) * z)
        return self._point(z), log_prob.astype(self.dtype)

    def log_prob(self, x: ArrayLike) -> Array:
        """Compute the logarithm of the density by the Riemannian volume.

        Finite wherever x is a point; its derivatives at the mean are exact.

        Args:
            x: Points `(..., D)` that broadcast against `(*batch_shape, D)`.

        Returns:
            Log-densities of the broadcast batch shape.

        >>> normal = distributions.WrappedNormal(jnp.array([0.75, 0.0]), 1.0, 1.0)
        >>> print(f"{normal.log_prob(jnp.array([0.75, 0.0])):.4f}")  # -log(2 pi)
        -1.8379
        """
        x = as_array("x", x)
        if x.shape[-1:] != self.event_shape:
            raise ValueError(
                f"x must have the D = {self.event_shape[0]} coordinates of mean in the last axis, "
                f"got shape {x.shape}"
            )
        dtype = compute_dtype(jnp.result_type(x, self.mean))
        point, mean = x.astype(dtype), self.mean.astype(dtype)
        u = geometry.log0(geometry.translate(-mean, point, self.kappa), self.kappa)
        return self._log_prob(u / row(self.scale, u).astype(dtype), u).astype(x.dtype)

    def _draw(self, key: Array, shape: Sequence[int]) -> Array:
        """v over scale."""
        full = (*shape, *self.batch_shape, *self.event_shape)
        return jax.random.normal(key, full, compute_dtype(self.dtype))

    def _point(self, z: Array) -> Array:
        v = geometry.exp0(row(self.scale, z).astype(z.dtype) * z, self.kappa)
        return geometry.translate(self.mean.astype(z.dtype), v, self.kappa).astype(self.dtype)

    def _log_prob(self, z: Array, u: Array) -> Array:
        dim, dtype = u.shape[-1], z.dtype
        kappa = along_batch(as_kappa(self.kappa, dtype, u.shape[:-1]))
        size = jnp.sqrt(kappa) * safe_norm(u, keepdims=True)
        # In the square of a short vector, so that second derivatives at the mean are right.
        short = jnp.where(size < 1, u, 0)
        square = kappa * jnp.sum(short * short, axis=-1, keepdims=True)
        stretch = (dim - 1) * _log_sinhc(square, size)[..., 0]
        scale = jnp.broadcast_to(self.scale.astype(dtype), self.batch_shape + self.event_shape)
        each = 0.5 * jnp.square(z) + row(jnp.log(scale), z) + 0.5 * math.log(2 * math.pi)
        return -jnp.sum(each, axis=-1) - stretch
