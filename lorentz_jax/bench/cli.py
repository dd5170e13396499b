"""Benchmarks: `python bench.py --help` (or `lorentz-bench --help`) lists them.

Those that measure time run all their arms interleaved in one process and print ratios to the first
arm; `convergence` counts the steps of the paper's Figure 2, `learning` trains networks, `numerics`
measures errors, `cost` the programs of single functions. `--json FILE` and `--plot FILE` keep the
results. `python bench.py compare A B` prints two JSON files side by side, if they come from the
same device.
"""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from lorentz_jax._src.extras import require

require("lorentz_jax.bench", "bench", "flax", "tyro", "rich", "matplotlib", "mpmath")

import jax
import tyro

from lorentz_jax._src.archive import file_size, parse_json
from lorentz_jax._src.arguments import check_sizes
from lorentz_jax._src.output import report_error
from lorentz_jax.bench import (
    convergence,
    convergence_report,
    cost,
    learning,
    learning_report,
    timing,
)
from lorentz_jax.bench.options import Files, Outcome
from lorentz_jax.bench.timed import Timed
from lorentz_jax.training.config import INDIFFERENT, TrainConfig


@dataclass(frozen=True)
class Convergence(Files):
    """Steps until a hyperplane at a given distance is fitted (the paper's Figure 2)."""

    methods: tuple[str, ...] = convergence.FIGURE
    """Keys of `bench.convergence.METHODS`."""
    distances: tuple[float, ...] = tuple(range(1, 20))
    cap: int = 10_000
    """Give up after so many steps."""
    seeds: int = 5
    """Random starts, where a method has them."""

    def check(self) -> None:
        """Refuse methods that there are not and distances that none can reach, too."""
        super().check()
        convergence.check(*self._what())

    def run(self) -> Outcome:
        """Fit and print the table."""
        return convergence_report.run(*self._what()), convergence_report.plot

    def _what(self) -> tuple[dict[str, convergence.Method], convergence.Settings]:
        settings = convergence.Settings(distances=self.distances, cap=self.cap, seeds=self.seeds)
        return convergence.select(self.methods), settings


@dataclass(frozen=True)
class Numerics(Files):
    """Errors of every function and its gradients in ulps, against 50 digits (needs mpmath)."""

    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16")
    samples: int = 100
    """Points of the grid for each function."""
    functions: tuple[str, ...] = ()
    """Rows of the table, or modules of the package; all by default."""
    peers: bool = False
    """Add the functions of the hyperbolix package, which must be installed."""

    def run(self) -> Outcome:
        """Measure and print a table for each dtype."""
        try:
            from lorentz_jax.bench.numerics import measure
        except ModuleNotFoundError as error:
            raise ValueError(f"numerics needs mpmath (pip install mpmath): {error}") from error
        return measure.run(self.dtypes, self.samples, self.functions, self.peers), measure.plot


@dataclass(frozen=True)
class Cost(Files):
    """What the gradient of every function of `geometry` costs to compile, to call and in memory."""

    functions: tuple[str, ...] = ()
    """Functions of `geometry`; all by default."""
    batch: int = 64
    width: int = 8
    peers: bool = False
    """Add the functions of the hyperbolix package, which must be installed."""
    repeats: int = 3
    """How often each program is compiled; the least time counts."""
    rounds: int = 20
    """Rounds of 100 calls of each program; the least time counts."""

    def check(self) -> None:
        """Refuse functions that there are not, too."""
        super().check()
        check_sizes(**{"--repeats": self.repeats, "--rounds": self.rounds})
        cost.select(self.functions)

    def run(self) -> Outcome:
        """Measure and print the table."""
        options = (self.batch, self.width, self.peers, self.repeats, self.rounds)
        return cost.run(self.functions, *options), cost.plot


# Flags of `train.py` that would do nothing: arms, rates and seeds choose it, or it is about one run
# and its files.
_IDLE = {"model", "kappa", "init", "optimiser", "lr", "seed", *INDIFFERENT} - {"data_dir", "verify"}
_HIDDEN = [
    (field.name, tyro.conf.Suppress[tyro.conf.Fixed[field.type]], field.default)
    for field in dataclasses.fields(TrainConfig)
    if field.name in _IDLE
]
_Visible: Any = dataclasses.make_dataclass("_Visible", _HIDDEN, bases=(TrainConfig,), frozen=True)


@dataclass(frozen=True)
class Shared(_Visible):
    """Options of `train.py` that all arms share."""

    validation: int = 237
    """Training images to choose the learning rate on; the test images are read at that one."""
    epochs: int = 3
    """Passes over the training set."""

    def __post_init__(self) -> None:
        """Check nothing yet: tyro would wrap the message into a box."""


@dataclass(frozen=True)
class Learning(Files):
    """How fast networks learn by step: all combinations of arms, learning rates and seeds."""

    shared: Annotated[Shared, tyro.conf.arg(name="")] = Shared()
    models: tuple[str, ...] = ("euclidean", "lorentz")
    """Networks, as in `train.py`."""
    kappas: tuple[float, ...] = (0.1, 1.0)
    """Curvatures are -kappa; each of those networks that have one is trained with each."""
    presets: tuple[str, ...] = ("fast",)
    """Initial values, `fast` or `paper`; as for `kappas`."""
    optimisers: tuple[str, ...] = ("sgd",)
    """`sgd`, `adamw` or `muon`; each network is trained with each."""
    rates: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    """Learning rates, each tried in every arm."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of initial values, order and augmentation, each with every rate."""
    every: int | None = None
    """Steps between evaluations on the validation images; once an epoch by default."""
    targets: tuple[float, ...] = (0.8, 0.9, 0.95)
    """Validation accuracies to count the steps to."""

    def run(self) -> Outcome:
        """Train and print the table."""
        config = TrainConfig(**vars(self.shared))
        arms = learning.arms(config, self.models, self.kappas, self.presets, self.optimisers)
        settings = learning_report.Settings(self.rates, self.seeds, self.every, self.targets)
        return learning_report.run(arms, settings), learning_report.plot


@dataclass(frozen=True)
class Compare:
    """Print the ratios of two JSON files of one device side by side."""

    first: tyro.conf.Positional[Path]
    second: tyro.conf.Positional[Path]

    def run(self) -> str:
        """Return the text to print."""
        return timing.compare(*(self._read(path) for path in (self.first, self.second)))

    @staticmethod
    def _read(path: Path) -> Any:
        file_size(path, "a JSON file")
        try:
            return timing.measured(parse_json(path.read_bytes()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


Command = Timed | Convergence | Learning | Numerics | Cost | Compare


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; return the exit status."""
    command = tyro.cli(Command, prog=Path(sys.argv[0]).name, description=__doc__, args=arguments)
    try:
        if isinstance(command, Compare):
            print(command.run())
            return 0
        command.check()
        command.write(*command.run())
    except KeyboardInterrupt:
        return report_error("bench.py", "interrupted", 130)
    except (ArithmeticError, MemoryError, jax.errors.JaxRuntimeError) as error:
        return report_error("bench.py", str(error) or type(error).__name__, 1)
    except (ValueError, TypeError, OSError) as error:
        return report_error("bench.py", error, 2)
    return 0
