"""The ambient vectors, the balls, and what `drop` must refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from tests.oracle import assert_close
from tests.samples import Grid, call, run

F32, F64 = np.float32, np.float64


def test_time_of_far_points(x64):
    """The squares overflow, the time does not, nor does anything built on it."""
    for dtype, values in ((F32, (4.74805976e19, 5.71003698e25)), (F64, (1e160, 1e300))):
        for value in values:
            x = np.array([[0, value]], dtype)
            lifted, gradients = run("lift", [x], 1.0)
            np.testing.assert_array_equal(lifted, [[dtype(value), 0, dtype(value)]])
            assert all(np.isfinite(g).all() for g in gradients)
            assert geometry.drop(lifted, 1.0)[0, 1] == dtype(value)
    assert_close(call("time", [np.array([(0, 0), (3, 4.0)])], 4.0), [0.5, 25.25**0.5], 1e-15)


@pytest.fixture
def points():
    return geometry.lift(jnp.array([[0.5, -0.25], [300.0, 400.0], [0.0, 0.0]]), 0.1)


def bent(row, column, value):
    return lambda X: X.at[row, column].set(value)


@pytest.mark.parametrize(
    ("change", "kappa", "row"),
    [
        (bent(1, 0, 500.5), 0.1, 1),  # a time wrong by 1 in 1000
        (bent(2, 0, 0.0), 0.1, 2),  # zero padding: not the origin
        (lambda X: -X, 0.1, 0),  # lower sheet
        (lambda X: X * jnp.array([-1.0, 1, 1]), 0.1, 0),
        (bent(0, 1, jnp.inf), 0.1, 0),
        (bent(0, 0, jnp.inf), 0.1, 0),
        (bent(2, 2, jnp.inf), 0.1, 2),
        (bent(1, 0, jnp.nan), 0.1, 1),
        (lambda X: X, 0.2, 0),  # another curvature
        (lambda X: X, np.array([0.1, 0.1, 0.2], F32), 2),
    ],
)
def test_drop_names_the_first_bad_row(points, change, kappa, row):
    with jax.debug_nans(False), pytest.raises(ValueError, match=rf"row \({row},\) has time"):
        geometry.drop(change(points), kappa)


def test_drop_undoes_lift(points):
    np.testing.assert_array_equal(geometry.drop(points, 0.1)[1], [300, 400])
    batch = jnp.stack([points, points])
    assert geometry.drop(batch, np.full(3, 0.1, F32)).shape == (2, 3, 2)
    with pytest.raises(ValueError, match=r"row \(1, 2\) has time 0, its space part needs 3.16228"):
        geometry.drop(batch.at[1, 2, 0].set(0), 0.1)


def test_drop_tolerates_rounding_and_has_a_knob(x64, points):
    """Half the digits of the dtype, relative to the time."""
    for dtype, tolerance in ((F32, 3.4e-4), (F64, 1.4e-8), (jnp.bfloat16, 0.08)):
        X = jnp.asarray(points, dtype)
        X = geometry.lift(X[:, 1:], 0.1)
        geometry.drop(X.at[0, 0].mul(1 + 0.5 * tolerance), 0.1)
        with pytest.raises(ValueError, match="not a point of the hyperboloid"):
            geometry.drop(X.at[0, 0].mul(1 + 2 * tolerance), 0.1)
    drifted = geometry.lift(jnp.asarray(points[:, 1:], F32), 0.1).at[0, 0].mul(1 + 1e-4)
    geometry.drop(drifted, 0.1)
    with pytest.raises(ValueError, match="hyperboloid"):
        geometry.drop(drifted, 0.1, rtol=1e-5)


def test_drop_of_traced_and_wrong_arguments(points):
    assert jax.jit(geometry.drop)(-points, 0.1).shape == (3, 2)  # traced: cannot look
    gradient = jax.jit(jax.grad(lambda X: geometry.drop(X, 0.1).sum()))(points)
    np.testing.assert_array_equal(gradient, [[0, 1, 1]] * 3)
    with pytest.raises(ValueError, match=r"D \+ 1 >= 2 coordinates, got shape \(3, 1\)"):
        geometry.drop(points[:, :1], 0.1)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        jax.jit(lambda X: geometry.drop(X, -0.1))(points)
    with pytest.raises(TypeError, match="floating-point"):
        geometry.drop(np.ones((3, 3), np.int32), 0.1)


@pytest.mark.parametrize("ball", ["poincare", "klein"])
def test_balls(x64, ball):
    """There and back, inside the radius 1/s, distances by the ball's own formula.

    From far out only as exactly as the edge resolves.
    """
    for dtype, eps in ((F64, 2e-16), (F32, 1e-7)):
        rows = [(0, 1, 1), (1e-6, 1, 1), (1, 2, 2), (3, 1, 3), (6, 6, 0.1)]
        grid = Grid(rows, (0.1, 1, 2.5), dtype)
        s = np.sqrt(grid.kappa.astype(F64))[:, None]
        p, q = (call(f"to_{ball}", [z], grid.kappa).astype(F64) * s for z in (grid.x, grid.y))
        size = np.linalg.norm(p, axis=-1)
        assert np.all(size < 1)
        assert not np.any(p[::5])
        back = call(f"from_{ball}", [(p / s).astype(dtype)], grid.kappa)
        assert_close(back, grid.x, 40 * eps * np.exp(12 if ball == "klein" else 6))
        if ball == "poincare" and dtype == F64:
            gaps = [1 - np.sum(z * z, -1) for z in (p, q)]
            cosh = 1 + 2 * np.sum((p - q) ** 2, -1) / (gaps[0] * gaps[1])
        elif dtype == F64:
            root = np.sqrt((1 - np.sum(p * p, -1)) * (1 - np.sum(q * q, -1)))
            cosh = (1 - np.sum(p * q, -1)) / root
        else:
            continue
        d = call("dist", (grid.x, grid.y), grid.kappa) * s[:, 0]
        assert_close(np.cosh(d), cosh, 1e-9)
