"""Pictures of embedded trees: steps and quality against depth, the way there, the disk."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from lorentz_jax import geometry
from lorentz_jax.bench.timing import COLOURS
from lorentz_jax.figures.boundaries import frame
from lorentz_jax.figures.growth_report import STYLE, finish
from lorentz_jax.figures.tree_shapes import check_parents, depths
from lorentz_jax.figures.trees import LABELS, Quality
from lorentz_jax.figures.trees_laws import better, laws, tuned

_STYLE = STYLE | {
    "fgg, weight norm": {"color": COLOURS[6], "marker": "D"},
    "euclidean": {"color": COLOURS[0], "marker": "v"},
}
_TITLES = {"tree": "binary tree of depth h", "pair": "two nodes, h edges apart"}


def plot_steps(studies: Sequence[dict[str, Any]]) -> Figure:
    """Steps to the target against size, a panel a study; lines are the law that fits better.

    Solid lines are exponential, dashed ones linear; none where the fits are equally good. Bars go
    from the fastest seed to the slowest. A mark is missing where the target was not met.
    """
    figure = Figure(figsize=(7.2, 3.6), dpi=85, layout="constrained")
    panels = figure.subplots(1, len(studies), squeeze=False, sharey=True)[0]
    for axes, results in zip(panels, studies, strict=True):
        sizes, settings = np.array(results["sizes"]), results["settings"]
        for layer in results["steps"]:
            of, pair, colour = tuned(results, layer), laws(results, layer), _STYLE[layer]["color"]
            axes.errorbar(
                sizes, of.steps, np.abs(of.span - of.steps), **_STYLE[layer], linestyle="none",
                markersize=8 if layer == "fgg" else 4.5, fillstyle="none", elinewidth=0.8,
                label=LABELS[layer],
            )  # fmt: skip
            name = better(pair) if pair else "neither"
            if pair and name != "neither":
                met = sizes[np.isfinite(of.steps)]
                fine = np.linspace(met.min(), met.max(), 60)
                axes.plot(
                    fine, pair[name](fine), "-" if name == "exponential" else "--", color=colour,
                    linewidth=3 if layer == "fgg" else 1.2,
                )  # fmt: skip
        rates = settings["rates"]
        kind = "tuned rate" if len(rates) > 1 else f"rate {rates[0]:g}"
        axes.set_title(f"{_TITLES[results['problem']]},\n{kind}", fontsize=9)
        axes.set_yscale("log")
        axes.set_xticks(sizes)
        axes.yaxis.set_minor_formatter(NullFormatter())
        finish(axes, "h (edges)")
    target = studies[0]["settings"]["target"]
    panels[0].set_ylabel(f"steps to an average distortion of {target:g}", fontsize=8)
    _legend(figure, 3)
    return figure


def plot_depth(found: dict[str, Any]) -> Figure:
    """Average distortion and MAP against depth after a number of steps, a column a dimension."""
    figure = Figure(figsize=(7.2, 4.2), dpi=85, layout="constrained")
    grid = figure.subplots(2, len(found["dims"]), squeeze=False, sharex=True, sharey="row")
    rows = {"average": "average distortion\n(share of distance)", "precision": "MAP (1 is best)"}
    for line, (measure, name) in zip(grid, rows.items(), strict=True):
        for place, (axes, dim) in enumerate(zip(line, found["dims"], strict=True)):
            for layer, values in found[measure].items():
                thick = layer == "fgg"  # Chen's curves lie on it
                axes.plot(
                    found["depths"], values[place], **_STYLE[layer], fillstyle="none",
                    markersize=3.5, linewidth=3.5 if thick else 1.2, label=LABELS[layer],
                )  # fmt: skip
            finish(axes, None, name if place == 0 else None)
            axes.set_ylim(0, 1.03 if measure == "precision" else None)
            if measure == "average":
                axes.set_title(f"D = {dim}", fontsize=9)
    for axes in grid[1]:
        axes.set_xlabel("depth h (edges)", fontsize=8)
    _legend(figure, 3)
    return figure


def plot_separations(found: Mapping[str, np.ndarray], size: float) -> Figure:
    """Distance of the two outputs against steps, on a linear scale and on a logarithmic one."""
    figure = Figure(figsize=(7.2, 3.0), dpi=85, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, scale in zip(panels, ("linear", "log"), strict=True):
        for layer, distance in found.items():
            axes.plot(
                np.arange(1, len(distance) + 1), distance, color=_STYLE[layer]["color"],
                linewidth=3.5 if layer == "fgg" else 1.5, label=LABELS[layer],
            )  # fmt: skip
        axes.axhline(size, color=COLOURS[0], linewidth=0.8, linestyle=":")
        axes.set_xscale(scale)
        finish(axes, "step")
    panels[0].set_ylabel("distance of the two outputs (length)", fontsize=8)
    _legend(figure, 4)
    return figure


def _legend(figure: Figure, columns: int) -> None:
    """One for all panels, below them."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, names, fontsize=7.5, frameon=False, loc="outside lower center", ncols=columns
    )


