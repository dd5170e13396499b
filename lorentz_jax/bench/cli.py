"""Benchmarks: `python bench.py --help` (or `lorentz-bench --help`) lists them.

Those that measure time run all their arms interleaved in one process and print ratios to the first
arm; `convergence` counts the steps of the paper's Figure 2, `learning` trains networks, `numerics`
measures errors, `cost` the programs of single functions. `--json FILE` and `--plot FILE` keep the
results. `python bench.py compare A B` prints two JSON files side by side, if they come from the
same device.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
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
    accelerator,
    convergence,
    convergence_report,
    cost,
    layers,
    learning,
    learning_report,
    many,
    networks,
    spatial,
    timing,
)
from lorentz_jax.bench.options import Files, Outcome
from lorentz_jax.bench.timing import Row
from lorentz_jax.models import MODELS
from lorentz_jax.training.config import INDIFFERENT, TrainConfig

Tables = Iterator[tuple[str, list[Row]]]


@dataclass(frozen=True)
class Timing(Files):
    """Options of every benchmark that measures time."""

    seconds: float = 0.0
    """Time to spend on each comparison; 0 for the default of the benchmark."""

    def run(self) -> Outcome:
        """Measure and print each table."""
        return timing.run(self._tables()), timing.plot

    def _tables(self) -> Tables:
        """Yield a title and its rows at a time."""
        raise NotImplementedError


@dataclass(frozen=True)
class Layers(Timing):
    """Inference of one layer (the paper's Table 2): FGG cached and not, Chen, Poincare."""

    widths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    batch: int = 512
    kappa: float = 1.0
    peers: bool = False
    """Add the FGG layer of the hyperbolix package, which must be installed."""

    def _tables(self) -> Tables:
        options = (self.batch, self.seconds or 6, self.kappa, self.peers)
        for d in self.widths:
            yield f"d={d}", layers.linear_inference(d, *options)


@dataclass(frozen=True)
class Conv(Timing):
    """Forward and backward pass of one 3x3 convolution on 32x32 images."""

    sizes: tuple[tuple[int, int], ...] = ((16, 64), (64, 32))
    """Pairs of width and batch."""
    kappa: float = 0.1
    peers: bool = False
    """Add the FGG convolution of the hyperbolix package, which must be installed."""

    def _tables(self) -> Tables:
        options = (self.seconds or 20, self.kappa, self.peers)
        for width, batch in self.sizes:
            rows = layers.convolution_step(width, batch, *options)
            yield f"width={width} batch={batch}", rows


@dataclass(frozen=True)
class Many(Timing):
    """Forward and backward: weighted centroids, all pairs, attention and graph convolution."""

    nodes: int = 2708
    """Nodes of the graph, which has a weight for each pair of them."""
    features: int = 16
    """Coordinates of a node."""
    pairs: tuple[int, int] = (1024, 128)
    """Points of each set, and their coordinates."""
    sequences: tuple[int, int, int] = (8, 256, 64)
    """Batch, length and coordinates of the sequences; there are four heads."""
    kappa: float = 1.0
    peers: bool = False
    """Add the attention of the hyperbolix package, which must be installed."""

    def check(self) -> None:
        """Refuse coordinates that four heads cannot share, too."""
        super().check()
        if self.sequences[-1] % 4:
            raise ValueError(f"--sequences: 4 heads must divide the last, got {self.sequences}")

    def _tables(self) -> Tables:
        sizes = many.Sizes(self.nodes, self.features, self.pairs, self.sequences)
        return many.tables(sizes, self.seconds or 10, self.kappa, self.peers)

    def run(self) -> Outcome:
        """Measure and print each table, then memory and compile times."""
        results, plot = super().run()
        print(many.describe(results))
        return results, plot


@dataclass(frozen=True)
class Spatial(Timing):
    """Forward and backward pass of the other layers on images: axes, groups, pooling, norms."""

    cases: tuple[str, ...] = tuple(spatial.CASES)
    """Which of the layers, by name."""
    kappa: float = 0.1

    def check(self) -> None:
        """Refuse layers that there are not, too."""
        super().check()
        for name in self.cases:
            convergence.check_name(name, tuple(spatial.CASES), "case")

    def _tables(self) -> Tables:
        for name in self.cases:
            yield name, spatial.step(name, self.seconds or 5, self.kappa)


@dataclass(frozen=True)
class Network(Timing):
    """Options of every benchmark of whole networks, on 32x32 images."""

    width: int = 16
    stages: tuple[int, ...] = (2, 2, 2, 2)
    kappa: float = 0.1

    def _check_models(self, names: Sequence[str], known: Sequence[str]) -> None:
        for name in names:
            convergence.check_name(name, known, "model")

    def _sizes(self, batch: int) -> networks.Sizes:
        return networks.Sizes(self.width, batch, self.stages, self.kappa)


@dataclass(frozen=True)
class Resnet(Network):
    """Training step and compiled inference of whole networks on 32x32 images."""

    batch: int = 64
    models: tuple[str, ...] = networks.TRAINED
    """Arms of the training step beside the Euclidean one, of those that are the default."""

    def check(self) -> None:
        """Refuse networks that there are not, too."""
        super().check()
        self._check_models(self.models, networks.TRAINED)

    def _tables(self) -> Tables:
        sizes, seconds = self._sizes(self.batch), self.seconds or 90
        label = f"width={self.width} batch={self.batch}"
        yield f"training step, {label}", networks.training(self.models, sizes, seconds)
        yield f"inference, {label}", networks.inference(("lorentz",), sizes, seconds / 4)


@dataclass(frozen=True)
class Inference(Network):
    """Compiled inference of whole networks: cached V, every norm folded, at several batch sizes."""

    width: int = 64
    batches: tuple[int, ...] = (1, 32, 256)
    models: tuple[str, ...] = ("lorentz",)
    """Networks beside the Euclidean one: keys of `models.MODELS`."""

    def check(self) -> None:
        """Refuse networks that there are not, too."""
        super().check()
        self._check_models(self.models, tuple(MODELS))

    def _tables(self) -> Tables:
        for batch in self.batches:
            rows = networks.inference(self.models, self._sizes(batch), self.seconds or 30)
            yield f"batch={batch}", rows


@dataclass(frozen=True)
class Accelerator(Network):
    """What the programs of whole networks cost on a GPU or TPU, which need not be here."""

    target: str = "h100"
    """`h100` or `v5e` to compile for one; `local` for the device of this machine, timed too."""
    part: str = "training"
    """`training`, a step; `block`, one block forward and backward; or `inference`, compiled."""
    width: int = 64
    batch: int = 128
    precision: str = "bfloat16"
    """`float32` or `bfloat16`."""
    models: tuple[str, ...] = ("lorentz",)
    """Arms beside the Euclidean network: keys of `models.MODELS`, or of the training step."""

    def check(self) -> None:
        """Refuse parts, dtypes, networks and devices that there are not, too."""
        super().check()
        self._check_models(self.models, tuple({*MODELS, *networks.TRAINED}))
        convergence.check_name(self.part, accelerator.PARTS, "part")
        convergence.check_name(self.precision, ("float32", "bfloat16"), "precision")
        accelerator.device_of(self.target)

    def run(self) -> Outcome:
        """Compile and print the table."""
        title = f"{self.part}, width={self.width} batch={self.batch} {self.precision}"
        sizes, dtype = self._sizes(self.batch), jax.numpy.dtype(self.precision)
        options = (self.part, self.models, sizes, dtype, self.target, self.seconds or 5)
        tables = [(title, accelerator.table(*options))]
        return accelerator.run(tables, self.target), accelerator.plot


@dataclass(frozen=True)
class Data(Network):
    """What picking and augmenting a batch costs, beside the training step of ResNet-18."""

    batch: int = 64
    images: int = 50_000
    """Images to pick from."""

    def _tables(self) -> Tables:
        rows = networks.data_path(self._sizes(self.batch), self.images, self.seconds or 30)
        yield f"data path, width={self.width} batch={self.batch}", rows


@dataclass(frozen=True)
class Scaling(Timing):
    """How the cost of a Lorentz training step grows with batch, width, image size and depth."""

    kappa: float = 0.1

    def _tables(self) -> Tables:
        return networks.sweep_tables(self.kappa, self.seconds or 4)

    def run(self) -> Outcome:
        """Measure and print each table, and the fitted exponents last."""
        results, plot = super().run()
        results["exponents"] = networks.exponents(results)
        print(networks.describe(results["exponents"]))
        return results, plot


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


Timed = Layers | Conv | Spatial | Many | Resnet | Inference | Accelerator | Scaling | Data
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
