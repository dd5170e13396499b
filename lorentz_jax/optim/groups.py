"""Parameter groups: which parameters decay, turn slowly, or are points of the hyperboloid.

Parameters are any tree of arrays by name: an `nnx.State`, a nested dict, or a flat dict
`{"stages/1/0/first/conv/kernel": array}`. The last part of a path, the leaf name, decides the
group. A name that `GROUPS` does not know, such as the `embedding` of another library's layer,
belongs to the group `OTHERS`.
"""

from typing import Any, NamedTuple

import jax
import optax
from jax import Array

__all__ = ["GROUPS", "OTHERS", "Group", "decay_mask", "leaf_groups", "leaf_name", "limit_turn"]


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
    """Whether they are points, by their space part, that a Riemannian rule trains."""


# kernel: direction of a weight-normalised kernel, or a plain weight; gain: its raw length;
# bias: b of a hyperplane; beta: where batch norm puts the centroid; raw: learned kappa;
# gamma: of a batch norm with variance; scale: the same of Flax's; log_scale: of Chen's layer;
# distance_gain: logarithm of the factor on a unit's distance; time: the row of a kernel that acts
# on the time (baselines); points: of an embedding; positions: of the patches of an image, which
# are added to space parts and so take plain steps.
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
        "distance_gain": Group(decay=True),
        "scale": Group(),
        "time": Group(decay=True),
        "points": Group(riemannian=True),
        "positions": Group(),
    },
    "paper": {
        "kernel": Group(decay=True, matrix=True),
        "gain": Group(decay=True),
        "bias": Group(decay=True),
        "beta": Group(decay=True, lr_factor=0.2, riemannian=True),
        "gamma": Group(decay=True),
        "log_scale": Group(decay=True),
        "distance_gain": Group(decay=True),
        "scale": Group(decay=True),
        "time": Group(decay=True),
        "points": Group(riemannian=True),
        "positions": Group(decay=True),
    },
}
"""The groups of each preset of `nn.initializers`, by leaf name."""


OTHERS: dict[str, Group] = {"fast": Group(), "paper": Group(decay=True)}
"""The group of every other leaf name, by preset: plain steps, and decay only where all decays."""


def leaf_name(path: Any) -> str:
    """Return the last part of a parameter path.

    Args:
        path: text with slashes, a tuple of names, or the keys that `jax.tree_util` gives.

    Example:
        >>> leaf_name("head/kernel"), leaf_name(("head", "kernel"))
        ('kernel', 'kernel')
    """
    if isinstance(path, str):
        return path.rsplit("/", 1)[-1]
    # A variable of Flax is a node whose one child is called value; the name stands before it.
    if len(path) > 1 and path[-1] == jax.tree_util.GetAttrKey("value"):
        path = path[:-1]
    last = path[-1] if path else ""
    last = getattr(last, "key", getattr(last, "name", getattr(last, "idx", last)))
    return leaf_name(last) if isinstance(last, str | tuple) else str(last)


def leaf_groups(params: Any, init: str = "fast") -> Any:
    """Return the group of every parameter, in the structure of the parameters.

    Args:
        params: parameters by name; the values do not matter.
        init: preset of the network, a key of `GROUPS`.

    Raises:
        ValueError: there is no such preset.

    Example:
        >>> leaf_groups({"head/bias": 0.0})["head/bias"].decay
        False
    """
    if init not in GROUPS:
        raise ValueError(f"init must be one of {tuple(GROUPS)}, got {init!r}")
    table, others = GROUPS[init], OTHERS[init]
    return jax.tree_util.tree_map_with_path(
        lambda path, _: table.get(leaf_name(path), others), params
    )


def decay_mask(params: Any, init: str = "fast") -> Any:
    """Return which parameters decay, for example as the `mask` of `optax.adamw`.

    Arguments and errors are those of `leaf_groups`.

    Example:
        >>> decay_mask({"head": {"bias": 0.0, "kernel": 0.0}})
        {'head': {'bias': False, 'kernel': True}}
        >>> rule = optax.adamw(1e-3, weight_decay=1e-2, mask=decay_mask)
    """
    groups = leaf_groups(params, init)
    return jax.tree.map(lambda group: group.decay, groups, is_leaf=_is_group)


def _is_group(node: Any) -> bool:
    return isinstance(node, Group)


def limit_turn(
    rule: optax.GradientTransformation | Any, limit: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Give `rule` gradients whose norm is at most `limit` times that of the parameter, per unit.

    A step of SGD at the rate `lr` then turns no direction by more than `lr limit` radians. A unit
    is what belongs to one entry of the last axis, and counts as 1e-3 long at least. Only kernels
    are limited (`Group.limited`), or a bare array. The state is that of `rule`, so that checkpoints
    with and without a limit have one layout.

    `limit_turn(limit)` is the limit alone, to be chained. Before a rule it limits the gradients.
    After one it limits the steps, momentum included, and `limit` is an angle in radians.

    Args:
        rule: the transformation to limit, such as `optax.sgd`.
        limit: a number, which may be traced.

    Returns:
        The limited transformation; its `update` needs the parameters.

    Raises:
        ValueError: `update` is called without the parameters.

    Example:
        >>> rule = optax.chain(optax.sgd(1.0), limit_turn(0.1))
        >>> params = {"kernel": jax.numpy.array([[3.0], [4.0]])}
        >>> gradients = {"kernel": jax.numpy.array([[0.0], [50.0]])}
        >>> updates, _ = rule.update(gradients, rule.init(params), params)
        >>> float(updates["kernel"][1, 0])  # 0.1 times the length 5
        -0.5
    """
    if limit is None:
        rule, limit = optax.identity(), rule
    rule = optax.with_extra_args_support(rule)

    def cut(path: Any, gradient: Array, kernel: Array) -> Any:
        if path and not GROUPS["fast"].get(leaf_name(path), OTHERS["fast"]).limited:
            return gradient
        # The default axes take a kernel with one input of one pixel for a single unit.
        clip = optax.adaptive_grad_clip(limit, axis=tuple(range(kernel.ndim - 1)))
        return clip.update(gradient, optax.EmptyState(), kernel)[0]

    def update(updates: Any, state: Any, params: Any = None, **extra: Any):
        if params is None:
            raise ValueError("limit_turn needs the params: a step is limited relative to them")
        updates = jax.tree_util.tree_map_with_path(cut, updates, params)
        return rule.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(rule.init, update)