def plot_quality(found: Mapping[tuple[str, int], Quality]) -> Figure:
    """Distortions and precision against steps, by layer (colour) and dimension (line style)."""
    figure = Figure(figsize=(7.2, 3.2), dpi=85, layout="constrained")
    panels = figure.subplots(1, 3)
    dims = sorted({dim for _, dim in found})
    lines = dict(zip(dims, ("-",) if len(dims) == 1 else (":", "--", "-")[-len(dims) :],
                     strict=True))  # fmt: skip
    for (layer, dim), q in found.items():
        for axes, values in zip(panels, (q.average, q.worst, q.precision), strict=True):
            axes.plot(
                q.steps, values, lines[dim], **_STYLE[layer], markersize=3.5, fillstyle="none",
                linewidth=3.5 if layer == "fgg" else 1.2, label=f"{LABELS[layer]}, D = {dim}",
            )  # fmt: skip
    names = {
        "average distortion": "share of the wanted distance",
        "worst distortion": "ratio",
        "MAP of neighbours": "1 is best",
    }
    for axes, (name, unit) in zip(panels, names.items(), strict=True):
        axes.set_xscale("log")
        axes.set_title(name, fontsize=9)
        finish(axes, "steps", unit)
    panels[0].set_ylim(bottom=0)
    panels[1].set_yscale("log")
    panels[2].set_ylim(0, 1.03)
    _legend(figure, 3)
    return figure


def draw_tree(axes: Axes, points: Any, parents: Any, kappa: float) -> None:
    """A tree of points `(nodes, 2)` on the unit disk, scaled by s; edges are geodesics.

    An isometry moves the root to the origin. Colour is the depth of a node, dark at the root.
    """
    parents, level = check_parents(parents), depths(parents)
    if np.shape(points) != (len(parents), 2):
        raise ValueError(f"expected {len(parents)} points of the plane, got {np.shape(points)}")
    with jax.enable_x64(True):
        s = float(np.sqrt(kappa))
        points = np.asarray(geometry.translate(-points[:1], points, kappa))
        start, end = points[parents[1:]], points[1:]
        v = geometry.log(start, end, kappa)
        t = np.linspace(0, 1, 16)[:, None, None]
        ways = s * np.asarray(geometry.to_poincare(geometry.exp(start, t * v, kappa), kappa))
        places = s * np.asarray(geometry.to_poincare(points, kappa))
    frame(axes)
    colours = colormaps["viridis"](0.85 * level / max(level.max(), 1))
    axes.add_collection(
        LineCollection(list(ways.transpose(1, 0, 2)), colors=colours[1:], linewidths=0.9)
    )
    axes.scatter(*places.T, c=colours, s=9, zorder=3, linewidths=0)


def plot_trees(rows: Mapping[str, Quality], parents: Any, kappa: float) -> Figure:
    """A row of disks for each embedding in two dimensions, one disk for each of its marks."""
    count = max(len(q.steps) for q in rows.values())
    figure = Figure(figsize=(1.85 * count, 2.1 * len(rows)), dpi=75, layout="constrained")
    for line, (name, q) in zip(figure.subplots(len(rows), count, squeeze=False), rows.items(),
                               strict=True):  # fmt: skip
        for k, axes in enumerate(line[: len(q.steps)]):
            draw_tree(axes, q.points[k], parents, kappa)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{q.steps[k]} steps, {q.average[k]:.2f}", fontsize=8, pad=2)
        line[0].set_ylabel(name, fontsize=8)
    return figure
