"""Pictures of growth: what an update reaches, what fitting does step by step, how long it takes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lorentz_jax.bench.timing import COLOURS
from lorentz_jax.figures.growth import LABELS, Ascent, Reach, Trace, each, settled_ratio, trace

# As in `convergence_report`.
STYLE: dict[str, dict[str, Any]] = {
    "fgg": {"color": COLOURS[1], "marker": "o"},
    "chen": {"color": COLOURS[3], "marker": "s"},
    "poincare": {"color": COLOURS[4], "marker": "^"},
}
_LINES = ("-", "--", ":", "-.")


def finish(axes: Axes, x: str | None, y: str | None = None) -> None:
    """Labels, where there are any, and what all these pictures have in common."""
    axes.set_xlabel(x or "", fontsize=8)
    axes.set_ylabel(y or "", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.5)


def _shades(count: int) -> Any:
    """Colours of an ordered few, from dark to light."""
    return colormaps["viridis"](np.linspace(0, 0.85, count))


def plot_reach(found: Mapping[float, Mapping[str, Reach]]) -> Figure:
    """Output distance against how far the weights moved, a panel for each kappa.

    Marks are the layer's, lines the formula's.
    """
    figure = Figure(figsize=(7.2, 2.8), dpi=85, layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (kappa, reaches) in zip(panels, found.items(), strict=True):
        for layer, r in reaches.items():
            # Poincare's marks and line lie on FGG's.
            line, size = ("--", 3.5) if layer == "poincare" else ("-", 7 if layer == "fgg" else 4)
            axes.plot(r.moved, r.formula, line, color=STYLE[layer]["color"], linewidth=1.4)
            axes.plot(
                r.moved, r.measured, **STYLE[layer], markersize=size, fillstyle="none",
                linestyle="none", label=LABELS[layer],
            )  # fmt: skip
        axes.set_title(rf"$\kappa$ = {kappa:g}", fontsize=9)
        finish(axes, "change of the weights (norm)")
    panels[0].set_ylabel("distance of the output (length)", fontsize=8)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def plot_ascent(found: Ascent, kappas: Sequence[float]) -> Figure:
    """Distance and b/|w| against steps, a line a kappa; dotted where the ratio should settle."""
    figure = Figure(figsize=(7.2, 2.8), dpi=85, layout="constrained")
    panels = figure.subplots(1, 2)
    steps = np.arange(1, found.distance.shape[1] + 1)
    for k, (kappa, colour) in enumerate(zip(kappas, _shades(len(kappas)), strict=True)):
        shown = np.isfinite(found.distance[k])
        for axes, values in zip(panels, (found.distance[k], found.ratio[k]), strict=True):
            axes.plot(
                steps[shown], values[shown], _LINES[k % 4], color=colour, linewidth=1.5,
                label=rf"$\kappa$ = {kappa:g}",
            )  # fmt: skip
        settled = settled_ratio(kappa)
        if np.isfinite(settled):
            panels[1].axhline(settled, color=COLOURS[0], linewidth=0.8, linestyle=":")
    for axes, name in zip(panels, ("distance of the output (length)", "b/|w| (length)"),
                          strict=True):  # fmt: skip
        axes.set_xscale("log")
        finish(axes, "step", name)
    panels[0].set_ylim(0, 40)
    panels[1].set_ylim(0, 10)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def plot_traces(found: Mapping[str, Trace], targets: Sequence[float]) -> Figure:
    """Distance, gradient and update against steps; a column a layer, a line a target."""
    figure = Figure(figsize=(7.2, 5.4), dpi=85, layout="constrained")
    grid = figure.subplots(3, len(found), sharex=True, sharey="row", squeeze=False)
    names = "distance of the output\n(length)", "gradient norm\nbefore clipping", "update norm"
    for place, (layer, t) in enumerate(found.items()):
        values = t.distance, t.gradient, t.update
        for axes, curves, name in zip(grid[:, place], values, names, strict=True):
            for k, (target, colour) in enumerate(zip(targets, _shades(len(targets)), strict=True)):
                y = curves[0, 0, k]
                axes.plot(
                    np.arange(1, len(y) + 1), y, _LINES[k % 4], color=colour, linewidth=1.3,
                    label=f"target at {target:g}",
                )  # fmt: skip
            finish(axes, None, name if place == 0 else None)
            axes.set_xscale("log")
        grid[0, place].set_title(LABELS[layer], fontsize=9)
        grid[1, place].set(yscale="log", ylim=(1e-3, 300))
        grid[2, place].set(yscale="log", ylim=(3e-6, 0.1))
        grid[2, place].set_xlabel("step", fontsize=8)
    grid[0, 0].legend(fontsize=7, frameon=False, loc="upper left")
    return figure


def counts(targets: Sequence[float], cap: int = 2000) -> dict[str, dict[tuple[str, str], Any]]:
    """Steps to targets for `plot_counts`: by optimiser, by learning rate and by curvature."""
    rates, kappas = (0.003, 0.01, 0.03), (0.1, 1.0, 2.5)
    grid = {"sgd": ((0.01,), (1.0,)), "momentum": (rates, (1.0,)), "adam": ((0.01,), kappas)}

    def one(job: tuple[str, str]) -> Any:
        layer, optimiser = job
        return trace(layer, optimiser, targets, *grid[optimiser], steps=cap).steps()

    steps = each(one, list(itertools.product(LABELS, grid)))
    names = {"sgd": "SGD", "momentum": "momentum 0.9", "adam": "Adam"}
    place = {"sgd": (0, 0), "momentum": (0, rates.index(0.01)), "adam": (kappas.index(1.0), 0)}
    return {
        "optimiser (rate 0.01, κ = 1)": {
            (layer, names[optimiser]): found[place[optimiser]]
            for (layer, optimiser), found in steps.items()
        },
        "rate (momentum, κ = 1)": {
            (layer, f"{rate:g}"): steps[layer, "momentum"][0, k]
            for layer in LABELS
            for k, rate in enumerate(rates)
        },
        "curvature (Adam, rate 0.01)": {
            (layer, f"κ = {kappa:g}"): steps[layer, "adam"][k, 0]
            for layer in LABELS
            for k, kappa in enumerate(kappas)
        },
    }


def plot_counts(
    panels: Mapping[str, Mapping[tuple[str, str], Any]], targets: Sequence[float], cap: int
) -> Figure:
    """Steps to come within 0.1 of a target against its distance.

    `panels[title][layer, label]` are steps `(targets,)`; labels share line styles over layers.
    Points beyond the cap are left out.
    """
    figure = Figure(figsize=(7.2, 3.3), dpi=88, layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, curves) in zip(grid, panels.items(), strict=True):
        lines = dict(zip(dict.fromkeys(label for _, label in curves), _LINES, strict=False))
        for (layer, label), steps in curves.items():
            axes.plot(
                targets, np.where(np.asarray(steps) > cap, np.nan, steps), lines[label],
                **STYLE[layer], markersize=3, linewidth=1.2,
            )  # fmt: skip
        for label, line in lines.items():
            axes.plot([], [], line, color=COLOURS[0], linewidth=1.2, label=label)
        axes.set_title(title, fontsize=9)
        axes.legend(fontsize=7, frameon=False, loc="lower right")
        finish(axes, "distance of the target (length)")
        axes.set(yscale="log", ylim=(0.8, 2 * cap))
    grid[0].set_ylabel("steps to come within 0.1", fontsize=8)
    handles = [Line2D([], [], **STYLE[k], markersize=3, label=LABELS[k]) for k in LABELS]
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return figure
