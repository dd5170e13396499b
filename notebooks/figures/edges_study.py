"""Study what length costs apart from size: one tree, or trees of one size, that grow longer.

Four studies, each of the steps until the average distortion is below a target:

- "edges": the binary tree of depth 4, the wanted length of an edge from problem to problem longer;
- "ramp": the same, but the wanted length grows during training, by 0.01 a step;
- "shapes": trees of 31 nodes and growing depth: spiders, from star to path, and caterpillars;
- "sgd": as "edges", with SGD in place of Adam.

The layers of `trees` and variants of them, which differ in where the scale of an output acts: on
the argument of asinh ("inside"), or on the distance itself ("outside", a gain). "points" has no
layer: the embedded points are the parameters, and Riemannian Adam or Riemannian SGD moves them.
With one-hot inputs every node has a free row of weights, so this is the natural gradient of all
hyperbolic layers. Every layer has its best rate at each size. `docs/trees.md` has the tables. A
study is written when it is done; "edges" takes eleven minutes on two cores:

    python -m notebooks.figures.edges_study notebooks/5_edges.json --only edges
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import Array
from rich.table import Table
from tqdm import tqdm

from lorentz_jax import functional, optim
from lorentz_jax._src.output import check_writable, report_error, write_atomic
from lorentz_jax.bench.convergence import check_name
from lorentz_jax.bench.style import make_console, make_table
from lorentz_jax.bench.timing import environment
from lorentz_jax.hyperplane import normals
from lorentz_jax.models import poincare

from .growth import LAYERS as GROWTH
from .growth import each
from .tree_shapes import caterpillar, regular_tree, spider, tree_distances
from .trees import DEFAULTS, LABELS, LAYERS, Layer, Params, Settings, train

__all__ = ["NAMES", "STUDIES", "VARIANTS", "Study", "best", "study", "table"]


def _start(rng: np.random.Generator, nodes: int, dim: int, units: int | None = None) -> Params:
    """Draw the start of "fgg", with the logarithms of gains of 1: one for each unit, or `units`."""
    return dict(LAYERS["fgg"].init(rng, nodes, dim)) | {"log_gain": np.zeros(units or dim)}


def _gain(p: Params, x: Any, kappa: Any) -> Array:
    y = GROWTH["fgg"](p, x, kappa)
    return functional.scale_distance(y, jnp.exp(p["log_gain"]), kappa)


def _linear_gain(p: Params, x: Any, kappa: Any) -> Array:
    return functional.scale_distance(GROWTH["fgg"](p, x, kappa), 1 + p["log_gain"], kappa)


def _one_gain(p: Params, x: Any, kappa: Any) -> Array:
    y = GROWTH["fgg"](p, x, kappa)
    return functional.scale_distance(y, jnp.exp(p["log_gain"][0]), kappa)


def _outside(p: Params, x: Any, kappa: Any) -> Array:
    """FGG's hyperplanes under the scale of a Poincare layer, `sinh(|w| asinh(s z/|w|))/s`."""
    return poincare.linear(x, normals(p["kernel"], p["bias"], kappa), kappa)


def _inside(p: Params, x: Any, kappa: Any) -> Array:
    """The hyperplanes of a Poincare layer under the scale of FGG, `z`."""
    planes = poincare.plane_normals(p["kernel"], p["bias"], kappa)
    return functional.linear(x, planes, kappa)


def _normed_gain(p: Params, x: Any, kappa: Any) -> Array:
    y = LAYERS["fgg, weight norm"].embed(p, x, kappa)
    return functional.scale_distance(y, jnp.exp(p["log_gain"]), kappa)


def _normed_start(rng: np.random.Generator, nodes: int, dim: int, bias: float = 0.0) -> Params:
    start = LAYERS["fgg, weight norm"].init(rng, nodes, dim)
    return dict(start) | {"bias": np.full(dim, bias)}


