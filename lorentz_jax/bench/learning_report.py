"""How fast networks learn, as data for a file, as a table, and as a plot against the steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from rich.console import Console
from rich.table import Table

from lorentz_jax import data
from lorentz_jax.bench import style
from lorentz_jax.bench.learning import Run, Trainer
from lorentz_jax.bench.timing import environment, environment_line
from lorentz_jax.training.config import TrainConfig


@dataclass(frozen=True)
class Settings:
    """What every arm is trained with.

    Attributes:
      rates, seeds: all combinations are trained.
      every: steps between two evaluations on the validation images; None for once an epoch.
      targets: validation accuracies to which the steps are counted.

    Raises:
      ValueError: none, equal or unusable numbers.
    """

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    every: int | None = None
    targets: tuple[float, ...] = (0.8, 0.9, 0.95)

    def __post_init__(self) -> None:
        def check(name: str, good: bool, what: str) -> None:
            values = getattr(self, name)
            if not good or len(set(values)) < len(values):
                raise ValueError(f"{name} must be distinct and {what}, got {values}")

        rates, seeds = self.rates, self.seeds
        positive = len(rates) > 0 and all(0 < rate < math.inf for rate in rates)
        check("rates", positive, "positive numbers, at least one")
        usable = len(seeds) > 0 and all(0 <= seed < 2**32 for seed in seeds)
        check("seeds", usable, "from 0 to 2^32 - 1, at least one")
        check("targets", all(0 < target <= 1 for target in self.targets), "in (0, 1]")
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")


def study(arms: Mapping[str, TrainConfig], settings: Settings, console: Console) -> dict[str, Any]:
    """Train all, a line each; then test each arm at its rate. The result is what `json` can write.

    Raises:
      ValueError: no arms; one that cannot be trained, found before any is.
    """
    if not arms:
        raise ValueError("expected at least one arm")
    first = next(iter(arms.values()))
    dataset = data.load(
        first.dataset, data_dir=first.data_dir, limit=first.limit, verify=first.verify
    )
    trainers = [Trainer(name, config, dataset) for name, config in arms.items()]
    steps_per_epoch = trainers[0].steps_per_epoch
    every = settings.every or steps_per_epoch
    runs: list[Run] = []
    for trainer in trainers:
        weights = {}
        for rate in settings.rates:
            for seed in settings.seeds:
                run, weights[rate, seed] = trainer.run(rate, seed, every)
                console.print(line(run, steps_per_epoch))
                runs.append(run)
        rate = best_rate(runs, trainer.name)
        for index, run in enumerate(runs):
            if (run.arm, run.rate, run.diverged) == (trainer.name, rate, False):
                test_set = np.asarray(dataset.test_images), dataset.test_labels
                test = trainer.accuracy(weights[rate, run.seed], *test_set)
                runs[index] = replace(run, test=test)
    return {
        "environment": environment(),
        "settings": asdict(settings),
        "arms": {name: config.to_json() for name, config in arms.items()},
        "steps_per_epoch": steps_per_epoch,
        "runs": [asdict(run) for run in runs],
    }


def line(run: Run, steps_per_epoch: int) -> str:
    """Format a finished run as a line for people."""
    late = "diverged" if run.diverged else f"loss {run.late_loss(steps_per_epoch):.4f}"
    return (
        f"{run.arm:<28} rate {run.rate:<6g} seed {run.seed}  {late}  "
        f"validation {run.accuracy:.4f}  {run.seconds:.1f} s"
    )


def best_rate(runs: Sequence[Run], arm: str) -> float:
    """Return the rate with the best mean validation accuracy; of equals, with the smaller loss."""

    def quality(rate: float) -> tuple[float, float]:
        group = _select(runs, arm, rate)
        losses = [run.late_loss(max(1, len(run.loss) // 10)) for run in group]
        return float(np.mean([run.accuracy for run in group])), -float(np.mean(losses))

    return max(_rates(runs, arm), key=quality)


def from_json(results: Mapping[str, Any]) -> list[Run]:
    """Return the runs of a result."""
    return [Run(**run) for run in results["runs"]]


def table(results: Mapping[str, Any]) -> Table:
    """Make a row for each arm and rate; a star marks the rate that validation chose.

    "loss" is the mean of the last epoch, "ratio" that to the smallest of the Euclidean arms.
    """
    runs, steps = from_json(results), results["steps_per_epoch"]
    targets = results["settings"]["targets"]
    names = list(dict.fromkeys(run.arm for run in runs))
    bases = [arm for arm in names if arm.startswith("euclidean")]
    losses = [_mean_loss(runs, arm, rate, steps) for arm in bases for rate in _rates(runs, arm)]
    best = min(losses, default=math.inf)
    columns = "", "rate", "loss", "ratio", "validation %", *(f"to {t:g}" for t in targets), "test %"
    out = style.make_table("learning, mean ± std over seeds", *columns)
    for arm in names:
        chosen = best_rate(runs, arm)
        for rate in _rates(runs, arm):
            group = _select(runs, arm, rate)
            lost = sum(run.diverged for run in group)
            loss = _mean_loss(runs, arm, rate, steps)
            ratio = f"{loss / best:.2f}" if 0 < best < math.inf > loss else "-"
            shown = f"{lost} of {len(group)} diverged" if lost else f"{loss:.3f}"
            validation = _percent([run.accuracy for run in group])
            tests = [run.test for run in group if run.test is not None]
            counts = [_steps(group, target) for target in targets]
            mark = f"{rate:g}{'*' if rate == chosen else ''}"
            test = _percent(tests) if tests else ""
            out.add_row(arm, mark, shown, ratio, validation, *counts, test)
    return out


def _select(runs: Sequence[Run], arm: str, rate: float) -> list[Run]:
    return [run for run in runs if run.arm == arm and run.rate == rate]


def _rates(runs: Sequence[Run], arm: str) -> list[float]:
    return list(dict.fromkeys(run.rate for run in runs if run.arm == arm))


def _mean_loss(runs: Sequence[Run], arm: str, rate: float, steps: int) -> float:
    return float(np.mean([run.late_loss(steps) for run in _select(runs, arm, rate)]))


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.2f}{spread}"


def _steps(group: Sequence[Run], target: float) -> str:
    """Format the median over the seeds, if most of them came there."""
    counts = [run.steps_to(target) for run in group]
    middle = np.median([math.inf if count is None else count for count in counts])
    return f"{middle:.0f}" if np.isfinite(middle) else "-"


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Draw training loss and validation error against steps, each arm at its rate.

    Bands span the seeds.
    """
    runs, window = from_json(results), max(1, results["steps_per_epoch"] // 4)
    figure, [[left, right]] = style.make_panels(7.2, 3.1, columns=2)
    for index, arm in enumerate(dict.fromkeys(run.arm for run in runs)):
        rate = best_rate(runs, arm)
        group = _select(runs, arm, rate)
        finished = [run for run in group if not run.diverged]
        if not finished:
            continue
        colour = style.COLOURS[index % len(style.COLOURS)]
        mean = np.ones(window) / window
        smooth = np.array([np.convolve(run.loss, mean, "valid") for run in finished])
        lost = len(group) - len(finished)
        label = f"{arm}, rate {rate:g}" + (f" ({lost} diverged)" if lost else "")
        _band(left, np.arange(smooth.shape[1]) + window, smooth, colour, label)
        errors = 100 * (1 - np.array([[value for _, value in r.validation] for r in finished]))
        _band(right, np.array([step for step, _ in finished[0].validation]), errors, colour)
    names = f"training loss, mean of {window} steps", "validation error in %"
    for axes, name in zip((left, right), names, strict=True):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.finish(axes, "steps", name)
    if left.get_legend_handles_labels()[0]:
        style.add_legend(left, 7)
    figure.savefig(path, dpi=200)


def _band(axes: Axes, steps: Any, values: Any, colour: str, label: str | None = None) -> None:
    low, high = values.min(axis=0), values.max(axis=0)
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, values.mean(axis=0), color=colour, linewidth=1.3, label=label)


def run(arms: Mapping[str, TrainConfig], settings: Settings) -> dict[str, Any]:
    """Run `study` and print its table."""
    console = style.make_console()
    console.print(environment_line(environment()))
    results = study(arms, settings, console)
    console.print(table(results))
    return results
