import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax.studies import layers, report, timing


@pytest.fixture(scope="module")
def rows():
    x = jnp.ones((64, 64))
    arms = {
        "one": timing.compile_arm(lambda x: x @ x, x),
        "eight": timing.compile_arm(lambda x: x @ x @ x @ x @ x @ x @ x @ x @ x, x),
    }
    return timing.interleave(arms, "one", seconds=0.05)


def test_counts_are_those_of_the_program(rows):
    # A product of 64 x 64 matrices is 64^3 multiplications and as many additions.
    assert rows[0].flops == pytest.approx(2 * 64**3, rel=0.01)
    assert rows[1].flops == pytest.approx(16 * 64**3, rel=0.01)
    assert rows[0].ratio == rows[0].ratio_low == rows[0].ratio_high == 1
    assert rows[1].ratio_low <= rows[1].ratio <= rows[1].ratio_high
    assert rows[0].milliseconds > 0


def test_table_has_ratios_of_the_counts(rows):
    table = timing.as_table(rows, "one")
    assert table[1]["flops_ratio"] == pytest.approx(8, rel=0.02)
    assert table[0]["temporary_bytes_ratio"] in (None, 1)


def test_results_of_different_devices_are_not_compared(rows):
    results = {"environment": timing.environment(), "tables": {"t": timing.as_table(rows, "one")}}
    other = {**results, "environment": {**results["environment"], "device": "gpu: other"}}
    assert "t eight" in report.compare(results, results)
    with pytest.raises(ValueError, match="different devices"):
        report.compare(results, other)


def test_a_plot_is_written(rows, tmp_path):
    results = {"environment": timing.environment(), "tables": {"t": timing.as_table(rows, "one")}}
    report.plot(results, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_every_linear_arm_computes_a_layer_of_its_kind():
    x, w, b = jnp.full((3, 4), 0.3), jnp.eye(4), jnp.zeros(4)
    outputs = {
        name: layer(x, *make(w, b)) for name, (make, layer) in layers.linear_arms(1.0).items()
    }
    for out in outputs.values():
        assert out.shape == (3, 4)
        assert np.isfinite(out).all()
    np.testing.assert_array_equal(outputs["fgg"], outputs["fgg cached"])
    np.testing.assert_array_equal(outputs["euclidean"], x)


def test_the_convolution_forms_no_patches():
    assert not layers.has_patches(width=8, batch=2, size=8)
