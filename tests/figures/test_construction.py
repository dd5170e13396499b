"""The construction of a hyperplane against its definition in 50 digits."""

import math

import mpmath as mp
import numpy as np
import pytest

from notebooks.figures import construction
from tests import oracle

W, B = (0.8, -0.6), 0.45
FLIP = np.array([-1.0, 1.0, 1.0])


def build(kappa, b=B):
    return construction.construct(W, b / math.sqrt(kappa), kappa)


def test_anchor_and_normal_come_from_transport(kappa):
    found = build(kappa)
    b = B / math.sqrt(kappa)
    with mp.workdps(50):
        k, w = mp.mpf(kappa), [mp.mpf(c) for c in W]
        o = oracle.mp_origin(2, k)
        size = oracle.euclidean_norm(w)
        P = oracle.mp_exp(o, [mp.mpf(0), *(-mp.mpf(b) * c / size**2 for c in w)], k)
        v = oracle.mp_transport(o, P, [mp.mpf(0), *w], k)
        far = oracle.mp_dist(o, P, k)
    np.testing.assert_allclose(found.anchor, [float(c) for c in P], rtol=1e-13)
    np.testing.assert_allclose(found.normal, [float(c) for c in v], rtol=1e-13)
    assert found.offset == pytest.approx(-b / np.hypot(*W))
    assert abs(found.offset) == pytest.approx(float(far), rel=1e-13)


def test_everything_is_where_it_is_said_to_be(kappa):
    found = build(kappa)
    for points in (found.sheet, found.profile, found.hyperplane, found.anchor):
        np.testing.assert_allclose((points**2) @ FLIP, -1 / kappa, rtol=1e-9, atol=1e-9 / kappa)
        assert (points[..., 0] > 0).all()
    for points in (found.plane, found.hyperplane):
        np.testing.assert_allclose(points @ (FLIP * found.normal), 0, atol=1e-12 / kappa)
    # The steps along the hyperplane are distances from the anchor.
    product = -kappa * found.hyperplane @ (FLIP * found.anchor)
    apart = np.arccosh(np.maximum(product, 1)) / math.sqrt(kappa)
    np.testing.assert_allclose(apart, np.abs(found.steps), atol=1e-6)
    assert (np.diff(found.steps) > 0).all()
    # The sheet ends at the extent, and so does the hyperplane.
    edge = found.sheet[-1, 0, 0]
    assert edge == pytest.approx(math.cosh(2) / math.sqrt(kappa))
    assert found.hyperplane[0, 0] == pytest.approx(edge)
    assert found.along @ (FLIP * found.anchor) == pytest.approx(0, abs=1e-12)
    assert found.along @ (FLIP * found.normal) == pytest.approx(0, abs=1e-12)


def test_the_sections_show_these_curves(kappa):
    found = build(kappa)
    left, right = construction.plot_sections(found).axes
    x, t = next(line for line in left.lines if line.get_label() == "hyperboloid").get_data()
    np.testing.assert_allclose(t**2 - x**2, 1 / kappa, rtol=1e-9)
    across, up = next(
        line for line in right.lines if line.get_label() == "hyperplane"
    ).get_data()  # fmt: skip
    np.testing.assert_allclose(up**2 - across**2, 1 / kappa, rtol=1e-9)
    s = math.sqrt(kappa)
    np.testing.assert_allclose(np.arcsinh(s * across), s * found.steps, atol=1e-12)
    assert all(a.get_xlabel().endswith("(length)") for a in (left, right))


def test_the_picture_in_space(tmp_path):
    figure = construction.plot_space(build(1.0))
    (axes,) = figure.axes
    assert {axes.get_xlabel(), axes.get_zlabel()} == {"$x_1$ (length)", "$x_t$ (length)"}
    figure.savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_mistakes():
    with pytest.raises(ValueError, match="not both 0"):
        construction.construct((0.0, 0.0), 1.0, 1.0)
    with pytest.raises(ValueError, match="beyond the extent 2"):
        construction.construct((1.0, 0.0), 3.0, 1.0)
    with pytest.raises(ValueError, match="curvature is -kappa"):
        construction.construct((1.0, 0.0), 0.0, -1.0)
