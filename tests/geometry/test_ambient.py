"""The functions on (D + 1)-vectors are those on space parts, with clear refusals."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import ambient, functional, geometry, hyperplane
from tests import oracle
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden

F32 = np.float32
# Golden name, function, arguments; U is the origin tangent vector (0, u0).
GOLDEN = {
    "inner": ("inner", "xy"), "dist": ("dist", "xy"), "dist0": ("dist0", "x"),
    "expmap0": ("exp0", "U"), "logmap0": ("log0", "x"), "expmap": ("exp", "xv"),
    "logmap": ("log", "xy"), "parallel_transport": ("transport", "xyv"),
    "transp_to_origin": ("transport_to_origin", "xv"),
    "transp_from_origin": ("transport_from_origin", "yU"), "normL": ("tangent_norm", "xv"),
    "centroid": ("centroid", "x"),
}  # fmt: skip

# Names of other libraries.
ALIASES = {
    "expmap": "exp",
    "expmap0": "exp0",
    "logmap": "log",
    "logmap0": "log0",
    "ptransp": "transport",
    "ptransp0": "transport_from_origin",
    "transp": "transport",
    "transp0": "transport_from_origin",
}


def rows(values):
    """A matrix; of one vector, its only row, of numbers, a row each."""
    return values if values.ndim == 2 else values.reshape(-1, 1)


def test_golden_values(x64, kappa):
    """The reference's arrays go in and come out as they are, to 1e-12.

    Rows that float64 ambient coordinates condition worse may differ by 10 times the gap between
    the exact values of the literal (`ref_`) and the lifted inputs (`lift_`).
    """
    prefix = f"k{kappa:g}/d0/"
    data = {k[len(prefix) :]: v for k, v in golden("geometry").items() if k.startswith(prefix)}
    data["U"] = np.pad(data["u0"], [(0, 0), (1, 0)])
    for name, (function, arguments) in GOLDEN.items():
        got = np.asarray(getattr(ambient, function)(*(data[a] for a in arguments), kappa))
        want, lifted = data[f"ref_{name}"], data.get(f"lift_{name}")
        if name == "logmap0":  # the reference returns space parts here
            got = got[:, 1:]
        if name == "normL":
            want = want[:, 0]
            lifted = want * (1 + 1e-16 * (data["v"].max(axis=-1) / want) ** 2)
        got, want = rows(got), rows(want)
        for row, (g, w) in enumerate(zip(got, want, strict=True)):
            spread = 0 if lifted is None else oracle.error(rows(lifted)[row], w)
            assert_close(g, w, max(1e-12, 10 * spread), what=f"{name} {row}")


def test_every_function_is_here():
    layers, not_ambient = {"linear", "signed_distance", "mlr"}, {"lift", "drop", "time"}
    assert set(ambient.__all__) == set(geometry.__all__) - not_ambient | layers | set(ALIASES)
    sources = {**vars(functional), **vars(hyperplane), **vars(geometry)}
    for name in ambient.__all__:
        function = getattr(ambient, name)
        assert function.__name__ == ALIASES.get(name, name)
        assert inspect.signature(function) == inspect.signature(sources[function.__name__])


@pytest.fixture
def sample(x64):
    """Two batches of points, a tangent vector at the first, planes; kappa 0.5."""
    rng = np.random.default_rng(0)
    x, y, u = rng.normal(size=(3, 12, 3))  # the shape of the golden data: compiled already
    v = geometry.transport_from_origin(x, u, 0.5)
    planes = hyperplane.normals(rng.normal(size=(3, 2)), rng.normal(size=2), 0.5)
    time = jnp.sum(x * v, -1, keepdims=True) / geometry.time(x, 0.5)[:, None]
    X, Y = geometry.lift(x, 0.5), geometry.lift(y, 0.5)
    V, U = jnp.concatenate([time, v], -1), np.pad(u, [(0, 0), (1, 0)])
    return {"x": x, "y": y, "u": u, "v": v, "planes": planes, "X": X, "Y": Y, "U": U, "V": V}


def test_every_result_is_the_lifted_one(sample):
    """Points and tangent vectors have their times, whichever argument they belong to."""
    x, y, u, v, planes = (sample[k] for k in ("x", "y", "u", "v", "planes"))
    X, Y, U, V = (sample[k] for k in "XYUV")
    metric = np.diag([-1.0, 1, 1, 1])
    table = {  # ambient arguments, those on space parts, what the result is (X: tangent there)
        "exp": ([X, V], [x, v], "point"), "log": ([X, Y], [x, y], "X"),
        "exp0": ([U], [u], "point"), "log0": ([X], [x], "origin"),
        "transport": ([X, Y, V], [x, y, v], "Y"), "transport_to_origin": ([X, V], [x, v], "origin"),
        "transport_from_origin": ([Y, U], [y, u], "Y"), "translate": ([X, Y], [x, y], "point"),
        "pairwise_dist": ([X, Y], [x, y], "number"),
        "centroid": ([X], [x], "point"), "inner": ([X, Y], [x, y], "number"),
        "squared_dist": ([X, Y], [x, y], "number"),
        "dist": ([X, Y], [x, y], "number"), "dist0": ([X], [x], "number"),
        "tangent_norm": ([X, V], [x, v], "number"), "linear": ([X, planes], [x, planes], "point"),
        "tangent_inner": ([X, V, V], [x, v, v], "number"),
        "mlr": ([X, planes], [x, planes], "number"),
        "signed_distance": ([X, planes], [x, planes], "number"),
        "to_poincare": ([X], [x], "number"), "to_klein": ([X], [x], "number"),
        "from_poincare": ([x / 9], [x / 9], "point"), "from_klein": ([x / 9], [x / 9], "point"),
    }  # fmt: skip
    assert set(table) == set(ambient.__all__) - set(ALIASES)
    sources = {**vars(functional), **vars(hyperplane), **vars(geometry)}
    for name, (arguments, space, kind) in table.items():
        got, want = getattr(ambient, name)(*arguments, 0.5), sources[name](*space, 0.5)
        np.testing.assert_array_equal(got if kind == "number" else got[..., 1:], want)
        if kind == "point":
            assert_close(got[..., 0], geometry.time(want, 0.5), 1e-15)
        elif kind == "origin":
            np.testing.assert_array_equal(got[..., 0], 0)
        elif kind in ("X", "Y"):
            product = np.einsum("ni,ij,nj->n", sample[kind], metric, got)
            assert_close(product, np.zeros(12), 1e-14)


def test_printed_cases(x64):
    """Transport, logarithm and centroid at kappa other than 1."""

    def batch(*space, kappa):
        return geometry.lift(np.tile([*space, 0.0], (12, 1)), kappa)

    origin, y, x = (batch(*p, kappa=0.5) for p in ((0, 0), (-1, 0.75), (0.5, -0.25)))
    moved = ambient.transport(origin, y, np.tile([0.0, 2, 1, 0], (12, 1)), 0.5)
    assert_close(
        moved[0], [-0.88388347648318441, 2.2677078252031311, 0.79921913109766715, 0], 1e-14
    )
    log = ambient.log(x, y, 0.5)
    assert_close(log[0], [-0.65508095325809, -1.51376350007099, 0.95717487664838, 0], 1e-13)
    points = np.concatenate([batch(*p, kappa=0.25)[:6] for p in ((1.5, 0), (0, 1.5))])
    mean = ambient.centroid(points, 0.25)
    assert_close(mean, [2.20863052149693, 0.66258915644908, 0.66258915644908, 0], 1e-13)


def test_layers_take_points_with_their_time(x64):
    w, b = jnp.array([[1.0, 0.5], [2.0, -1.0]]), jnp.array([0.125, -0.25])
    x = geometry.lift(jnp.array([0.5, -0.25]), 0.25)
    planes = hyperplane.normals(w, b, 0.25)
    want = [2.0188862231924691, 0.12980789838777112, 0.24300512692637218]
    assert_close(ambient.linear(x, planes, 0.25), want, 1e-14)
    bent = ambient.linear(x, planes, 0.25, activation=lambda z: -z)
    assert_close(bent, np.array(want) * [1, -1, -1], 1e-14)
    assert_close(ambient.signed_distance(x, planes, 0.25, scale=None)[0] * 5**0.5,
                 ambient.signed_distance(x, planes, 0.25, scale="outside")[0], 1e-14)  # fmt: skip


def test_gradients_are_those_along_the_manifold(x64):
    """No time part; the Riemannian gradient is that of the textbook's ambient expression."""
    kappa = 0.5
    x, y = geometry.lift(jnp.array([[0.5, -0.25], [1.0, 2]]), kappa)

    def textbook(X):
        return jnp.arccosh(-kappa * (jnp.dot(X[1:], y[1:]) - X[0] * y[0])) / jnp.sqrt(kappa)

    def riemannian(g):
        g = g * jnp.array([-1.0, 1, 1])
        return g + kappa * (jnp.dot(x[1:], g[1:]) - x[0] * g[0]) * x

    @quick_jit
    def both(x):
        gradient = jax.grad(lambda X: ambient.dist(X, y, kappa))(x)
        want = riemannian(jax.grad(textbook)(x))
        return (
            gradient,
            riemannian(gradient),
            want,
            ambient.log(x, y, kappa) / ambient.dist(x, y, kappa),
        )

    gradient, ours, want, direction = both(x)
    assert gradient[0] == 0
    assert_close(ours, want, 1e-14)
    assert_close(ours, -direction, 1e-14)


