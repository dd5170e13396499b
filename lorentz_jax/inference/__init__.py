"""Compiled inference: a trained model as a flat dict of arrays and one pure function.

compiled = compile_cached_v(model)              # V cached, batch norm folded
logits = jax.jit(compiled.apply)(compiled.params, images)
save(compiled, "model.npz"); compiled = load("model.npz")
export(compiled, (8, 8, 1), "model.stablehlo")  # runs wherever JAX is, without this package
"""

from lorentz_jax.inference.compile import Weights, compile_cached_v, restore
from lorentz_jax.inference.compiled import Compiled, evaluate
from lorentz_jax.inference.export import export
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
    "refuse_compiled",
    "restore",
    "save",
]
