"""Logits along an axis in closed form, and errors of restored weights where they must be."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax.functional import linear
from lorentz_jax.hyperplane import normals
from notebooks.figures import layer_cache


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_logits_along_the_axis(kappa, size):
    found = layer_cache.logits(size, 0.8, kappa, reach=3.0)
    s, away = math.sqrt(kappa), found.position - 0.8
    np.testing.assert_allclose(found.values[None], away, atol=1e-12)
    np.testing.assert_allclose(found.values["outside"], size * away, atol=1e-11)
    want = np.arcsinh(size * np.sinh(s * away)) / s
    np.testing.assert_allclose(found.values["inside"], want, atol=1e-11)


def test_restoring_needs_the_norms_far_out():
    found = layer_cache.restored(thetas=(1.0, 3.0, 12.0))
    assert (found.with_length < 1e-6).all()
    assert 1e-7 < found.without[0] < 5e-6 < found.without[1] < 1e-3
    assert math.isnan(found.without[2])


def test_operations_of_the_layer():
    x, w, b = jnp.ones((3, 2)), jnp.ones((2, 4)), jnp.ones(4)
    planes = normals(w, b, 0.5)
    cached = layer_cache.operations(lambda x, planes: linear(x, planes, 0.5), x, planes)
    assert cached == ["dot_general", "sqrt"]
    whole = layer_cache.operations(lambda x, w, b: linear(x, normals(w, b, 0.5), 0.5), x, w, b)
    assert "exponential" in whole  # of the angle of a plane


def test_the_pictures(tmp_path):
    units = [layer_cache.logits(size, 0.8, 1.0) for size in (0.5, 2.0)]
    figure = layer_cache.plot_logits(units)
    assert [axes.get_title() for axes in figure.axes] == ["|w| = 0.5", "|w| = 2"]
    assert [len(axes.lines) for axes in figure.axes] == [4, 4]
    (axes,) = layer_cache.plot_restored(layer_cache.restored(thetas=(1.0, 12.0))).axes
    assert "theta" in axes.get_xlabel()


def test_a_size_of_zero_has_no_plane():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        layer_cache.logits(0.0, 1.0, 1.0)
