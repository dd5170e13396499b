r"""Read finished runs: the table of their accuracies (the paper's Table 1), and their networks.

Each run is one `train.py`, and this command prints mean and deviation over seeds of the test
accuracy by method and dataset. In the paper's setting, ResNet-18 at width 64 for 200 epochs,
five-fold smaller steps at three of them:

    for seed in 0 1 2; do for model in lorentz euclidean hcnn poincare; do for data in 10 100; do
        python train.py --dataset cifar$data --data-dir ~/data --recipe paper-cifar$data \
            --model $model --seed $seed
    done; done; done
    python -m notebooks.figures.table1 runs/*

How long that takes was not measured. `notebooks/README.md` has the table in the size of a test.
"""

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
from lorentz_jax.bench.style import make_console, make_table
from lorentz_jax.training import load_run
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.state import Arrays, merge, split

__all__ = [
    "NAMES",
    "Result",
    "Results",
    "Trained",
    "collect",
    "differences",
    "main",
    "open_run",
    "read_run",
    "run",
    "table",
]

NAMES = {
    "lorentz": "FGG (Lorentz)",
    "euclidean": "Euclidean",
    "hcnn": "HCNN",
    "hcnn-paper": "HCNN, paper's",
    "poincare": "Poincaré",
}
"""Methods of the table by model, in its order."""


def read_run(path: Path | str) -> tuple[TrainConfig, dict[str, Any]]:
    """Return configuration and summary of a finished run.

    Raises:
      ValueError: a folder without them, or whose files are of something else.
    """
    values = {}
    for name in ("config", "summary"):
        file = Path(path) / f"{name}.json"
        if not file.is_file():
            raise ValueError(f"{path} is not the folder of a finished run: it has no {name}.json")
        try:
            values[name] = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from None
    try:
        return TrainConfig.from_json(values["config"]), values["summary"]
    except TypeError as error:
        raise ValueError(f"{path} is a run of another version of lorentz_jax: {error}") from None


@dataclass(frozen=True)
class Trained:
    """A trained network with the images that it knows.

    Attributes:
      config: of the run.
      dataset: what it was trained on, held-out images removed.
      graphdef, params, stats: the network that the run reports, for `training.state.merge`.
    """

    config: TrainConfig
    dataset: data.Dataset
    graphdef: Any
    params: Arrays
    stats: Arrays

    def model(self) -> Any:
        """Return the network as an NNX module."""
        return merge(self.graphdef, self.params, self.stats)

    def logits(self, images: Array) -> Array:
        """Return the logits of normalised images, from one compiled program."""

        def apply(params, stats, images):
            return merge(self.graphdef, params, stats)(images, train=False)

        return jax.jit(apply)(self.params, self.stats, images)

    def images(self, count: int) -> Array:
        """Return the first test images, normalised as in training."""
        known, pixels = self.dataset, jnp.asarray(self.dataset.test_images[:count])
        return data.prepare(None, pixels, mean=known.mean, std=known.std, shift=0)


def open_run(path: Path | str) -> Trained:
    """Open the network that a finished run reports, with its dataset.

    Raises:
      ValueError: no finished run, or its files are damaged.
      OSError: a file that is not there.
    """
    config, run = read_run(path)[0], load_run(path)
    dataset = data.load(
        config.dataset, data_dir=config.data_dir, limit=config.limit, verify=config.verify
    )
    dataset, _ = dataset.hold_out(config.validation, config.seed)
    return Trained(config, dataset, *split(run.model))


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
    """Collect the results of finished runs.

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
    first, settings = runs[0][0], _settings(runs[0][1])
    for path, config, _ in runs[1:]:
        values = _settings(config)
        unlike = [f"{k} {settings[k]} and {v}" for k, v in values.items() if v != settings[k]]
        if unlike:
            raise ValueError(
                f"runs of {name} may differ in their seed alone; {first} and {path} differ in "
                f"{', '.join(unlike)}"
            )
    for (path, one, _), (after, two, _) in itertools.pairwise(runs):
        if one.seed == two.seed:
            raise ValueError(f"seed {one.seed} of {name} comes twice: {path} and {after}")
    summaries = [values for _, _, values in runs]
    missing = [str(path) for path, _, values in runs if values.get("test_accuracy") is None]
    if missing:
        raise ValueError(f"no test accuracy in the summary of {', '.join(missing)}")
    return Result(
        seeds=tuple(config.seed for _, config, _ in runs),
        accuracy=tuple(summary["test_accuracy"] for summary in summaries),
        count=summaries[0]["test_count"],
        seconds=tuple(summary["seconds"] for summary in summaries),
        settings=settings,
    )


def differences(results: Results) -> dict[str, dict[str, list[str]]]:
    """List the settings in which the methods of a dataset differ, by dataset and setting.

    Not every difference is unfair: a model may ignore the setting, as the Euclidean one does kappa.
    """
    unlike: dict[str, dict[str, list[str]]] = {}
    for dataset in dict.fromkeys(dataset for dataset, _ in results):
        methods = {m: r.settings for (d, m), r in results.items() if d == dataset}
        first = next(iter(methods.values()))
        for field in first:
            if any(settings[field] != first[field] for settings in methods.values()):
                lines = [f"{method} {settings[field]}" for method, settings in methods.items()]
                unlike.setdefault(dataset, {})[field] = lines
    return unlike


def table(results: Results) -> Table:
    """Make a row for each method: mean ± sample deviation of the test accuracy in percent."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in results))
    methods = sorted({method for _, method in results}, key=list(NAMES).index)
    columns = "", *datasets, "seconds a run"
    out = make_table("test accuracy in %, mean ± std (runs)", *columns)
    for method in methods:
        row = [results.get((dataset, method)) for dataset in datasets]
        seconds = " / ".join("-" if r is None else f"{np.mean(r.seconds):.0f}" for r in row)
        out.add_row(NAMES[method], *map(_cell, row), seconds)
    return out


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    spread = f" ± {100 * result.std:.2f}" if len(result.seeds) > 1 else ""
    return f"{100 * result.mean:.2f}{spread} ({len(result.seeds)})"


def run(paths: Sequence[Path | str]) -> Results:
    """Collect and print the table, and below it what else differs between its methods."""
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
        print(f"table1: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
