"""Functions and layers under strict settings: explicit mesh axes, and no rank promotion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from lorentz_jax import functional
from tests.models import strict

MESH = AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))


@pytest.mark.parametrize("name", strict.CASES)
def test_on_explicit_axes_without_rank_promotion(name):
    """In types alone: what fails under these settings fails as it is traced."""

    def place(array, batched):
        sharding = NamedSharding(MESH, PartitionSpec("data") if batched else PartitionSpec())
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    with jax.sharding.use_abstract_mesh(MESH), jax.numpy_rank_promotion("raise"):
        strict.trace(name, place)


def test_what_a_masked_key_holds_does_not_count():
    x = jnp.asarray(strict.X[0])
    mask = np.tri(4, dtype=bool) & np.array([True, True, True, False])

    def results(x):
        def loss(query, x):
            return jnp.sum(functional.attention(query, x, x, 1.0, mask=mask, center="middle"))

        return jax.value_and_grad(loss, (0, 1))(jnp.asarray(strict.X[1]), x)

    with jax.debug_nans(False):
        value, (by_query, by_x) = jax.jit(results)(x.at[-1].set(jnp.nan))
    want, (query_want, x_want) = jax.jit(results)(x.at[-1].set(0))
    for got, right in ((value, want), (by_query, query_want), (by_x, x_want)):
        np.testing.assert_allclose(got, right, rtol=1e-6)
    assert not np.any(np.asarray(by_x[-1]))
