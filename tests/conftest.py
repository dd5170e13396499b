"""Every test runs with strict dtype promotion and stops at the first NaN."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

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
