r"""Test accuracy by method and dataset, mean and deviation over seeds (the paper's Table 1).

Each run is one `train.py`; the table is made of their folders. In the paper's setting, ResNet-18
at width 64 for 200 epochs, five-fold smaller steps at three of them:

    for seed in 0 1 2; do for model in lorentz euclidean hcnn poincare; do for data in 10 100; do
        python train.py --dataset cifar$data --data-dir ~/data --recipe paper-cifar$data \
            --model $model --seed $seed
    done; done; done
    python -m lorentz_jax.figures.table1 runs/*

How long that takes on an accelerator was not measured: none was at hand.

In the size of a test, the twelve runs took 10 minutes for the digits and 14 for Fashion-MNIST, on
two CPU cores:

    for seed in 0 1 2; do for model in lorentz euclidean hcnn poincare; do
        python train.py --model $model --seed $seed --epochs 8
        python train.py --dataset fashion_mnist --data-dir /usr/share/datasets --limit 3000 \
            --validation 300 --shift 1 --batch-size 32 --lr 0.05 --width 8 --stages 1 1 1 \
            --epochs 5 --model $model --seed $seed
    done; done
"""

import contextlib
import dataclasses
import io
import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array
from rich.table import Table

from lorentz_jax import data
from lorentz_jax.bench.timing import make_console
from lorentz_jax.training import checkpoint, run_directory
from lorentz_jax.training.build import make_plan
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.state import Arrays, merge

NAMES = {
    "lorentz": "FGG (Lorentz)",
    "euclidean": "Euclidean",
    "hcnn": "HCNN",
    "hcnn-paper": "HCNN, paper's",
    "poincare": "Poincaré",
}


@dataclass(frozen=True)
class Result:
    """The runs of one method on one dataset, in the order of their seeds.

    Attributes:
      seeds: of the runs.
      accuracy: on the test images, from 0 to 1, one a run.
      count: how many test images there are.
      seconds: that a run took, compiling included.
      settings: all that decides the numbers, besides seed, dataset and model.
    """

    seeds: tuple[int, ...]
    accuracy: tuple[float, ...]
    count: int
    seconds: tuple[float, ...]
    settings: Mapping[str, Any]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return float(np.mean(self.accuracy))

    @property
    def std(self) -> float:
        """Sample standard deviation, with n - 1; NaN of a single run."""
        return float(np.std(self.accuracy, ddof=1)) if len(self.accuracy) > 1 else float("nan")


Results = dict[tuple[str, str], Result]
"""By dataset and model."""


def collect(paths: Iterable[Path | str]) -> Results:
    """Results of finished runs.

    Raises:
      ValueError: no runs; a folder without a finished run; runs of one method and dataset that
        differ in more than the seed, with the differences; a seed that comes twice.
    """
    groups: dict[tuple[str, str], list[tuple[Path, TrainConfig, dict[str, Any]]]] = {}
    for path in map(Path, paths):
        config, summary = read_run(path)
        groups.setdefault((config.dataset, config.model), []).append((path, config, summary))
    if not groups:
        raise ValueError("expected the folders of finished runs, got none")
    return {key: _result(key, runs) for key, runs in groups.items()}


def _settings(config: TrainConfig) -> dict[str, Any]:
    apart = ("seed", "dataset", "model")
    return {k: v for k, v in config.decisive().items() if k not in apart}


def _result(key: tuple[str, str], runs: list[tuple[Path, TrainConfig, dict[str, Any]]]) -> Result:
    name = f"{key[1]} on {key[0]}"
    runs = sorted(runs, key=lambda run: run[1].seed)
    (first, _, summary), settings = runs[0], _settings(runs[0][1])
    for path, other, _ in runs[1:]:
        found = _settings(other)
        unlike = [f"{k} {settings[k]} and {found[k]}" for k in found if found[k] != settings[k]]
        if unlike:
            raise ValueError(
                f"runs of {name} may differ in their seed alone; {first} and {path} differ in "
                f"{', '.join(unlike)}"
            )
    for (path, one, _), (after, two, _) in itertools.pairwise(runs):
        if one.seed == two.seed:
            raise ValueError(f"seed {one.seed} of {name} comes twice: {path} and {after}")
    missing = [str(path) for path, _, found in runs if found.get("test_accuracy") is None]
    if missing:
        raise ValueError(f"no test accuracy in the summary of {', '.join(missing)}")
    return Result(
        seeds=tuple(other.seed for _, other, _ in runs),
        accuracy=tuple(found["test_accuracy"] for _, _, found in runs),
        count=summary["test_count"],
        seconds=tuple(found["seconds"] for _, _, found in runs),
        settings=settings,
    )


