"""Riemannian SGD and Adam for points of the hyperboloid that are stored by their space part."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lorentz_jax import geometry

__all__ = [
    "RiemannianAdamState",
    "RiemannianSgdState",
    "riemannian_adam",
    "riemannian_gradient",
    "riemannian_sgd",
]


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
        leaves, treedef = _leaves("riemannian_sgd", params)
        if not leaves:
            return updates, state
        x, g, m = (_pack(jax.tree.leaves(tree)) for tree in (params, updates, state.momentum))
        gradient = riemannian_gradient(x, g + 2 * weight_decay * x, kappa)
        m = momentum * m + gradient
        step = gradient + momentum * m if nesterov else m
        to, m = _move(x, step, m, _rate(learning_rate, state.count), kappa)
        delta, momenta = (treedef.unflatten(_unpack(rows, leaves)) for rows in (to - x, m))
        return delta, RiemannianSgdState(state.count + 1, momenta)

    return optax.GradientTransformationExtraArgs(init, update)


class RiemannianAdamState(NamedTuple):
    """State of `riemannian_adam`."""

    count: Array
    """Number of steps taken."""
    momentum: Any
    """A tangent vector at each current point, in the structure of the parameters."""
    square: Any
    """The mean squared length of gradients, one number a point: leaves `(..., 1)`."""


def riemannian_adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    kappa: Any = 1.0,
) -> optax.GradientTransformationExtraArgs:
    """Adam on the hyperboloid: one second moment a point, momentum carried by transport.

    With x the point and g the derivative by its space part: `G = rgrad(g)`;
    `m <- b1 m + (1 - b1) G`; `v <- b2 v + (1 - b2) <G, G>_x`;
    `x' = exp_x(-lr m_hat/(sqrt(v_hat) + eps))` with `m_hat = m/(1 - b1^t)`, `v_hat = v/(1 - b2^t)`;
    `m <- transport(x -> x', m)`. A step is about `lr` long, wherever the point is. (Becigneul and
    Ganea, 2019, with the hyperboloid as one factor.)

    Args:
        learning_rate: number or optax schedule.
        b1: share of the old momentum that is kept.
        b2: share of the old second moment that is kept.
        eps: what a step divides by at least.
        kappa: a scalar, the curvature is -kappa; `update(..., kappa=...)` overrides it.

    Returns:
        A transformation of trees with leaves `(..., D)`. Its updates are `x' - x`, so they go
        through `optax.apply_updates` as usual.

    Raises:
        ValueError: `update` is called without the parameters.

    Example:
        >>> rule, x = riemannian_adam(0.1), jnp.array([3.0, 0.0])
        >>> updates, state = rule.update(jnp.ones(2), rule.init(x), x)
        >>> round(float(geometry.dist(x, x + updates, 1.0)), 4)
        0.1
    """

    def init(params):
        momentum = jax.tree.map(jnp.zeros_like, params)
        square = jax.tree.map(lambda p: jnp.zeros_like(p[..., :1]), params)
        return RiemannianAdamState(jnp.zeros([], jnp.int32), momentum, square)

    def update(updates, state, params=None, *, kappa=kappa, **_):
        leaves, treedef = _leaves("riemannian_adam", params)
        if not leaves:
            return updates, state
        trees = params, updates, state.momentum, state.square
        x, g, m, v = (_pack(jax.tree.leaves(tree)) for tree in trees)
        gradient = riemannian_gradient(x, g, kappa)
        # <G, G>_x of G = (I + kappa x x^T) g is g.G = |g|^2 + kappa (x.g)^2.
        squared = jnp.sum(g * g, axis=-1, keepdims=True)
        dot = jnp.sum(x * g, axis=-1, keepdims=True)
        squared = squared + jnp.asarray(kappa, x.dtype) * dot * dot
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * squared
        steps = jnp.asarray(state.count + 1, x.dtype)
        root = jnp.sqrt(v / (1 - jnp.asarray(b2, x.dtype) ** steps))
        step = m / (1 - jnp.asarray(b1, x.dtype) ** steps) / (root + eps)
        to, m = _move(x, step, m, _rate(learning_rate, state.count), kappa)
        trees = (treedef.unflatten(_unpack(rows, leaves)) for rows in (to - x, m, v))
        delta, momenta, squares = trees
        return delta, RiemannianAdamState(state.count + 1, momenta, squares)

    return optax.GradientTransformationExtraArgs(init, update)


def _leaves(rule: str, params: Any) -> tuple[list[Array], Any]:
    if params is None:
        raise ValueError(f"{rule} needs the params: they say where the tangents live")
    return jax.tree.flatten(params)


def _rate(learning_rate: optax.ScalarOrSchedule, count: Array) -> Any:
    return learning_rate(count) if callable(learning_rate) else learning_rate


def _move(x: Array, step: Array, m: Array, rate: Any, kappa: Any) -> tuple[Array, Array]:
    """Go from x along `-rate step`, and take m along."""
    to = geometry.exp(x, -jnp.asarray(rate, x.dtype) * step, kappa)
    return to, geometry.transport(x, to, m, kappa)


def _pack(leaves: list[Array]) -> Array:
    """Return all points as rows of one array, filled up with zeros to a common length.

    A zero coordinate changes no product and stays zero. One computation for all leaves compiles
    and runs many times faster than one for each.
    """
    width = max(leaf.shape[-1] for leaf in leaves)
    rows = [leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves]
    return jnp.concatenate([jnp.pad(r, ((0, 0), (0, width - r.shape[1]))) for r in rows])


def _unpack(rows: Array, leaves: list[Array]) -> list[Array]:
    """Invert `_pack`, in the shapes of `leaves`; rows of one number stay one number a point."""
    ends = np.cumsum([math.prod(leaf.shape[:-1]) for leaf in leaves])
    parts = jnp.split(rows, ends[:-1])
    width = [min(leaf.shape[-1], rows.shape[-1]) for leaf in leaves]
    return [
        part[:, :size].reshape(*leaf.shape[:-1], size)
        for part, leaf, size in zip(parts, leaves, width, strict=True)
    ]
