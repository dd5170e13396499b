"""The protocol by which a layer becomes constant, for `inference.compile_cached_v`.

A class whose `__call__` can run on constants says so beside it:

    compiles = True
    constant_names = ("space", "time")  # what `constants` and `fold` may give

    def constants(self, kappa): ...  # arrays by name, which replace the parameters
    def fold(self, norm, kappa): ...  # optional: the same with the norm after it, or None

`freeze` puts the arrays in the place of the parameters and sets `frozen`, which `__call__` looks
at. A subclass with a `__call__` of its own inherits nothing of this: it is kept as it is.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from flax import nnx

from lorentz_jax._src.arguments import concrete

__all__ = ["Constant", "Frozen", "compiles", "definer", "freeze", "noting"]


class Constant(nnx.Variable):
    """An array of a compiled layer, in the place of the parameters that it was made of."""


class Frozen(NamedTuple):
    """What a layer of a compiled model was made for.

    Attributes:
      path: of the layer in the model.
      kappa: that of its constants; None for a flat layer.
      folded: a norm that is part of the layer before it, or a layer that holds its norm.
    """

    path: str
    kappa: float | None
    folded: bool = False


def definer(module: Any) -> type:
    """The class whose `__call__` runs."""
    return next(cls for cls in type(module).__mro__ if "__call__" in vars(cls))


def compiles(module: Any) -> bool:
    """Whether the module can run on constants."""
    return callable(module) and bool(vars(definer(module)).get("compiles", False))


def freeze(module: Any, arrays: Mapping[str, Any], frozen: Frozen) -> None:
    """Replace the variables of the module itself, not those of its children, by constants.

    Raises:
      ValueError: an array that the class does not name.
    """
    names = vars(definer(module)).get("constant_names", ())
    unknown = sorted(set(arrays) - set(names))
    if unknown:
        raise ValueError(f"{frozen.path}: {type(module).__name__} has no constants {unknown}")
    for name, value in list(vars(module).items()):
        if isinstance(value, nnx.Variable):
            setattr(module, name, None)
    for name, array in arrays.items():
        setattr(module, name, Constant(array))
    module.frozen = frozen


def check_kappa(frozen: Any, kappa: Any) -> None:
    """Raise `ValueError` where a frozen layer is called with another kappa than it was made for."""
    if not concrete(kappa) or float(kappa) != frozen.kappa:
        raise ValueError(
            f"layer {frozen.path!r} was compiled for kappa {frozen.kappa} and is called with "
            f"{kappa}: give compile_cached_v an `example`, which shows what it is called with"
        )


def check_mode(frozen: Any, use_running_average: bool | None) -> None:
    """Raise `ValueError` where a frozen norm is asked for the statistics of its batch."""
    if use_running_average is False:
        raise ValueError(
            f"layer {frozen.path!r} is in training mode, which needs batch statistics: a compiled "
            "model evaluates"
        )


_NOTE: ContextVar[Callable[[nnx.Module, Any], None] | None] = ContextVar("note", default=None)


def note(module: nnx.Module, kappa: Any) -> None:
    """Tell `noting` which kappa a module was called with."""
    callback = _NOTE.get()
    if callback is not None:
        callback(module, kappa)


@contextmanager
def noting() -> Iterator[dict[int, set[float]]]:
    """Collect the kappas that each module, by its `id`, is called with; NaN for a traced one."""
    seen: dict[int, set[float]] = {}

    def callback(module: nnx.Module, kappa: Any) -> None:
        seen.setdefault(id(module), set()).add(float(kappa) if concrete(kappa) else float("nan"))

    token = _NOTE.set(callback)
    try:
        yield seen
    finally:
        _NOTE.reset(token)