def test_dtypes_batches_and_kappas():
    """As in `geometry`: half precision, broadcasting, empty batches, one kappa a sample, vmap."""
    kappa = np.array([0.5, 1, 2], F32)
    x = geometry.lift(np.tile(F32([0.75, 0]), (3, 1)), kappa)
    origin = geometry.lift(np.zeros((3, 2), F32), kappa)
    want = [0.718666631207, 0.693147180560, 0.653100116864]
    assert_close(ambient.dist(origin, x, kappa), want, 1e-6, axis=None)
    assert_close(jax.vmap(ambient.dist)(origin, x, kappa), want, 1e-6, axis=None)
    one = geometry.lift(F32([0.75, 0]), 1.0)  # a point of kappa 1 only
    assert ambient.dist(one, np.tile(one, (3, 1)), np.ones(3, F32)).shape == (3,)
    with pytest.raises(ValueError, match=r"x is not a point.*row \(0,\)"):
        ambient.dist(one, x, kappa)
    mean = ambient.centroid(np.stack([x, origin], axis=1), kappa)
    assert_close(ambient.dist(mean, x, kappa), np.array(want) / 2, 1e-6)
    assert_close(ambient.centroid(np.stack([x, origin]), kappa, axis=0), mean, 1e-6)
    assert ambient.dist0(x[:0], kappa[:0]).shape == (0,)
    half = geometry.lift(jnp.asarray([[0.5, 1], [2, -3], [1, 1]], jnp.bfloat16), 0.1)
    assert ambient.exp0(ambient.log0(half, 0.1), 0.1).dtype == jnp.bfloat16


