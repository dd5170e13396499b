"""A kappa is checked in the dtype that computes with it."""

import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import ambient, functional, geometry, hyperplane
from lorentz_jax._src.arguments import as_kappa

X, Y = (jnp.array(values, jnp.float32) for values in ([0.5, -0.25], [3.0, 4.0]))
OUTSIDE = (0.0, -1.0, np.nan, np.inf, 1e60, 1e-60, 1e-39, 2e38, np.float64(1e300))


@pytest.mark.parametrize("kappa", OUTSIDE, ids=str)
def test_what_float32_cannot_hold_or_invert_is_refused(kappa):
    calls = (
        lambda: geometry.dist(X, Y, kappa),
        lambda: geometry.dist(X.astype(jnp.bfloat16), Y.astype(jnp.bfloat16), kappa),
        lambda: hyperplane.normals(jnp.ones((2, 3)), jnp.zeros(3), kappa),
        lambda: functional.batch_mean(jnp.stack([X, Y]), kappa),
        lambda: ambient.dist(jnp.ones(3), jnp.ones(3), kappa),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"kappa must be finite and > 0 .*got"):
            call()


def test_the_message_names_the_dtype():
    with pytest.raises(ValueError, match=r"got 1e\+60, which is out of range in float32"):
        geometry.dist(X, Y, 1e60)
    with pytest.raises(ValueError, match=r"got 1e-60, which is out of range in float32"):
        geometry.dist(jnp.stack([X, Y]), Y, np.array([1.0, 1e-60]))


def test_a_dtype_is_what_jax_makes_of_it():
    with pytest.raises(ValueError, match="out of range in float32"):
        as_kappa(1e-60, float)


def test_the_extremes_that_float32_can_invert_pass():
    for kappa in (2e-38, 8e37):
        assert np.isfinite(geometry.dist(X, Y, kappa))


def test_float64_has_a_wider_range(x64):
    x, y = X.astype(jnp.float64), Y.astype(jnp.float64)
    for kappa in (1e-60, 1e60):
        assert np.isfinite(geometry.dist(x, y, kappa))
        with pytest.raises(ValueError, match="out of range in float32"):
            geometry.dist(X, Y, kappa)
    with pytest.raises(ValueError, match="out of range in float64"):
        geometry.dist(x, y, 1e-310)
