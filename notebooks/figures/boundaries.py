"""Picture decision boundaries of single units on the Poincare disk (the paper's Figure 1).

A unit of a layer from H^2 computes `u = X o v + b` of a point X, with a vector v of three numbers:

- FGG: `v = (|w| sinh theta, w cosh theta)` and b = 0, see `hyperplane`. v is space-like whatever
  w and b are, so the boundary u = 0 is a geodesic and u tells the signed distance to it.
- Chen et al.: `v = (-w_t, w)`, any vector, and b. With `|v|^2 = |w|^2 - w_t^2` the boundary is

  | row | v is | b = 0 | b != 0 |
  |---|---|---|---|
  | `|w_t| < |w|` | space-like | a geodesic | an equidistant of one: not a hyperplane |
  | `|w_t| = |w|` | light-like | none | a horocycle, or none |
  | `|w_t| > |w|` | time-like | none | a circle around a point, or none |

Coordinates are those of the disk times s = sqrt(kappa), so that its edge is the unit circle.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lorentz_jax._src.arguments import as_kappa
from lorentz_jax.bench import style
from lorentz_jax.bench.style import COLOURS
from lorentz_jax.hyperplane import normals, signed_distance
from lorentz_jax.models import chen

__all__ = [
    "KINDS",
    "Curve",
    "Unit",
    "chen_unit",
    "disk_points",
    "draw_unit",
    "figure_units",
    "kind_of",
    "level_curve",
    "lorentz_unit",
    "plot",
]

Floats = Sequence[float]
KINDS = ("space-like", "light-like", "time-like")


@dataclass(frozen=True)
class Curve:
    """One level curve `X o v = level` inside the disk: an arc of a circle, or a whole one.

    Attributes:
      points: along it, `(n, 2)`; `(0, 2)` where no point of the disk is at that level.
      nearest: signed distance of its point nearest the centre, along the direction of `v`.
      bend: 1/radius of the circle; its centre is at `nearest - 1/bend`. 0 for a straight line.
      closed: whether it is a whole circle.
    """

    points: np.ndarray
    nearest: float
    bend: float
    closed: bool

    @property
    def edge_angle(self) -> float:
        """Angle in radians at which the curve meets the edge of the disk, NaN if it does not.

        `cos = bend (1 - nearest^2)/2 + nearest`, which is `s level/sqrt(|v|^2 + kappa level^2)`
        with the Minkowski square of v: pi/2 for a hyperplane, and tanh(s d) is the cosine for the
        points at signed distance d from one.
        """
        if self.closed or not len(self.points):
            return math.nan
        cosine = self.bend * (1 - self.nearest**2) / 2 + self.nearest
        return math.acos(max(-1.0, min(1.0, cosine)))


_EMPTY = Curve(np.zeros((0, 2)), math.nan, math.nan, False)


@dataclass(frozen=True)
class Unit:
    """A unit on the disk.

    Attributes:
      title: what to write above it.
      kind: of its vector v, one of `KINDS`.
      kappa: curvature -kappa.
      values: at the pixels of a square grid over [-1, 1]^2, `(size, size)`, NaN outside; rows go
        with the second coordinate. Geodesic lengths: see `lorentz_unit` and `chen_unit`.
      boundary: where the value is 0.
      levels: curves of the values asked for, by value.
    """

    title: str
    kind: str
    kappa: float
    values: np.ndarray
    boundary: Curve
    levels: dict[float, Curve]


def kind_of(time: float, space: Floats) -> str:
    """Tell which of `KINDS` the vector `(time, space)` is; equal lengths count as light-like."""
    excess = math.hypot(*space) - abs(time)
    return KINDS[1] if excess == 0 else KINDS[0] if excess > 0 else KINDS[2]


def level_curve(time: float, space: Floats, level: float, kappa: float, count: int = 201) -> Curve:
    """Return the curve `X o v = level` on the disk, for `v = (time, space)`, space of two numbers.

    With s p the disk's point the equation is `A |sp|^2 + 2 v.sp = B`, A = s level - v_t and
    B = s level + v_t: a circle with centre -v/A and radius `sqrt(|v|^2 + AB)/|A|`. It is followed
    from its point nearest the centre, which has a form without division by A.

    Raises:
      ValueError: a vector of another shape or a level that is not finite.
    """
    v = np.asarray(space, np.float64)
    if v.shape != (2,) or not np.isfinite([*v, time, level]).all():
        raise ValueError(
            f"expected a finite level and a finite vector with two space coordinates, got level "
            f"{level}, time {time} and space part {space}"
        )
    size, scaled = math.hypot(*v), math.sqrt(_kappa(kappa)) * level
    a, b = scaled - time, scaled + time
    root = size * size + a * b  # |v|^2 + kappa level^2 in the Minkowski square of v
    if root <= 0:
        return _EMPTY
    along = v / size if size else np.array([1.0, 0.0])
    nearest, bend = b / (size + math.sqrt(root)), a / math.sqrt(root)
    if abs(nearest) >= 1:
        return _EMPTY
    # |sp(t)|^2 = nearest^2 + chord^2 (1 - nearest bend) reaches 1 where chord is `longest`.
    longest = math.sqrt((1 - nearest**2) / max(1 - nearest * bend, 1e-300))
    closed = longest * abs(bend) >= 2
    end = math.pi / abs(bend) if closed else 2 * _arcsin_ratio(longest / 2, bend)
    t = np.linspace(-end, end, count)[:, None]
    half = t * np.sinc(bend * t / (2 * np.pi))  # the chord 2 sin(bend t/2)/bend
    forward = nearest - bend * half * half / 2
    sideways = t * np.sinc(bend * t / np.pi) * np.array([[-along[1], along[0]]])
    return Curve(forward * along + sideways, nearest, bend, closed)


def _arcsin_ratio(x: float, bend: float) -> float:
    """`arcsin(bend x)/bend`."""
    return x if bend == 0 else math.asin(max(-1.0, min(1.0, bend * x))) / bend


def disk_points(kappa: float, size: int = 401) -> np.ndarray:
    """Return the space parts `(size, size, 2)` of a grid over the disk, NaN outside of it.

    They are `2 p/(s (1 - |p|^2))`, p being s times the disk's point, each coordinate from -1 to 1.
    """
    line = np.linspace(-1, 1, size)
    grid = np.stack(np.meshgrid(line, line), axis=-1)
    square = (grid**2).sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(square < 1, 2 * grid / (math.sqrt(_kappa(kappa)) * (1 - square)), np.nan)


def lorentz_unit(
    w: Floats, b: float, kappa: float, distances: Floats = (), size: int = 401, title: str = "FGG"
) -> Unit:
    """Return the unit with Euclidean weights w, two numbers, and bias b.

    Its values are signed geodesic distances.

    Raises:
      ValueError: w = 0, which has no hyperplane, or shapes that do not fit.
    """
    if np.shape(w) != (2,) or not np.any(w):
        raise ValueError(f"w must be two numbers, not both 0, got {w}")
    norm, s = math.hypot(*w), math.sqrt(_kappa(kappa))
    with jax.enable_x64(True):
        plane = normals(np.asarray(w, np.float64)[:, None], np.array([float(b)]), kappa)
        values = _on_grid(lambda x: signed_distance(x, plane, kappa, scale=None), kappa, size)
        time, space = float(plane.times[0]), np.asarray(plane.space)[:, 0].tolist()

    def curve(d: float) -> Curve:
        return level_curve(time, space, norm * math.sinh(s * d) / s, kappa)

    return Unit(title, KINDS[0], kappa, values, curve(0.0), {d: curve(d) for d in distances})


def chen_unit(
    time: float,
    w: Floats,
    bias: float,
    kappa: float,
    distances: Floats = (),
    size: int = 401,
    title: str = "Chen et al.",
) -> Unit:
    """Return the unit `u = x_t w_t + x.w + b` of Chen et al.'s layer, as `asinh(s u)/s`.

    That is the signed distance of the layer's output to the unit's coordinate hyperplane (as for
    FGG with |w| = 1, where it is that of the input to the unit's own hyperplane as well).
    """
    if np.shape(w) != (2,):
        raise ValueError(f"w must be two numbers, got {w}")
    s = math.sqrt(_kappa(kappa))
    with jax.enable_x64(True):
        kernel, row, shift = (np.array(a, np.float64) for a in ([*w], [time], [bias]))
        out = _on_grid(lambda x: chen.linear(x, kernel[:, None], row, kappa, shift), kappa, size)

    def curve(d: float) -> Curve:
        return level_curve(-time, w, math.sinh(s * d) / s - bias, kappa)

    levels = {d: curve(d) for d in distances}
    return Unit(title, kind_of(time, w), kappa, np.arcsinh(s * out) / s, curve(0.0), levels)


def _on_grid(layer: Any, kappa: float, size: int) -> np.ndarray:
    """Return the values `(size, size)` of a layer with one unit, NaN outside the disk."""
    points = disk_points(kappa, size)
    inside = np.isfinite(points[..., 0])
    values = np.full(inside.shape, np.nan)
    values[inside] = np.asarray(layer(points[inside]))[:, 0]
    return values


def figure_units(kappa: float = 1.0, size: int = 401) -> list[Unit]:
    """Return the six units of the figure, three of FGG and three of Chen et al."""
    w, s = (0.8, 0.6), math.sqrt(kappa)
    levels = tuple(d / s for d in (-2.0, -1.0, 1.0, 2.0)), size
    return [
        lorentz_unit(w, 0.0, kappa, *levels, "FGG, b = 0"),
        lorentz_unit(w, 0.6 / s, kappa, *levels, "FGG, b = 0.6/s"),
        lorentz_unit(w, 1.2 / s, kappa, *levels, "FGG, b = 1.2/s"),
        chen_unit(0.6, w, 1.2 / s, kappa, *levels, "Chen, space-like, b = 1.2/s"),
        chen_unit(1.3, w, 0.0, kappa, *levels, "Chen, time-like, b = 0"),
        chen_unit(1.3, w, -1.8 / s, kappa, *levels, "Chen, time-like, b = -1.8/s"),
    ]


def _kappa(kappa: float) -> float:
    as_kappa(kappa, np.float32)  # refuses what is no curvature
    return float(kappa)


def plot(units: Sequence[Unit], columns: int = 3, limit: float = 3.0) -> Figure:
    """Draw a disk for each unit: its value as colour, its level curves thin, its boundary thick.

    Blue and orange are the two sides; colours end at `limit`, a length times s. Solid level
    curves are on the positive side, dashed ones on the negative. The dot is the boundary's point
    nearest the origin, which is the cross.
    """
    if not units:
        raise ValueError("expected at least one unit to draw, got none")
    rows = -(-len(units) // columns)
    figure, grid = style.make_panels(2.3 * columns + 0.6, 2.45 * rows, rows, columns)
    for axes in grid.flat[len(units) :]:
        axes.set_axis_off()
    images = [draw_unit(axes, u, limit) for axes, u in zip(grid.flat, units, strict=False)]
    bar = figure.colorbar(images[0], ax=grid, shrink=0.7, aspect=30, pad=0.01, extend="both")
    bar.set_label(r"value of the unit, a length times $\sqrt{\kappa}$", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


def draw_unit(axes: Axes, unit: Unit, limit: float) -> Any:
    """Draw one disk; return what a colour bar needs."""
    colours = {"cmap": _SIDES, "vmin": -limit, "vmax": limit, "interpolation": "nearest"}
    values = np.sqrt(unit.kappa) * unit.values
    image = axes.imshow(values, extent=(-1, 1, -1, 1), origin="lower", **colours)
    style.draw_disk(axes)
    for value, curve in unit.levels.items():
        _line(axes, curve, linewidth=0.8, linestyle="-" if value > 0 else "--")
    _line(axes, unit.boundary, linewidth=2.4)
    count = len(unit.boundary.points)
    axes.plot(*unit.boundary.points[count // 2 : count // 2 + 1].T, "o", color=COLOURS[5], ms=5)
    style.label_disk(axes, unit.title + ("" if count else ": no boundary"))
    return image


# In few steps: a smooth picture takes five times the room in a file.
_SIDES = LinearSegmentedColormap.from_list("sides", [COLOURS[1], "#FFFFFF", COLOURS[2]], N=12)


def _line(axes: Axes, curve: Curve, **look: Any) -> None:
    axes.plot(*curve.points.T, color=COLOURS[0], solid_capstyle="butt", **look)
