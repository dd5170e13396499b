"""Lorentz (hyperbolic) neural networks in JAX: exact at every curvature, as fast as Euclidean.

`geometry`, `hyperplane`, `functional` and `ambient` need JAX alone. Every module is imported when
it is first used, and says which extra it needs where a package is missing.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from lorentz_jax._version import __version__

if TYPE_CHECKING:
    from lorentz_jax import (
        ambient,
        bench,
        data,
        figures,
        functional,
        geometry,
        hyperplane,
        inference,
        metrics,
        models,
        nn,
        optim,
        training,
    )

__all__ = ["__version__", "ambient", "functional", "geometry", "hyperplane", "metrics"]
__all__ += ["bench", "data", "figures", "inference", "models", "nn", "optim", "training"]

_EXTRAS = {
    "bench": "bench",
    "data": "train",
    "figures": "notebooks",
    "inference": "train",
    "metrics": "nn",
    "models": "nn",
    "nn": "nn",
    "optim": "nn",
    "training": "train",
}
"""The extra that a module needs; those that are not here need JAX alone."""


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if name not in _EXTRAS or missing in ("", __name__):
            raise
        line = f"pip install 'lorentz-jax[{_EXTRAS[name]}]'"
        message = f"lorentz_jax.{name} needs the package {missing}: {line}"
        raise ModuleNotFoundError(message, name=error.name) from error


def __dir__() -> list[str]:
    return __all__
