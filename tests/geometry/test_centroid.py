"""The centroid: values against mpmath, far and antipodal points, weights, axes, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from tests import oracle
from tests.oracle import assert_close
from tests.samples import Grid

F32, F64 = np.float32, np.float64


def centroid_truth(x, weights, kappa):
    with oracle.mp.workdps(100):
        rows, w, k = oracle.exactly(x), oracle.exactly(weights), oracle.exactly(kappa)
        mean = oracle.mp_centroid([oracle.mp_lift(row, k) for row in rows], k, w)
        return [float(v) for v in mean[1:]]


def test_centroid_values(x64):
    """Kappa other than 1, weights, the midpoint; against mpmath at random."""
    c = geometry.centroid
    want = (0.66258915644908, 0.66258915644908)
    assert_close(c(np.array([(1.5, 0), (0, 1.5)]), 0.25), want, 1e-13)
    weighted = c(np.array([(0.0, 0.0), (1.0, 0.0), (0.0, 2.0)]), 1, np.array([0.5, 0.25, 0.25]))
    assert_close(weighted, (0.19271550084309, 0.38543100168618), 1e-13)
    pair = np.array([(0.5, -0.25), (-1, 0.75)])
    middle = c(pair, 1)
    assert_close(middle, (-0.18840645545792, 0.18840645545792), 1e-13)
    assert_close(geometry.dist(pair, middle, 1), np.full(2, 0.78805128104589), 1e-13)
    rng = np.random.default_rng(1)
    for dtype, rtol in ((F64, 1e-14), (F32, 1e-6)):
        x, w = rng.normal(size=(3, 5, 2)).astype(dtype) * 4, rng.uniform(size=(3, 5)).astype(dtype)
        kappa = np.array([0.1, 1, 2.5], dtype)
        want = [centroid_truth(*row) for row in zip(x, w, kappa, strict=True)]
        assert_close(c(x, kappa, w), want, rtol)
        assert_close(c(np.moveaxis(x, 1, 0), kappa, np.moveaxis(w, 1, 0), axis=0), want, rtol)
        assert_close(c(x, kappa, 7 * w, axis=1), want, rtol)


def test_centroid_of_far_points():
    """In float32: equal, antipodal, clustered, single points at radius 20 to 40."""
    far = np.array([0.6, 0.8]) * np.sinh(20.0)
    for kappa in (0.1, 1.0, 2.5):
        x = (far / np.sqrt(kappa)).astype(F32)
        assert_close(geometry.centroid(np.stack([x, x, x]), kappa), x, 1e-6)
        assert_close(geometry.centroid(x[None], kappa), x, 1e-6)
        np.testing.assert_array_equal(geometry.centroid(np.stack([x, -x]), kappa), [0, 0])
        grid = Grid(
            [(20, 20.5, 1e-8), (20, 21, 1e-9), (40, 39, 0), (20, 1, 2), (30, 30, 2)], (kappa,), F32
        )
        pairs = np.stack([grid.x, grid.y], axis=1)
        want = [centroid_truth(p, np.ones(2), k) for p, k in zip(pairs, grid.kappa, strict=True)]
        assert_close(geometry.centroid(pairs, grid.kappa), want, 1e-5)


def test_centroid_arguments():
    c, x = geometry.centroid, np.zeros((4, 3, 2), F32)
    for weights in (np.array([1, -1, 1], F32), np.zeros(3, F32), np.zeros((4, 3), F32)):
        with pytest.raises(ValueError, match="weights must be >= 0 with a positive sum"):
            c(x, 1.0, weights)
    with pytest.raises(ValueError, match="2 weights for 3 points"):
        c(x, 1.0, np.ones(2, F32))
    with pytest.raises(ValueError, match="of no points"):
        c(x[:, :0], 1.0)
    for axis in (-1, 2, 3, -4):
        with pytest.raises(ValueError, match="axis must name a batch axis"):
            c(x, 1.0, axis=axis)
    with pytest.raises(ValueError, match="does not broadcast to the batch shape"):
        c(x, np.ones((4, 3), F32))
    assert c(x[:0], 1.0).shape == (0, 2)
    assert c(x, np.ones(3, F32), axis=0).shape == (3, 2)
    traced = jax.jit(lambda w: c(jnp.ones((3, 2)), 1.0, w))(np.zeros(3, F32))
    np.testing.assert_array_equal(traced, [0, 0])
