"""The optimiser of a run: learning-rate schedule and parameter groups, through optax."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import Array

from lorentz_jax.optim import GROUPS, Group, leaf_groups, leaf_name, limit_turn, riemannian_sgd
from lorentz_jax.training.config import TrainConfig

GAINS = ("gain", "distance_gain")
"""Leaf names of the parameters that `TrainConfig.decay_gains` is about."""


def describe_decay(params: Mapping[str, Array], config: TrainConfig) -> str:
    """Say in one line how much of the model decays."""
    decayed = [params[path] for path, group in _groups(params, config).items() if group.decay]
    return (
        f"weight decay {config.weight_decay:g} on {len(decayed)} of {len(params)} leaves "
        f"({sum(p.size for p in decayed):,} of {sum(p.size for p in params.values()):,} parameters)"
    )


def make_schedule(
    config: TrainConfig, steps_per_epoch: int, lr: Any = None
) -> Callable[[Any], Array]:
    """Return the learning rate by step, from 0 to `epochs * steps_per_epoch - 1`.

    It starts at `lr`, which may be traced, by default `config.lr`.
    """
    lr = config.lr if lr is None else lr
    schedule = optax.constant_schedule(lr)
    if config.schedule == "cosine":
        schedule = optax.cosine_decay_schedule(lr, config.epochs * steps_per_epoch)
    if config.schedule == "step":
        drops = {epoch * steps_per_epoch: config.gamma for epoch in config.milestones}
        schedule = optax.piecewise_constant_schedule(lr, drops)
    # A float count: optax mixes it with floats, which strict dtype promotion forbids. The widest
    # float there is, since 0.1 rounded to float32 would show in a float64 run.
    return lambda count: jnp.asarray(schedule(jnp.asarray(count, float)), float)


def make_optimiser(
    config: TrainConfig, params: Mapping[str, Any], steps_per_epoch: int, lr: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Return the optimiser of the config, with the groups of `optim.GROUPS[config.init]`.

    `lr` is as for `make_schedule`. `update(..., kappa=...)` sets the kappa of the Riemannian group,
    which is `config.kappa` without. A parameter that this table does not name is a `ValueError`:
    each one of our networks was thought about.
    """
    table = GROUPS[config.init]
    for path in params:
        if leaf_name(path) not in table:
            raise ValueError(
                f"no parameter group for {path!r} in preset {config.init!r}; "
                f"known leaf names: {', '.join(table)}"
            )
    lr = config.lr if lr is None else lr
    schedule = make_schedule(config, steps_per_epoch, lr)
    groups = _groups(params, config)
    # The reference's points of the hyperboloid skip the first drop, and so catch up with the rest.
    first_drop = config.milestones[0] * steps_per_epoch if config.schedule == "step" else None
    transforms: dict[Hashable, optax.GradientTransformation] = {
        leaf_name(path): _group_optimiser(group, config, schedule, first_drop)
        for path, group in groups.items()
    }
    # Only a network with weight norm has gains: the baselines train without a limit.
    normed = "gain" in transforms
    if config.max_turn is not None and config.optimiser == "sgd" and normed:
        for name in {leaf_name(path) for path, group in groups.items() if group.limited}:
            transforms[name] = limit_turn(transforms[name], config.max_turn / lr)
    return optax.partition(transforms, {path: leaf_name(path) for path in groups})


def _groups(params: Mapping[str, Any], config: TrainConfig) -> dict[str, Group]:
    """Return the group of every parameter; gains decay only where the config lets them."""
    return {
        path: group._replace(
            decay=group.decay and (config.decay_gains or leaf_name(path) not in GAINS)
        )
        for path, group in leaf_groups(params, config.init).items()
    }


def _group_optimiser(
    group: Group, config: TrainConfig, schedule: Callable[[Any], Array], first_drop: int | None
) -> optax.GradientTransformation:
    decay = config.weight_decay if group.decay else 0.0

    def rate(count):
        if group.lr_factor == 1.0 or first_drop is None:
            return group.lr_factor * schedule(count)
        scale = jnp.where(count < first_drop, group.lr_factor, 1.0)
        return scale.astype(float) * schedule(count)

    if group.riemannian:
        return riemannian_sgd(rate, config.momentum, config.nesterov, decay, config.kappa)
    if config.optimiser == "sgd":
        return optax.chain(
            optax.add_decayed_weights(decay),
            optax.trace(config.momentum, config.nesterov),
            optax.scale_by_learning_rate(rate),
        )
    direction = optax.scale_by_adam(b1=config.momentum)
    if config.optimiser == "muon" and group.matrix:
        direction = optax.contrib.scale_by_muon(
            beta=config.momentum, nesterov=config.nesterov, weight_dimension_numbers=_as_matrices
        )
    return optax.chain(
        direction, optax.add_decayed_weights(decay), optax.scale_by_learning_rate(rate)
    )


def _as_matrices(params: Any) -> Any:
    """A kernel is one matrix, its last axis the output, however many axes come before."""
    return jax.tree.map(
        lambda p: optax.contrib.MuonDimensionNumbers(tuple(range(p.ndim - 1)), p.ndim - 1), params
    )
