"""Linear maps with a transpose of their own, for a derivative that serves both modes.

A `jax.custom_vjp` has no forward mode. The rule of a `jax.custom_jvp` has both, but JAX makes its
reverse mode by transposing it, operation by operation. A map of this module is one operation there:
its transpose is a function written by hand. Unlike `jax.custom_derivatives.linear_call` it is
differentiable in what it keeps, so that second derivatives exist, and `jax.vmap` maps it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from lorentz_jax._src.arguments import concrete

_core: Any = jax.core
_kind = jax.typeof if hasattr(jax, "typeof") else _core.get_aval  # the older name

# `ahead` and `back` map (list of what is kept, list of linear arguments) to a list of results, and
# are each other's transposes. `into` has the types of the results of `ahead`.
_linear_map = Primitive("linear_map")
_linear_map.multiple_results = True


def linear_map(
    push: Callable[[Any, Sequence[Array | None]], Array],
    pull: Callable[[Any, Array], Sequence[Array]],
    kept: Any,
    tangents: Sequence[Any],
    like: Array,
) -> Array:
    """Compute `push(kept, tangents)`, whose transpose is `pull(kept, cotangent)`.

    Args:
        push: Makes an array like `like`; linear in the tangents, where None stands for a zero.
        pull: Makes a cotangent for every tangent.
        kept: Any arrays; both functions may be differentiated in them.
        tangents: Arrays or, where a rule with `symbolic_zeros` was given none, `SymbolicZero`.
        like: The primal result.
    """
    leaves, tree = jax.tree.flatten(kept)
    none = SymbolicZero, type(None)  # an argument that is None has no tangent at all
    live = [i for i, t in enumerate(tangents) if not isinstance(t, none)]

    def ahead(leaves: list[Any], given: list[Any]) -> list[Array]:
        filled = dict(zip(live, given, strict=True))
        return [push(tree.unflatten(leaves), [filled.get(i) for i in range(len(tangents))])]

    def back(leaves: list[Any], cotangents: list[Any]) -> list[Array]:
        every = pull(tree.unflatten(leaves), cotangents[0])
        return [every[i] for i in live]

    given, into = [tangents[i] for i in live], [_kind(like)]
    return _bind(ahead, back, leaves, given, into)[0]


def _bind(ahead, back, kept, linear, into) -> list[Any]:
    rule = {"ahead": ahead, "back": back, "count": len(kept), "into": tuple(into)}
    return _linear_map.bind(*kept, *linear, **rule)


def _run(*arguments, ahead, count, **_):
    return ahead(list(arguments[:count]), list(arguments[count:]))


def _jvp(primals, tangents, *, ahead, back, count, into):
    kept, linear = list(primals[:count]), list(primals[count:])
    out = _bind(ahead, back, kept, linear, into)
    moved = [i for i, t in enumerate(tangents[:count]) if type(t) is not ad.Zero]
    parts = []
    if any(type(t) is not ad.Zero for t in tangents[count:]):
        given = [ad.instantiate_zeros(t) for t in tangents[count:]]
        parts.append(_bind(ahead, back, kept, given, into))
    if moved:

        def of_moved(*values):
            changed = dict(zip(moved, values, strict=True))
            return ahead([changed.get(i, k) for i, k in enumerate(kept)], linear)

        values = [kept[i] for i in moved], [tangents[i] for i in moved]
        parts.append(jax.jvp(of_moved, *values)[1])
    return out, [sum(part[1:], part[0]) for part in zip(*parts, strict=True)]


def _transpose(cotangents, *arguments, ahead, back, count, into):
    kept, linear = list(arguments[:count]), arguments[count:]
    wanted = [ad.is_undefined_primal(x) for x in linear]
    kinds = [x.aval if w else _kind(x) for x, w in zip(linear, wanted, strict=True)]
    given = [ad.instantiate_zeros(g) for g in cotangents]
    # What is no variable of the map adds a constant to its result.
    results = _bind(back, ahead, kept, given, kinds)
    return [None] * count + [r if w else None for r, w in zip(results, wanted, strict=True)]


def _batch(arguments, dims, *, ahead, back, count, into):
    size = next(x.shape[d] for x, d in zip(arguments, dims, strict=True) if d is not None)
    of_kept = list(dims[:count])

    def mapped(function):
        return jax.vmap(function, in_axes=(of_kept, 0), axis_size=size)

    linear = [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arguments[count:], dims[count:], strict=True)
    ]
    kept = list(arguments[:count])
    if all(map(concrete, kept + linear)):
        return mapped(ahead)(kept, linear), [0] * len(into)
    kinds = jax.make_jaxpr(mapped(ahead))(kept, linear).out_avals
    return _bind(mapped(ahead), mapped(back), kept, linear, kinds), [0] * len(into)


_linear_map.def_impl(_run)
_linear_map.def_abstract_eval(lambda *_, into, **__: list(into))
ad.primitive_jvps[_linear_map] = _jvp
ad.primitive_transposes[_linear_map] = _transpose
batching.primitive_batchers[_linear_map] = _batch
mlir.register_lowering(_linear_map, mlir.lower_fun(_run, multiple_results=True))