def _normed_gain_start(rng: np.random.Generator, nodes: int, dim: int) -> Params:
    return dict(_normed_start(rng, nodes, dim)) | {"log_gain": np.zeros(dim)}


def _free(rng: np.random.Generator, nodes: int, dim: int) -> Params:
    return {"points": LAYERS["fgg"].init(rng, nodes, dim)["kernel"]}


def _riemannian_adam(rate: Any) -> optax.GradientTransformation:
    return optim.riemannian_adam(rate, kappa=DEFAULTS.kappa)


def _riemannian_sgd(rate: Any) -> optax.GradientTransformation:
    return optim.riemannian_sgd(rate, kappa=DEFAULTS.kappa)


_POINTS = Layer(_free, lambda p, x, kappa: p["points"])

VARIANTS: dict[str, Layer] = LAYERS | {
    "fgg, weight norm, b = 0": replace(LAYERS["fgg, weight norm"], init=_normed_start),
    "fgg, outside": replace(LAYERS["fgg"], embed=_outside),
    "poincare, inside": replace(LAYERS["poincare"], embed=_inside),
    "fgg, gain": Layer(_start, _gain),
    "fgg, linear gain": Layer(_start, _linear_gain),
    "fgg, one gain": Layer(partial(_start, units=1), _one_gain),
    "fgg, weight norm, gain": Layer(_normed_gain_start, _normed_gain),
    "points": replace(_POINTS, optimiser=_riemannian_adam),
    "points, sgd": replace(_POINTS, optimiser=_riemannian_sgd),
}
NAMES = LABELS | {
    "fgg, weight norm": "FGG, weight norm, b = -0.5",
    "fgg, weight norm, b = 0": "FGG, weight norm, b = 0",
    "fgg, outside": "FGG, scale outside",
    "poincare, inside": "Poincaré, scale inside",
    "fgg, gain": "FGG, a gain e^g for each unit",
    "fgg, linear gain": "FGG, a gain 1 + g for each unit",
    "fgg, one gain": "FGG, one gain e^g",
    "fgg, weight norm, gain": "FGG, weight norm, gain e^g",
    "points": "points, Riemannian Adam",
    "points, sgd": "points, Riemannian SGD",
}


@dataclass(frozen=True)
class Study:
    """A row of problems.

    Attributes:
      problems: by title: the numbers of edges between nodes, and the wanted length of an edge.
      layers: names of `VARIANTS`.
      settings: of every run, but for the edge.
      sgd: whether layers without an optimiser of their own are trained with SGD.
    """

    problems: Mapping[str, tuple[np.ndarray, float]]
    layers: Sequence[str]
    settings: Settings
    sgd: bool = False


_TREE = tree_distances(regular_tree(2, 4))
_SETTINGS = replace(DEFAULTS, seeds=3, cap=3000, rates=(0.01, 0.03, 0.1, 0.3))
_SHAPES = {
    "star, depth 1": spider(30, 1), "spider, 2": spider(15, 2), "spider, 3": spider(10, 3),
    "spider, 5": spider(6, 5), "caterpillar, 6": caterpillar(5, 5), "spider, 10": spider(3, 10),
    "caterpillar, 11": caterpillar(10, 2), "path, 15": spider(2, 15),
}  # fmt: skip
_SCALES = (
    "euclidean", "poincare", "chen", "fgg", "fgg, weight norm, b = 0", "fgg, outside", "fgg, gain",
    "fgg, weight norm, gain",
)  # fmt: skip
_CORE = ("euclidean", "poincare", "fgg", "fgg, gain", "fgg, weight norm, b = 0", "chen")
STUDIES = {
    "edges": Study(
        {f"{edge:g}": (_TREE, edge) for edge in (0.5, 1, 2, 3, 4, 6)},
        tuple(name for name in VARIANTS if name != "points, sgd"),
        _SETTINGS,
    ),
    "ramp": Study(
        {f"{edge:g}": (_TREE, edge) for edge in (1, 2, 3, 4, 6, 8)},
        _SCALES,
        replace(_SETTINGS, ramp=100.0),
    ),
    "shapes": Study(
        {title: (tree_distances(tree), 1.0) for title, tree in _SHAPES.items()}, _CORE, _SETTINGS
    ),
    "sgd": Study(
        {f"{edge:g}": (_TREE, edge) for edge in (0.5, 1, 2, 3, 4)},
        ("euclidean", "poincare", "fgg", "fgg, gain", "points, sgd"),
        replace(_SETTINGS, rates=(1.0, 10.0, 100.0, 1000.0)),
        sgd=True,
    ),
}


