"""Level curves on the disk against circles, distances and angles that are known otherwise."""

import math

import mpmath as mp
import numpy as np
import pytest

from notebooks.figures import boundaries
from notebooks.figures.boundaries import chen_unit, level_curve, lorentz_unit
from tests import oracle

W, B = (0.9, -1.4), 0.7


def vector(w, b, kappa):
    """The normal of (w, b) as `(time, space)`, in 50 digits."""
    with mp.workdps(50):
        time, *space = oracle.mp_normals([mp.mpf(c) for c in w], mp.mpf(b), mp.mpf(kappa))
        return float(time), [float(c) for c in space]


def ambient(points, kappa):
    """Vectors `(n, 3)` of points of the unit disk: `(1 + |p|^2, 2 p)/(s (1 - |p|^2))`."""
    square = (points**2).sum(-1, keepdims=True)
    return np.concatenate([1 + square, 2 * points], -1) / ((1 - square) * math.sqrt(kappa))


def product(X, Y):
    return X[..., 1:] @ Y[..., 1:].T - np.multiply.outer(X[..., 0], Y[..., 0])


def distance(X, Y, kappa):
    return np.arccosh(np.maximum(-kappa * product(X, Y), 1)) / math.sqrt(kappa)


def circle(points):
    """Centre and radius through the first, the middle and the last but few of the points."""
    a, b, c = points[[0, len(points) // 2, -len(points) // 4]]
    centre = np.linalg.solve(2 * np.stack([b - a, c - a]), [b @ b - a @ a, c @ c - a @ a])
    return centre, np.linalg.norm(a - centre)


def test_a_hyperplane_is_a_circle_that_meets_the_edge_at_right_angles(kappa):
    curve = level_curve(*vector(W, B, kappa), 0.0, kappa)
    centre, radius = circle(curve.points)
    assert centre @ centre == pytest.approx(1 + radius**2, rel=1e-9)
    np.testing.assert_allclose(np.linalg.norm(curve.points - centre, axis=1), radius, rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(curve.points[[0, -1]], axis=1), 1, rtol=1e-12)
    assert (np.linalg.norm(curve.points[1:-1], axis=1) < 1).all()
    # Nearest to the centre: the anchor, at signed distance -b/|w| along w.
    anchor = math.tanh(-math.sqrt(kappa) * B / np.hypot(*W) / 2) * np.array(W) / np.hypot(*W)
    np.testing.assert_allclose(curve.points[len(curve.points) // 2], anchor, atol=1e-12)


def test_a_hyperplane_through_the_origin_is_straight(kappa):
    curve = level_curve(0.0, W, 0.0, kappa)
    np.testing.assert_allclose(curve.points @ W, 0, atol=1e-12)
    assert curve.bend == 0


@pytest.mark.parametrize("d", [-1.5, -0.2, 0.4, 2.0])
def test_an_equidistant_is_at_its_distance_from_the_hyperplane(kappa, d):
    unit = lorentz_unit(W, B, kappa, (d,), size=5)
    # |p| = 1 at the ends: they are infinitely far away.
    curve = ambient(unit.levels[d].points[20:-20:8], kappa)
    plane = ambient(level_curve(*vector(W, B, kappa), 0.0, kappa, 40_001).points[1:-1], kappa)
    apart = distance(curve, plane, kappa).min(axis=1)
    np.testing.assert_allclose(apart, abs(d), atol=1e-4)
    time, space = vector(W, B, kappa)
    side = np.sign(curve[:, 1:] @ space - curve[:, 0] * time)
    np.testing.assert_array_equal(side, np.sign(d))


@pytest.mark.parametrize("d", [-1.5, 0.0, 2.0])
def test_the_angle_at_the_edge_has_cosine_tanh_of_the_distance(kappa, d):
    s, size = math.sqrt(kappa), np.hypot(*W)
    level = size * math.sinh(s * d) / s
    time, space = vector(W, B, kappa)
    curve = level_curve(time, space, level, kappa)
    assert math.cos(curve.edge_angle) == pytest.approx(math.tanh(s * d), abs=1e-12)
    # Seen from the side: the circle's centre and 0 enclose it at a common point.
    centre, radius = circle(curve.points)
    cosine = (1 + radius**2 - centre @ centre) / (2 * radius)
    assert abs(cosine) == pytest.approx(abs(math.tanh(s * d)), abs=1e-8)


def test_the_origin_is_at_signed_distance_b_over_w(kappa):
    d = B / np.hypot(*W)
    unit = lorentz_unit(W, B, kappa, (d,), size=7)
    assert unit.values[3, 3] == pytest.approx(d, rel=1e-12)
    assert unit.levels[d].nearest == pytest.approx(0, abs=1e-15)


def test_the_grid_holds_the_values_of_its_points(kappa):
    unit = lorentz_unit(W, B, kappa, size=9)
    line = np.linspace(-1, 1, 9)
    X = ambient(np.array([[line[5], line[2]]]), kappa)[0]
    with mp.workdps(50):
        X, w = [mp.mpf(c) for c in X], [mp.mpf(c) for c in W]
        want = oracle.mp_signed_distance(X, w, mp.mpf(B), mp.mpf(kappa), None)
    assert unit.values[2, 5] == pytest.approx(float(want), rel=1e-12)
    corner = (line[:, None] ** 2 + line**2) >= 1
    np.testing.assert_array_equal(np.isnan(unit.values), corner)


@pytest.mark.parametrize("level", [-2.0, -0.3, 0.5, 3.0])
@pytest.mark.parametrize("time", [-2.5, -0.4, 0.0, 0.8, 1.7])
def test_points_of_a_curve_are_at_its_level_and_none_are_missing(kappa, time, level):
    space = (0.9, -1.4)
    curve = level_curve(time, space, level, kappa)
    values = product(boundaries_grid(kappa), np.array([time, *space]))
    if not len(curve.points):
        assert (values > level).all() or (values < level).all()
        return
    inner = curve.points[10:-10] if not curve.closed else curve.points
    got = product(ambient(inner, kappa), np.array([time, *space]))
    np.testing.assert_allclose(got, level, rtol=1e-7, atol=1e-9)
    # An open curve runs from edge to edge, a closed one comes back.
    if curve.closed:
        np.testing.assert_allclose(curve.points[0], curve.points[-1], atol=1e-12)
    else:
        np.testing.assert_allclose(np.linalg.norm(curve.points[[0, -1]], axis=1), 1, rtol=1e-10)


def boundaries_grid(kappa):
    line = np.linspace(-0.9999, 0.9999, 301)
    grid = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    return ambient(grid[(grid**2).sum(-1) < 0.9999], kappa)


def test_a_time_like_row_has_no_boundary_and_with_a_bias_a_circle(kappa):
    unit = chen_unit(2.0, W, 0.0, kappa, size=31)
    assert unit.kind == "time-like"
    assert len(unit.boundary.points) == 0
    assert (unit.values[np.isfinite(unit.values)] > 0).all()
    # With b it is the points at one distance from the centre v/|v|, not a hyperplane.
    bias = -4 / math.sqrt(kappa)
    ring = chen_unit(2.0, W, bias, kappa, size=5).boundary
    assert ring.closed
    centre = np.array([2.0, -W[0], -W[1]]) / math.sqrt(kappa * (4 - np.dot(W, W)))
    apart = distance(ambient(ring.points, kappa), centre[None], kappa)
    want = math.acosh(4 / math.sqrt(4 - np.dot(W, W))) / math.sqrt(kappa)
    np.testing.assert_allclose(apart, want, rtol=1e-9)
    assert math.isnan(ring.edge_angle)
    assert math.isnan(unit.boundary.edge_angle)


def test_a_light_like_row_has_a_horocycle(kappa):
    assert len(chen_unit(-5.0, (3.0, 4.0), 0.0, kappa, size=5).boundary.points) == 0
    unit = chen_unit(-5.0, (3.0, 4.0), 2.0, kappa, size=5)
    assert unit.kind == "light-like"
    centre, radius = circle(unit.boundary.points)
    assert np.linalg.norm(centre) + radius == pytest.approx(1, abs=1e-9)  # it touches the edge
    opposite = chen_unit(-5.0, (3.0, 4.0), -2.0, kappa, size=5)
    assert len(opposite.boundary.points) == 0


def test_a_space_like_row_is_a_hyperplane_only_without_bias(kappa):
    s = math.sqrt(kappa)
    proper = chen_unit(0.5, W, 0.0, kappa, size=5)
    assert proper.kind == "space-like"
    centre, radius = circle(proper.boundary.points)
    assert centre @ centre == pytest.approx(1 + radius**2, rel=1e-9)
    shifted = chen_unit(0.5, W, 0.7 / s, kappa, size=5).boundary.edge_angle
    size = math.sqrt(np.dot(W, W) - 0.25)
    assert math.cos(shifted) == pytest.approx(math.tanh(math.asinh(-0.7 / size)), rel=1e-12)
    assert abs(shifted - math.pi / 2) > 0.1


def test_values_of_chens_unit_come_from_its_formula(kappa):
    unit = chen_unit(0.5, W, 0.3, kappa, size=9)
    X = ambient(np.array([[0.25, -0.5]]), kappa)[0]
    want = math.asinh(math.sqrt(kappa) * (0.5 * X[0] + np.dot(W, X[1:]) + 0.3)) / math.sqrt(kappa)
    assert unit.values[2, 5] == pytest.approx(want, rel=1e-12)


def test_the_figure(tmp_path):
    units = boundaries.figure_units(0.5, size=41)
    figure = boundaries.plot(units)
    *disks, _ = figure.axes
    assert [axes.get_title().endswith("no boundary") for axes in disks] == [False] * 4 + [
        True, False,
    ]  # fmt: skip
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in disks)
    figure.savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_mistakes():
    with pytest.raises(ValueError, match="two space coordinates"):
        level_curve(0.0, (1.0, 2.0, 3.0), 0.0, 1.0)
    with pytest.raises(ValueError, match="finite level"):
        level_curve(0.0, (1.0, 2.0), math.nan, 1.0)
    with pytest.raises(ValueError, match="not both 0"):
        lorentz_unit((0.0, 0.0), 1.0, 1.0)
    with pytest.raises(ValueError, match="two numbers"):
        chen_unit(1.0, (1.0,), 0.0, 1.0)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        lorentz_unit(W, B, -1.0)
    with pytest.raises(ValueError, match="got none"):
        boundaries.plot([])
