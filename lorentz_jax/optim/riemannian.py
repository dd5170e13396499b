"""Riemannian SGD for points of the hyperboloid that are stored by their space part."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lorentz_jax import geometry

__all__ = ["RiemannianSgdState", "riemannian_gradient", "riemannian_sgd"]


class RiemannianSgdState(NamedTuple):
    """State of `riemannian_sgd`."""

    count: Array
    """Number of steps taken."""
    momentum: Any
    """A tangent vector at each current point, in the structure of the parameters."""


def riemannian_gradient(x: Array, gradient: Array, kappa: Any) -> Array:
    """Return the Riemannian gradient at a point, `(I + kappa x x^T) gradient`.

    The matrix is the inverse of the metric in the coordinates of the space part.

    Args:
        x: points `(..., D)`, by their space part.
        gradient: total derivative by the space part, time following along, `(..., D)`.
        kappa: a scalar; the curvature is -kappa.

    Returns:
        The space part of a tangent vector at each point, `(..., D)`.

    Example:
        >>> riemannian_gradient(jnp.array([1.0, 0.0]), jnp.array([1.0, 1.0]), 0.5)
        Array([1.5, 1. ], dtype=float32)
    """
    kappa = jnp.asarray(kappa, x.dtype)
    return gradient + kappa * x * jnp.sum(x * gradient, axis=-1, keepdims=True)


def riemannian_sgd(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    kappa: Any = 1.0,
) -> optax.GradientTransformationExtraArgs:
    """SGD on the hyperboloid: textbook momentum, carried along by parallel transport.

    With x the point, g the derivative by its space part, and m the momentum:
    `G = rgrad(g + 2 wd x)`; `m <- momentum m + G`; `step = G + momentum m` (Nesterov) or `m`;
    `x' = exp_x(-lr step)`; `m <- transport(x -> x', m)`. The `2 wd x` is the ambient decay
    `wd X`, time included, pulled back to the space part; it moves x towards the origin.

    Args:
        learning_rate: number or optax schedule.
        momentum: share of the old momentum that is kept.
        nesterov: use Nesterov's form.
        weight_decay: coefficient wd.
        kappa: a scalar, the curvature is -kappa; `update(..., kappa=...)` overrides it.

    Returns:
        A transformation of trees with leaves `(..., D)`. Its updates are `x' - x`, so they go
        through `optax.apply_updates` as usual.

    Raises:
        ValueError: `update` is called without the parameters.

    Example:
        >>> rule, x = riemannian_sgd(0.1, momentum=0.9), jnp.array([3.0, 0.0])
        >>> updates, state = rule.update(jnp.ones(2), rule.init(x), x)
        >>> (x + updates).shape
        (2,)
    """

    def init(params):
        return RiemannianSgdState(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None, *, kappa=kappa, **_):
        if params is None:
            raise ValueError("riemannian_sgd needs the params: they say where the tangents live")
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate

        leaves, treedef = jax.tree.flatten(params)
        if not leaves:
            return updates, state
        x, g, m = (_pack(jax.tree.leaves(tree)) for tree in (params, updates, state.momentum))
        gradient = riemannian_gradient(x, g + 2 * weight_decay * x, kappa)
        m = momentum * m + gradient
        step = gradient + momentum * m if nesterov else m
        to = geometry.exp(x, -jnp.asarray(rate, x.dtype) * step, kappa)
        m = geometry.transport(x, to, m, kappa)
        delta, momenta = (treedef.unflatten(_unpack(rows, leaves)) for rows in (to - x, m))
        return delta, RiemannianSgdState(state.count + 1, momenta)

    return optax.GradientTransformationExtraArgs(init, update)


def _pack(leaves: list[Array]) -> Array:
    """Return all points as rows of one array, filled up with zeros to a common length.

    A zero coordinate changes no product and stays zero. One computation for all leaves compiles
    and runs many times faster than one for each.
    """
    width = max(leaf.shape[-1] for leaf in leaves)
    rows = [leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves]
    return jnp.concatenate([jnp.pad(r, ((0, 0), (0, width - r.shape[1]))) for r in rows])


def _unpack(rows: Array, leaves: list[Array]) -> list[Array]:
    """Invert `_pack`, in the shapes of `leaves`."""
    ends = np.cumsum([math.prod(leaf.shape[:-1]) for leaf in leaves])
    parts = jnp.split(rows, ends[:-1])
    return [
        part[:, : leaf.shape[-1]].reshape(leaf.shape)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
