"""Study trees and their smallest part: steps against size with fitted laws, quality against depth.

Two problems of one size h:

- "pair": two nodes h edges apart, so that two outputs have to separate;
- "tree": the binary tree of depth h, with `2^(h + 1) - 1` nodes.

Learning rates are tuned on a grid for each layer: either one rate serves every size (as it must
where it is set before the depth is known), or each size has its best. `STUDIES` takes long, and
notebook 5 shows what this command stored:

    python -m notebooks.figures.trees_study notebooks/5_trees.json
"""

import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.table import Table
from scipy.optimize import least_squares

from lorentz_jax._src.output import write_atomic
from lorentz_jax.bench.convergence import check_name
from lorentz_jax.bench.style import make_console, make_table
from lorentz_jax.bench.timing import environment

from .growth import each
from .tree_shapes import regular_tree, tree_distances
from .trees import DEFAULTS, LABELS, LAYERS, Settings, apart, quality, train

__all__ = [
    "PAIR",
    "PROBLEMS",
    "RATES",
    "STUDIES",
    "Law",
    "Tuned",
    "at_rate",
    "better",
    "by_depth",
    "fit_laws",
    "laws",
    "separations",
    "study",
    "table",
    "tuned",
]

PROBLEMS = {
    "tree": lambda size: tree_distances(regular_tree(2, size)),
    "pair": lambda size: size * (1 - np.eye(2, dtype=int)),
}
PAIR = Settings(edge=1.0, cap=20_000, seeds=3)
STUDIES: dict[str, tuple[tuple[int, ...], Settings]] = {
    "tree": ((2, 3, 4, 5, 6, 7, 8), replace(DEFAULTS, seeds=3)),
    "pair": ((6, 8, 10, 12, 14, 16), PAIR),
}
RATES = {"fgg": 0.1, "fgg, weight norm": 0.1, "chen": 0.1, "poincare": 0.03, "euclidean": 0.1}
"""Rates for `by_depth`, which does not tune."""


def study(
    problem: str,
    sizes: Sequence[int],
    settings: Settings = DEFAULTS,
    layers: Sequence[str] = tuple(LAYERS),
) -> dict[str, Any]:
    """Train each layer at each size with each rate and seed; the result is what `json` can write.

    Under "steps", by layer: steps to the target, `[size][rate][seed]`, None where it was not met.
    """
    check_name(problem, PROBLEMS, "problem")
    begin = time.perf_counter()

    def one(job: tuple[str, int]) -> list[list[int | None]]:
        course = train(job[0], PROBLEMS[problem](job[1]), settings)
        pairs = zip(course.steps.tolist(), course.reached.tolist(), strict=True)
        return [[n if met else None for n, met in zip(*row, strict=True)] for row in pairs]

    # The largest first.
    done = each(one, [(layer, size) for size in sorted(sizes, reverse=True) for layer in layers])
    return {
        "environment": environment(),
        "problem": problem,
        "sizes": list(sizes),
        "settings": asdict(settings),
        "seconds": time.perf_counter() - begin,
        "steps": {layer: [done[layer, size] for size in sizes] for layer in layers},
    }


def by_depth(
    depths: Sequence[int] = (2, 4, 6),
    dims: Sequence[int] = (2, 5, 10),
    steps: int = 300,
    layers: Sequence[str] = tuple(LAYERS),
) -> dict[str, Any]:
    """Measure how good binary trees are after a number of steps, with the rates of `RATES`.

    Under "average" and "precision", by layer: as in `Quality`, `[dim][depth]`.
    """
    begin = time.perf_counter()

    def one(job: tuple[str, int, int]) -> tuple[float, float]:
        layer, dim, depth = job
        settings = replace(DEFAULTS, dim=dim)
        q = quality(layer, regular_tree(2, depth), RATES[layer], (steps,), settings)
        return float(q.average[0]), float(q.precision[0])

    done = each(one, list(itertools.product(layers, dims, depths)))
    seconds = time.perf_counter() - begin
    return {"depths": list(depths), "dims": list(dims), "steps": steps, "seconds": seconds} | {
        name: {y: [[done[y, dim, h][k] for h in depths] for dim in dims] for y in layers}
        for k, name in enumerate(("average", "precision"))
    }


