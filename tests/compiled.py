"""Compiling takes most of the time of these tests: programs that many of them share."""

import functools
import os

import jax
import jax.experimental

# `jax.jit` that makes less of an effort, for large functions that run a few times.
quick_jit = functools.partial(
    jax.jit,
    compiler_options=None
    if os.environ.get("FULL_OPTIMISATION")
    else {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
)
# The same program for every test that asks for it.
jitted = functools.cache(quick_jit)


# `jax.enable_x64` as a context manager is younger than the oldest JAX that the tests run with.
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


@functools.cache
def _program(**options):
    from flax import nnx  # the pure modules are tested where it is not installed

    return nnx.jit(lambda module, *arguments: module(*arguments, **options))


def run(module, *arguments, **options):
    """Call a module; one program is a fifth of the time of the module's operations one by one."""
    return _program(**options)(module, *arguments)
