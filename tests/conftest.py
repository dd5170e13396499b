"""Every test runs with strict dtype promotion and stops at the first NaN.

Compiling takes most of the time, so it makes less of an effort than for users, and every process
reads what another has compiled. Set `FULL_OPTIMISATION` in the environment for what users get.
"""

import gc
import os
import tempfile
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A jaxlib stops at flags that it does not know; where these are not known to be known, the tests
# run as users compile.
if version("jaxlib") == "0.10.2" and not os.environ.get("FULL_OPTIMISATION"):
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_opt_preset=FAST_COMPILE --xla_cpu_use_fusion_emitters=false"
        " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        " --xla_cpu_parallel_codegen_split_count=1",
    )
# The first process makes a folder, and those that it starts inherit it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="lorentz-jax-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_nans", True)
gc.set_threshold(50_000, 20, 20)  # tracing makes millions of objects and little garbage

KAPPAS = (0.1, 1.0, 2.5)


def pytest_collection_finish():
    """Modules stay: nothing in them is worth looking at again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """What lives to the end stays too; pytest collects five more times, a second each."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests of one file share compiled functions and fixtures, so one process takes them all."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # else files of few tests come last, however long
    return LoadFileScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(items):
    """Long files first, so that no process waits for the last one: notebooks, pages, devices."""
    long = ("_notebooks", "_page", "_transforms")
    items.sort(key=lambda item: not item.path.stem.endswith(long))


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
