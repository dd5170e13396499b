"""Parameter groups: which parameters decay, turn slowly, or are points of the hyperboloid.

Parameters are a flat dict `{"stages/1/0/first/conv/kernel": array}`. The last part of a path, the
leaf name, decides the group. A leaf name that `GROUPS` does not know is an error, never a default.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax
from jax import Array

__all__ = ["GROUPS", "Group", "decay_mask", "leaf_groups", "leaf_name", "limit_turn"]


class Group(NamedTuple):
    """How the parameters of one leaf name are trained."""

    decay: bool = False
    """Whether weight decay acts on them."""
    limited: bool = False
    """Whether `limit_turn` limits their steps in a network with weight norm."""
    lr_factor: float = 1.0
    """Their learning rate over that of the run; with a schedule of steps, until its first drop."""
    matrix: bool = False
    """Whether they are matrices, with the last axis for output, that Muon can train."""
    riemannian: bool = False
    """Whether they are points, by their space part, that `riemannian_sgd` trains."""


# kernel: direction of a weight-normalised kernel, or a plain weight; gain: its raw length;
# bias: b of a hyperplane; beta: where batch norm puts the centroid; raw: learned kappa;
# gamma: of a batch norm with variance; scale: the same of Flax's; log_scale: of Chen's layer;
# time: the row of a kernel that acts on the time (baselines).
# `fast` decays kernels and gains. Decay would let b, beta or a raw kappa drift to what 0 means.
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
"""The groups of each preset of `nn.initializers`, by leaf name."""


def leaf_name(path: str) -> str:
    """Return the last part of a parameter path."""
    return path.rsplit("/", 1)[-1]


def leaf_groups(params: Mapping[str, Any], init: str = "fast") -> dict[str, Group]:
    """Return the group of every parameter.

    Args:
        params: parameters by path; the values do not matter.
        init: preset of the network, a key of `GROUPS`.

    Raises:
        ValueError: a leaf name has no group, or there is no such preset.

    Example:
        >>> leaf_groups({"head/bias": 0.0})["head/bias"].decay
        False
    """
    if init not in GROUPS:
        raise ValueError(f"init must be one of {tuple(GROUPS)}, got {init!r}")
    table = GROUPS[init]
    for path in params:
        if leaf_name(path) not in table:
            raise ValueError(
                f"no parameter group for {path!r} in preset {init!r}; "
                f"known leaf names: {', '.join(table)}"
            )
    return {path: table[leaf_name(path)] for path in params}


def decay_mask(params: Mapping[str, Any], init: str = "fast") -> dict[str, bool]:
    """Return which parameters decay, for example as the `mask` of `optax.adamw`.

    Arguments and errors are those of `leaf_groups`.

    Example:
        >>> decay_mask({"head/kernel": 0.0, "head/bias": 0.0})
        {'head/kernel': True, 'head/bias': False}
        >>> rule = optax.adamw(1e-3, weight_decay=1e-2, mask=decay_mask)
    """
    return {path: group.decay for path, group in leaf_groups(params, init).items()}


def limit_turn(
    rule: optax.GradientTransformation, limit: Any
) -> optax.GradientTransformationExtraArgs:
    """Give `rule` gradients whose norm is at most `limit` times that of the parameter, per unit.

    A step of SGD at the rate `lr` then turns no direction by more than `lr limit` radians. A unit
    is what belongs to one entry of the last axis, and counts as 1e-3 long at least. The state is
    that of `rule`, so that checkpoints with and without a limit have one layout.

    Args:
        rule: the transformation to limit, such as `optax.sgd`.
        limit: a number, which may be traced.

    Returns:
        The limited transformation; its `update` needs the parameters.

    Example:
        >>> rule = limit_turn(optax.sgd(1.0), 0.1)
        >>> params = {"kernel": jax.numpy.array([[3.0], [4.0]])}
        >>> gradients = {"kernel": jax.numpy.array([[0.0], [50.0]])}
        >>> updates, _ = rule.update(gradients, rule.init(params), params)
        >>> float(updates["kernel"][1, 0])  # 0.1 times the length 5
        -0.5
    """
    rule = optax.with_extra_args_support(rule)

    def cut(gradient: Array, kernel: Array) -> Any:
        # The default axes take a kernel with one input of one pixel for a single unit.
        clip = optax.adaptive_grad_clip(limit, axis=tuple(range(kernel.ndim - 1)))
        return clip.update(gradient, optax.EmptyState(), kernel)[0]

    def update(updates: Any, state: Any, params: Any = None, **extra: Any):
        return rule.update(jax.tree.map(cut, updates, params), state, params, **extra)

    return optax.GradientTransformationExtraArgs(rule.init, update)
