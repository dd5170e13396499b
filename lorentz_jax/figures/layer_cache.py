"""The layer and its cached V in pictures: what the logits measure, and what a cache can restore."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from lorentz_jax import geometry
from lorentz_jax.bench.timing import COLOURS
from lorentz_jax.hyperplane import Normals, normals, signed_distance, weights

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
    """Logits of a unit with |w| = `size` whose hyperplane is at `offset` on its axis.

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


def plot_logits(found: Sequence[Logits]) -> Figure:
    """A panel for each |w|, a line for each scale."""
    figure = Figure(figsize=(7, 2.7), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, unit in zip(panels, found, strict=True):
        for place, (scale, style) in enumerate(zip(SCALES, (":", "-", "--"), strict=True)):
            axes.plot(
                unit.position, unit.values[scale], style, color=COLOURS[(0, 1, 5)[place]],
                linewidth=1.6, label=SCALES[scale],
            )  # fmt: skip
        axes.plot(unit.offset, 0, "o", color=COLOURS[0], markersize=4)
        axes.set_title(f"|w| = {unit.size:g}", fontsize=9)
        axes.set_xlabel("position on the axis (length)", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel("logit (length)", fontsize=8)
    panels[0].legend(fontsize=7, frameon=False, loc="upper left")
    return figure


# What costs time in a layer, as XLA gets it.
_COSTLY = {"dot_general", "sqrt", "sinh", "cosh", "tanh", "asinh", "exponential", "log"}


def operations(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Which matrix products, roots and transcendental functions a function has, by name.

    Read off the program that XLA gets for arrays like these arguments.
    """
    text = jax.jit(function).lower(*arguments).as_text()
    return sorted(_COSTLY.intersection(re.findall(r"(?:stablehlo|chlo)\.(\w+)", text)))


@dataclass(frozen=True)
class Restored:
    """Relative errors of float32 weights restored from V, by `theta = -s b/|w|`.

    Attributes:
      theta: `(n,)`.
      with_norm: largest error of w, b with `Normals.length` in the cache, `(n,)`.
      without: the same of the bare pair (v_t, v), NaN where restoring is refused, `(n,)`.
    """

    theta: np.ndarray
    with_norm: np.ndarray
    without: np.ndarray


def restored(thetas: Sequence[float] | None = None, kappa: float = 1.0, dim: int = 8) -> Restored:
    """What is left of w and b after `weights(normals(w, b))` in float32.

    The bare pair has `|v|_L = sqrt(|v|^2 - v_t^2)`, a difference of numbers near e^(2 theta)/4:
    it loses about `eps e^(2 theta)` of it, eps = 6e-8.
    """
    angles = np.linspace(0.5, 20, 40) if thetas is None else np.asarray(thetas, np.float64)
    rng = np.random.default_rng(0)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for theta in angles:
        w = rng.normal(size=(dim, 16)).astype(np.float32)
        b = (-theta * np.linalg.norm(w, axis=0) / math.sqrt(kappa)).astype(np.float32)
        full = normals(w, b, kappa)
        for whole in errors:
            try:
                pair = weights(full if whole else Normals(full.time, full.space), kappa)
            except ValueError:
                errors[whole].append(math.nan)
                continue
            sizes = [np.linalg.norm(w, axis=0), np.abs(b)]
            off = [np.linalg.norm(pair[0] - w, axis=0), np.abs(pair[1] - b)]
            errors[whole].append(max(float(np.max(o / s)) for o, s in zip(off, sizes, strict=True)))
    return Restored(angles, np.array(errors[True]), np.array(errors[False]))


def plot_restored(found: Restored) -> Figure:
    """Both errors against theta; the shaded part is where the bare pair is refused."""
    figure = Figure(figsize=(4.6, 2.8), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.semilogy(
        found.theta, found.without, "s--", color=COLOURS[5], markersize=3, label="V alone"
    )
    axes.semilogy(
        found.theta, found.with_norm, "o-", color=COLOURS[1], markersize=3, label="V with |w|"
    )
    refused = found.theta[np.isnan(found.without)]
    if len(refused):
        axes.axvspan(refused[0], found.theta[-1], color=COLOURS[5], alpha=0.12, linewidth=0)
        axes.annotate(
            "V alone is refused", (refused[0], 1e-5), (4, 0), textcoords="offset points", fontsize=8
        )
    axes.set_xlabel(r"$\theta=-\sqrt{\kappa}\,b/|w|$", fontsize=8)
    axes.set_ylabel("relative error of w and b, float32", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    axes.grid(alpha=0.25, linewidth=0.5)
    return figure
