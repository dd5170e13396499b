"""Picture growth: what an update reaches, what fitting does step by step, how long it takes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lorentz_jax.bench import style
from lorentz_jax.bench.style import COLOURS, LINES, LOOKS

from .growth import LABELS, Ascent, Reach, Trace, settled_ratio

__all__ = ["plot_ascent", "plot_counts", "plot_reach", "plot_traces"]


def plot_reach(panels: Mapping[float, Mapping[str, Reach]]) -> Figure:
    """Draw output distance against how far the weights moved, a panel for each kappa.

    Marks are the layer's, lines the formula's.
    """
    figure, [grid] = style.make_panels(7.2, 2.8, columns=len(panels), sharey=True)
    for axes, (kappa, reaches) in zip(grid, panels.items(), strict=True):
        for layer, r in reaches.items():
            # Poincare's marks and line lie on FGG's.
            line, size = ("--", 3.5) if layer == "poincare" else ("-", 7 if layer == "fgg" else 4)
            axes.plot(r.moved, r.formula, line, color=LOOKS[layer]["color"], linewidth=1.4)
            marks = {"markersize": size, "fillstyle": "none", "linestyle": "none"}
            axes.plot(r.moved, r.measured, **LOOKS[layer], **marks, label=LABELS[layer])
        style.finish(axes, "change of the weights (norm)", title=rf"$\kappa$ = {kappa:g}")
    grid[0].set_ylabel("distance of the output (length)", fontsize=8)
    style.add_legend(grid[0])
    return figure


def plot_ascent(ascents: Ascent, kappas: Sequence[float]) -> Figure:
    """Draw distance and b/|w| against steps; dotted is where the ratio should settle."""
    figure, [panels] = style.make_panels(7.2, 2.8, columns=2)
    steps = np.arange(1, ascents.distance.shape[1] + 1)
    for k, (kappa, colour) in enumerate(zip(kappas, style.shades(len(kappas)), strict=True)):
        shown = np.isfinite(ascents.distance[k])
        look = {"color": colour, "linewidth": 1.5, "label": rf"$\kappa$ = {kappa:g}"}
        for axes, values in zip(panels, (ascents.distance[k], ascents.ratio[k]), strict=True):
            axes.plot(steps[shown], values[shown], LINES[k % 4], **look)
        settled = settled_ratio(kappa)
        if np.isfinite(settled):
            panels[1].axhline(settled, color=COLOURS[0], linewidth=0.8, linestyle=":")
    names = "distance of the output (length)", "b/|w| (length)"
    for axes, name, top in zip(panels, names, (40, 10), strict=True):
        axes.set(xscale="log", ylim=(0, top))
        style.finish(axes, "step", name)
    style.add_legend(panels[0])
    return figure


def plot_traces(traces: Mapping[str, Trace], targets: Sequence[float]) -> Figure:
    """Draw distance, gradient and update against steps; a column a layer, a line a target."""
    options = {"columns": len(traces), "sharex": True, "sharey": "row"}
    figure, grid = style.make_panels(7.2, 5.4, rows=3, **options)
    names = "distance of the output\n(length)", "gradient norm\nbefore clipping", "update norm"
    scales = {}, {"yscale": "log", "ylim": (1e-3, 300)}, {"yscale": "log", "ylim": (3e-6, 0.1)}
    colours = style.shades(len(targets))
    for column, (layer, trace) in enumerate(traces.items()):
        values = trace.distance, trace.gradient, trace.update
        for row, (curves, name) in enumerate(zip(values, names, strict=True)):
            axes = grid[row, column]
            for k, (target, colour) in enumerate(zip(targets, colours, strict=True)):
                y = curves[0, 0, k]
                look = {"color": colour, "linewidth": 1.3, "label": f"target at {target:g}"}
                axes.plot(np.arange(1, len(y) + 1), y, LINES[k % 4], **look)
            axes.set(xscale="log", **scales[row])
            x, title = "step" if row == 2 else "", LABELS[layer] if row == 0 else ""
            style.finish(axes, x, "" if column else name, title)
    style.add_legend(grid[0, 0], 7, loc="upper left")
    return figure


def plot_counts(
    panels: Mapping[str, Mapping[tuple[str, str], Any]], targets: Sequence[float], cap: int
) -> Figure:
    """Draw steps to come within 0.1 of a target against its distance.

    `panels[title][layer, label]` are steps `(targets,)`; labels share line styles over layers.
    Points beyond the cap are left out.
    """
    figure, [grid] = style.make_panels(7.2, 3.3, columns=len(panels), dpi=88, sharey=True)
    for axes, (title, curves) in zip(grid, panels.items(), strict=True):
        lines = dict(zip(dict.fromkeys(label for _, label in curves), LINES, strict=False))
        for (layer, label), steps in curves.items():
            look = LOOKS[layer] | {"markersize": 3, "linewidth": 1.2}
            met = np.where(np.asarray(steps) > cap, np.nan, steps)
            axes.plot(targets, met, lines[label], **look)
        for label, line in lines.items():
            axes.plot([], [], line, color=COLOURS[0], linewidth=1.2, label=label)
        style.finish(axes, "distance of the target (length)", title=title)
        style.add_legend(axes, 7, loc="lower right")
        axes.set(yscale="log", ylim=(0.8, 2 * cap))
    grid[0].set_ylabel("steps to come within 0.1", fontsize=8)
    handles = [Line2D([], [], **LOOKS[k], markersize=3, label=LABELS[k]) for k in LABELS]
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return figure
