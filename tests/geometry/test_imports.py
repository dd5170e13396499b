"""What importing the package brings along, in an interpreter of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
from lorentz_jax import geometry, hyperplane, functional, ambient
from lorentz_jax.bench.numerics import cases, truth  # what the tests of the pure modules read
import jax
import lorentz_jax

result = {}
result["slope"] = float(jax.grad(geometry.dist0)(jax.numpy.array([0.75]), 1.0)[0])
unwanted = {"flax", "optax", "rich", "lorentz_jax.nn", "jax.experimental.pallas"}
result["brought along"] = sorted(unwanted & set(sys.modules))
result["listed"] = dir(lorentz_jax)
sys.modules["flax"] = None  # as where it is not installed
try:
    from lorentz_jax import nn
except ModuleNotFoundError as error:
    result["without flax"] = [str(error), error.name]
del sys.modules["flax"]
result["attribute"] = lorentz_jax.nn.LorentzLinear.__name__
try:
    lorentz_jax.nnn
except AttributeError as error:
    result["misspelt"] = str(error)
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def result():
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-W", "error", "-c", CODE]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=root, env=os.environ | {"PYTHONPATH": root}
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_pure_modules_need_jax_alone(result):
    assert result["slope"] == pytest.approx(0.8)
    assert result["brought along"] == []


def test_a_missing_package_names_the_line_that_installs_it(result):
    message, name = result["without flax"]
    assert message == "lorentz_jax.nn needs the package flax: pip install 'lorentz-jax[nn]'"
    assert name == "flax"


def test_every_module_is_an_attribute(result):
    assert result["attribute"] == "LorentzLinear"
    assert {"geometry", "nn", "models", "inference", "training"} <= set(result["listed"])
    assert result["misspelt"] == "module 'lorentz_jax' has no attribute 'nnn'"
