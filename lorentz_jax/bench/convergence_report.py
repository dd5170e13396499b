"""The convergence study as data for a file, as a table and as the paper's Figure 2."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lorentz_jax.bench.convergence import DEFAULTS, METHODS, Settings, check_methods, fit
from lorentz_jax.bench.timing import COLOURS, environment, environment_line, make_console

LABELS = {
    "fgg": "FGG",
    "fgg, exact": "FGG, exact distance",
    "chen": "Chen et al.",
    "poincare": "Poincaré",
    "poincare, published": "Poincaré, distance as published",
}
FIGURE = ("fgg", "chen", "poincare", "poincare, published")
_MARKERS = ("o", ".", "s", "^", "v")


def study(methods: Iterable[str] = FIGURE, settings: Settings = DEFAULTS) -> dict[str, Any]:
    """Fit with each method; the result is what `json` can write.

    Under "curves", by method: "iterations" and "reached", a list for each start with an entry for
    each distance.
    """
    methods = check_methods(methods)
    begin = time.perf_counter()
    fits = [fit(name, settings) for name in methods]
    curves = {
        name: {
            "kappa": METHODS[name].kappa,
            "learning_rate": METHODS[name].learning_rate,
            "iterations": found.iterations.tolist(),
            "reached": found.reached.tolist(),
        }
        for name, found in zip(methods, fits, strict=True)
    }
    seconds = time.perf_counter() - begin
    return {
        "environment": environment(),
        "settings": asdict(settings),
        "seconds": seconds,
        "curves": curves,
    }


def run(methods: Iterable[str] = FIGURE, settings: Settings = DEFAULTS) -> dict[str, Any]:
    """`study`, with its table printed."""
    results, console = study(methods, settings), make_console()
    console.print(environment_line(results["environment"]))
    console.print(table(results))
    return results


def table(results: dict[str, Any]) -> Table:
    """One row a distance: the median number of steps over the starts, with its range."""
    curves, cap = results["curves"], results["settings"]["cap"]
    title = f"steps to fit a hyperplane ({results['seconds']:.0f} s)"
    out = Table(title=title, title_justify="left")
    for name in ("distance", *(LABELS[name] for name in curves)):
        out.add_column(name, justify="right")
    for index, distance in enumerate(results["settings"]["distances"]):
        cells = []
        for curve in curves.values():
            steps = np.array(curve["iterations"])[:, index]
            low, middle, high = np.percentile(steps, [0, 50, 100])
            text = f"> {cap}" if _missed(curve)[index] else f"{middle:.0f}"
            cells.append(text if low == high else f"{text} ({low:.0f}-{high:.0f})")
        out.add_row(f"{distance:g}", *cells)
    return out


def _missed(curve: dict[str, Any]) -> np.ndarray:
    """Distances that the median start did not reach."""
    return np.mean(curve["reached"], axis=0) <= 0.5


def plot(results: dict[str, Any], path: Path) -> None:
    """Steps against distance, one line a method, at the width of a column (PNG, PDF, SVG).

    A band spans the random starts. A line ends, hollow, at the first distance beyond the cap.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    settings = results["settings"]
    distances, cap = np.array(settings["distances"]), settings["cap"]
    figure = Figure(figsize=(3.5, 2.9), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in results["curves"].items():
        place = list(LABELS).index(name)
        steps, missed = np.array(curve["iterations"]), _missed(curve)
        shown = np.cumsum(missed) <= 1
        colour, middle = COLOURS[1 + place], np.median(steps, axis=0)
        axes.fill_between(
            distances[shown], steps.min(axis=0)[shown], steps.max(axis=0)[shown],
            color=colour, alpha=0.3, linewidth=0,
        )  # fmt: skip
        axes.plot(
            distances[shown], middle[shown], marker=_MARKERS[place], markersize=3.5, linewidth=1.2,
            linestyle="--" if "," in name else "-", color=colour, label=LABELS[name],
        )  # fmt: skip
        beyond = shown & missed
        axes.plot(
            distances[beyond], middle[beyond], _MARKERS[place], markersize=3.5,
            color=colour, markerfacecolor="white",
        )  # fmt: skip
    axes.axhline(cap, color=COLOURS[0], linewidth=0.8, linestyle=":", zorder=0)
    axes.annotate(
        f"given up after {cap:,} steps", (1, cap), xycoords=("axes fraction", "data"),
        xytext=(-3, 3), textcoords="offset points", ha="right", fontsize=7,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(top=2.2 * cap)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("geodesic distance of the target", fontsize=8)
    axes.set_ylabel(f"steps to come within {settings['tolerance']:g}", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    axes.grid(alpha=0.25, linewidth=0.5)
    figure.savefig(path, dpi=200)
