"""Steps to a fixed distortion against size: tuned rates, growth laws, and what they say.

Results are those of `trees_study.study`. Learning rates are tuned on its grid for each layer:
either one rate serves every size (as it must where it is set before the depth is known), or each
size has its best.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table
from scipy.optimize import least_squares

from lorentz_jax.figures.trees import LABELS


def at_rate(results: dict[str, Any], rate: float) -> dict[str, Any]:
    """The part of a study with one of its rates, whose updates have one bound for all layers."""
    settings = results["settings"]
    place = list(settings["rates"]).index(rate)
    steps = {y: [[row[place]] for row in rows] for y, rows in results["steps"].items()}
    return results | {"settings": settings | {"rates": [rate]}, "steps": steps}


@dataclass(frozen=True)
class Tuned:
    """Steps at each size with tuned rates.

    Attributes:
      rates: for each size, `(sizes,)`; NaN where the target was not met.
      steps: with them, the median over seeds, `(sizes,)`; NaN where the target was not met.
      span: fewest and most steps of a seed that met the target, `(2, sizes)`.
    """

    rates: np.ndarray
    steps: np.ndarray
    span: np.ndarray


def tuned(results: dict[str, Any], layer: str, per_size: bool = False) -> Tuned:
    """What tuning the rate of a layer gives; a rate counts where most seeds met the target.

    One rate serves all sizes: it meets the target at most of them, and of such rates in the fewest
    steps (geometric mean). With `per_size` each size has the rate that is the fastest there.
    """
    rates = np.array(results["settings"]["rates"])
    raw = np.array(results["steps"][layer], float)  # None becomes NaN
    middle = np.median(np.where(np.isnan(raw), np.inf, raw), axis=2)  # (sizes, rates)
    met = np.isfinite(middle)
    if per_size:
        chosen = middle.argmin(axis=1)
    else:
        logs = np.log(np.where(met, middle, 1)).sum(axis=0) / np.maximum(met.sum(axis=0), 1)
        one = min(range(len(rates)), key=lambda r: (-met[:, r].sum(), logs[r]))
        chosen = np.full(len(raw), one)
    place = np.arange(len(raw)), chosen
    values = np.stack([
        rates[chosen], middle[place],
        np.where(np.isnan(raw), np.inf, raw)[place].min(axis=1),
        np.where(np.isnan(raw), 0, raw)[place].max(axis=1),
    ])  # fmt: skip
    values[:, ~met[place]] = np.nan
    return Tuned(values[0], values[1], values[2:])


@dataclass(frozen=True)
class Law:
    """A fitted law of two numbers.

    Attributes:
      name: "linear" for `a + b h`, "exponential" for `a e^(b h)`.
      a, b: the numbers.
      a_error, b_error: their standard errors.
      aic: Akaike's `n log(m) + 4`, m the mean square of log(steps) about the law; the lower one
        fits better.
    """

    name: str
    a: float
    b: float
    a_error: float
    b_error: float
    aic: float

    def __call__(self, sizes: Any) -> np.ndarray:
        """Steps at these sizes."""
        sizes = np.asarray(sizes, float)
        return self.a + self.b * sizes if self.name == "linear" else self.a * np.exp(self.b * sizes)


def fit_laws(sizes: Any, steps: Any) -> dict[str, Law]:
    """Both laws, by least squares of log(steps), so that their residuals can be compared.

    Sizes with NaN steps are left out; three at least must remain. Standard errors come from the
    curvature of the sum of squares and its size at the minimum, with n - 2 degrees of freedom.
    """
    sizes, steps = np.asarray(sizes, float), np.asarray(steps, float)
    kept = np.isfinite(steps)
    if kept.sum() < 3 or np.any(steps[kept] <= 0):
        raise ValueError(f"expected positive steps at three sizes or more, got {steps}")
    h, y = sizes[kept], np.log(steps[kept])
    b, height = np.polyfit(h, y, 1)
    a = math.exp(height)
    basis = np.stack([np.full(len(h), 1 / a), h], axis=1)
    exponential = _law("exponential", a, b, basis, y - height - b * h)
    # The line is positive where steps were counted if it is so at both ends.
    low, high = h.min(), h.max()
    up = (h - low) / (high - low)

    def off(ends: np.ndarray) -> np.ndarray:
        return np.log((1 - up) * np.exp(ends[0]) + up * np.exp(ends[1])) - y

    start, end = np.exp(least_squares(off, (y.min(), y.max()), xtol=1e-12, ftol=1e-12).x)
    b = (end - start) / (high - low)
    a = start - b * low
    value = a + b * h
    linear = _law("linear", a, b, np.stack([1 / value, h / value], 1), y - np.log(value))
    return {"linear": linear, "exponential": exponential}


def _law(name: str, a: float, b: float, basis: np.ndarray, off: np.ndarray) -> Law:
    square, n = float(np.sum(off**2)), len(off)
    errors = np.sqrt(np.diag(np.linalg.pinv(basis.T @ basis)) * square / (n - 2))
    aic = n * math.log(max(square / n, 1e-300)) + 4
    return Law(name, float(a), float(b), float(errors[0]), float(errors[1]), aic)


def laws(results: dict[str, Any], layer: str, per_size: bool = False) -> dict[str, Law] | None:
    """Both laws of a layer, or None where it met the target at fewer than three sizes."""
    steps = tuned(results, layer, per_size).steps
    return fit_laws(results["sizes"], steps) if np.isfinite(steps).sum() >= 3 else None


def better(pair: dict[str, Law], margin: float = 2.0) -> str:
    """The law with the lower AIC, or "neither" where they differ by less than `margin`."""
    gap = pair["linear"].aic - pair["exponential"].aic
    return "neither" if abs(gap) < margin else "exponential" if gap > 0 else "linear"


# What the paper claims of each layer that it speaks of.
CLAIMS = {"fgg": "linear", "fgg, weight norm": "linear", "chen": "exponential"}


def verdict(results: dict[str, Any], per_size: bool = False) -> str:
    """One sentence: does the paper's claim hold, layer by layer?"""
    said = []
    for layer in (name for name in CLAIMS if name in results["steps"]):
        steps, pair = tuned(results, layer, per_size).steps, laws(results, layer, per_size)
        name = better(pair) if pair else "unknown"
        b = f"{pair['exponential'].b:.2f} ± {pair['exponential'].b_error:.2f}" if pair else ""
        text = {
            "linear": "at most linear",
            "exponential": f"like exp(({b}) h)",
            "neither": "both laws fit",
            "unknown": "too few sizes met the target to tell",
        }[name]
        if missed := [f"{h}" for h, n in zip(results["sizes"], steps, strict=True) if np.isnan(n)]:
            text += f", target missed at h = {', '.join(missed)}"
        holds = {CLAIMS[layer]: "holds", "neither": "is open", "unknown": "is open"}
        said.append(
            f"{CLAIMS[layer]} growth for {LABELS[layer]} {holds.get(name, 'fails')} ({text})"
        )
    rates = results["settings"]["rates"]
    kind = f"rate {rates[0]:g}" if len(rates) == 1 else "one rate for all sizes"
    kind = "the best rate of each size" if per_size else kind
    return f"Steps against h, {results['problem']} problem, {kind}: {'; '.join(said)}."


