"""One look for all tables and pictures, those of `figures` too."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from rich.console import Console
from rich.table import Table

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
LOOKS: dict[str, dict[str, Any]] = {
    "fgg": {"color": COLOURS[1], "marker": "o"},
    "chen": {"color": COLOURS[3], "marker": "s"},
    "poincare": {"color": COLOURS[4], "marker": "^"},
    "fgg, weight norm": {"color": COLOURS[6], "marker": "D"},
    "euclidean": {"color": COLOURS[0], "marker": "v"},
}
"""Colour and marker of each layer in pictures that compare layers."""
LINES = ("-", "--", ":", "-.")


def make_console(width: int = 110) -> Console:
    """Return a console as wide as the terminal, or of `width` for a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def make_table(title: str, *columns: str, left: int = 1) -> Table:
    """Start a table whose columns are aligned to the right, except the first `left` ones."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right")
    return table


def make_panels(
    width: float, height: float, rows: int = 1, columns: int = 1, dpi: int = 85, **options: Any
) -> tuple[Figure, np.ndarray]:
    """Start a figure of so many inches; return it and its axes, `(rows, columns)`."""
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def finish(axes: Axes, x: str = "", y: str = "", title: str = "") -> None:
    """Set the labels and what all pictures with coordinates have in common."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=8, which="both")
    axes.grid(alpha=0.25, linewidth=0.5)


def add_legend(axes: Axes, size: float = 8, **where: Any) -> None:
    """Add a legend without a frame."""
    axes.legend(fontsize=size, frameon=False, **where)


def add_legend_below(figure: Figure, columns: int) -> None:
    """Add one legend for all panels, below them."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, names, fontsize=7.5, frameon=False, loc="outside lower center", ncols=columns
    )


def shades(count: int) -> Any:
    """Return the colours of an ordered few, from dark to light."""
    return colormaps["viridis"](np.linspace(0, 0.85, count))


def draw_disk(axes: Axes) -> None:
    """Draw the edge and the centre of the unit disk, with room around it."""
    axes.add_patch(Circle((0, 0), 1, fill=False, linewidth=1, color=COLOURS[0]))
    axes.plot(0, 0, "+", color=COLOURS[0], markersize=5, markeredgewidth=0.8)
    axes.set(xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), aspect="equal")
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
    axes.tick_params(labelsize=7, length=2, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)


def label_disk(axes: Axes, title: str) -> None:
    """Label the coordinates of the unit disk, and write a title above it."""
    axes.set_title(title, fontsize=8, pad=3)
    axes.set_xlabel(r"$\sqrt{\kappa}\,p_1$", fontsize=8, labelpad=1)
    axes.set_ylabel(r"$\sqrt{\kappa}\,p_2$", fontsize=8, labelpad=-4)
