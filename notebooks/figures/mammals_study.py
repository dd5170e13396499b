"""Study at which dimensions hyperbolic embeddings of WordNet's mammals are better than flat ones.

The mammals of WordNet 3.0 with the relation "is a kind of", direct or not, as Nickel and Kiela
(2017) took them: 1,180 synsets and 6,540 pairs. Loss, batches and measures are those of
`relations`. Two tasks:

- "reconstruction": train on all pairs, measure on all pairs;
- "links": hold out 5 % of the pairs for validation and 5 % for test (`relations.split`; what
  follows from the other pairs is not taken out), train on the rest, measure on the test pairs
  among the nodes that u is in no pair with.

Layers are those of `edges_study`, by the same names. An embedded node is the layer's output for its
one-hot input, and "points" are free points under Riemannian Adam, which is the usual way. All
others have Adam, all start near the origin, with kappa = 1 and the same number of steps.

A seed decides the pairs held out, the start and the batches. The rate is the one with the best mean
average precision (of the validation pairs, for links) in one run with a seed of its own: three
neighbours on a grid at first, more while the best is the largest or the smallest. (The second task
begins where the first one ended.) Then five other seeds run with it.
`docs/evidence_mammals.md` has the tables:

    python -m notebooks.figures.mammals_study notebooks/evidence_mammals.json
"""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array
from rich.table import Table
from tqdm import tqdm

from lorentz_jax import functional
from lorentz_jax._src.output import check_writable, report_error, write_atomic
from lorentz_jax.bench.convergence import check_name
from lorentz_jax.bench.style import make_console, make_table
from lorentz_jax.bench.timing import environment
from lorentz_jax.hyperplane import Normals, normals
from lorentz_jax.models import chen, poincare

from . import wordnet
from .edges_study import NAMES, VARIANTS
from .relations import Batches, distances, ranking, split, trainer
from .trees import Layer, Params

__all__ = ["LAYERS", "MEASURES", "RATES", "SETTINGS", "TASKS", "Settings", "best", "cell", "climb",
           "study", "table"]  # fmt: skip

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
TASKS = ("reconstruction", "links")
MEASURES = {"precision": "mean average precision", "rank": "mean rank"}
ROOT, WITHOUT = "mammal", ("tusker", "female_mammal")
_BLOCKS = 20


def _rows(linear: Callable[..., Array], planes: Normals, x: Any, kappa: Any) -> Array:
    """Apply a layer to the inputs `x e_i`: of the weights, row i counts, and the time is that of x.

    So the product with a matrix of one-hot rows is none.
    """

    def of(row: Array) -> Array:
        return linear(jnp.full(1, x, row.dtype), replace(planes, space=row[None]), kappa)

    return jax.vmap(of)(planes.space)


def _fgg(p: Params, x: Any, kappa: Any) -> Array:
    return _rows(functional.linear, normals(p["kernel"], p["bias"], kappa), x, kappa)


def _gain(p: Params, x: Any, kappa: Any) -> Array:
    return functional.scale_distance(_fgg(p, x, kappa), jnp.exp(p["log_gain"]), kappa)


def _chen(p: Params, x: Any, kappa: Any) -> Array:
    input_ = jnp.full(1, x, p["kernel"].dtype)
    return jax.vmap(lambda row: chen.linear(input_, row[None], p["bias"], kappa))(p["kernel"])


def _poincare(p: Params, x: Any, kappa: Any) -> Array:
    planes = poincare.plane_normals(p["kernel"], p["bias"], kappa)
    return _rows(poincare.linear, planes, x, kappa)


_EMBED: dict[str, Callable[[Params, Any, Any], Array]] = {
    "euclidean": lambda p, x, kappa: x * p["kernel"] + p["bias"],
    "chen": _chen,
    "poincare": _poincare,
    "fgg": _fgg,
    "fgg, gain": _gain,
    "points": VARIANTS["points"].embed,
}
LAYERS: dict[str, Layer] = {
    name: replace(VARIANTS[name], embed=embed) for name, embed in _EMBED.items()
}
"""`VARIANTS` for one-hot inputs alone: `embed` takes the one coordinate in place of a matrix."""