def table(results: dict[str, Any]) -> Table:
    """Two rows a layer: steps with one rate for all sizes, and with the best rate of each.

    "AIC gap" is that of the linear law minus that of the exponential one; "seeds" the largest ratio
    of the steps of two seeds at one size.
    """
    title = f"{results['problem']}: steps to distortion {results['settings']['target']:g}"
    out = Table(title=title, title_justify="left")
    out.add_column("layer")
    sizes = [f"h = {size}" for size in results["sizes"]]
    for name in ("rate", *sizes, "b in e^(b h)", "AIC gap", "seeds"):
        out.add_column(name, justify="right")
    for layer in results["steps"]:
        for per_size in (False, True)[: len(results["settings"]["rates"])]:
            of, pair = tuned(results, layer, per_size), laws(results, layer, per_size)
            cells = ["-" if np.isnan(steps) else f"{steps:.0f}" for steps in of.steps]
            end = ["-", "-"]
            if pair:
                law = pair["exponential"]
                end = [f"{law.b:.2f} ± {law.b_error:.2f}", f"{pair['linear'].aic - law.aic:+.1f}"]
            spread = np.nanmax(of.span[1] / of.span[0], initial=1)
            rate = "best" if per_size else f"{np.nanmax(of.rates, initial=0):g}"
            out.add_row("" if per_size else LABELS[layer], rate, *cells, *end, f"{spread:.2f}")
    return out