def study(what: Study) -> dict[str, Any]:
    """Train every layer on every problem with each rate and seed; `json` can write the result.

    Under "steps", by layer: steps to the target, `[problem][rate][seed]`, None where it was missed.
    """
    for name in what.layers:
        check_name(name, VARIANTS, "layer")
    begin = time.perf_counter()
    jobs = [(layer, title) for title in reversed(list(what.problems)) for layer in what.layers]
    progress = tqdm(total=len(jobs), unit="job", disable=None)

    def one(job: tuple[str, str]) -> list[list[int | None]]:
        layer, (edges, edge) = VARIANTS[job[0]], what.problems[job[1]]
        if what.sgd and layer.optimiser is None:
            layer = replace(layer, optimiser=optax.sgd)
        course = train(layer, edges, replace(what.settings, edge=edge))
        pairs = zip(course.steps.tolist(), course.reached.tolist(), strict=True)
        progress.update()
        return [[n if met else None for n, met in zip(*row, strict=True)] for row in pairs]

    with progress:
        done = each(one, jobs)
    return {
        "environment": environment(),
        "problems": list(what.problems),
        "settings": asdict(what.settings),
        "seconds": time.perf_counter() - begin,
        "steps": {y: [done[y, title] for title in what.problems] for y in what.layers},
    }


def best(rows: Sequence[Sequence[int | None]]) -> tuple[float, int]:
    """Return the median steps of the seeds at the best rate of one problem, and how many met it.

    A run that missed the target counts as infinite, so that the median is NaN where most did. The
    best rate is the one with the least median, then with the most seeds that met the target.
    """
    steps = np.array([[math.inf if n is None else n for n in row] for row in rows])
    median, met = np.median(steps, axis=1), np.isfinite(steps).sum(axis=1)
    at = min(range(len(steps)), key=lambda i: (median[i], -met[i]))
    return (float(median[at]) if np.isfinite(median[at]) else math.nan), int(met.max())


def cell(rows: Sequence[Sequence[int | None]]) -> str:
    """Format `best`: steps, or how many seeds met a target that most missed."""
    median, met = best(rows)
    return f"- ({met}/{len(rows[0])})" if math.isnan(median) else f"{median:.0f}"


def table(title: str, results: dict[str, Any]) -> Table:
    """Make a row for each layer; beside a miss stands how many seeds met the target at a rate."""
    heading = f"{title}: steps to distortion {results['settings']['target']:g}"
    out = make_table(heading, "layer", *results["problems"])
    for layer, problems in results["steps"].items():
        out.add_row(NAMES[layer], *map(cell, problems))
    return out


def main(path: tyro.conf.Positional[Path], only: tuple[str, ...] = tuple(STUDIES)) -> int:
    """Run the studies, print their tables and write all to a file.

    Args:
      path: a JSON file; studies of it that are not run again stay.
      only: the studies to run.
    """
    try:
        for name in only:
            check_name(name, STUDIES, "study")
        results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not isinstance(results, dict) or results.keys() - STUDIES.keys():
            raise ValueError(f"{path} has no results of this study")
        check_writable(path)
    except (OSError, ValueError) as error:
        return report_error("edges_study", error, 2)
    for name in only:
        results[name] = study(STUDIES[name])
        make_console().print(table(name, results[name]))
        text = json.dumps(results) + "\n"
        write_atomic(path, lambda file, text=text: file.write(text.encode()))
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