@dataclass(frozen=True)
class Settings:
    """The experiment.

    Attributes:
      batches: by dimension.
      first: by layer, the place in `RATES` that the search for a rate begins at.
      kappa: curvature -kappa.
      radius: distance of the one-hot inputs from the origin.
      seeds: runs with the rate found.
      tuning: the seed of the search.
      share: of the pairs, held out for validation, and as many for test.
    """

    batches: Mapping[int, Batches]
    first: Mapping[str, int]
    kappa: float = 1.0
    radius: float = 1.0
    seeds: int = 5
    tuning: int = 100
    share: float = 0.05


SETTINGS = Settings(
    batches={
        2: Batches(2000, 128, 10, "float64"),
        5: Batches(1200, 128, 10, "float64"),
        10: Batches(1000, 128, 10, "float32"),
        50: Batches(600, 128, 10, "float32"),
    },
    first={
        "euclidean": 6, "chen": 6, "poincare": 4, "fgg": 6, "fgg, gain": 4, "points": 7,
    },
)  # fmt: skip


def climb(score: Callable[[float], float], first: int) -> dict[float, float]:
    """Return the scores of neighbours in `RATES`, so many that the best one lies between others.

    It stops at an end of the grid too. A score that is not a number is the worst.

    Args:
      score: of a rate; the larger the better.
      first: place in `RATES` to begin at.
    """
    first = min(max(first, 1), len(RATES) - 2)
    scores = {RATES[at]: score(RATES[at]) for at in (first - 1, first, first + 1)}
    while True:
        at = RATES.index(best(scores))
        ahead = [rate for rate in RATES[max(at - 1, 0) : at + 2] if rate not in scores]
        if not ahead:
            return dict(sorted(scores.items()))
        scores[ahead[0]] = score(ahead[0])


def best(scores: Mapping[float, float]) -> float:
    """Return the rate with the largest score; the least rate where none is a number."""
    return max(sorted(scores), key=lambda rate: np.nan_to_num(scores[rate], nan=-math.inf))


def study(
    related: np.ndarray, name: str, dim: int, tasks: Sequence[str], settings: Settings
) -> dict[str, Any]:
    """Tune and train one layer at one dimension for each task; `json` can write the result."""
    check_name(name, LAYERS, "layer")
    layer, first, kappa = LAYERS[name], settings.first[name], settings.kappa
    width = int(related.sum(1).max())
    coordinate = math.sinh(math.sqrt(kappa) * settings.radius) / math.sqrt(kappa)
    train = trainer(layer, coordinate, kappa, settings.batches[dim])

    def run(task: str, seed: int, rate: float, tuning: bool = False) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        shown, wanted, known = related, related, None
        if task == "links":
            parts = split(related, rng, settings.share)
            shown, known = parts.train, related
            wanted = parts.validation if tuning else parts.test
        found = train(layer.init(rng, len(related), dim), seed, rate, shown, width)
        measured = ranking(distances(layer, found.points, kappa), wanted, known)
        blocks = [float(part.mean()) for part in np.array_split(found.losses, _BLOCKS)]
        with jax.enable_x64(True):
            far = layer.dist(found.points, np.zeros_like(found.points), kappa).max()
        numbers = measured._asdict() | {"radius": float(far)}
        # JSON has no NaN.
        plain = {key: None if math.isnan(value) else value for key, value in numbers.items()}
        return plain | {"loss": [None if math.isnan(value) else value for value in blocks]}

    def one(task: str) -> dict[str, Any]:
        nonlocal first
        begin, tried = time.process_time(), {}

        def score(rate: float) -> float:
            tried[rate] = run(task, settings.tuning, rate, tuning=True)
            precision = tried[rate]["precision"]
            return math.nan if precision is None else precision

        scores = climb(score, first)
        first = RATES.index(best(scores))  # where the next task begins
        runs = [run(task, seed, best(scores)) for seed in range(settings.seeds)]
        tuning = {f"{rate:g}": tried[rate] for rate in scores}
        spent = time.process_time() - begin
        return {"rate": best(scores), "tuning": tuning, "runs": runs, "cpu_seconds": spent}

    return {task: one(task) for task in tasks}


