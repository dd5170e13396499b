"""Trees and their smallest part, trained: steps against size, quality against depth.

Two problems of one size h:

- "pair": two nodes h edges apart, so that two outputs have to separate;
- "tree": the binary tree of depth h, with `2^(h + 1) - 1` nodes.

`STUDIES` takes long; notebook 5 shows what this command stored:

    python -m lorentz_jax.figures.trees_study notebooks/5_trees.json
"""

import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from lorentz_jax.bench.convergence import check_name
from lorentz_jax.bench.timing import environment, make_console
from lorentz_jax.figures.growth import each
from lorentz_jax.figures.tree_shapes import regular_tree, tree_distances
from lorentz_jax.figures.trees import DEFAULTS, LAYERS, Settings, apart, quality, train
from lorentz_jax.figures.trees_laws import table, verdict

PROBLEMS = {
    "tree": lambda size: tree_distances(regular_tree(2, size)),
    "pair": lambda size: size * (1 - np.eye(2, dtype=int)),
}
PAIR = Settings(edge=1.0, cap=20_000, seeds=3)
STUDIES: dict[str, tuple[tuple[int, ...], Settings]] = {
    "tree": ((2, 3, 4, 5, 6, 7, 8), replace(DEFAULTS, seeds=3)),
    "pair": ((6, 8, 10, 12, 14, 16), PAIR),
}
# Rates for `by_depth`, which does not tune.
RATES = {"fgg": 0.1, "fgg, weight norm": 0.1, "chen": 0.1, "poincare": 0.03, "euclidean": 0.1}


def study(
    problem: str, sizes: Sequence[int], settings: Settings = DEFAULTS,
    layers: Sequence[str] = tuple(LAYERS),
) -> dict[str, Any]:  # fmt: skip
    """Train each layer at each size with each rate and seed; the result is what `json` can write.

    Under "steps", by layer: steps to the target, `[size][rate][seed]`, None where it was not met.
    """
    check_name(problem, PROBLEMS, "problem")
    begin = time.perf_counter()

    def one(job: tuple[str, int]) -> list[list[int | None]]:
        found = train(job[0], PROBLEMS[problem](job[1]), settings)
        pairs = zip(found.steps.tolist(), found.reached.tolist(), strict=True)
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
    depths: Sequence[int] = (2, 4, 6), dims: Sequence[int] = (2, 5, 10),
    steps: int = 300, layers: Sequence[str] = tuple(LAYERS),
) -> dict[str, Any]:  # fmt: skip
    """How good binary trees are after a number of steps, with the rates of `RATES`.

    Under "average" and "precision", by layer: as in `Quality`, `[dim][depth]`.
    """
    begin = time.perf_counter()

    def one(job: tuple[str, int, int]) -> tuple[float, float]:
        layer, dim, depth = job
        settings = replace(DEFAULTS, dim=dim)
        q = quality(layer, regular_tree(2, depth), RATES[layer], (steps,), settings)
        return float(q.average[0]), float(q.precision[0])

    done = each(one, list(itertools.product(layers, dims, depths)))
    return {
        "depths": list(depths),
        "dims": list(dims),
        "steps": steps,
        "seconds": time.perf_counter() - begin,
    } | {
        name: {y: [[done[y, dim, h][k] for h in depths] for dim in dims] for y in layers}
        for k, name in enumerate(("average", "precision"))
    }


def separations(
    layers: Sequence[str], size: int, rate: float, steps: int, settings: Settings = PAIR
) -> dict[str, np.ndarray]:
    """Distance of two outputs that should come to be `size` apart, at each step, by layer.

    `(n,)` each, n up to `steps`; a run ends within 2 % of the distance.
    """
    settings = replace(settings, rates=(rate,), seeds=1, target=0.02, cap=steps)
    found = {}
    for layer in layers:
        course = train(layer, PROBLEMS["pair"](size), settings, range(steps))
        points = course.points[0, 0, : course.steps[0, 0]]
        found[layer] = apart(layer, points, settings.kappa)[:, 0, 1]
    return found


def main(path: tyro.conf.Positional[Path]) -> int:
    """Run every study, print the tables and write all to a file."""
    results: dict[str, Any] = {name: study(name, *sizes) for name, sizes in STUDIES.items()}
    for found in results.values():
        make_console().print(table(found))
        print(verdict(found))
    results["depth"] = by_depth()
    path.write_text(json.dumps(results) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
