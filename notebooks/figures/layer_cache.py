"""Picture the layer and its cached V: what the logits measure, and what a cache can restore."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from lorentz_jax import geometry
from lorentz_jax.bench import style
from lorentz_jax.bench.style import COLOURS
from lorentz_jax.hyperplane import Normals, normals, signed_distance, weights

__all__ = [
    "SCALES",
    "Logits",
    "Restored",
    "logits",
    "operations",
    "plot_logits",
    "plot_restored",
    "restored",
]

SCALES = {None: "geodesic distance", "inside": "inside (the paper's)", "outside": "outside"}


@dataclass(frozen=True)
class Logits:
    """Logits of one unit along its axis, the geodesic through the origin in the direction of w.

    Attributes:
      size, offset: |w|, and the signed distance -b/|w| of the hyperplane from the origin.
      position: signed distance of the points from the origin, `(n,)`.
      values: by scale, `(n,)`.
    """

    size: float
    offset: float
    position: np.ndarray
    values: dict[str | None, np.ndarray]


def logits(size: float, offset: float, kappa: float, reach: float = 4.0) -> Logits:
    """Return the logits of a unit with |w| = `size` whose hyperplane is at `offset` on its axis.

    Raises:
      ValueError: a size that is not positive.
    """
    if not size > 0:
        raise ValueError(f"the size |w| must be positive, got {size}")
    position = np.linspace(-reach, reach, 161)
    with jax.enable_x64(True):
        plane = normals(np.array([[size], [0.0]]), np.array([-offset * size]), kappa)
        x = geometry.exp0(np.stack([position, 0 * position], axis=-1), kappa)
        values = {s: np.asarray(signed_distance(x, plane, kappa, s))[:, 0] for s in SCALES}
    return Logits(size, offset, position, values)


def plot_logits(units: Sequence[Logits]) -> Figure:
    """Draw a panel for each |w|, a line for each scale."""
    figure, [panels] = style.make_panels(7, 2.7, columns=len(units), dpi=100, sharey=True)
    looks = {None: (":", COLOURS[0]), "inside": ("-", COLOURS[1]), "outside": ("--", COLOURS[5])}
    for axes, unit in zip(panels, units, strict=True):
        for scale, (line, colour) in looks.items():
            look = {"color": colour, "linewidth": 1.6, "label": SCALES[scale]}
            axes.plot(unit.position, unit.values[scale], line, **look)
        axes.plot(unit.offset, 0, "o", color=COLOURS[0], markersize=4)
        style.finish(axes, "position on the axis (length)", title=f"|w| = {unit.size:g}")
    panels[0].set_ylabel("logit (length)", fontsize=8)
    style.add_legend(panels[0], 7, loc="upper left")
    return figure


# What costs time in a layer, as XLA gets it.
_COSTLY = {"dot_general", "sqrt", "sinh", "cosh", "tanh", "asinh", "exponential", "log"}


def operations(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Name the matrix products, roots and transcendental functions that a function has.

    They are read off the program that XLA gets for arrays like these arguments.
    """
    text = jax.jit(function).lower(*arguments).as_text()
    return sorted(_COSTLY.intersection(re.findall(r"(?:stablehlo|chlo)\.(\w+)", text)))


@dataclass(frozen=True)
class Restored:
    """Relative errors of float32 weights restored from V, by `theta = -s b/|w|`.

    Attributes:
      theta: `(n,)`.
      with_length: largest error of w, b with `Normals.length` in the cache, `(n,)`.
      without: the same of the bare pair (v_t, v), NaN where restoring is refused, `(n,)`.
    """

    theta: np.ndarray
    with_length: np.ndarray
    without: np.ndarray


def restored(thetas: Sequence[float] | None = None, kappa: float = 1.0, dim: int = 8) -> Restored:
    """Measure what is left of w and b after `weights(normals(w, b))` in float32.

    The bare pair has `|v|_L = sqrt(|v|^2 - v_t^2)`, a difference of numbers near e^(2 theta)/4:
    it loses about `eps e^(2 theta)` of it, eps = 6e-8.
    """
    angles = np.linspace(0.5, 20, 40) if thetas is None else np.asarray(thetas, np.float64)
    rng = np.random.default_rng(0)
    errors = []
    for theta in angles:
        w = rng.normal(size=(dim, 16)).astype(np.float32)
        b = (-theta * np.linalg.norm(w, axis=0) / math.sqrt(kappa)).astype(np.float32)
        full = normals(w, b, kappa)
        caches = full, Normals(full.time, full.space)
        errors.append([_restoring_error(cache, w, b, kappa) for cache in caches])
    return Restored(angles, *np.array(errors).T)


def _restoring_error(cache: Normals, w: np.ndarray, b: np.ndarray, kappa: float) -> float:
    try:
        w_back, b_back = weights(cache, kappa)
    except ValueError:
        return math.nan
    w_error = np.linalg.norm(w_back - w, axis=0) / np.linalg.norm(w, axis=0)
    return float(max(np.max(w_error), np.max(np.abs(b_back - b) / np.abs(b))))


def plot_restored(errors: Restored) -> Figure:
    """Draw both errors against theta; where the bare pair is refused the picture is shaded."""
    figure, [[axes]] = style.make_panels(4.6, 2.8, dpi=100)
    look = {"markersize": 3, "color": COLOURS[5], "label": "V alone"}
    axes.semilogy(errors.theta, errors.without, "s--", **look)
    look = {"markersize": 3, "color": COLOURS[1], "label": "V with |w|"}
    axes.semilogy(errors.theta, errors.with_length, "o-", **look)
    refused = errors.theta[np.isnan(errors.without)]
    if len(refused):
        axes.axvspan(refused[0], errors.theta[-1], color=COLOURS[5], alpha=0.12, linewidth=0)
        where = {"textcoords": "offset points", "fontsize": 8}
        axes.annotate("V alone is refused", (refused[0], 1e-5), (4, 0), **where)
    name = "relative error of w and b, float32"
    style.finish(axes, r"$\theta=-\sqrt{\kappa}\,b/|w|$", name)
    style.add_legend(axes, loc="upper right")
    return figure
