"""Gradients of the geometry by every argument, kappa included: mpmath, limits, singular points."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from tests import oracle
from tests.oracle import SPACE, assert_close, golden
from tests.samples import KINDS, Grid, run

F32, F64 = np.float32, np.float64
ROWS = [(0.3, 0.5, 0.7), (1, 2, 2), (2, 1, 0.1), (3, 3, 3.1), (0.95, 1.05, -1), (1e-3, 1, 1),
        (2.5, 2.6, 1e-3), (3.5, 1, 3)]  # fmt: skip


def check(name, arrays, kappa, rtol, cotangent=None):
    """Every gradient against differences of the truth, row by row.

    A row of the kappa gradient may be off by `rtol` of its terms, whose natural size is that of
    the value over kappa; they may cancel.
    """
    value, gradients = run(name, arrays, kappa, cotangent)
    cotangent = np.ones(value.shape) if cotangent is None else cotangent
    want = oracle.gradients(SPACE[name], *arrays, kappa=kappa, cotangent=cotangent)
    for i, (got, truth) in enumerate(zip(gradients[:-1], want[:-1], strict=True)):
        assert_close(got, truth, rtol, what=f"{name} argument {i}")
    size = np.abs(value if value.ndim == 1 else value.max(-1)) / kappa
    gap = np.abs(gradients[-1] - want[-1])
    ratio = gap / (np.abs(want[-1]) + size)
    assert ratio.max() <= rtol, f"{name} kappa, row {ratio.argmax()}"


@pytest.mark.parametrize("name", KINDS)
def test_against_mpmath(x64, name):
    grid = Grid(ROWS, (0.1, 1.0, 2.5), F64)
    arrays = grid.arrays(name)
    shape = np.shape(run(name, arrays, grid.kappa)[0])
    cotangent = np.random.default_rng(0).normal(size=shape)
    check(name, arrays, grid.kappa, 2e-13, cotangent)


@pytest.mark.parametrize(
    ("name", "letters"),
    [("dist", "xy"), ("log", "xy"), ("translate", "xy"), ("exp", "xv"), ("transport", "xyv"),
     ("transport_to_origin", "xv"), ("tangent_norm", "xv")],
)  # fmt: skip
def test_golden_points(x64, kappa, name, letters):
    """To radius 8. Tangent vectors there (s r = 12.6) are conditioned to about `eps e^(s r)`."""
    arrays = [golden("geometry")[f"k{kappa:g}/d0/{letter}"][:, 1:] for letter in letters]
    check(name, arrays, np.full(12, kappa), 1e-10 if kappa > 1 and "v" in letters else 1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_flat_limit(x64, name):
    """Ordinary coordinates at kappa = 1e-8: the kappa gradient neither vanishes nor explodes.

    That of the radii cancels to about sqrt(kappa) of its terms, which is what float32 keeps.
    """
    rng = np.random.default_rng(2)
    for dtype, rtol, kappa_rtol in ((F64, 1e-14, 1e-11), (F32, 1e-6, 5e-3)):
        kappa = np.full(6, 1e-8, dtype)
        arrays = [rng.uniform(0.3, 1, size=(6, 2)).astype(dtype) for _ in KINDS[name]]
        value, (*gradients, by_kappa) = run(name, arrays, kappa)
        ones = np.ones(value.shape)
        *want, want_kappa = oracle.gradients(SPACE[name], *arrays, kappa=kappa, cotangent=ones)
        for got, truth in zip(gradients, want, strict=True):
            assert_close(got, truth, rtol, what=dtype)
        assert_close(by_kappa, want_kappa, kappa_rtol, axis=None, what=dtype)


SPECIAL = [(0, 0), (1e-25, 0), (0.3, 0.4), (3e-23, -1e-24), (1e-15, 1e-12)]


@pytest.mark.parametrize("name", KINDS)
def test_finite_at_singular_points(x64, name):
    """Zero, coincident, tiny (their squares underflow) and ordinary arguments, combined."""
    count = len(KINDS[name])
    rows = list(itertools.product(SPECIAL[: 3 if count == 3 else 5], repeat=count))
    for dtype in (F32, F64):
        arrays = [np.array([row[i] for row in rows], dtype) for i in range(count)]
        value, gradients = run(name, arrays, np.ones(len(rows), dtype))
        assert all(np.isfinite(a).all() for a in (value, *gradients)), dtype


@pytest.mark.parametrize("name", ["dist0", "log0", "to_klein", "to_poincare", "time", "dist", "log",
                                  "inner", "translate"])  # fmt: skip
def test_finite_far_out_in_float32(name):
    """At radius 10 to 40; tangent vectors exist only to about 15, where their rounding is 1."""
    rows = [(r, q, a) for r, q, a in itertools.product((10, 20, 40), (1, 40), (0, 1, np.pi))]
    grid = Grid(rows, (0.1, 1.0), F32)
    value, gradients = run(name, grid.arrays(name), grid.kappa)
    assert all(np.isfinite(a).all() for a in (value, *gradients))


def test_limits_at_singular_points():
    """The values of those gradients, by name."""
    zero, x = np.zeros((1, 2), F32), np.array([(0.3, 0.4)], F32)
    for name, arguments in (("dist0", [zero]), ("dist", [zero, zero]), ("dist", [x, x]),
                            ("tangent_norm", [x, zero]), ("inner", [zero, zero])):  # fmt: skip
        _, gradients = run(name, arguments, 1.0)
        for gradient in gradients[: len(arguments)]:
            np.testing.assert_array_equal(gradient, 0 * gradient, err_msg=name)
        if name != "inner":
            assert gradients[-1] == 0

    def jacobian(name, arguments, index):
        """Rows by cotangents; one batch row each."""
        repeated = [np.repeat(a, 2, axis=0) for a in arguments]
        return run(name, repeated, 1.0, np.eye(2, dtype=F32))[1][index]

    for name, arguments, index, want in (
        ("exp0", [zero], 0, 1), ("log0", [zero], 0, 1), ("exp", [x, zero], 1, 1),
        ("exp", [x, zero], 0, 1), ("log", [x, x], 0, -1), ("log", [x, x], 1, 1),
        ("translate", [zero, x], 0, 1.25**0.5), ("translate", [zero, x], 1, 1),
        ("transport", [x, x, x], 2, 1), ("to_poincare", [zero], 0, 0.5), ("to_klein", [zero], 0, 1),
    ):  # fmt: skip
        assert_close(jacobian(name, arguments, index), want * np.eye(2), 3e-7, what=name)


def test_coincident_rows_do_not_poison_the_batch(x64):
    """The gradients of `dist` and `dist**2` are 0 there, and the other rows are unchanged."""
    x = np.array([(0.3, 0.4)] * 4, F32)
    y = np.array([(1, 0), (1, 0), (0.3, 0.4), (1, 0)], F32)
    d, (gradient, *_) = run("dist", (x, y), 1.0)
    _, (squared, *_) = run("dist", (x, y), 1.0, 2 * d)
    for g in (gradient, squared):
        np.testing.assert_array_equal(g, np.stack([g[0], g[0], 0 * g[0], g[0]]))
        assert np.all(g[0] != 0)
    arrays = np.zeros((1, 2)), np.array([(0.75, 0)])
    d, (_, gradient, _) = run("dist", arrays, 1.0)
    assert_close(gradient[0], np.array([0.8, 0]), 1e-14)
    _, (_, squared, _) = run("dist", arrays, 1.0, 2 * d)
    assert_close(squared[0, 0], np.array(1.1090354888959), 1e-13)


def test_gradient_of_a_learnable_kappa(x64):
    """Traced under jit, one kappa a sample, at ordinary and coincident points."""
    x = np.array([(0.75, 0), (0.75, 0), (0, 0), (0.75, 0)])
    kappa = np.array([1, 2, 1, 0.5])
    slopes = run("dist", (0 * x, x), kappa)[1][-1]
    assert_close(slopes[0], np.array((0.6 - np.log(2)) / 2), 1e-13)
    assert slopes[2] == 0
    for i in (1, 3):
        assert slopes[i] == run("dist", (0 * x[:1], x[:1]), kappa[i])[1][-1][0]
    shared = jax.jit(jax.grad(lambda k: geometry.dist(0 * x, x, k).sum()))(1.0)
    assert_close(shared, 3 * slopes[0], 1e-14)


def test_forward_mode_and_second_derivatives(x64):
    """jvp agrees with vjp; `dist**2` has its second derivative away from coincidence."""
    rng = np.random.default_rng(3)
    x, y, dx, dy, g = rng.normal(size=(5, 4, 3))
    forward = jax.jit(lambda *t: jax.jvp(geometry.log, (x, y, 0.7), t)[1])(dx, dy, 1.0)
    by_x, by_y, by_kappa = run("log", (x, y), 0.7, g)[1]
    pairs = ((by_x, dx), (by_y, dy), (by_kappa, np.ones(4)))
    assert_close(np.sum(g * forward), sum(np.sum(a * b) for a, b in pairs), 1e-13)

    def squared(t):
        return geometry.dist(jnp.stack([t, *x[0, 1:]]), y[0], 0.7) ** 2

    second = jax.jit(jax.grad(jax.grad(squared)))(x[0, 0])
    with oracle.mp.workdps(60):
        start, end, k = (oracle.exactly(a) for a in (x[0], y[0], 0.7))
        want = oracle.mp.diff(lambda t: SPACE["dist"]([t, *start[1:]], end, k) ** 2, start[0], 2)
    assert_close(second, np.array(float(want)), 1e-12)
