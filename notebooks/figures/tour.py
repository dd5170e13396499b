"""Picture the geometry: charts, precision of distances, and what centring does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lorentz_jax import geometry
from lorentz_jax.bench import style
from lorentz_jax.bench.convergence import arccosh_dist
from lorentz_jax.bench.style import COLOURS

__all__ = [
    "CHARTS",
    "Centring",
    "Chart",
    "Precision",
    "centring",
    "charts",
    "plot_centring",
    "plot_charts",
    "plot_precision",
    "precision",
]

CHARTS = {
    "space part": lambda x, kappa: x,
    "Poincaré ball": geometry.to_poincare,
    "Klein ball": geometry.to_klein,
}


@dataclass(frozen=True)
class Chart:
    """The same curves of H^2 in one chart, in its coordinates times s.

    Attributes:
      rings: circles about the origin at the distances 1/s, 2/s, 3/s, `(3, n, 2)`.
      geodesics: straight lines of the plane, `(m, n, 2)`.
    """

    rings: np.ndarray
    geodesics: np.ndarray


def charts(kappa: float, lines: int = 5, count: int = 121) -> dict[str, Chart]:
    """Return rings and geodesics in the charts of `CHARTS`: what is stored, and two balls.

    The geodesics meet the first axis at right angles, 0.75/s from one to the next.
    """
    s = math.sqrt(kappa)
    turn = np.linspace(0, 2 * math.pi, count)
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=-1)
    feet = 0.75 * (np.arange(lines) - (lines - 1) / 2)[:, None]
    with jax.enable_x64(True):
        # Walk along the second axis, then move the origin to the foot of each line.
        up = np.stack([0 * turn, np.linspace(-6, 6, count)], axis=-1) / s
        line = geometry.exp0(up, kappa)
        foot = geometry.exp0(np.concatenate([feet, 0 * feet], axis=-1) / s, kappa)
        geodesics = geometry.translate(foot[:, None], line, kappa)
        rings = geometry.exp0(np.arange(1.0, 4.0)[:, None, None] / s * circle, kappa)
        return {
            name: Chart(s * np.asarray(to(rings, kappa)), s * np.asarray(to(geodesics, kappa)))
            for name, to in CHARTS.items()
        }


def plot_charts(named: Mapping[str, Chart]) -> Figure:
    """Draw the charts side by side: rings dotted, geodesics solid."""
    figure, [panels] = style.make_panels(7, 2.6, columns=len(named), dpi=100)
    for axes, (name, chart) in zip(panels, named.items(), strict=True):
        if name == "space part":
            axes.set(xlim=(-11, 11), ylim=(-11, 11), aspect="equal")
            axes.plot(0, 0, "+", color=COLOURS[0], markersize=5)
            axes.tick_params(labelsize=7)
        else:
            style.draw_disk(axes)
        for ring in chart.rings:
            axes.plot(*ring.T, ":", color=COLOURS[0], linewidth=1)
        for line in chart.geodesics:
            axes.plot(*line.T, color=COLOURS[1], linewidth=1.4)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(r"first coordinate times $\sqrt{\kappa}$", fontsize=8)
    panels[0].set_ylabel(r"second coordinate times $\sqrt{\kappa}$", fontsize=8)
    return figure


@dataclass(frozen=True)
class Precision:
    """Relative errors of float32 distances, of pairs `apart` from each other.

    Attributes:
      radius: distance of the pairs from the origin, `(n,)`.
      apart: true distance of the pairs, `(n,)`.
      ours: error of `geometry.dist`, median over pairs, `(n,)`.
      arccosh: error of `arccosh(-kappa X o Y)/s`, `(n,)`.
    """

    radius: np.ndarray
    apart: np.ndarray
    ours: np.ndarray
    arccosh: np.ndarray


def precision(
    kappa: float = 1.0, apart: float = 0.1, radii: Sequence[float] | None = None, pairs: int = 64
) -> Precision:
    """Measure two formulas for one distance in float32, by the distance from the origin.

    The truth is `geometry.dist` in float64 of the same float32 numbers, which the tests compare
    with 60 digits.
    """
    radius = np.linspace(0.25, 10, 40) if radii is None else np.asarray(radii, np.float64)
    turn = np.random.default_rng(0).uniform(0, 2 * math.pi, (2, pairs))
    with jax.enable_x64(True):
        ways = np.stack([np.cos(turn), np.sin(turn)], axis=-1)
        x = geometry.exp0(radius[:, None, None] * ways[0], kappa)
        step = geometry.exp0(np.broadcast_to(apart * ways[1], x.shape), kappa)
        y = geometry.translate(x, step, kappa)
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        truth = np.asarray(geometry.dist(x.astype(np.float64), y.astype(np.float64), kappa))
    ours = np.asarray(geometry.dist(x, y, kappa))
    plain = np.asarray(arccosh_dist(geometry.lift(x, kappa), geometry.lift(y, kappa), kappa))
    errors = [np.median(np.abs(measured / truth - 1), axis=1) for measured in (ours, plain)]
    return Precision(radius, np.median(truth, axis=1), *errors)


def plot_precision(errors: Precision) -> Figure:
    """Draw both errors against the distance from the origin."""
    figure, [[axes]] = style.make_panels(4.6, 2.8, dpi=100)
    label = r"arccosh$(-\kappa\, X\circ Y)/\sqrt{\kappa}$"
    look = {"color": COLOURS[5], "markersize": 3, "label": label}
    axes.semilogy(errors.radius, errors.arccosh, "s--", **look)
    # An error of 0 has no place on a logarithmic axis.
    look = {"color": COLOURS[1], "markersize": 3, "label": "geometry.dist"}
    axes.semilogy(errors.radius, np.maximum(errors.ours, 1e-9), "o-", **look)
    name = "distance of the two points from the origin (length)"
    style.finish(axes, name, "relative error, float32")
    style.add_legend(axes)
    return figure


@dataclass(frozen=True)
class Centring:
    """A batch of points of H^2 and what the centring batch norm makes of it, by space parts.

    Attributes:
      kappa: curvature -kappa.
      before, after: the batch, `(n, 2)`.
      mean, beta: its centroid, and the point it goes to, `(2,)`.
      stretch: largest change of a distance between two points of the batch.
    """

    kappa: float
    before: np.ndarray
    after: np.ndarray
    mean: np.ndarray
    beta: np.ndarray
    stretch: float


def centring(
    kappa: float = 1.0, beta: Sequence[float] = (0.0, -0.7), count: int = 60, seed: int = 0
) -> Centring:
    """Move a cloud around a point 1.6/s away by `T_beta o T_(-mean)`, an isometry."""
    s = math.sqrt(kappa)
    cloud = np.random.default_rng(seed).normal(size=(count, 2)) * [0.55, 0.3] / s
    with jax.enable_x64(True):
        middle = geometry.exp0(np.array([1.4, 0.8]) / s, kappa)
        before = geometry.translate(middle, geometry.exp0(cloud, kappa), kappa)
        mean = geometry.centroid(before, kappa)
        target = np.asarray(beta, np.float64) / s
        after = geometry.translate(target, geometry.translate(-mean, before, kappa), kappa)
        apart = [geometry.dist(p[:, None], p[None], kappa) for p in (before, after)]
        stretch = float(jnp.max(jnp.abs(apart[1] - apart[0])))
        before, after, mean = map(np.asarray, (before, after, mean))
        return Centring(float(kappa), before, after, mean, target, stretch)


def plot_centring(batch: Centring) -> Figure:
    """Draw the batch before and after on the Poincare disk."""
    figure, [panels] = style.make_panels(5.2, 2.8, columns=2, dpi=100)
    sides = (("before", batch.before, batch.mean), ("after", batch.after, batch.beta))
    dots = {"marker": ".", "markersize": 4, "color": COLOURS[1]}
    diamond = {"marker": "D", "color": COLOURS[5]}
    for axes, (name, points, centre) in zip(panels, sides, strict=True):
        style.draw_disk(axes)
        for x, look in ((points, dots), (centre[None], diamond)):
            ball = geometry.to_poincare(x.astype(np.float32), batch.kappa)
            axes.plot(*(math.sqrt(batch.kappa) * np.asarray(ball)).T, linestyle="", **look)
        style.label_disk(axes, name)
    return figure
