"""Optimisers for Lorentz networks, as optax transformations and parameter groups."""

from lorentz_jax._src.extras import require

require("lorentz_jax.optim", "nn", "optax")

from lorentz_jax.optim.groups import (
    GROUPS,
    OTHERS,
    Group,
    decay_mask,
    leaf_groups,
    leaf_name,
    limit_turn,
)
from lorentz_jax.optim.riemannian import (
    RiemannianAdamState,
    RiemannianSgdState,
    riemannian_adam,
    riemannian_gradient,
    riemannian_sgd,
)

__all__ = [
    "GROUPS",
    "OTHERS",
    "Group",
    "RiemannianAdamState",
    "RiemannianSgdState",
    "decay_mask",
    "leaf_groups",
    "leaf_name",
    "limit_turn",
    "riemannian_adam",
    "riemannian_gradient",
    "riemannian_sgd",
]
