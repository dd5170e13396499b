import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import functional, hyperplane
from lorentz_jax.bench import external, layers, networks, timing


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


def test_what_a_program_uses_up_is_copied_before_each_call():
    seen = []

    def run(state, x):
        seen.append(float(state.sum()))
        state.delete()  # as a donated argument is
        return x

    x = jnp.ones(3)
    arm = timing.Arm(run, (x, x), 1.0, 1.0, 1, 0.0, donated=1)
    timing.interleave({"one": arm}, "one", seconds=0.0, min_rounds=3)
    assert seen == [3.0] * 4
    np.testing.assert_array_equal(x, np.ones(3))


def test_a_training_step_gives_the_state_that_it_uses_up():
    step, arguments = networks.training_step("lorentz", networks.Sizes(2, 2, (1,), pixels=4))
    results = jax.eval_shape(step, *arguments)
    like = lambda tree: jax.tree.map(lambda a: (a.shape, a.dtype), tree)  # noqa: E731
    assert like(results[: networks.STATE]) == like(arguments[: networks.STATE])
    arm = networks.training_arm("lorentz", networks.Sizes(2, 2, (1,), pixels=4))
    assert arm.donated == networks.STATE


def test_an_arm_may_use_up_what_it_donates():
    state, x = jnp.ones((2, 3))
    with jax.debug_nans(False):  # with it JAX gives nothing away
        arm = timing.compile_arm(lambda state, x: (state + x, x * 2), state, x, donated=1)
        arm.run(state, x)
    assert state.is_deleted()
    assert not x.is_deleted()


def test_table_has_ratios_of_the_counts(rows):
    table = timing.as_table(rows, "one")
    assert table[1]["flops_ratio"] == pytest.approx(8, rel=0.02)
    assert table[0]["temporary_bytes_ratio"] in (None, 1)


def test_results_of_different_devices_are_not_compared(rows):
    results = {"environment": timing.environment(), "tables": {"t": timing.as_table(rows, "one")}}
    other = {**results, "environment": {**results["environment"], "device": "gpu: other"}}
    results, other = timing.measured(results), timing.measured(other)
    assert "t eight" in timing.compare(results, results)
    with pytest.raises(ValueError, match="different devices"):
        timing.compare(results, other)
    with pytest.raises(ValueError, match="no measurement in common"):
        timing.compare(results, timing.Measured(results.device, {"u": {"eight": 1.0}}))


def test_a_plot_is_written(rows, tmp_path):
    results = {"environment": timing.environment(), "tables": {"t": timing.as_table(rows, "one")}}
    timing.plot(results, tmp_path / "p.png")
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
    """Whether the compiled program holds an array as large as all patches."""
    x, w, b = jnp.zeros((2, 8, 8, 8)), jnp.zeros((3, 3, 8, 8)), jnp.zeros((8,))
    layer = jax.jit(lambda x, w, b: functional.conv(x, hyperplane.normals(w, b, 0.1), 0.1))
    text = layer.lower(x, w, b).compile().as_text()
    assert "[2,8,8,8]" in text, "shapes are written so"
    assert not any(shape in text for shape in ("8,8,72]", "72,8,8]"))


def test_exponents_are_the_slopes_in_logarithms():
    def rows(milliseconds):
        return [{"name": name, "milliseconds": milliseconds**p} for name, p in (("a", 1), ("b", 2))]

    tables = {f"{sweep}={v}": rows(float(v)) for sweep in networks.SWEEPS for v in (2, 4, 16)}
    fits = networks.exponents({"tables": tables})
    assert set(fits) == set(networks.SWEEPS)
    assert fits["depth"] == pytest.approx({"a": 1, "b": 2})
    assert networks.describe(fits).startswith("time ~ batch^p: a p = 1.00, b p = 2.00\n")


def test_peers_compute_our_layers():
    pytest.importorskip("hyperbolix")  # an extra; needs Python 3.12
    x = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(np.float32)
    for make, arguments in ((external.linear, x), (external.convolution, x)):
        call, (points, state) = make(arguments, 5, 0.5)
        flat = {path[-1]: value[...] for path, value in nnx.to_flat_state(state)}
        w = flat["kernel"] if make is external.linear else flat["kernel"].reshape(3, 3, 3, 5)
        planes = hyperplane.normals(w, flat["bias"], 0.5)
        if make is external.linear:
            want = functional.linear(x, planes, 0.5, jax.nn.relu)
        else:
            want = functional.conv(x, planes, 0.5)
        np.testing.assert_allclose(call(points, state)[..., 1:], want, rtol=1e-4, atol=1e-5)


def test_a_missing_peer_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "hyperbolix.nn_layers", None)
    with pytest.raises(ValueError, match="--peers needs the package hyperbolix"):
        external.linear(jnp.ones((2, 3)), 3, 1.0)
