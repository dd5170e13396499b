"""Compiling takes most of the time of these tests: programs that many of them share."""

import functools
import os

import jax
from flax import nnx

# `jax.jit` that makes less of an effort, for large functions that run a few times.
quick_jit = functools.partial(
    jax.jit,
    compiler_options=None
    if os.environ.get("FULL_OPTIMISATION")
    else {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
)
# The same program for every test that asks for it.
jitted = functools.cache(quick_jit)


@functools.partial(nnx.jit, static_argnames="use_running_average")
def run(module, *arguments, **options):
    """Call a module; one program is a fifth of the time of the module's operations one by one."""
    return module(*arguments, **options)
