"""Parameter groups: which parameters decay, turn slowly, or are points of the hyperboloid.

Parameters are a flat dict `{"stage1/0/conv1/kernel": array}`; the last part of a path, the leaf
name, decides the group. A leaf name that the table does not know is an error, never a default.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax import Array


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
# gamma: of a batch norm with variance; scale: the same of Flax's; log_scale: of Chen's layer;
# time: the row of a kernel that acts on the time (baselines).
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
        "gamma": Group(),
        "log_scale": Group(),
        "scale": Group(),
        "time": Group(decay=True),
    },
    "paper": {
        "kernel": Group(decay=True, matrix=True),
        "gain": Group(decay=True),
        "bias": Group(decay=True),
        "beta": Group(decay=True, lr_factor=0.2, riemannian=True),
        "gamma": Group(decay=True),
        "log_scale": Group(decay=True),
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


def limit_turn(
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
