"""The optimiser of a run: learning-rate schedule and parameter groups, through optax.

Parameters are a flat dict `{"stage1/0/conv1/kernel": array}`; the last part of a path, the leaf
name, decides the group. A leaf name that the table does not know is an error, never a default.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import Array

from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.riemannian import riemannian_sgd


class Group(NamedTuple):
    """How one kind of parameter is trained."""

    decay: bool = False
    """Whether weight decay acts on it."""
    limited: bool = False
    """Whether `max_turn` limits its steps in a network with weight norm."""
    lr_factor: float = 1.0
    """Its learning rate over that of the run; with the schedule `step`, until its first drop."""
    matrix: bool = False
    """Whether Muon trains it: its steps are orthogonal matrices."""
    riemannian: bool = False
    """Whether it is a point of the hyperboloid, by its space part."""


# kernel: direction of a weight-normalised kernel, or a plain weight; gain: its raw length;
# bias: b of a hyperplane; beta: where batch norm puts the centroid; raw: learned kappa;
# scale: of a batch norm with variance; time: the row of a kernel that acts on the time (baselines).
# `fast` decays kernels and gains, not b, beta or a raw kappa, which would drift to what 0 means.
# The outputs of a deep network grow layer upon layer, probably since a norm that only centres does
# not undo a turn towards the largest variance of the input. Without a limit to the turn of
# directions they grew until it learned nothing more; the decay of the gains and the limit of the
# classifier leave less growth. A raw gain of 0 is |w| = log 2, so that its decay sends no
# hyperplane, at distance b/|w|, to infinity. `paper` decays all and limits nothing, as the
# reference does.
GROUPS: dict[str, dict[str, Group]] = {
    "fast": {
        "kernel": Group(decay=True, limited=True, matrix=True),
        "gain": Group(decay=True),
        "bias": Group(),
        "beta": Group(),
        "raw": Group(),
        "scale": Group(),
        "time": Group(decay=True),
    },
    "paper": {
        "kernel": Group(decay=True, matrix=True),
        "gain": Group(decay=True),
        "bias": Group(decay=True),
        "beta": Group(decay=True, lr_factor=0.2, riemannian=True),
        "scale": Group(decay=True),
        "time": Group(decay=True),
    },
}


def leaf_name(path: str) -> str:
    """The last part of a parameter path."""
    return path.rsplit("/", 1)[-1]


def leaf_groups(params: Mapping[str, Any], init: str) -> dict[str, Group]:
    """The group of every parameter path under the preset `init`.

    Raises:
        ValueError: a leaf name without a group, with its path.
    """
    table = GROUPS[init]
    for path in params:
        if leaf_name(path) not in table:
            raise ValueError(
                f"no parameter group for {path!r} in preset {init!r}; "
                f"known leaf names: {', '.join(table)}"
            )
    return {path: table[leaf_name(path)] for path in params}


def decay_mask(params: Mapping[str, Any], init: str = "fast") -> dict[str, bool]:
    """Which parameters decay, for example as the `mask` of `optax.adamw`."""
    return {path: group.decay for path, group in leaf_groups(params, init).items()}


def describe_decay(params: Mapping[str, Array], config: TrainConfig) -> str:
    """One line that says how much of the model weight decay acts on."""
    mask = decay_mask(params, config.init)
    decayed = [params[path] for path, decays in mask.items() if decays]
    return (
        f"weight decay {config.weight_decay:g} on {len(decayed)} of {len(params)} leaves "
        f"({sum(p.size for p in decayed):,} of {sum(p.size for p in params.values()):,} parameters)"
    )


def make_schedule(
    config: TrainConfig, steps_per_epoch: int, lr: Any = None
) -> Callable[[Any], Array]:
    """Learning rate by step, from 0 to `epochs * steps_per_epoch - 1`, starting at `lr`."""
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
    """The optimiser of the config, with the groups of `GROUPS[config.init]`.

    `lr`, which may be traced, stands for `config.lr`. `update(..., kappa=...)` sets the kappa of
    the Riemannian group; it is `config.kappa` without.
    """
    lr = config.lr if lr is None else lr
    schedule = make_schedule(config, steps_per_epoch, lr)
    groups = leaf_groups(params, config.init)
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
            transforms[name] = _limited(transforms[name], config.max_turn / lr)
    return optax.partition(transforms, {path: leaf_name(path) for path in groups})


def _limited(
    rule: optax.GradientTransformation, limit: Any
) -> optax.GradientTransformationExtraArgs:
    """`rule` of gradients that are clipped to `limit` times the length, unit by unit.

    Its state is that of `rule`, so that checkpoints with and without a limit have one layout.
    """
    rule = optax.with_extra_args_support(rule)

    def cut(gradient: Array, kernel: Array) -> Any:
        # The default axes take a kernel with one input of one pixel for a single unit.
        clip = optax.adaptive_grad_clip(limit, axis=tuple(range(kernel.ndim - 1)))
        return clip.update(gradient, optax.EmptyState(), kernel)[0]

    def update(updates: Any, state: Any, params: Any = None, **extra: Any):
        return rule.update(jax.tree.map(cut, updates, params), state, params, **extra)

    return optax.GradientTransformationExtraArgs(rule.init, update)


def _group_optimiser(
    group: Group,
    config: TrainConfig,
    schedule: Callable[[Any], Array],
    first_drop: int | None,
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
