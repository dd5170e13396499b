"""Compiling takes most of the time of these tests."""

import functools
import os

import jax

# `jax.jit` that makes less of an effort, for large functions that run a few times.
quick_jit = functools.partial(
    jax.jit,
    compiler_options=None
    if os.environ.get("FULL_OPTIMISATION")
    else {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)
