"""Riemannian SGD for points of the hyperboloid that are stored by their space part."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lorentz_jax import geometry


class RiemannianSgdState(NamedTuple):
    """Number of steps taken, and the momentum: a tangent vector at each current point."""

    count: Array
    momentum: Any


def riemannian_gradient(x: Array, gradient: Array, kappa: Any) -> Array:
    """Space part of the Riemannian gradient at `x`, `(I + kappa x x^T) gradient`.

    `gradient` is the total derivative with respect to the space part, `(..., D)`; the matrix is
    the inverse of the metric in these coordinates. `kappa` is a scalar.
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

    With x the point (leaves `(..., D)`), g the derivative by its space part, and `m` the momentum:
    `G = rgrad(g + 2 wd x)`; `m <- momentum m + G`; `step = G + momentum m` (Nesterov) or `m`;
    `x' = exp_x(-lr step)`; `m <- transport(x -> x', m)`. The `2 wd x` is the ambient decay
    `wd X`, time included, pulled back to the space part; it moves x towards the origin.

    Args:
        learning_rate: number or optax schedule.
        kappa: scalar, the curvature is -kappa; `update(..., kappa=...)` overrides it.

    The updates are `x' - x`, so they go through `optax.apply_updates` as usual.
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
    """Every point as a row of one array, filled up with zeros to a common length.

    A zero coordinate changes no product and stays zero, and one array instead of one computation
    a leaf compiles and runs many times faster.
    """
    width = max(leaf.shape[-1] for leaf in leaves)
    rows = [leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves]
    return jnp.concatenate([jnp.pad(r, ((0, 0), (0, width - r.shape[1]))) for r in rows])


def _unpack(rows: Array, leaves: list[Array]) -> list[Array]:
    """The inverse of `_pack`, in the shapes of `leaves`."""
    ends = np.cumsum([math.prod(leaf.shape[:-1]) for leaf in leaves])
    parts = jnp.split(rows, ends[:-1])
    return [
        part[:, : leaf.shape[-1]].reshape(leaf.shape)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
