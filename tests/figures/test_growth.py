"""The propositions on growth against mpmath, and what fitting records against closed forms."""

import math

import jax
import mpmath as mp
import numpy as np
import pytest

from lorentz_jax import functional, geometry
from lorentz_jax.hyperplane import normals
from lorentz_jax.models import chen
from notebooks.figures import growth, growth_report
from notebooks.figures.growth import Trace, least_updates, reach, settled_ratio, trace
from notebooks.figures.tree_shapes import (
    depths,
    least_radius,
    regular_tree,
    tree_distances,
    tree_points,
    tree_size,
)
from tests.conftest import KAPPAS


def test_reach_is_linear_for_ours_and_poincare_and_a_logarithm_for_chen(kappa):
    moved, radius = np.array([0.0, 1, 4, 16, 64]), 0.7
    s = mp.sqrt(kappa)
    length = mp.sqrt(mp.cosh(2 * s * radius) / kappa)
    want = {
        "fgg": radius + moved,
        "poincare": radius + moved,
        "chen": [float(mp.asinh(s * (1 + m) * length) / s) for m in moved],
    }
    for layer, values in want.items():
        found = reach(layer, moved, kappa, radius)
        np.testing.assert_allclose(found.measured, values, rtol=1e-12)
        np.testing.assert_allclose(found.formula, values, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_no_weights_of_a_norm_take_chens_layer_farther(kappa):
    rng, s = np.random.default_rng(0), math.sqrt(kappa)
    for size in (0.1, 3.0, 1e4):
        x, matrix = rng.normal(size=(50, 3)), rng.normal(size=(50, 5, 4))
        matrix *= size / np.linalg.norm(matrix, axis=(1, 2), keepdims=True)
        X = np.asarray(geometry.lift(x, kappa))
        out = jax.vmap(lambda p, m: chen.linear(p, m[:, 1:].T, m[:, 0], kappa))(x, matrix)
        distance = np.asarray(geometry.dist0(out, kappa))
        bound = np.arcsinh(s * size * np.linalg.norm(X, axis=1)) / s
        assert (distance <= bound).all()
        assert (bound - distance).min() < 1 / s, "the bound says nothing"


def test_as_many_updates_as_the_bound_says_are_enough(kappa):
    """Steepest ascent on |M X| attains the bound, so the next whole number of steps gets there."""
    s, rate, radius = math.sqrt(kappa), 0.25, 1.2
    X = np.array([math.cosh(s * radius), math.sinh(s * radius), 0]) / s
    for distance in (1.0, 2.5, 4.0):
        matrix, count = np.zeros((2, 3)), 0
        while math.asinh(s * np.linalg.norm(matrix @ X)) / s < distance:
            matrix += rate * np.outer([0.6, 0.8], X / np.linalg.norm(X))
            count += 1
        assert count == math.ceil(least_updates(distance, np.linalg.norm(X), rate, kappa))


def test_updates_grow_by_e_for_each_unit_of_scaled_distance(kappa):
    far = np.array([10.0, 11, 12]) / math.sqrt(kappa)
    needed = least_updates(far, 2.0, 0.1, kappa)
    np.testing.assert_allclose(needed[1:] / needed[:-1], math.e, rtol=1e-8)
    assert least_updates(1.0, 2.0, 0.1, kappa, start=1e3) == 0


@pytest.mark.usefixtures("x64")
def test_a_units_values_differ_by_no_more_than_its_inputs(kappa):
    """Moving the hyperplane away takes all outputs along: it does not pull them apart."""
    rng, radius, s = np.random.default_rng(1), 0.8, math.sqrt(kappa)
    v = rng.normal(size=(200, 3))
    x = geometry.exp0(radius * v / np.linalg.norm(v, axis=1, keepdims=True), kappa)
    w = np.array([[0.6], [0], [0.8]])
    for b in (0.0, 5 / s, 20 / s):
        z = np.asarray(functional.linear(x, normals(w, np.array([b]), kappa), kappa))[:, 0]
        value = np.arcsinh(s * z) / s
        assert np.ptp(value) <= 2 * radius + 1e-9
        assert np.ptp(value) > 1.7 * radius
        assert abs(value.mean() - b) < radius


@pytest.mark.parametrize(("kappa", "radius"), [(0.1, math.sqrt(2)), (0.05, 1.0), (0.2, 4.0)])
def test_the_settled_ratio_is_where_the_gradient_points_along_the_weights(kappa, radius):
    q, s = settled_ratio(kappa, radius), math.sqrt(kappa)

    def far(w, b):
        return mp.asinh(w * mp.sinh(s * (radius + b / w))) / s

    for w in (1.0, 50.0):
        slopes = [float(mp.diff(far, (w, q * w), n)) for n in ((1, 0), (0, 1))]
        assert slopes[1] / slopes[0] == pytest.approx(q, rel=1e-9)
    # It is the first such ratio: below it, b gains on |w|.
    below = [float(mp.diff(far, (1.0, 0.8 * q), n)) for n in ((1, 0), (0, 1))]
    assert below[1] / below[0] > 0.8 * q


def test_ours_grows_as_a_logarithm_at_small_curvature_only():
    kappas, rate = (0.1, 1.0, 2.5), 0.05
    found = growth.ascent(kappas, 4000, rate)
    np.testing.assert_allclose(found.distance[:, 0], math.sqrt(2), rtol=1e-12)
    # The first step, from w = 1 and b = 0, is along (tanh(s r)/s, 1).
    for kappa, ratio in zip(kappas, found.ratio[:, 1], strict=True):
        slope = math.tanh(math.sqrt(2 * kappa)) / math.sqrt(kappa)
        size = math.hypot(slope, 1)
        assert ratio == pytest.approx(rate / size / (1 + rate * slope / size), rel=1e-10)
    assert found.ratio[0, -1] == pytest.approx(settled_ratio(0.1), rel=0.05)
    assert (found.ratio[0] < settled_ratio(0.1)).all()
    later = found.distance[0, [999, 1999, 3999]]
    np.testing.assert_allclose(np.diff(later), math.log(2) / math.sqrt(0.1), rtol=0.05)
    for k in (1, 2):
        assert math.isinf(settled_ratio(kappas[k]))
        assert np.isnan(found.distance[k, 200:]).all(), "it left within 200 steps"
        assert np.nanmax(found.distance[k]) > 12
        assert found.ratio[k, -1] == found.ratio[k, 200], "it stops where it left"
    assert math.isinf(settled_ratio(0.26, 50.0))
    far = (1 / math.sqrt(0.2) - math.sqrt(1 / 0.2 - 4)) / 2
    assert settled_ratio(0.2, 50.0) == pytest.approx(far, rel=1e-9)


@pytest.mark.parametrize("optimiser", growth.OPTIMISERS)
def test_the_first_steps_of_fitting(optimiser):
    targets, rates, radius = np.array([0.5, 3.0]), (0.02, 0.03), 1.0
    found = trace("chen", optimiser, targets, rates, KAPPAS, steps=2, radius=radius)
    assert found.distance.shape == (len(KAPPAS), len(rates), len(targets), 2)
    for at in np.ndindex(len(KAPPAS), len(rates)):
        kappa, rate = KAPPAS[at[0]], rates[at[1]]
        s = math.sqrt(kappa)
        y = math.sinh(s * radius) / (2 * s)  # half the identity
        distance = math.asinh(s * y) / s
        length = math.sqrt(math.cosh(2 * s * radius) / kappa)
        gap = np.abs(targets - distance)
        slope = 2 * gap * length / math.sqrt(1 + kappa * y * y)
        np.testing.assert_allclose(found.distance[at][:, 0], distance, rtol=1e-12)
        np.testing.assert_allclose(found.gap[at][:, 0], gap, rtol=1e-10)
        np.testing.assert_allclose(found.gradient[at][:, 0], slope, rtol=1e-10)
        update, later = found.update[at].T
        if optimiser == "adam":  # each of the two weights that count moves by the rate
            np.testing.assert_allclose(update, rate * math.sqrt(2), rtol=1e-5)
            continue
        np.testing.assert_allclose(update, rate * np.minimum(slope, 1), rtol=1e-10)
        # The update is along X, so it changes y by its length times |X|.
        moved = y + np.sign(targets - distance) * update * length
        np.testing.assert_allclose(
            found.distance[at][:, 1], np.abs(np.arcsinh(s * moved) / s), rtol=1e-10
        )
        # The far target's gradient is clipped in both steps.
        assert later[1] == pytest.approx({"sgd": 1, "momentum": 1.9}[optimiser] * rate, rel=0.02)


@pytest.mark.slow
def test_far_targets_take_ours_few_steps_and_chen_many():
    steps = {
        name: trace(name, "sgd", (4.0, 6.0), (0.01,), steps=300).steps()[0, 0]
        for name in ("fgg", "chen")
    }
    assert (steps["chen"] == 301).all()
    assert (steps["fgg"] < 220).all()
    assert steps["fgg"][1] < 1.5 * steps["fgg"][0]


def test_steps_are_looks_at_the_output():
    gap = np.array([[[[3.0, 2, 0.05, 1], [1, 1, 1, 1]]]])
    assert Trace(gap, gap, gap, gap).steps().tolist() == [[[3, 5]]]


@pytest.mark.usefixtures("x64")
def test_a_tree_fits_into_a_ball_of_its_depth_and_no_smaller_one(kappa):
    s, depth = math.sqrt(kappa), 3
    parents, edge = regular_tree(3, depth), 2.5 / s
    points, edges = tree_points(parents, edge, kappa), tree_distances(parents)
    found = np.asarray(geometry.dist(points[:, None], points[None], kappa))
    np.testing.assert_allclose(found[edges == 1], edge, rtol=1e-9)
    assert (found <= edge * edges + 1e-9).all()
    radius = np.asarray(geometry.dist0(points, kappa))
    assert (radius <= edge * depths(parents) + 1e-9).all()
    error = np.abs(found[edges > 0] / (edge * edges[edges > 0]) - 1).max()
    assert 0 < error < 0.5
    # From wherever one looks.
    moves = np.array([[[0.0, 0.0]], [[1.0, -2.0]], [[9.0, 4.0]]]) / s
    moved = geometry.dist0(geometry.translate(moves, points, kappa), kappa)
    assert (np.max(moved, axis=1) >= least_radius(depth, edge, error)).all()


@pytest.mark.usefixtures("x64")
def test_a_path_is_a_geodesic():
    size = tree_size(1, 4, 0.5)
    assert size.worst == pytest.approx(1, abs=1e-9)
    assert (size.radius, size.least, size.most) == pytest.approx((2, 2, 2), abs=1e-9)


@pytest.mark.usefixtures("x64")
def test_longer_edges_mean_less_distortion():
    sizes = [tree_size(3, 3, edge) for edge in (1.0, 2.0, 4.0)]
    worst = [size.worst for size in sizes]
    assert worst[0] > worst[1] > worst[2] > 1
    assert worst[2] < 1.2
    assert all(size.least <= size.radius <= size.most + 1e-9 for size in sizes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reach("fog", [1.0]), "no layer 'fog', there are 'fgg', 'chen'"),
        (lambda: settled_ratio(0.1, -1.0), "kappa and radius must be positive"),
        (lambda: reach("fgg", [1.0], kappa=-1.0), "kappa must be positive"),
        (lambda: trace("fgg", "adagrad", (1.0,)), "no optimiser 'adagrad'"),
        (lambda: trace("fgg", "sgd", ()), "at least one"),
        (lambda: least_updates(1.0, 0.0, 0.1, 1.0), "must be positive"),
        (lambda: tree_points(regular_tree(2, 2), 0.0), "edge must be positive"),
        (lambda: least_radius(0, 1.0), "depth >= 1"),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_plots(tmp_path):
    gap = np.geomspace(5, 0.01, 20)[None, None, None]
    traces = {name: Trace(5 - gap, gap, gap, gap) for name in growth.LAYERS}
    reaches = {k: {name: reach(name, [0.0, 1, 2], k) for name in growth.LAYERS} for k in (0.5, 2)}
    steps = {(name, kind): np.array([3, 9, 101]) for name in growth.LAYERS for kind in "ab"}
    figures = (
        growth_report.plot_reach(reaches),
        growth_report.plot_traces(traces, (5.0,)),
        growth_report.plot_ascent(growth.Ascent(gap[0, 0], gap[0, 0]), (0.1,)),
        growth_report.plot_counts({"one": steps, "two": steps}, (1, 2, 3), 100),
    )
    figures[1].savefig(tmp_path / "traces.png")
    assert (tmp_path / "traces.png").stat().st_size > 8000
    assert [len(figure.axes) for figure in figures] == [2, 9, 2, 2]
    line = figures[3].axes[0].lines[0]
    assert np.isnan(line.get_ydata()[2]), "beyond the cap there is nothing to draw"
