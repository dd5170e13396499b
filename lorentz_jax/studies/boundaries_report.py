"""Pictures of decision boundaries on the Poincare disk (the paper's Figure 1)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lorentz_jax.studies.boundaries import Curve, Unit
from lorentz_jax.studies.report import COLOURS


def plot(units: Sequence[Unit], columns: int = 3, limit: float = 3.0) -> Figure:
    """A disk for each unit: its value as colour, its level curves thin, its boundary thick.

    Blue and orange are the two sides; colours end at `limit`, a length times s. Solid level
    curves are on the positive side, dashed ones on the negative. The dot is the boundary's point
    nearest the origin, which is the cross.
    """
    if not units:
        raise ValueError("expected at least one unit to draw, got none")
    rows = -(-len(units) // columns)
    figure = Figure(figsize=(2.3 * columns + 0.6, 2.45 * rows), dpi=85, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(units) :]:
        axes.set_axis_off()
    images = [draw_unit(axes, u, limit) for axes, u in zip(grid.flat, units, strict=False)]
    for axes in grid.flat[: len(units)]:
        axes.set_xlabel(r"$\sqrt{\kappa}\,p_1$", fontsize=8, labelpad=1)
        axes.set_ylabel(r"$\sqrt{\kappa}\,p_2$", fontsize=8, labelpad=-4)
    bar = figure.colorbar(images[0], ax=grid, shrink=0.7, aspect=30, pad=0.01, extend="both")
    bar.set_label(r"value of the unit, a length times $\sqrt{\kappa}$", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


def draw_unit(axes: Axes, unit: Unit, limit: float) -> Any:
    """One disk; returns what a colour bar needs."""
    image = axes.imshow(
        np.sqrt(unit.kappa) * unit.values, extent=(-1, 1, -1, 1), origin="lower", cmap=sides(),
        vmin=-limit, vmax=limit, interpolation="nearest",
    )  # fmt: skip
    frame(axes)
    for value, curve in unit.levels.items():
        _line(axes, curve, linewidth=0.8, linestyle="-" if value > 0 else "--")
    _line(axes, unit.boundary, linewidth=2.4)
    there = len(unit.boundary.points)
    axes.plot(*unit.boundary.points[there // 2 : there // 2 + 1].T, "o", color=COLOURS[5], ms=5)
    axes.set_title(unit.title + ("" if there else ": no boundary"), fontsize=8, pad=3)
    return image


def sides() -> Any:
    """Blue, white, orange: the two sides of a boundary, for every colour vision."""
    from matplotlib.colors import LinearSegmentedColormap

    # In few steps: a smooth picture takes five times the room in a file.
    return LinearSegmentedColormap.from_list("sides", [COLOURS[1], "#FFFFFF", COLOURS[2]], N=12)


def frame(axes: Axes) -> None:
    """Edge and centre of the unit disk, with room around it."""
    from matplotlib.patches import Circle

    axes.add_patch(Circle((0, 0), 1, fill=False, linewidth=1, color=COLOURS[0]))
    axes.plot(0, 0, "+", color=COLOURS[0], markersize=5, markeredgewidth=0.8)
    axes.set(xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), aspect="equal")
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
    axes.tick_params(labelsize=7, length=2, pad=1)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _line(axes: Axes, curve: Curve, **style: Any) -> None:
    axes.plot(*curve.points.T, color=COLOURS[0], solid_capstyle="butt", **style)
