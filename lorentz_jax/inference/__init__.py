"""Compiled inference: a trained model as a flat dict of arrays and one pure function.

`compile_cached_v(model)` caches the normals V and folds batch norms, `jax.jit(compiled.apply)` runs
the result, `save` and `load` keep it in a file, `evaluate` tests it, and `export` writes StableHLO
that runs wherever JAX is, without this package. `load_exported` reads that after comparing its
checksum. `python -m lorentz_jax.inference FILE` evaluates a file on the test set.
"""

from lorentz_jax._src.extras import require

require("lorentz_jax.inference", "nn", "flax")

from lorentz_jax.inference.compile import Weights, compile_cached_v, restore
from lorentz_jax.inference.compiled import Compiled, evaluate
from lorentz_jax.inference.export import export, load_exported
from lorentz_jax.inference.files import describe, is_compiled, load, refuse_compiled, save

__all__ = [
    "Compiled",
    "Weights",
    "compile_cached_v",
    "describe",
    "evaluate",
    "export",
    "is_compiled",
    "load",
    "load_exported",
    "refuse_compiled",
    "restore",
    "save",
]
