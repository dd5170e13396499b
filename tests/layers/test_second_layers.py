"""Second derivatives of planes and layers at the origin and on their planes, against mpmath."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import functional, hyperplane
from lorentz_jax.bench.numerics.cases import CASES
from tests import second

ZERO, X, Y, W = (0, 0), (0.6, -0.8), (0.3, 0.5), (1, 0.5)
# A point on its plane, and a unit without bias.
UNITS = [(ZERO, (1, 0), 0.3), (X, W, 0.3), (ZERO, W, 0), ((0, 0.7), (1, 0), 0), ((30, -40), Y, 0.3)]
PLANES = [(ZERO, (1, 0), 0.3, 0.9), (X, W, 0, 1), ((0, 0.7), (1, 0), 0, 1)]
POINTS = [((X, Y, (-0.3, 0.1)),), ((X, X, X),), ((ZERO, X, Y),)]
ROWS = {
    "normals, time": [(X, 0.3), (X, 0)],
    "normals, space": [(X, 0.3), (X, 0)],
    "signed_distance, None": PLANES,
    "signed_distance, outside": PLANES,
    "point_from_distances": [((0, 0, 0),), ((0.5, 0, -3),)],
    "linear of (w, b)": UNITS,
    "mlr of (w, b)": UNITS,
    "batch_mean": POINTS,
    "center": [(X, Y, (0.1, 0.2)), (X, X, ZERO), (ZERO, ZERO, X)],
    "lorentzian, tanh": [(0.3,), (0,), (-2,)],
}


@pytest.mark.parametrize("name", ROWS)
def test_along_a_direction(x64, name):
    second.check(CASES[name].call, CASES[name].truth, ROWS[name], 1e-11)


def test_logit_at_the_origin(x64):
    """The value at kappa 0.5, w = (1, 0), b = 0.3."""
    planes = hyperplane.normals(jnp.array([[1.0], [0.0]]), jnp.array([0.3]), 0.5)
    hessian = jax.hessian(lambda x: functional.mlr(x, planes, 0.5)[0])(jnp.zeros(2))
    np.testing.assert_allclose(hessian, [[0, 0], [0, 0.1478]], atol=2e-5)
