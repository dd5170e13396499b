"""From a trained NNX model to its compiled form, and from that back to weights and biases."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax.hyperplane import Normals, weights
from lorentz_jax.inference.compiled import (
    HALF,
    Compiled,
    Occurrence,
    assemble,
    build,
    occurrences,
    structure_of,
)
from lorentz_jax.models import MODELS
from lorentz_jax.nn import compiling
from lorentz_jax.nn.compiling import Frozen


class Weights(NamedTuple):
    """Weights `(..., out)` and biases `(out,)` of a layer."""

    w: Array
    b: Array


def compile_cached_v(
    model: nnx.Module, fold: bool = True, *, dtype: Any = None, lengths: bool = True,
    info: Mapping[str, Any] | None = None, example: Sequence[Any] | None = None,
) -> Compiled:  # fmt: skip
    """Compile a model into its inference form, in evaluation mode.

    A clone of the model is taken. Its layers keep their places and become constant: a layer with
    hyperplanes holds V, a learned kappa is a number, and a centring norm is folded into the layer
    before it. Then the model's own `__call__` runs on these constants, so whatever it does between
    the layers is right. A layer that has no constant form, for example of a subclass with its own
    `__call__`, keeps its parameters. The model itself is not touched and not followed.

    Args:
      model: any `nnx.Module`, nested, shared, with other Flax layers among ours.
      fold: fold batch norms in `models`' networks, in `nnx.Sequential`, and wherever a class
        declares `folds = (("conv", "norm"),)` beside a `__call__` that applies `self.norm` to what
        `self.conv` gives. `fold=False` keeps them apart, so that `restore` works.
      dtype: "bfloat16" or "float16" stores kernels and activations in half precision; time,
        reductions, boosts and logits stay in float32.
      lengths: carry |w| of each unit, without which float32 cannot restore units with |theta| > 5.
      info: JSON to keep with the model.
      example: arguments of one call. One abstract run then shows with which kappa each layer is
        called. Needed only where a module passes a kappa that is neither the layer's own nor the
        attribute `kappa` of a class with `passes_kappa = True`.

    Returns:
      The compiled model.

    Raises:
      TypeError: the model is no `nnx.Module`.
      ValueError: a wrong `dtype`, or values that are not finite (in `dtype`).

    >>> layer = nn.LorentzLinear(3, 4, kappa=0.5, rngs=nnx.Rngs(0))
    >>> sorted(compile_cached_v(layer).params)
    ['excess', 'length', 'space', 'time']
    """
    if not isinstance(model, nnx.Module):
        raise TypeError(f"expected an nnx.Module, got {type(model).__name__}")
    dtype = None if dtype is None else jnp.dtype(dtype).name
    if dtype not in (None, *HALF):
        raise ValueError(f"dtype must be None or one of {HALF}, got {dtype!r}")
    clone = nnx.clone(model)
    clone.eval()
    structure, places = structure_of(clone), list(occurrences(clone))
    for _, module, _ in places:
        if isinstance(module, nn.Kappa) and module.value is None:
            module.value, module.raw = float(module()), None
    kappas = _declared(places) if example is None else _seen(clone, example)
    layers = {}

    def keep(place: Occurrence, arrays: Mapping[str, Any], folded: bool = False) -> None:
        layer, kappa = place.module, kappas.get(id(place.module))
        arrays = {name: _stored(layer, name, a, dtype) for name, a in arrays.items()}
        if not lengths and not getattr(layer, "needs_length", False):
            arrays.pop("length", None)
        compiling.freeze(layer, arrays, Frozen(place.path, kappa, folded))
        layers[place.path] = {"layer": type(layer).__name__, "kappa": kappa, "folded": folded}

    for first, second in _pairs(places) if fold else ():
        kappa = kappas.get(id(first.module))
        if _has_kappa(first, kappas) and kappa == kappas.get(id(second.module)):
            arrays = first.module.fold(second.module, kappa)
            if arrays is not None:
                keep(first, arrays, folded=True)
                keep(second, {}, folded=True)
    for place in _first(places):
        if _ready(place, kappas):
            arrays = place.module.constants(kappas.get(id(place.module)))
            keep(place, arrays)
    return assemble(clone, layers, dtype, info or {}, _description(model), structure)


def _first(places: Iterable[Occurrence]) -> list[Occurrence]:
    """Each module once."""
    return list({id(place.module): place for place in reversed(list(places))}.values())[::-1]


def _ready(place: Occurrence, kappas: Mapping[int, float | None]) -> bool:
    """Whether a module can become constant: it says so, is not frozen, and has one kappa."""
    module: Any = place.module
    constant = compiling.compiles(module) and hasattr(module, "constants")
    return constant and module.frozen is None and _has_kappa(place, kappas)


def _has_kappa(place: Occurrence, kappas: Mapping[int, float | None]) -> bool:
    """Whether the kappa that a module is called with is known, or it needs none."""
    curved = isinstance(place.module, nn.HyperbolicModule)
    return not curved or kappas.get(id(place.module)) is not None


def _pairs(places: list[Occurrence]) -> Iterator[tuple[Occurrence, Occurrence]]:
    """Layers and the norms that are always, and only, applied to what they give."""
    count: dict[int, list[Occurrence]] = {}
    for place in places:
        count.setdefault(id(place.module), []).append(place)
    single = {key: found[0] for key, found in count.items() if len(found) == 1}
    for place in _first(places):
        parent, pairs = place.module, []
        if type(parent) is nnx.Sequential:
            pairs = list(zip(parent.layers, parent.layers[1:], strict=False))
        elif callable(parent):
            names = vars(compiling.definer(parent)).get("folds", ())
            pairs = [(getattr(parent, a), getattr(parent, b)) for a, b in names]
        used: set[int] = set()
        for first, second in pairs:
            good = id(first) in single and id(second) in single and id(first) not in used
            fold = compiling.compiles(first) and hasattr(first, "fold") if good else False
            if fold and compiling.compiles(second):
                used |= {id(first), id(second)}
                yield single[id(first)], single[id(second)]


def _declared(places: list[Occurrence]) -> dict[int, float | None]:
    """The kappa that each layer is called with, as attributes tell; none where they disagree."""
    told: dict[int, set[float]] = {}
    for _, module, parents in places:
        if isinstance(module, nn.HyperbolicModule):
            kappas = told.setdefault(id(module), set())
            for parent in parents:
                kappa = nn.resolve_kappa(getattr(parent, "kappa", None))
                if kappa is not None:
                    kappas.add(float(kappa))
                    if getattr(parent, "passes_kappa", False):
                        break
            else:
                kappas.add(float(module.resolve_kappa()))
    return {key: next(iter(kappas)) if len(kappas) == 1 else None for key, kappas in told.items()}


def _seen(model: Any, example: Sequence[Any]) -> dict[int, float | None]:
    """The kappa that each layer is called with in one abstract run."""
    with compiling.noting() as seen:
        jax.eval_shape(lambda args: model(*args), tuple(example))
    single = {key: next(iter(kappas)) for key, kappas in seen.items() if len(kappas) == 1}
    return {key: None if kappa != kappa else kappa for key, kappa in single.items()}


def _stored(layer: Any, name: str, array: Any, dtype: str | None) -> Array:
    """An array of a layer in the precision that it is stored in."""
    array = jnp.asarray(array)
    if dtype is None:
        return array
    return array.astype(dtype if array.ndim > 1 and getattr(layer, "half", True) else jnp.float32)


def _description(model: Any) -> str | None:
    """How to build the network again; None where it would not be the same."""
    if type(model) not in MODELS.values():
        return None
    plain = nnx.clone(model)
    plain.eval()
    same = _outline(build(model.description)) == _outline(plain)
    return model.description if same else None


def _outline(model: nnx.Module) -> Any:
    """What of a model does not depend on the values of its arrays."""
    graphdef, state = nnx.split(model)
    return graphdef, {path: np.shape(v.get_value()) for path, v in nnx.to_flat_state(state)}


def restore(compiled: Compiled, layers: Sequence[str] | None = None) -> dict[str, Weights]:
    """Weights and biases of the layers that hold V, by path: the inverse of the cached V.

    The weights have their norm applied, `w = softplus(g) a/|a|`. What batch norms need, `mean` and
    `beta`, is in `compiled.params` as it was. `layers` restricts the work (default: all).

    Raises:
      ValueError: a layer that a batch norm was folded into, where the units are mixed for good; or
        one without lengths whose float precision has lost them (see `hyperplane.weights`).
    """
    cached = [name for name in compiled.layers if "space" in compiled.arrays(name)]
    layers = cached if layers is None else list(layers)
    unknown = [name for name in layers if name not in cached]
    if unknown:
        raise ValueError(f"no layers with hyperplanes: {unknown}; there are {cached}")
    folded = [name for name in cached if compiled.layers[name]["folded"]]
    if set(folded) & set(layers):
        whole = [name for name in cached if name not in folded]
        raise ValueError(
            f"batch norm is folded into {', '.join(n for n in layers if n in folded)}: its "
            "rotation mixes the units, so w and b are gone. What can be restored is "
            f"layers={whole}; to restore all, compile with fold=False"
        )
    return {name: _restore(compiled, name) for name in layers}


def _restore(compiled: Compiled, name: str) -> Weights:
    arrays = compiled.arrays(name)
    space = jnp.asarray(arrays["space"])
    space = space.astype(compute_dtype(space.dtype))
    normals = Normals(arrays.get("time"), space, arrays.get("length"), arrays.get("excess"))
    try:
        return Weights(*weights(normals, compiled.layers[name]["kappa"]))
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None
