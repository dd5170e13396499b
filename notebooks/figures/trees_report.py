"""Picture embedded trees: steps and quality against depth, the way there, the disk."""

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
from lorentz_jax.bench import style
from lorentz_jax.bench.style import COLOURS, LOOKS

from .tree_shapes import check_parents, depths
from .trees import LABELS, Quality
from .trees_study import better, laws, tuned

__all__ = [
    "draw_tree",
    "plot_depth",
    "plot_quality",
    "plot_separations",
    "plot_steps",
    "plot_trees",
]

_TITLES = {"tree": "binary tree of depth h", "pair": "two nodes, h edges apart"}


def plot_steps(studies: Sequence[dict[str, Any]]) -> Figure:
    """Draw steps to the target against size, a panel for each study, and the law that fits better.

    Solid lines are exponential, dashed ones linear; none where the fits are equally good. Bars go
    from the fastest seed to the slowest. A mark is missing where the target was not met.
    """
    figure, [panels] = style.make_panels(7.2, 3.6, columns=len(studies), sharey=True)
    for axes, results in zip(panels, studies, strict=True):
        sizes, rates = np.array(results["sizes"]), results["settings"]["rates"]
        for layer in results["steps"]:
            best, pair = tuned(results, layer), laws(results, layer)
            thick = layer == "fgg"  # Chen's curves lie on it
            marks = {"markersize": 8 if thick else 4.5, "fillstyle": "none", "linestyle": "none"}
            look = LOOKS[layer] | marks | {"elinewidth": 0.8, "label": LABELS[layer]}
            axes.errorbar(sizes, best.steps, np.abs(best.span - best.steps), **look)
            name = better(pair) if pair else "neither"
            if pair and name != "neither":
                met = sizes[np.isfinite(best.steps)]
                fine = np.linspace(met.min(), met.max(), 60)
                look = {"color": LOOKS[layer]["color"], "linewidth": 3 if thick else 1.2}
                axes.plot(fine, pair[name](fine), "-" if name == "exponential" else "--", **look)
        tuning = "tuned rate" if len(rates) > 1 else f"rate {rates[0]:g}"
        axes.set_yscale("log")
        axes.set_xticks(sizes)
        axes.yaxis.set_minor_formatter(NullFormatter())
        style.finish(axes, "h (edges)", title=f"{_TITLES[results['problem']]},\n{tuning}")
    target = studies[0]["settings"]["target"]
    panels[0].set_ylabel(f"steps to an average distortion of {target:g}", fontsize=8)
    style.add_legend_below(figure, 3)
    return figure


def plot_depth(results: dict[str, Any]) -> Figure:
    """Draw average distortion and MAP against depth, a column for each dimension."""
    dims, options = results["dims"], {"sharex": True, "sharey": "row"}
    figure, grid = style.make_panels(7.2, 4.2, 2, len(dims), **options)
    names = {"average": "average distortion\n(share of distance)", "precision": "MAP (1 is best)"}
    for row, (measure, name) in enumerate(names.items()):
        for column, dim in enumerate(dims):
            axes = grid[row, column]
            for layer, values in results[measure].items():
                look = _line(layer) | {"markersize": 3.5, "label": LABELS[layer]}
                axes.plot(results["depths"], values[column], **LOOKS[layer], **look)
            axes.set_ylim(0, 1.03 if row else None)
            x, title = ("depth h (edges)", "") if row else ("", f"D = {dim}")
            style.finish(axes, x, "" if column else name, title)
    style.add_legend_below(figure, 3)
    return figure


def _line(layer: str) -> dict[str, Any]:
    """Make FGG's line thick: Chen's lies on it."""
    return {"linewidth": 3.5 if layer == "fgg" else 1.2, "fillstyle": "none"}


def plot_separations(distances: Mapping[str, np.ndarray], size: float) -> Figure:
    """Draw the distance of the two outputs against steps, on a linear and a logarithmic scale."""
    figure, [panels] = style.make_panels(7.2, 3.0, columns=2, sharey=True)
    for axes, scale in zip(panels, ("linear", "log"), strict=True):
        for layer, distance in distances.items():
            look = {"color": LOOKS[layer]["color"], "linewidth": 3.5 if layer == "fgg" else 1.5}
            axes.plot(np.arange(1, len(distance) + 1), distance, **look, label=LABELS[layer])
        axes.axhline(size, color=COLOURS[0], linewidth=0.8, linestyle=":")
        axes.set_xscale(scale)
        style.finish(axes, "step")
    panels[0].set_ylabel("distance of the two outputs (length)", fontsize=8)
    style.add_legend_below(figure, 4)
    return figure


def plot_quality(embeddings: Mapping[tuple[str, int], Quality]) -> Figure:
    """Draw distortions and precision against steps, by layer (colour) and dimension (line)."""
    figure, [panels] = style.make_panels(7.2, 3.2, columns=3)
    dims = sorted({dim for _, dim in embeddings})
    lines = dict(zip(dims, ("-", "--", ":")[: len(dims)][::-1], strict=True))
    for (layer, dim), q in embeddings.items():
        look = LOOKS[layer] | _line(layer) | {"markersize": 3.5, "linestyle": lines[dim]}
        for axes, values in zip(panels, (q.average, q.worst, q.precision), strict=True):
            axes.plot(q.steps, values, **look, label=f"{LABELS[layer]}, D = {dim}")
    titles = "average distortion", "worst distortion", "MAP of neighbours"
    units = "share of the wanted distance", "ratio", "1 is best"
    for axes, title, unit in zip(panels, titles, units, strict=True):
        axes.set_xscale("log")
        style.finish(axes, "steps", unit, title)
    panels[0].set_ylim(bottom=0)
    panels[1].set_yscale("log")
    panels[2].set_ylim(0, 1.03)
    style.add_legend_below(figure, 3)
    return figure


def draw_tree(axes: Axes, points: Any, parents: Any, kappa: float) -> None:
    """Draw a tree of points `(nodes, 2)` on the unit disk, scaled by s; edges are geodesics.

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
        dots = s * np.asarray(geometry.to_poincare(points, kappa))
    style.draw_disk(axes)
    colours = colormaps["viridis"](0.85 * level / max(level.max(), 1))
    segments = list(ways.transpose(1, 0, 2))
    axes.add_collection(LineCollection(segments, colors=colours[1:], linewidths=0.9))
    axes.scatter(*dots.T, c=colours, s=9, zorder=3, linewidths=0)


def plot_trees(rows: Mapping[str, Quality], parents: Any, kappa: float) -> Figure:
    """Draw a row of disks for each embedding in two dimensions, a disk for each of its marks."""
    count = max(len(q.steps) for q in rows.values())
    figure, grid = style.make_panels(1.85 * count, 2.1 * len(rows), len(rows), count, dpi=75)
    for line, (name, q) in zip(grid, rows.items(), strict=True):
        for k, axes in enumerate(line[: len(q.steps)]):
            draw_tree(axes, q.points[k], parents, kappa)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"{q.steps[k]} steps, {q.average[k]:.2f}", fontsize=8, pad=2)
        line[0].set_ylabel(name, fontsize=8)
    return figure
