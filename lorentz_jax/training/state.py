"""The model as plain pytrees: NNX objects on the outside, flat dicts of arrays inside.

Everything that is optimised, donated, written or counted is `{"stage1/0/conv1/kernel": array}`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx, traverse_util
from jax import Array

Arrays = Mapping[str, Array]


class TrainState(NamedTuple):
    """All that changes from step to step, and the key that augmentation draws from."""

    params: Arrays
    stats: Arrays
    opt_state: optax.OptState
    step: Array
    key: Array


def split(model: nnx.Module) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """`(graphdef, params, stats)` of a model that holds only `nnx.Param` and `nnx.BatchStat`."""
    graphdef, params, stats = nnx.split(model, nnx.Param, nnx.BatchStat)
    return graphdef, flatten(params), flatten(stats)


def initialiser(
    make_model: Callable[[nnx.Rngs], nnx.Module],
) -> tuple[Any, Callable[[int], tuple[dict[str, Array], dict[str, Array]]]]:
    """The graphdef of a model, and `(params, stats)` by seed, all from one compiled program.

    Eagerly every new shape of a random array is compiled by itself; one program that runs seldom,
    and so is not worth optimising, takes a fifth of the time. The values agree up to rounding.
    """
    graphdef = split(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))[0]

    def arrays(key: Array) -> Any:
        return split(make_model(nnx.Rngs(key)))[1:]

    options: Any = {"xla_backend_optimization_level": 0}
    program = jax.jit(arrays, compiler_options=options)
    return graphdef, lambda seed: program(jax.random.key(seed))


def init_network(
    make_model: Callable[[nnx.Rngs], nnx.Module], seed: int
) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """`split(make_model(nnx.Rngs(seed)))`, through `initialiser`."""
    graphdef, values = initialiser(make_model)
    return graphdef, *values(seed)


def merge(graphdef: Any, params: Arrays, stats: Arrays) -> Any:
    """The model again; its variables are new, so a traced call may change them."""
    return nnx.merge(graphdef, _nest(params), _nest(stats), copy=True)


def init_state(
    params: Arrays, stats: Arrays, optimiser: optax.GradientTransformation, seed: int
) -> TrainState:
    """State before the first step. It owns copies, since the step donates them."""
    params, stats = jax.tree.map(jnp.copy, (dict(params), dict(stats)))
    step = jnp.zeros([], jnp.int32)
    return TrainState(params, stats, optimiser.init(params), step, jax.random.key(seed))


def flatten(state: nnx.State) -> dict[str, Any]:
    """The values of an NNX state by path."""
    flat: dict[Any, Any] = traverse_util.flatten_dict(nnx.to_pure_dict(state))
    return {"/".join(map(str, path)): value for path, value in flat.items()}


def _nest(flat: Arrays) -> dict:
    # nnx.List numbers its items with integers, which a joined path has turned into text.
    parts = {tuple(int(p) if p.isdigit() else p for p in k.split("/")): v for k, v in flat.items()}
    return traverse_util.unflatten_dict(parts)
