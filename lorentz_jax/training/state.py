"""The model as plain pytrees: NNX objects on the outside, flat dicts of arrays inside.

Everything that is optimised, donated, written or counted is `{"stages/0/0/first/conv/kernel": x}`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx, traverse_util
from jax import Array

Arrays = Mapping[str, Array]

LOW_EFFORT: Any = {"xla_backend_optimization_level": 0}
"""`compiler_options` of programs that run seldom or only move numbers: they compile faster."""


class TrainState(NamedTuple):
    """All that changes from step to step, and the key that augmentation draws from."""

    params: Arrays
    stats: Arrays
    opt_state: optax.OptState
    step: Array
    key: Array


def split(model: nnx.Module) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """Split a model that holds only `nnx.Param` and `nnx.BatchStat`.

    Returns:
        `(graphdef, params, stats)`, the last two flat dicts by path.
    """
    graphdef, params, stats = nnx.split(model, nnx.Param, nnx.BatchStat)
    return graphdef, flatten(params), flatten(stats)


def merge(graphdef: Any, params: Arrays, stats: Arrays) -> Any:
    """Return the model again; its variables are new, so a traced call may change them."""
    return nnx.merge(graphdef, _nest(params), _nest(stats), copy=True)


def initialiser(
    make_model: Callable[[nnx.Rngs], nnx.Module],
) -> tuple[Any, Callable[[int], tuple[dict[str, Array], dict[str, Array]]]]:
    """Return the graphdef of a model, and a function from a seed to `(params, stats)`.

    One compiled program makes all arrays. Eagerly every new shape of a random array would be
    compiled by itself, which takes five times as long. The values agree up to rounding.
    """
    graphdef = split(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))[0]

    def arrays(key: Array) -> Any:
        return split(make_model(nnx.Rngs(key)))[1:]

    program = jax.jit(arrays, compiler_options=LOW_EFFORT)
    return graphdef, lambda seed: program(jax.random.key(seed))


def init_network(
    make_model: Callable[[nnx.Rngs], nnx.Module], seed: int
) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """Return `split(make_model(nnx.Rngs(seed)))`, made by `initialiser`."""
    graphdef, values = initialiser(make_model)
    return graphdef, *values(seed)


def init_state(
    params: Arrays, stats: Arrays, optimiser: optax.GradientTransformation, seed: int
) -> TrainState:
    """Return the state before the first step. It owns copies, since the step donates them."""
    params, stats = jax.tree.map(jnp.copy, (dict(params), dict(stats)))
    step = jnp.zeros([], jnp.int32)
    return TrainState(params, stats, optimiser.init(params), step, jax.random.key(seed))


def flatten(state: nnx.State) -> dict[str, Any]:
    """Return the values of an NNX state by path."""
    flat: dict[Any, Any] = traverse_util.flatten_dict(nnx.to_pure_dict(state))
    return {"/".join(map(str, path)): value for path, value in flat.items()}


def _nest(flat: Arrays) -> dict:
    # nnx.List numbers its items with integers, which a joined path has turned into text.
    parts = {tuple(int(p) if p.isdigit() else p for p in k.split("/")): v for k, v in flat.items()}
    return traverse_util.unflatten_dict(parts)
