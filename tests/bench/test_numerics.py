"""The table of errors finds what is wrong, and its truth agrees with itself."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from lorentz_jax.bench import cli as bench
from lorentz_jax.bench.numerics import grid, measure
from lorentz_jax.bench.numerics.cases import CASES
from lorentz_jax.bench.numerics.differences import exact

COUNT = 12


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_distances_are_within_what_is_owed(dtype):
    (row,) = measure.rows(["dist"], dtype, COUNT, processes=0)
    for part in ("value", "gradient"):
        assert row[part]["nonfinite"] == 0
        assert row[part]["beyond"] <= 8
        assert row[part]["samples"] > 5
    if dtype == "float32":
        assert row["hessian"]["beside"] <= 8
        assert row["hessian"]["samples"] > 2


def measured(call):
    """The row of dist0, computed by another function."""
    case = dataclasses.replace(CASES["dist0"], call=call)
    found = measure.truths("dist0", "float32", COUNT, 0, COUNT)
    return measure.measure(case, "float32", COUNT, found)


def test_an_error_of_a_few_ulps_is_seen():
    row = measured(lambda x, kappa: geometry.dist0(x, kappa) * (1 + 20 * 2.0**-23))
    assert 18 < row["value"]["beyond"] < 22
    row = measured(lambda x, kappa: geometry.dist0(x, kappa * (1 + 1e-3)))
    assert row["value"]["worst"] > 1000


def test_a_wrong_second_derivative_is_seen():
    @jax.custom_jvp
    def once(x, kappa):
        return geometry.dist0(x, kappa)

    @once.defjvp
    def _once_jvp(primals, tangents):
        slopes = jax.lax.stop_gradient(jax.grad(geometry.dist0, (0, 1))(*primals))
        move = jnp.sum(slopes[0] * tangents[0]) + slopes[1] * tangents[1]
        return once(*primals), move

    row = measured(once)
    assert row["gradient"]["beyond"] <= 8
    assert row["hessian"]["beside"] > 1e5


def test_what_is_not_finite_is_counted():
    def overflowing(x, kappa):
        s = jnp.sqrt(kappa)
        return jnp.arcsinh(s * jnp.sqrt(jnp.sum(x * x))) / s

    row = measured(overflowing)
    assert row["value"]["nonfinite"] >= 1  # squares of the farthest points
    assert row["gradient"]["nonfinite"] >= 2  # and 0/0 at the origin


def test_truth_of_a_product():
    """f = x y z: derivatives x y and so on, and each input moves the value once."""
    found = exact(
        lambda x, k: x[0] * x[1] * k, [np.array([3.0, 5.0]), np.array(7.0)], np.array(2.0)
    )
    assert found["value"] == [(105.0, 0.0)]
    assert [[pair[0] for pair in g] for g in found["gradients"]] == [[70.0, 42.0], [30.0]]
    assert found["moves"] == pytest.approx(3 * 105)
    # The gradient in k, 2 x y, moves with x, with y and with the cotangent.
    assert found["gradient_moves"][1] == pytest.approx(3 * 30)


def test_truth_of_second_derivatives():
    """f = x y z: the Hessian holds the third factor, which moves with it and the cotangent."""
    arguments = [np.array([3.0, 5.0]), np.array(7.0)]
    found = exact(lambda x, k: x[0] * x[1] * k, arguments, np.array(2.0), second=True)
    highs = [[pair[0] for pair in row] for row in found["hessian"]]
    assert highs == [[0, 14, 10], [14, 0, 6], [10, 6, 0]]
    np.testing.assert_allclose(found["hessian_moves"], 2 * np.array(highs), atol=1e-12)


def test_spreading_keeps_products():
    arrays = grid.samples("float32", 40)
    x, y = (grid.spread(arrays[name], arrays["level"]) for name in ("x", "w"))
    assert x.shape == (40, grid.DIMENSION)
    assert len(set((x != 0).sum(axis=1))) > 4
    near = np.abs(arrays["x"]).max(axis=1) < 1e15
    wide, narrow = (
        np.sum(np.float64(a) * b, 1)[near] for a, b in ((x, y), (arrays["x"], arrays["w"]))
    )
    np.testing.assert_allclose(wide, narrow, rtol=1e-12, atol=1e-12 * np.abs(narrow).max())


def test_the_command(tmp_path, capsys):
    to, plot = tmp_path / "numerics.json", tmp_path / "numerics.png"
    arguments = ["numerics", "--dtypes", "float32", "--functions", "time", "--samples", "4"]
    assert bench.main([*arguments, "--json", str(to), "--plot", str(plot)]) == 0
    assert "time" in capsys.readouterr().out
    (row,) = json.loads(to.read_text())["tables"]["float32"]
    assert row["value"]["nonfinite"] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert bench.main(["numerics", "--functions", "sine"]) == 2
    assert "no function or module 'sine'" in capsys.readouterr().err