@pytest.mark.parametrize("width", [3, 5])
def test_a_forgotten_time_is_named(width):
    """The space part alone, and one coordinate too many."""
    planes = hyperplane.normals(jnp.ones((3, 2)), jnp.zeros(2), 1.0)
    for layer in (ambient.linear, ambient.mlr, ambient.signed_distance):
        for call in (layer, jax.jit(layer)):
            with pytest.raises(ValueError, match=rf"x must have D_in \+ 1 = 4 .*\(8, {width}\)"):
                call(jnp.zeros((8, width)), planes, 1.0)
    x = geometry.lift(jnp.ones((8, 3)), 1.0)
    for call in (ambient.exp, jax.jit(ambient.exp)):
        with pytest.raises(ValueError, match=rf"v must have D \+ 1 = 4 .*as x has.*\(8, {width}\)"):
            call(x, jnp.ones((8, width)), 1.0)


def test_a_time_alone_is_no_point():
    one = jnp.ones((4, 1))
    for name, count in (("dist0", 1), ("dist", 2), ("exp0", 1), ("transport", 3), ("centroid", 1)):
        for call in (getattr(ambient, name), jax.jit(getattr(ambient, name))):
            with pytest.raises(ValueError, match=r"D \+ 1 >= 2 coordinates.*got shape \(4, 1\)"):
                call(*[one] * count, 1.0)


def test_what_is_not_a_point_or_not_tangent_is_refused():
    x = geometry.lift(jnp.array([[0.5, -0.25], [3.0, 4.0]]), 1.0)
    for bad in (x.at[1, 0].add(0.1), x.at[1].mul(-1), x.at[1, 0].set(0)):
        with pytest.raises(ValueError, match=r"y is not a point.*row \(1,\)"):
            ambient.dist(x, bad, 1.0)
        assert jax.jit(ambient.dist)(x, bad, 1.0).shape == (2,)  # traced: cannot look
    with pytest.raises(ValueError, match="x is not a point"):
        ambient.dist0(x, 2.0)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        ambient.dist0(x, -1.0)
    v = jax.jit(ambient.log)(x, x[::-1], 1.0)
    ambient.tangent_norm(x, v.at[:, 0].mul(1 + 1e-5), 1.0)  # rounding
    for change in (v.at[1, 0].add(0.1), v.at[1, 0].mul(-1), v.at[1, 0].set(0)):
        with pytest.raises(ValueError, match=r"v is not a tangent vector at x: row \(1,\) has"):
            ambient.tangent_norm(x, change, 1.0)
    with pytest.raises(ValueError, match=r"v is not a tangent vector at the origin: row \(0,\)"):
        ambient.exp0(x, 1.0)
    with jax.debug_nans(False), pytest.raises(ValueError, match="not a tangent vector"):
        ambient.exp0(jnp.array([[0.0, jnp.nan, 1]]), 1.0)
    with pytest.raises(TypeError, match="v must be a floating-point array"):
        ambient.exp(x, jnp.ones((2, 3), jnp.int32), 1.0)
