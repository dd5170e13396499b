"""The presets of initial values, by their statistics."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax.functional import weight_norm
from lorentz_jax.nn import initializers

SHAPES = [(12, 400), (3, 3, 5, 400)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("init", initializers.PRESETS)
def test_values_are_those_of_the_table(init, normed, shape):
    fan_in, out = math.prod(shape[:-1]), shape[-1]
    kernel, gain, bias = initializers.affine(jax.random.key(0), shape, init, normed, jnp.float32)
    variance = {
        ("fast", True): 2 / fan_in,
        ("fast", False): 2 / fan_in,
        ("paper", True): 2 / out,
        ("paper", False): 1 / (fan_in + out),
    }[init, normed]
    kernel = np.asarray(kernel)
    count = kernel.size
    assert kernel.shape == shape
    assert abs(kernel.mean()) < 5 * (variance / count) ** 0.5
    assert np.std(kernel) == pytest.approx(variance**0.5, rel=5 / (2 * count) ** 0.5)
    # Fourth moment of a normal distribution, not of a uniform or a truncated one.
    assert np.mean(kernel**4) == pytest.approx(3 * variance**2, rel=5 * (10 / count) ** 0.5)
    assert set(np.asarray(bias)) == {0.0 if init == "fast" else -0.5}
    assert bias.shape == (out,)
    assert (gain is None) == (not normed)


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_of_weight_normed_kernels(shape):
    fan_in, out = math.prod(shape[:-1]), shape[-1]
    lengths = {}
    for init in initializers.PRESETS:
        kernel, gain, _ = initializers.affine(jax.random.key(1), shape, init, True, jnp.float32)
        w = weight_norm(kernel, jax.nn.softplus(gain))
        lengths[init] = np.linalg.norm(np.reshape(w, (fan_in, out)), axis=0)
        if init == "fast":  # the direction's own length is about that of w
            directions = np.linalg.norm(np.reshape(kernel, (fan_in, out)), axis=0)
            assert np.mean(directions**2) == pytest.approx(2, rel=0.1)
    np.testing.assert_allclose(lengths["fast"], math.sqrt(2), rtol=1e-6)
    reference = math.log1p(math.exp((fan_in + out) ** -0.5))  # softplus of the intended gain
    np.testing.assert_allclose(lengths["paper"], reference, rtol=1e-6)
    assert 0.69 < reference < 0.78


@pytest.mark.parametrize("blocks", [1, 6, 8, 24])
def test_residual_branches_grow_by_eight_at_most(blocks):
    """By a walk through the blocks, each adding `g^2` of the variance that came in."""
    share, variance = initializers.branch_share(blocks), 1.0
    for _ in range(blocks):
        variance += share**2 * variance
    assert math.sqrt(variance) == pytest.approx(min(2 ** (blocks / 2), 8))


def test_a_head_starts_with_random_unit_columns():
    kernel, gain, bias = initializers.head(jax.random.key(2), (64, 500), "fast", jnp.float32)
    kernel = np.asarray(kernel)
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1, rtol=1e-5)
    assert np.abs(kernel.mean(axis=1)).max() < 5 * (1 / 64 / 500) ** 0.5  # no favoured direction
    assert gain is None
    assert not np.asarray(bias).any()
    paper = initializers.head(jax.random.key(2), (64, 500), "paper", jnp.float32)
    assert np.std(paper.kernel) == pytest.approx(564**-0.5, rel=0.05)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_values_have_the_dtype_and_depend_on_the_key_alone(dtype):
    a, again, b = (
        initializers.affine(jax.random.key(seed), (4, 6), "fast", True, dtype) for seed in (0, 0, 1)
    )
    assert {leaf.dtype for leaf in a} == {jnp.dtype(dtype)}
    np.testing.assert_array_equal(a.kernel, again.kernel)
    assert (a.kernel != b.kernel).any()


def test_unknown_presets_are_named():
    with pytest.raises(ValueError, match=r"init must be one of \('fast', 'paper'\), got 'best'"):
        initializers.check_preset("best")