def differences(results: Results) -> dict[str, dict[str, list[str]]]:
    """Settings in which the methods of a dataset differ: by dataset, by setting, a line a method.

    Not all differences are unfair: of those settings that a model ignores, such as kappa in the
    Euclidean one, they say nothing.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for dataset in dict.fromkeys(dataset for dataset, _ in results):
        methods = {m: r.settings for (d, m), r in results.items() if d == dataset}
        first = next(iter(methods.values()))
        for field in first:
            if any(settings[field] != first[field] for settings in methods.values()):
                lines = [f"{method} {settings[field]}" for method, settings in methods.items()]
                found.setdefault(dataset, {})[field] = lines
    return found


def table(results: Results) -> Table:
    """Mean ± sample standard deviation of the test accuracy in percent, a row a method."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in results))
    methods = sorted({method for _, method in results}, key=list(NAMES).index)
    out = Table(title="test accuracy in %, mean ± std (runs)", title_justify="left")
    out.add_column("")
    for dataset in datasets:
        out.add_column(dataset, justify="right")
    out.add_column("seconds a run", justify="right")
    for method in methods:
        there = [results.get((dataset, method)) for dataset in datasets]
        seconds = " / ".join("-" if r is None else f"{np.mean(r.seconds):.0f}" for r in there)
        out.add_row(NAMES[method], *map(_cell, there), seconds)
    return out


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    spread = f" ± {100 * result.std:.2f}" if len(result.seeds) > 1 else ""
    return f"{100 * result.mean:.2f}{spread} ({len(result.seeds)})"


def run(paths: Sequence[Path | str]) -> Results:
    """`collect`, with the table printed, and below it what else differs between its methods."""
    results, console = collect(paths), make_console()
    console.print(table(results))
    for dataset, fields in differences(results).items():
        for field, lines in fields.items():
            console.print(f"{dataset}: {field} differs: {', '.join(lines)}")
    return results


def main(paths: tyro.conf.Positional[tuple[Path, ...]]) -> int:
    """Print the table of the runs in these folders."""
    try:
        run(paths)
    except ValueError as error:
        print(f"classification: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained network with the images that it knows.

    Attributes:
      config: of the run.
      dataset: what it was trained on, held-out images removed.
      graphdef, params, stats: the network after the last epoch, for `training.state.merge`.
    """

    config: TrainConfig
    dataset: data.Dataset
    graphdef: Any
    params: Arrays
    stats: Arrays

    def model(self) -> Any:
        """The network as an NNX module."""
        return merge(self.graphdef, self.params, self.stats)

    def logits(self, images: Array) -> Array:
        """Of normalised images, from one compiled program."""

        def apply(params, stats, images):
            return merge(self.graphdef, params, stats)(images, train=False)

        return jax.jit(apply)(self.params, self.stats, images)

    def images(self, count: int) -> Array:
        """The first test images, normalised as in training."""
        known, pixels = self.dataset, jnp.asarray(self.dataset.test_images[:count])
        return data.prepare(None, pixels, mean=known.mean, std=known.std, shift=0)


def read_run(path: Path | str) -> tuple[TrainConfig, dict[str, Any]]:
    """Configuration and summary of a finished run.

    Raises:
      ValueError: a folder without them, or whose files are of something else.
    """
    found = {}
    for name in ("config", "summary"):
        file = Path(path) / f"{name}.json"
        if not file.is_file():
            raise ValueError(f"{path} is not the folder of a finished run: it has no {name}.json")
        try:
            found[name] = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from None
    try:
        return TrainConfig.from_json(found["config"]), found["summary"]
    except TypeError as error:
        raise ValueError(f"{path} is a run of another version of lorentz_jax: {error}") from None


def open_run(path: Path | str) -> Trained:
    """The network of a finished run after its last epoch, from the newest checkpoint.

    Raises:
      ValueError: no finished run, or no checkpoint of it.
    """
    path = Path(path)
    config, _ = read_run(path)
    dataset = data.load(
        config.dataset, data_dir=config.data_dir, limit=config.limit, verify=config.verify
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it would announce a training
        plan = make_plan(config, dataset)
    expected = {"config": config.decisive(), "classes": dataset.num_classes}
    found = checkpoint.restore(path / run_directory.CHECKPOINTS, plan.state, expected)
    if found is None:
        raise ValueError(f"{path} has no checkpoint to take the network from")
    return Trained(config, plan.dataset, plan.graphdef, found[0].params, found[0].stats)