def separations(
    layers: Sequence[str], size: int, rate: float, steps: int, settings: Settings = PAIR
) -> dict[str, np.ndarray]:
    """Return the distance of two outputs on their way to `size` apart, at each step, by layer.

    It is `(n,)` each, n up to `steps`; a run ends within 2 % of the distance.
    """
    settings = replace(settings, rates=(rate,), seeds=1, target=0.02, cap=steps)
    distances = {}
    for layer in layers:
        course = train(layer, PROBLEMS["pair"](size), settings, range(steps))
        points = course.points[0, 0, : course.steps[0, 0]]
        distances[layer] = apart(layer, points, settings.kappa)[:, 0, 1]
    return distances


def at_rate(results: dict[str, Any], rate: float) -> dict[str, Any]:
    """Return the part of a study with one of its rates, where all updates have one bound."""
    settings = results["settings"]
    index = list(settings["rates"]).index(rate)
    steps = {layer: [[row[index]] for row in rows] for layer, rows in results["steps"].items()}
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
    """Tune the rate of a layer on the results of `study`.

    A rate counts where most seeds met the target. One rate serves all sizes: it meets the target at
    most of them, and of such rates in the fewest steps (geometric mean). With `per_size` each size
    has the rate that is the fastest there.
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
    cells = np.arange(len(raw)), chosen
    low = np.where(np.isnan(raw), np.inf, raw)[cells].min(axis=1)
    high = np.where(np.isnan(raw), 0, raw)[cells].max(axis=1)
    values = np.stack([rates[chosen], middle[cells], low, high])
    values[:, ~met[cells]] = np.nan
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
        """Return the steps at these sizes."""
        sizes = np.asarray(sizes, float)
        return self.a + self.b * sizes if self.name == "linear" else self.a * np.exp(self.b * sizes)


def fit_laws(sizes: Any, steps: Any) -> dict[str, Law]:
    """Fit both laws by least squares of log(steps), so that their residuals can be compared.

    Sizes with NaN steps are left out; three at least must remain. Standard errors come from the
    curvature of the sum of squares and its size at the minimum, with n - 2 degrees of freedom.
    """
    sizes, steps = np.asarray(sizes, float), np.asarray(steps, float)
    met = np.isfinite(steps)
    if met.sum() < 3 or np.any(steps[met] <= 0):
        raise ValueError(f"expected positive steps at three sizes or more, got {steps}")
    h, y = sizes[met], np.log(steps[met])
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
    """Fit both laws to a layer, or return None if it met the target at fewer than three sizes."""
    steps = tuned(results, layer, per_size).steps
    return fit_laws(results["sizes"], steps) if np.isfinite(steps).sum() >= 3 else None


def better(pair: dict[str, Law], margin: float = 2.0) -> str:
    """Name the law with the lower AIC; "neither" where they differ by less than `margin`."""
    gap = pair["linear"].aic - pair["exponential"].aic
    return "neither" if abs(gap) < margin else "exponential" if gap > 0 else "linear"


def table(results: dict[str, Any]) -> Table:
    """Make two rows for each layer: with one rate for all sizes, and with the best rate of each.

    "AIC gap" is that of the linear law minus that of the exponential one; "seeds" the largest ratio
    of the steps of two seeds at one size.
    """
    title = f"{results['problem']}: steps to distortion {results['settings']['target']:g}"
    sizes = [f"h = {size}" for size in results["sizes"]]
    out = make_table(title, "layer", "rate", *sizes, "b in e^(b h)", "AIC gap", "seeds")
    for layer in results["steps"]:
        for per_size in (False, True)[: len(results["settings"]["rates"])]:
            best, pair = tuned(results, layer, per_size), laws(results, layer, per_size)
            cells = ["-" if np.isnan(steps) else f"{steps:.0f}" for steps in best.steps]
            end = ["-", "-"]
            if pair:
                law = pair["exponential"]
                end = [f"{law.b:.2f} ± {law.b_error:.2f}", f"{pair['linear'].aic - law.aic:+.1f}"]
            spread = np.nanmax(best.span[1] / best.span[0], initial=1)
            rate = "best" if per_size else f"{np.nanmax(best.rates, initial=0):g}"
            out.add_row("" if per_size else LABELS[layer], rate, *cells, *end, f"{spread:.2f}")
    return out


def main(path: tyro.conf.Positional[Path]) -> int:
    """Run every study, print the tables and write all to a file."""
    results: dict[str, Any] = {name: study(name, *sizes) for name, sizes in STUDIES.items()}
    for problem in results.values():
        make_console().print(table(problem))
    results["depth"] = by_depth()
    text = json.dumps(results) + "\n"
    write_atomic(path, lambda file: file.write(text.encode()))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
