"""Pictures of the geometry against what is known of the curves in them."""

import math

import numpy as np
import pytest

from notebooks.figures import tour


def test_geodesics_in_the_charts(kappa):
    found = tour.charts(kappa, lines=5, count=41)
    klein, ball = found["Klein ball"], found["Poincaré ball"]
    # Lines at right angles to the first axis at distance d: x = tanh(s d) in the Klein ball.
    for line, d in zip(klein.geodesics, (-1.5, -0.75, 0, 0.75, 1.5), strict=True):
        np.testing.assert_allclose(line[:, 0], math.tanh(d), atol=1e-9)
    for line, d in zip(ball.geodesics, (-1.5, -0.75, 0, 0.75, 1.5), strict=True):
        if d:  # circles about (coth s d, 0) with |c|^2 = 1 + r^2
            radius = np.linalg.norm(line - [1 / math.tanh(d), 0], axis=1)
            np.testing.assert_allclose(1 + radius**2, 1 / math.tanh(d) ** 2, rtol=1e-9)
    for chart, ratio in (("space part", math.sinh), ("Klein ball", math.tanh)):
        radius = np.linalg.norm(found[chart].rings, axis=-1)
        for ring, distance in zip(radius, (1, 2, 3), strict=True):
            np.testing.assert_allclose(ring, ratio(distance), rtol=1e-9)
    assert len(tour.plot_charts(found).axes) == 3


def test_precision_of_two_formulas():
    found = tour.precision(1.0, radii=(0.5, 4.0, 9.0), pairs=32)
    np.testing.assert_allclose(found.apart, 0.1, rtol=2e-3)  # as rounded to float32
    assert (found.ours < 4e-7).all()
    assert found.arccosh[0] < 1e-4
    assert found.arccosh[1] > 5e-5  # it varies with the rounding of the points
    assert found.arccosh[2] > 0.9
    (axes,) = tour.plot_precision(found).axes
    assert axes.get_yscale() == "log"


def test_centring_is_an_isometry_that_takes_the_mean_to_beta(kappa):
    found = tour.centring(kappa, beta=(0.0, -0.7))
    s = math.sqrt(kappa)
    assert found.stretch < 1e-12 / s

    def mean(points):  # of the vectors, back on the hyperboloid
        total = np.concatenate([np.sqrt(1 / kappa + (points**2).sum(-1, keepdims=True)), points], 1)
        t, *x = total.mean(0)
        return np.array(x) / (s * math.sqrt(t**2 - np.dot(x, x)))

    np.testing.assert_allclose(found.mean, mean(found.before), rtol=1e-10)
    np.testing.assert_allclose(mean(found.after), [0, -0.7 / s], atol=1e-10)
    left, right = tour.plot_centring(found).axes
    assert (left.get_title(), right.get_title()) == ("before", "after")


@pytest.mark.parametrize("name", list(tour.CHARTS))
def test_the_balls_end_at_one(name):
    chart = tour.charts(2.0)[name]
    inside = max(np.abs(chart.rings).max(), np.abs(chart.geodesics).max()) < 1
    assert inside == (name != "space part")
