"""The layers that `bench.py spatial` times do what their Euclidean twins do, where they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax.bench import spatial


def small(shape):
    """At most 8 along the batch and every spatial axis of an image."""
    return (2, *(min(n, 8) for n in shape[1:-1]), shape[-1]) if len(shape) > 2 else shape


def arrays(name, dtype):
    shapes = spatial.CASES[name][1]
    rng = np.random.default_rng(0)
    sizes = [small(shapes[0]), *shapes[1:]]
    if name == "weighted residual":
        sizes[1] = sizes[0]
    return [jnp.asarray(rng.uniform(0.1, 1, s) / 8, dtype) for s in sizes]


@pytest.mark.parametrize("name", [name for name in spatial.CASES if "norm" not in name])
def test_the_flat_limit_is_the_twin(x64, name):
    ours, twin = spatial.CASES[name][0]
    inputs = arrays(name, jnp.float64)

    def both(layer, kappa):
        def loss(*inputs):
            out = layer(*inputs, kappa)
            if name == "weighted residual" and layer is ours:
                out = out * (1 + inputs[2])  # a mean in place of a sum
            return jnp.sum(jnp.sin(3 * out))

        return jax.jit(jax.value_and_grad(loss, tuple(range(len(inputs)))))(*inputs)

    for got, want in zip(*(jax.tree.leaves(both(f, 1e-9)) for f in (ours, twin)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    # At a curvature that counts they differ.
    assert abs(both(ours, 2.0)[0] - both(twin, 2.0)[0]) > 1e-3


def test_a_step_has_two_arms():
    base, row = spatial.step("average pool", seconds=0.01)
    assert (base.name, row.name) == ("euclidean", "fgg")
    assert row.milliseconds > 0
    assert row.bytes_accessed > 0
