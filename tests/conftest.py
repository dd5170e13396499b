"""Every test runs with strict dtype promotion and stops at the first NaN."""

import os
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the time of these tests, and this halves it. A jaxlib stops at flags that
# it does not know, as later ones do at these; there the tests run as users compile.
if version("jaxlib").startswith("0.10."):
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
        " --xla_llvm_disable_expensive_passes=true",
    )

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_nans", True)

KAPPAS = (0.1, 1.0, 2.5)


@pytest.fixture
def x64():
    """float64 for the length of one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(params=KAPPAS, ids=lambda k: f"kappa{k}")
def kappa(request) -> float:
    """The three curvatures that every formula is tested at."""
    return request.param
