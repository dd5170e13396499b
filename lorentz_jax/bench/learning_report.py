"""The study of learning as data for a file, as a table, and as a plot against the steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from lorentz_jax import data
from lorentz_jax.bench.learning import Run, Trainer
from lorentz_jax.bench.timing import COLOURS, environment, environment_line, make_console
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
        rates, seeds, targets = self.rates, self.seeds, self.targets
        good = rates and all(0 < rate < math.inf for rate in rates)
        _check("rates", rates, good, "positive numbers, at least one")
        good = seeds and all(0 <= seed < 2**32 for seed in seeds)
        _check("seeds", seeds, good, "from 0 to 2^32 - 1, at least one")
        _check("targets", targets, all(0 < target <= 1 for target in targets), "in (0, 1]")
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")


def _check(name: str, values: Sequence[Any], good: Any, what: str) -> None:
    if not good or len(set(values)) < len(values):
        raise ValueError(f"{name} must be different and {what}, got {values}")


def study(arms: Mapping[str, TrainConfig], settings: Settings, console: Console) -> dict[str, Any]:
    """Train all, a line each; then test each arm at its rate. The result is what `json` can write.

    Raises:
      ValueError: no arms; one that cannot be trained, found before any is.
    """
    if not arms:
        raise ValueError("expected at least one arm")
    first = next(iter(arms.values()))
    dataset = data.load(first.dataset, data_dir=first.data_dir, limit=first.limit)
    trainers = [Trainer(name, config, dataset) for name, config in arms.items()]
    steps_per_epoch = trainers[0].steps_per_epoch
    every = settings.every or steps_per_epoch
    runs: list[Run] = []
    for trainer in trainers:
        name, weights = trainer.name, {}
        for rate in settings.rates:
            for seed in settings.seeds:
                run, weights[rate, seed] = trainer.run(rate, seed, every)
                console.print(line(run, steps_per_epoch))
                runs.append(run)
        rate = best_rate(runs, name)
        for index, run in enumerate(runs):
            if run.arm == name and run.rate == rate and not run.diverged:
                test = trainer.accuracy(
                    weights[rate, run.seed], dataset.test_images, dataset.test_labels
                )
                runs[index] = replace(run, test=test)
    return {
        "environment": environment(),
        "settings": asdict(settings),
        "arms": {name: config.to_json() for name, config in arms.items()},
        "steps_per_epoch": steps_per_epoch,
        "runs": [asdict(run) for run in runs],
    }


def line(run: Run, steps_per_epoch: int) -> str:
    """A finished run as a line for people."""
    late = "diverged" if run.diverged else f"loss {run.late_loss(steps_per_epoch):.4f}"
    return (
        f"{run.arm:<28} rate {run.rate:<6g} seed {run.seed}  {late}  "
        f"validation {run.accuracy:.4f}  {run.seconds:.1f} s"
    )


def best_rate(runs: Sequence[Run], arm: str) -> float:
    """The rate with the best mean validation accuracy at the end, of equals the smaller loss."""
    own = [run for run in runs if run.arm == arm]

    def quality(rate: float) -> tuple[float, float]:
        group = [run for run in own if run.rate == rate]
        losses = [run.late_loss(max(1, len(run.loss) // 10)) for run in group]
        return float(np.mean([run.accuracy for run in group])), -float(np.mean(losses))

    return max(dict.fromkeys(run.rate for run in own), key=quality)


def from_json(results: Mapping[str, Any]) -> list[Run]:
    """The runs of a result."""
    return [Run(**run) for run in results["runs"]]


def table(results: Mapping[str, Any]) -> Table:
    """A row for each arm and rate; a star marks the rate that validation chose.

    "loss" is the mean of the last epoch, "ratio" that to the smallest of the Euclidean arms.
    """
    runs, steps = from_json(results), results["steps_per_epoch"]
    targets = results["settings"]["targets"]
    bases = [arm for arm in dict.fromkeys(run.arm for run in runs) if arm.startswith("euclidean")]
    losses = [_mean_loss(runs, arm, rate, steps) for arm in bases for rate in _rates(runs, arm)]
    best = min(losses, default=math.inf)
    out = Table(title="learning, mean ± std over seeds", title_justify="left")
    names = ("", "rate", "loss", "ratio", "validation %", *(f"to {t:g}" for t in targets), "test %")
    for name in names:
        out.add_column(name, justify="right" if name else "left")
    for arm in dict.fromkeys(run.arm for run in runs):
        chosen = best_rate(runs, arm)
        for rate in _rates(runs, arm):
            group = [run for run in runs if run.arm == arm and run.rate == rate]
            lost = sum(run.diverged for run in group)
            loss = _mean_loss(runs, arm, rate, steps)
            ratio = f"{loss / best:.2f}" if 0 < best < math.inf > loss else "-"
            shown = f"{lost} of {len(group)} diverged" if lost else f"{loss:.3f}"
            tests = [run.test for run in group if run.test is not None]
            out.add_row(
                arm, f"{rate:g}{'*' if rate == chosen else ''}", shown, ratio,
                _percent([run.accuracy for run in group]),
                *(_steps(group, target) for target in targets),
                _percent(tests) if tests else "",
            )  # fmt: skip
    return out


def _rates(runs: Sequence[Run], arm: str) -> list[float]:
    return list(dict.fromkeys(run.rate for run in runs if run.arm == arm))


def _mean_loss(runs: Sequence[Run], arm: str, rate: float, steps: int) -> float:
    own = [run.late_loss(steps) for run in runs if run.arm == arm and run.rate == rate]
    return float(np.mean(own))


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.2f}{spread}"


def _steps(group: Sequence[Run], target: float) -> str:
    """Median over the seeds, if most of them came there."""
    counts = [run.steps_to(target) for run in group]
    middle = np.median([math.inf if count is None else count for count in counts])
    return f"{middle:.0f}" if np.isfinite(middle) else "-"


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Training loss and validation error against steps, each arm at its rate; bands span seeds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    runs, window = from_json(results), max(1, results["steps_per_epoch"] // 4)
    figure = Figure(figsize=(7.2, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, arm in enumerate(dict.fromkeys(run.arm for run in runs)):
        rate = best_rate(runs, arm)
        group = [r for r in runs if r.arm == arm and r.rate == rate and not r.diverged]
        if not group:
            continue
        colour = COLOURS[index % len(COLOURS)]
        smooth = np.array([np.convolve(r.loss, np.ones(window) / window, "valid") for r in group])
        steps = np.arange(smooth.shape[1]) + window
        started = sum(r.arm == arm and r.rate == rate for r in runs)
        lost = f" ({started - len(group)} diverged)" if len(group) < started else ""
        _band(left, steps, smooth, colour, f"{arm}, rate {rate:g}{lost}")
        errors = 100 * (1 - np.array([[value for _, value in r.validation] for r in group]))
        _band(right, np.array([step for step, _ in group[0].validation]), errors, colour, None)
    left.set_ylabel(f"training loss, mean of {window} steps", fontsize=8)
    right.set_ylabel("validation error in %", fontsize=8)
    for axes in (left, right):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("steps", fontsize=8)
        axes.tick_params(labelsize=8, which="both")
        axes.grid(alpha=0.25, linewidth=0.5)
    if left.get_legend_handles_labels()[0]:
        left.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=200)


def _band(axes: Any, steps: Any, values: Any, colour: str, label: str | None) -> None:
    axes.fill_between(
        steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0
    )
    axes.plot(steps, values.mean(axis=0), color=colour, linewidth=1.3, label=label)


def run(arms: Mapping[str, TrainConfig], settings: Settings) -> dict[str, Any]:
    """`study`, with its table printed."""
    console = make_console()
    console.print(environment_line(environment()))
    results = study(arms, settings, console)
    console.print(table(results))
    return results
