"""Lorentz (hyperbolic) neural networks in JAX: exact at every curvature, as fast as Euclidean.

`geometry`, `hyperplane`, `functional` and `ambient` need JAX alone. Every module is imported when
it is first used, and says which extra it needs where a package is missing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lorentz_jax._version import __version__

if TYPE_CHECKING:
    from lorentz_jax import (
        ambient,
        bench,
        data,
        distributions,
        functional,
        geometry,
        hyperplane,
        inference,
        losses,
        metrics,
        models,
        nn,
        optim,
        training,
    )
    from lorentz_jax.training import load_run

__all__ = [
    "__version__",
    "ambient",
    "bench",
    "data",
    "distributions",
    "functional",
    "geometry",
    "hyperplane",
    "inference",
    "load_run",
    "losses",
    "metrics",
    "models",
    "nn",
    "optim",
    "training",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "load_run":
        return importlib.import_module(f"{__name__}.training").load_run
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
