"""Every map of the hyperboloid against mpmath and golden data, in all regimes and both dtypes."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from tests import oracle
from tests.oracle import SPACE, assert_accurate, assert_close, evaluate, golden
from tests.samples import KINDS, Compiled, Grid, call

F32, F64 = np.float32, np.float64
# (s r of x, s r of y, angle): the origin, tiny, ordinary, near, opposite and far pairs.
ROWS = [
    (0, 1, 0), (1, 0, 0), (1e-9, 1e-9, 1), (1e-9, 1, 2), (1e-3, 3, 1), (0.3, 0.3, 0.7), (1, 3, 2),
    (3, 1, 0), (0.95, 1.05, 3.1), (3, 3, np.pi), (1, 1, 1e-5), (1, 1.00001, 0), (8, 8, 1e-6),
    (8, 8.01, 0.01), (8, 8, np.pi), (8, 3, 0), (18, 18, 1e-6), (18, 18.1, 0.01), (18, 8, 0),
    (8, 18, 1), (18, 18, np.pi), (18, 0.5, 2),
]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_accuracy_everywhere(x64, name):
    """No error exceeds what rounding the inputs once would do, times 6."""
    for dtype, kappas in ((F64, (1e-4, 1.0, 2.5)), (F32, (0.1, 1.0, 2.5))):
        grid = Grid(ROWS, kappas, dtype, paired=True)
        arrays = grid.arrays(name)
        got = call(name, arrays, grid.kappa)
        assert_accurate(got, SPACE[name], *arrays, kappa=grid.kappa, what=f"{name} {dtype}")


# Golden names and the function's arguments; `ref_` are exact values of the literal ambient inputs.
GOLDEN = {
    "inner": ("inner", "xy"), "dist": ("dist", "xy"), "dist0": ("dist0", "x"),
    "expmap0": ("exp0", "u"), "logmap0": ("log0", "x"),
    "expmap": ("exp", "xv"), "logmap": ("log", "xy"),
    "parallel_transport": ("transport", "xyv"), "normL": ("tangent_norm", "xv"),
    "transp_to_origin": ("transport_to_origin", "xv"),
    "transp_from_origin": ("transport_from_origin", "yu"),
}  # fmt: skip


def golden_set(kappa, dimension):
    """Golden arrays of one kappa and dimension: raw, and space parts by letter."""
    data, prefix = golden("geometry"), f"k{kappa:g}/{dimension}/"
    arrays = {key[len(prefix) :]: value for key, value in data.items() if key.startswith(prefix)}
    letters = {"u": arrays["u0"], **{letter: arrays[letter][:, 1:] for letter in "xyv"}}
    return arrays, letters


@pytest.mark.parametrize("dimension", ["d0", "d1"])
def test_golden_values(x64, kappa, dimension):
    """Relative error 1e-12; more only where float64 ambient coordinates are conditioned worse.

    That conditioning is the gap between the `ref_` and `lift_` values (literal inputs, and inputs
    lifted to the manifold), row by row.
    """
    arrays, letters = golden_set(kappa, dimension)
    for name, (function, arguments) in GOLDEN.items():
        got = call(function, [letters[a] for a in arguments], kappa)
        want, lifted = arrays[f"ref_{name}"], arrays.get(f"lift_{name}")
        if name == "normL":
            want, lifted = want[:, 0], None
        if got.ndim == 2 and want.shape != got.shape:
            want, lifted = (a if a is None else a[:, 1:] for a in (want, lifted))
        for row in range(len(want)):
            spread = 0 if lifted is None else oracle.error(lifted[row], want[row])
            if name == "normL":  # |v|^2 - v_t^2 of the literal vector
                spread = 1e-16 * np.max(arrays["v"][row]) ** 2 / want[row] ** 2
            rtol = max(1e-12, 10 * spread)
            assert rtol < 1e-4
            assert_close(got[row], want[row], rtol, what=f"{name} {row}")
    near = [arrays[f"near_{letter}"][:, 1:] for letter in "xy"]
    assert_close(call("dist", near, kappa), arrays["near_ref_dist"], 1e-6, axis=None)
    assert_close(call("log", near, kappa), arrays["near_ref_logmap"][:, 1:], 1e-6)
    for weights, key in ((None, "centroid"), (arrays["w"], "centroid_w")):
        got = geometry.centroid(letters["x"], kappa, weights)
        assert_close(got, arrays[f"ref_{key}"][..., 1:], 1e-12, what=key)


# Id, function, dtype, arguments, kappa, value, relative tolerance.
o = (0.0, 0.0)
CASES = [
    ("near points, float32", "dist", F32, (o, (1e-4, 0)), 1, 9.9999997307e-5, 1e-6),
    ("near points, float64", "dist", F64, (o, (1e-9, 0)), 1, 1e-9, 1e-12),
    ("ordinary points", "dist", F64, (o, (0.75, 0)), 1, np.log(2), 1e-14),
    ("tiny vectors", "exp0", F32, ([o, (1e-25, 0), (0.5, 0.5)],), 1,
     [o, (1.0000000195e-25, 0), (0.5427207933, 0.5427207933)], 1e-6),
    ("transport", "transport", F64, (o, (-1, 0.75), (2, 1)), 0.5,
     (2.2677078252031311, 0.79921913109766), 1e-13),
    ("length kept", "tangent_norm", F64, ((-1, 0.75), (2.2677078252031311, 0.79921913109766)), 0.5,
     5**0.5, 1e-13),
    ("dist, kappa 0.5", "dist", F64, ((0.5, -0.25), (-1, 0.75)), 0.5, 1.66689310494479, 1e-13),
    ("log, kappa 0.5", "log", F64, ((0.5, -0.25), (-1, 0.75)), 0.5,
     (-1.51376350007099, 0.95717487664838), 1e-13),
    ("log length", "tangent_norm", F64, ((0.5, -0.25), (-1.51376350007099, 0.95717487664838)), 0.5,
     1.66689310494479, 1e-13),
    ("radius 46", "dist", F32, (o, (4.74805976e19, 0)), 1, 46, 1e-6),
    ("radius 60", "dist", F32, (o, (5.71003698e25, 0)), 1, 60, 1e-6),
    ("radius 369", "dist", F64, (o, (1e160, 0)), 1, 369.106762060, 1e-11),
    ("radius 60, dist0", "dist0", F32, ((0, 5.71003698e25),), 1, 60, 1e-6),
    ("nearly flat, float32", "dist", F32, (o, (0.3, 0.4)), 1e-8, 0.5000000117, 1e-6),
    ("nearly flat, float64", "dist", F64, (o, (0.3, 0.4)), 1e-12, 0.49999999999998, 1e-14),
    ("a kappa a point", "dist", F64, ([o] * 3, [(0.75, 0)] * 3), (0.5, 1, 2),
     (0.718666631207, 0.693147180560, 0.653100116864), 1e-11),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].replace(" ", "-"))
def test_cases(x64, case):
    _, name, dtype, arguments, kappa, want, rtol = case
    arrays = [np.atleast_2d(np.array(a, dtype)) for a in arguments]
    want = np.asarray(want)
    got = call(name, arrays, np.asarray(kappa, dtype))
    assert got.dtype == dtype
    assert_close(got.reshape(want.shape), want, rtol)


def test_coincident_points_have_distance_zero():
    """Exactly, at any radius, kappa and dtype."""
    x = np.array([(0.1, 0.2), (1.1, 2.3), (7.7, -3.1), (300, 400), (5, 7), (3e18, 1e19)], F32)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        points = jnp.asarray(x if dtype != jnp.float16 else x[:5], dtype)
        for kappa in (1.0, 0.1, 2.5):
            d = geometry.dist(points, points, kappa)
            assert d.dtype == dtype
            assert not np.any(d)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.5])
def test_float32_distances(kappa):
    """1e-5 relative, near pairs and pairs on a ray at radius 20 and out to 40 included."""
    near = [(1, 1 + e, e) for e in (1e-2, 1e-4, 1e-6)]
    near += [(5, 5, 1e-5), (0, 1e-6, 0), (1e-6, 2e-6, 1)]
    ray = [(20, 20 + e, 0) for e in (1e-4, 1e-2, 1, 10)] + [(20, 0, 0), (20, 1e-3, 0)]
    far = [(r, q, a) for r, q, a in itertools.product((10, 30, 40), (20, 40), (1e-3, 1, np.pi))]
    grid = Grid(near + ray + far, (kappa,), F32)
    want = evaluate(SPACE["dist"], grid.x, grid.y, kappa=grid.kappa)
    got = call("dist", (grid.x, grid.y), grid.kappa)
    assert_close(got, want, 1e-5, axis=None)
    np.testing.assert_array_equal(call("dist", (grid.y, grid.x), grid.kappa), got)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.5])
def test_float32_round_trips_at_radius_10(kappa):
    """From points near the origin; from a far x only nearby y: its tangent vectors are rounded.

    A space part at radius r carries an error `eps e^(s r)` of the vector's length.
    """
    grid = Grid([(0, 10, 0), (0.1, 10, 1), (1, 10, 3)], (kappa,), F32)
    back = call("exp", (grid.x, call("log", (grid.x, grid.y), kappa)), kappa)
    assert_close(back, grid.y, 1e-5)
    assert_close(call("exp0", [call("log0", [grid.y], kappa)], kappa), grid.y, 4e-6)
    grid = Grid([(10, 10.3, 1e-5), (10, 9.8, 0), (10, 10, 5e-5)], (kappa,), F32)
    back = call("exp", (grid.x, call("log", (grid.x, grid.y), kappa)), kappa)
    assert_close(call("dist", (back, grid.y), kappa), np.zeros(3), 3e-3)


def relations(p, x, y, u, v, kappa):
    """What must be equal: pairs of arrays by name."""
    g = Compiled()
    px, py = g.translate(p, x, kappa), g.translate(p, y, kappa)
    there, back = g.log(x, y, kappa), g.log(y, x, kappa)
    u, v = (g.transport_from_origin(x, w, kappa) for w in (u, v))
    uy, vy = (g.transport(x, y, w, kappa) for w in (u, v))
    return {
        "translations keep distances": (g.dist(px, py, kappa), g.dist(x, y, kappa)),
        "inverse translation": (g.translate(-p, px, kappa), x),
        "translation of the origin": (g.translate(p, 0 * p, kappa), p),
        "translation to the origin": (g.translate(-p, p, kappa), 0 * p),
        "exp of log": (g.exp(x, there, kappa), y),
        "length of log": (g.tangent_norm(x, there, kappa), g.dist(x, y, kappa)),
        "log of exp": (g.log(x, g.exp(x, u, kappa), kappa), u),
        "transport of the geodesic": (g.transport(x, y, there, kappa), -back),
        "transport keeps products": (
            g.tangent_inner(y, uy, vy, kappa), g.tangent_inner(x, u, v, kappa)
        ),
        "transport keeps lengths": (g.tangent_norm(y, uy, kappa), g.tangent_norm(x, u, kappa)),
        "transport there and back": (g.transport(y, x, uy, kappa), u),
        "transport to and from the origin": (
            g.transport_from_origin(x, g.transport_to_origin(x, u, kappa), kappa), u
        ),
        "dist0": (g.dist0(x, kappa), g.dist(x, 0 * x, kappa)),
        "norm of exp0": (g.dist0(g.exp0(v, kappa), kappa), np.linalg.norm(v, axis=-1)),
        "exp0 of log0": (g.exp0(g.log0(x, kappa), kappa), x),
        "inner": (g.inner(x, y, kappa), np.sum(x * y, -1) - g.time(x, kappa) * g.time(y, kappa)),
        "cosh of the distance": (
            -kappa * g.inner(x, y, kappa), np.cosh(np.sqrt(kappa) * g.dist(x, y, kappa))
        ),
    }  # fmt: skip


def test_relations(x64):
    """Isometries keep what they must, inverses are inverse, transports follow geodesics.

    In three dimensions, and on the plane and the line inside.
    """
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(5, 40, 3))
    arrays[:, 20:, 2] = 0
    arrays[:, 30:, 1] = 0
    results = relations(*arrays, rng.uniform(0.1, 3, 40))
    for name, (got, want) in results.items():
        assert_close(got, want, 1e-12, what=name)
