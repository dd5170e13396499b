"""Picture how weights make a hyperplane of the hyperboloid (the paper's Figure 4), in H^2.

The Euclidean weights w and bias b put an anchor at signed distance `rho = -b/|w|` from the origin
along w; w, carried there along that line, is the normal v; the hyperplane is where the linear
plane `X o v = 0` of R^3 meets the hyperboloid. With `theta = s rho`, s = sqrt(kappa):

    P = (cosh theta, (w/|w|) sinh theta)/s      v = (|w| sinh theta, w cosh theta)

Vectors are ambient, time first, as in `ambient`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from lorentz_jax import geometry
from lorentz_jax._src.arguments import as_kappa
from lorentz_jax.bench import style
from lorentz_jax.bench.style import COLOURS
from lorentz_jax.hyperplane import normals

__all__ = ["Construction", "construct", "plot_sections", "plot_space"]


@dataclass(frozen=True)
class Construction:
    """What the figure shows; `n` and `m` are numbers of samples.

    Attributes:
      kappa: curvature -kappa.
      offset: rho, signed distance of the anchor from the origin.
      axis: direction w/|w| of the line from origin to anchor, `(2,)`.
      anchor, normal: P and v, `(3,)`.
      along: unit tangent vector of the hyperplane at P, `(3,)`; its time is 0.
      sheet: points of the hyperboloid, `(n, m, 3)`, by distance from the origin and angle.
      plane: corners of a piece of the linear plane `X o v = 0`, `(4, 3)`.
      hyperplane: points of it, `(m, 3)`.
      steps: distances of these points from the anchor, `(m,)`.
      profile: points of the hyperboloid over the axis of w, `(m, 3)`.
    """

    kappa: float
    offset: float
    axis: np.ndarray
    anchor: np.ndarray
    normal: np.ndarray
    along: np.ndarray
    sheet: np.ndarray
    plane: np.ndarray
    hyperplane: np.ndarray
    steps: np.ndarray
    profile: np.ndarray


def construct(
    w: Sequence[float], b: float, kappa: float, extent: float = 2.0, count: int = 61
) -> Construction:
    """Return the figure's data for two weights w and a bias b.

    Args:
      w, b, kappa: of the unit.
      extent: how far from the origin the hyperboloid is shown, a distance times s.
      count: samples of each curve.

    Raises:
      ValueError: weights that are not two numbers or are both 0; an anchor beyond `extent`.
    """
    if np.shape(w) != (2,) or not np.any(w):
        raise ValueError(f"w must be two numbers, not both 0, got {w}")
    as_kappa(kappa, np.float32)
    s, size = math.sqrt(kappa), math.hypot(*w)
    axis, offset = np.asarray(w, np.float64) / size, -b / size
    if not s * abs(offset) < extent:
        raise ValueError(
            f"the anchor is at s |b|/|w| = {s * abs(offset):g}, beyond the extent {extent:g}"
        )
    side = np.array([-axis[1], axis[0]])
    with jax.enable_x64(True):
        plane = normals(np.asarray(w, np.float64)[:, None], np.array([float(b)]), kappa)
        anchor = np.asarray(geometry.lift(geometry.exp0(offset * axis, kappa), kappa))
        normal = np.array([plane.times[0], *np.asarray(plane.space)[:, 0]])
        radius = np.linspace(0, extent, count // 2)[:, None, None]
        angle = np.linspace(0, 2 * math.pi, count)[:, None]
        around = np.cos(angle) * axis + np.sin(angle) * side
        sheet = np.asarray(geometry.lift(np.sinh(radius) / s * around[None], kappa))
        line = np.linspace(-extent, extent, count)[:, None]
        profile = np.asarray(geometry.lift(np.sinh(line) / s * axis, kappa))
    along = np.array([0.0, *side])
    # The hyperplane stays inside the sheet: cosh(s r) = cosh(theta) cosh(s t) along it.
    reach = math.acosh(math.cosh(extent) / math.cosh(s * offset))
    t = np.linspace(-reach, reach, count)[:, None]
    far = 1.05 * math.cosh(reach) * anchor
    wide = 1.05 * math.sinh(reach) / s * along
    corners = np.stack([-wide, wide, far + wide, far - wide])
    hyperplane = np.cosh(t) * anchor + np.sinh(t) / s * along
    vectors = (axis, anchor, normal, along)
    curves = (sheet, corners, hyperplane, t[:, 0] / s, profile)
    return Construction(float(kappa), offset, *vectors, *curves)


def plot_space(c: Construction) -> Figure:
    """Draw hyperboloid, plane, hyperplane, anchor and normal in R^3, the time upwards."""
    figure = Figure(figsize=(4.6, 3.9), dpi=85)
    axes: Any = figure.add_axes((0.0, 0.05, 0.92, 0.95), projection="3d", computed_zorder=False)
    time, x, y = np.moveaxis(c.sheet, -1, 0)
    axes.plot_surface(x, y, time, color=COLOURS[6], alpha=0.35, linewidth=0, zorder=1)
    wires = {"color": COLOURS[1], "linewidth": 0.4, "alpha": 0.5, "zorder": 2}
    axes.plot_wireframe(x, y, time, rcount=6, ccount=12, **wires)
    time, x, y = np.moveaxis(c.plane[[0, 1, 3, 2]].reshape(2, 2, 3), -1, 0)
    axes.plot_surface(x, y, time, color=COLOURS[2], alpha=0.35, linewidth=0, zorder=3)
    _curve(axes, c.plane[[0, 1, 2, 3, 0]], color=COLOURS[2], linewidth=1.2, zorder=3)
    _curve(axes, c.profile, color=COLOURS[0], linewidth=1, linestyle=":", zorder=4)
    _curve(axes, c.hyperplane, color=COLOURS[5], linewidth=2.4, zorder=5)
    _curve(axes, np.stack([0 * c.anchor, c.anchor]), color=COLOURS[0], linewidth=0.8)
    tip = c.anchor + 1.5 * c.normal / np.sqrt(c.kappa) / np.linalg.norm(c.normal)
    _arrow(axes, c.anchor, tip)
    _curve(axes, c.anchor[None], marker="o", color=COLOURS[0], linestyle="", zorder=7)
    _curve(axes, c.profile[[len(c.profile) // 2]], marker="+", color=COLOURS[0], zorder=7)
    _label(axes, c.anchor, "P  ", ha="right")
    _label(axes, tip, " v")
    _label(axes, c.profile[len(c.profile) // 2], "o  ", ha="right", va="top")
    axes.set_xlabel("$x_1$ (length)", fontsize=8, labelpad=-6)
    axes.set_ylabel("$x_2$ (length)", fontsize=8, labelpad=-6)
    axes.set_zlabel("$x_t$ (length)", fontsize=8, labelpad=-6)
    axes.tick_params(labelsize=7, pad=-2)
    axes.set_box_aspect((1, 1, 0.8), zoom=1.12)
    # Look along the hyperplane's side, from a little above.
    axes.view_init(elev=20, azim=math.degrees(math.atan2(c.axis[1], c.axis[0])) - 57)
    return figure


def _curve(axes: Any, points: np.ndarray, **look: Any) -> None:
    axes.plot(points[:, 1], points[:, 2], points[:, 0], **look)


def _arrow(axes: Any, start: np.ndarray, end: np.ndarray) -> None:
    foot, step = start[[1, 2, 0]], (end - start)[[1, 2, 0]]
    axes.quiver(*foot, *step, color=COLOURS[3], linewidth=2, arrow_length_ratio=0.2, zorder=6)


def _label(axes: Any, point: np.ndarray, text: str, **look: Any) -> None:
    axes.text(point[1], point[2], point[0], text, fontsize=10, zorder=8, **look)


def plot_sections(c: Construction) -> Figure:
    """Draw the two planar sections: through the origin along w, and along the hyperplane.

    Left, the coordinates are `w.x/|w|` and time: the hyperboloid is a hyperbola, the hyperplane the
    one point P on the line that the plane `X o v = 0` leaves, and v a tangent vector at P. It is
    scaled to the length 1/s. Right, the coordinates in the plane `X o v = 0` are those along the
    tangent vector and along s P, an orthonormal pair: the hyperplane is a hyperbola of the same
    curvature, hence itself a hyperbolic line.
    """
    figure, [[left, right]] = style.make_panels(7, 2.6, columns=2, dpi=100)
    s, black = math.sqrt(c.kappa), COLOURS[0]

    def flat(vector: np.ndarray) -> np.ndarray:
        return np.stack([vector[..., 1:] @ c.axis, vector[..., 0]])

    edge = 1.05 * c.profile[-1, 0]
    left.plot([-edge, 0, edge], [edge, 0, edge], ":", color=black, linewidth=0.8)
    left.plot(*flat(c.profile), color=COLOURS[1], linewidth=1.6, label="hyperboloid")
    reach = edge / c.anchor[0]
    line = flat(np.stack([0 * c.anchor, reach * c.anchor]))
    left.plot(*line, color=COLOURS[2], linewidth=1.6, label="plane $X\\circ v=0$")
    unit = c.normal / (s * math.sqrt(c.normal @ _flipped(c.normal)))
    start, end = flat(c.anchor), flat(c.anchor + unit)
    arrow = {"arrowstyle": "-|>", "color": COLOURS[3], "linewidth": 2}
    left.annotate("", end, start, arrowprops=arrow)
    left.annotate("v", end, (5, -2), textcoords="offset points", fontsize=9)
    left.plot(*start, "o", color=COLOURS[5], zorder=5)
    left.annotate("P", start, (6, -9), textcoords="offset points", fontsize=9)
    left.plot(0, 1 / s, "+", color=black, markersize=8, zorder=5)
    left.annotate("o", (0, 1 / s), (-3, -12), textcoords="offset points", fontsize=9)
    title = f"through o along w: P at distance {c.offset:.3g}"
    style.finish(left, "$w\\cdot x/|w|$ (length)", "$x_t$ (length)", title)

    across = c.hyperplane @ _flipped(c.along)
    up = -s * c.hyperplane @ _flipped(c.anchor)
    top = 1.05 * up.max()
    right.plot([-top, 0, top], [top, 0, top], ":", color=black, linewidth=0.8, label="light cone")
    right.plot(across, up, color=COLOURS[5], linewidth=2.4, label="hyperplane")
    right.plot(0, 1 / s, "o", color=COLOURS[5], zorder=5)
    right.annotate("P", (0, 1 / s), (-3, -13), textcoords="offset points", fontsize=9)
    title = "in the plane $X\\circ v=0$"
    style.finish(right, "along the hyperplane (length)", "along P (length)", title)
    for axes in (left, right):
        axes.set(aspect="equal", ylim=0)
        style.add_legend(axes, loc="lower left")
    return figure


def _flipped(vector: np.ndarray) -> np.ndarray:
    """Negate the time: the dot product of the result with X is the Minkowski product."""
    return vector * np.array([-1.0, 1.0, 1.0])