def cell(found: Mapping[str, Any], measure: str) -> str:
    """Format the mean and the deviation of the seeds; how many failed, where some did."""
    values = [run[measure] for run in found["runs"]]
    numbers = [value for value in values if value is not None]
    if len(numbers) < max(2, len(values)):
        return f"- ({len(values) - len(numbers)} of {len(values)} failed)"
    digits = 3 if measure == "precision" else 1
    return f"{np.mean(numbers):.{digits}f} ± {np.std(numbers, ddof=1):.{digits}f}"


def table(results: Mapping[str, Any], task: str, measure: str) -> Table:
    """Make a row for each layer and a column for each dimension; a dot where there is no result."""
    dims = list(results["settings"]["batches"])
    out = make_table(f"{task}: {MEASURES[measure]}", "layer", *(f"D = {dim}" for dim in dims))
    for name in LAYERS:
        parts = [results["parts"].get(f"{name}, {dim}", {}).get(task) for dim in dims]
        out.add_row(NAMES[name], *(cell(part, measure) if part else "." for part in parts))
    return out


def main(
    path: tyro.conf.Positional[Path],
    data: Path = wordnet.DEFAULT,
    only: tuple[str, ...] = tuple(LAYERS),
    dims: tuple[int, ...] = tuple(SETTINGS.batches),
    tasks: tuple[str, ...] = TASKS,
    missing: bool = False,
    longer: int = 1,
) -> int:
    """Run the study, write each part as it is done, and print the tables.

    Args:
      path: a JSON file; parts of it that are not run again stay.
      data: the nouns of WordNet 3.0, `data.noun`.
      only: the layers.
      dims: the dimensions.
      tasks: the tasks.
      missing: leave out parts that the file has.
      longer: multiplies the steps of every run, in a file of its own.
    """
    try:
        batches = {d: replace(b, steps=longer * b.steps) for d, b in SETTINGS.batches.items()}
        settings = replace(SETTINGS, batches=batches)
        for values, names, what in ((only, LAYERS, "layer"), (tasks, TASKS, "task")):
            for value in values:
                check_name(value, names, what)
        for dim in dims:
            check_name(str(dim), map(str, batches), "dimension")
        related = wordnet.taxonomy(wordnet.read(data), ROOT, WITHOUT).related
        results = _opened(path, related, settings)
        check_writable(path)
    except (OSError, ValueError) as error:
        return report_error("mammals_study", error, 2)
    for dim, name in tqdm([(d, n) for d in dims for n in only], unit="part", disable=None):
        part = results["parts"].setdefault(f"{name}, {dim}", {})
        wanted = [task for task in tasks if not (missing and task in part)]
        if wanted:
            part.update(study(related, name, dim, wanted, settings))
            text = json.dumps(results) + "\n"
            write_atomic(path, lambda file, text=text: file.write(text.encode()))
    for task in tasks:
        for measure in MEASURES:
            make_console().print(table(results, task, measure))
    return 0


def _opened(path: Path, related: np.ndarray, settings: Settings) -> dict[str, Any]:
    """Return what the file has, or a beginning; `ValueError` where it is of another study."""
    head = {
        "environment": environment(),
        "nodes": len(related),
        "pairs": int(related.sum()),
        "settings": json.loads(json.dumps(asdict(settings))),
    }
    if not path.exists():
        return head | {"parts": {}}
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not isinstance(found.get("parts"), dict):
        raise ValueError(f"{path} has no results of this study")
    for key in ("nodes", "pairs", "settings"):
        if found.get(key) != head[key]:
            raise ValueError(f"{path} has {key} {found.get(key)}, this study {head[key]}")
    return found


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
