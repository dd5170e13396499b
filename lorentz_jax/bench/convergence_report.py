"""Steps to fit a hyperplane as data for a file, as a table and as the paper's Figure 2."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from lorentz_jax.bench import style
from lorentz_jax.bench.convergence import DEFAULTS, Method, Settings, fit
from lorentz_jax.bench.timing import environment, environment_line

_LOOKS = style.LOOKS | {"fgg, exact": {"color": style.COLOURS[2], "marker": "."}}


def study(methods: Mapping[str, Method], settings: Settings = DEFAULTS) -> dict[str, Any]:
    """Fit with each method; the result is what `json` can write.

    Under "curves", by name of a method: "iterations" and "reached", a list for each start with an
    entry for each distance.
    """
    begin, curves = time.perf_counter(), {}
    for name, method in methods.items():
        fits = fit(method, settings)
        curves[name] = {
            "label": method.label,
            "kappa": method.kappa,
            "learning_rate": method.learning_rate,
            "iterations": fits.iterations.tolist(),
            "reached": fits.reached.tolist(),
        }
    return {
        "environment": environment(),
        "settings": asdict(settings),
        "seconds": time.perf_counter() - begin,
        "curves": curves,
    }


def run(methods: Mapping[str, Method], settings: Settings = DEFAULTS) -> dict[str, Any]:
    """Run `study` and print its table."""
    results, console = study(methods, settings), style.make_console()
    console.print(environment_line(results["environment"]))
    console.print(table(results))
    return results


def table(results: dict[str, Any]) -> Table:
    """Make a row for each distance: the median number of steps over the starts, with its range."""
    curves, cap = results["curves"].values(), results["settings"]["cap"]
    title = f"steps to fit a hyperplane ({results['seconds']:.0f} s)"
    out = style.make_table(title, "distance", *(curve["label"] for curve in curves), left=0)
    for index, distance in enumerate(results["settings"]["distances"]):
        cells = []
        for curve in curves:
            steps = np.array(curve["iterations"])[:, index]
            low, middle, high = np.percentile(steps, [0, 50, 100])
            text = f"> {cap}" if _missed(curve)[index] else f"{middle:.0f}"
            cells.append(text if low == high else f"{text} ({low:.0f}-{high:.0f})")
        out.add_row(f"{distance:g}", *cells)
    return out


def _missed(curve: dict[str, Any]) -> np.ndarray:
    """Tell for each distance whether the median start did not reach it."""
    return np.mean(curve["reached"], axis=0) <= 0.5


def plot(results: dict[str, Any], path: Any) -> None:
    """Draw steps against distance, a line for each method, at the width of a column.

    A band spans the random starts. A line ends, hollow, at the first distance beyond the cap.

    Args:
      results: of `study`.
      path: a PNG, PDF or SVG file, or a binary stream.
    """
    settings = results["settings"]
    distances, cap = np.array(settings["distances"]), settings["cap"]
    figure, [[axes]] = style.make_panels(3.5, 2.9)
    for name, curve in results["curves"].items():
        look = _LOOKS.get(name, {"color": style.COLOURS[5], "marker": "v"})
        steps, missed = np.array(curve["iterations"]), _missed(curve)
        shown = np.cumsum(missed) <= 1
        beyond, middle = shown & missed, np.median(steps, axis=0)
        band = steps.min(axis=0)[shown], steps.max(axis=0)[shown]
        axes.fill_between(distances[shown], *band, color=look["color"], alpha=0.3, linewidth=0)
        marks = look | {"markersize": 3.5, "linewidth": 1.2}
        line = {"linestyle": "--" if "," in name else "-", "label": curve["label"]}
        axes.plot(distances[shown], middle[shown], **marks, **line)
        hollow = {"linestyle": "none", "markerfacecolor": "white"}
        axes.plot(distances[beyond], middle[beyond], **marks, **hollow)
    axes.axhline(cap, color=style.COLOURS[0], linewidth=0.8, linestyle=":", zorder=0)
    where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    axes.annotate(f"given up after {cap:,} steps", (1, cap), (-3, 3), fontsize=7, **where)
    axes.set_yscale("log")
    axes.set_ylim(top=2.2 * cap)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.finish(
        axes, "geodesic distance of the target", f"steps to come within {settings['tolerance']:g}"
    )
    style.add_legend(axes, 7, loc="lower right")
    figure.savefig(path, dpi=200)
