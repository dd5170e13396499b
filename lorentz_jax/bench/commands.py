"""The subcommands of `bench.py`: options, and which study they call when they run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Tables = Iterator[tuple[str, list[Any]]]
Plot = Callable[[dict[str, Any], Path], None]


@dataclass(frozen=True)
class Files:
    """Where the results of a benchmark go, besides the terminal."""

    json: Path | None = None
    """Write the results to this file."""
    plot: Path | None = None
    """Draw them to this file (PNG, PDF, SVG)."""


@dataclass(frozen=True)
class Timing(Files):
    """Options of every benchmark that measures time."""

    seconds: float = 0.0
    """Time to spend on each comparison; 0 for the default of the benchmark."""

    def tables(self) -> Tables:
        """Measure; yields a title and its rows at a time."""
        raise NotImplementedError

    def run(self) -> tuple[dict[str, Any], Plot]:
        """Measure and print; returns the results and what draws them."""
        from lorentz_jax.bench import timing

        return timing.run(self.tables()), timing.plot


@dataclass(frozen=True)
class Layers(Timing):
    """Inference of one layer (the paper's Table 2): FGG cached and not, Chen, Poincare."""

    widths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    batch: int = 512
    kappa: float = 1.0
    peers: bool = False
    """Add the FGG layer of the hyperbolix package, which must be installed."""

    def tables(self) -> Tables:
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.bench import layers

        for d in self.widths:
            sizes = (d, self.batch, self.seconds or 6, self.kappa)
            yield f"d={d}", layers.linear_inference(*sizes, peers=self.peers)


@dataclass(frozen=True)
class Conv(Timing):
    """Forward and backward pass of one 3x3 convolution on 32x32 images."""

    sizes: tuple[tuple[int, int], ...] = ((16, 64), (64, 32))
    """Pairs of width and batch."""
    kappa: float = 0.1
    peers: bool = False
    """Add the FGG convolution of the hyperbolix package, which must be installed."""

    def tables(self) -> Tables:
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.bench import layers

        for width, batch in self.sizes:
            sizes = (width, batch, 32, self.seconds or 20, self.kappa)
            rows = layers.convolution_step(*sizes, peers=self.peers)
            yield f"width={width} batch={batch}", rows


@dataclass(frozen=True)
class Resnet(Timing):
    """Training step and compiled inference of whole networks on 32x32 images."""

    width: int = 16
    batch: int = 64
    stages: tuple[int, ...] = (2, 2, 2, 2)
    kappa: float = 0.1
    models: tuple[str, ...] = ()
    """Arms of the training step, see `bench.networks.TRAINED`; all by default."""

    def tables(self) -> Tables:
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.bench import networks

        sizes = {"width": self.width, "batch": self.batch, "stages": self.stages}
        names = tuple(dict.fromkeys((networks.BASE, *(self.models or networks.TRAINED))))
        label = f"width={self.width} batch={self.batch}"
        seconds, kappa = self.seconds or 90, self.kappa
        rows = networks.training(names, kappa=kappa, seconds=seconds, **sizes)
        yield f"training step, {label}", rows
        rows = networks.inference(kappa=kappa, seconds=seconds / 4, **sizes)
        yield f"inference, {label}", rows


@dataclass(frozen=True)
class Inference(Timing):
    """Compiled inference of whole networks: cached V, every norm folded, at several batch sizes."""

    width: int = 64
    batches: tuple[int, ...] = (1, 32, 256)
    stages: tuple[int, ...] = (2, 2, 2, 2)
    kappa: float = 0.1
    models: tuple[str, ...] = ("lorentz",)
    """Networks beside the Euclidean one: keys of `models.MODELS`."""

    def tables(self) -> Tables:
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.bench import networks

        names = tuple(dict.fromkeys((networks.BASE, *self.models)))
        for batch in self.batches:
            sizes = {"width": self.width, "batch": batch, "stages": self.stages}
            rows = networks.inference(names, kappa=self.kappa, seconds=self.seconds or 30, **sizes)
            yield f"batch={batch}", rows


@dataclass(frozen=True)
class Scaling(Timing):
    """How the cost of a Lorentz training step grows with batch, width, image size and depth."""

    kappa: float = 0.1

    def tables(self) -> Tables:
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.bench import networks

        yield from networks.tables(self.kappa, self.seconds or 4)

    def run(self) -> tuple[dict[str, Any], Plot]:
        """Measure and print, the fitted exponents last."""
        from lorentz_jax.bench import networks, timing

        results, _ = super().run()
        results["exponents"] = networks.exponents(results)
        print(networks.describe(results["exponents"]))
        return results, timing.plot


@dataclass(frozen=True)
class Data(Timing):
    """What picking and augmenting a batch costs, beside the training step of ResNet-18."""

    width: int = 16
    batch: int = 64
    stages: tuple[int, ...] = (2, 2, 2, 2)
    images: int = 50_000
    """Images to pick from."""

    def tables(self) -> Tables:
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.bench import networks

        sizes = {"width": self.width, "batch": self.batch, "stages": self.stages}
        rows = networks.data_path(seconds=self.seconds or 30, count=self.images, **sizes)
        yield f"data path, width={self.width} batch={self.batch}", rows


@dataclass(frozen=True)
class Convergence(Files):
    """Steps until a hyperplane at a given distance is fitted (the paper's Figure 2)."""

    methods: tuple[str, ...] = ()
    """Keys of `bench.convergence.METHODS`; those of the figure by default."""
    distances: tuple[float, ...] = tuple(range(1, 20))
    cap: int = 10_000
    """Give up after so many steps."""
    seeds: int = 5
    """Random starts, where a method has them."""

    def run(self) -> tuple[dict[str, Any], Plot]:
        """Fit and print; returns the results and what draws them."""
        from lorentz_jax.bench import convergence_report as study

        settings = study.Settings(distances=self.distances, cap=self.cap, seeds=self.seeds)
        return study.run(self.methods or study.FIGURE, settings), study.plot


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

    def run(self) -> tuple[dict[str, Any], Plot]:
        """Measure and print; returns the results and what draws them."""
        from lorentz_jax.bench.numerics import report as study

        found = study.run(self.dtypes, self.samples, self.functions, self.peers)
        return found, study.plot


@dataclass(frozen=True)
class Learning(Files):
    """How fast networks learn by step: all combinations of arms, learning rates and seeds."""

    dataset: str = "digits"
    data_dir: Path | None = None
    """Where the dataset is; see `train.py --help`."""
    limit: int | None = None
    """Keep only the first so many training images."""
    validation: int = 237
    """Training images to choose the learning rate on; the test images are read at that one."""
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
    epochs: int = 3
    stages: tuple[int, ...] = (2, 2, 2)
    """Residual blocks of each stage; 2 2 2 2 is ResNet-18."""
    width: int = 16
    """Channels of the first stage."""
    batch_size: int = 128
    shift: int | None = None
    """Pixels to move the images by at random; by default what is usual for the dataset."""
    flip: bool | None = None
    """Mirror half of the images; by default what is usual for the dataset."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate over time."""
    weight_decay: float = 5e-4
    max_turn: float | None = 0.015
    """Radians that a step may turn the weights of a unit of `lorentz`; as in `train.py`."""
    learn_kappa: bool = False
    """Learn the curvature, from each of `kappas`."""
    kappa_per_layer: bool = False
    """Learn one for each layer of `lorentz`."""
    every: int | None = None
    """Steps between evaluations on the validation images; once an epoch by default."""
    targets: tuple[float, ...] = (0.8, 0.9, 0.95)
    """Validation accuracies to count the steps to."""

    def run(self) -> tuple[dict[str, Any], Plot]:
        """Train and print; returns the results and what draws them."""
        from lorentz_jax.bench import learning
        from lorentz_jax.bench import learning_report as study
        from lorentz_jax.training.config import TrainConfig

        shared = (
            "dataset", "data_dir", "limit", "validation", "epochs", "stages", "width",
            "batch_size", "shift", "flip", "schedule", "weight_decay", "max_turn",
            "learn_kappa", "kappa_per_layer",
        )  # fmt: skip
        config = TrainConfig(**{field: getattr(self, field) for field in shared})
        arms = learning.arms(config, self.models, self.kappas, self.presets, self.optimisers)
        settings = study.Settings(self.rates, self.seeds, self.every, self.targets)
        return study.run(arms, settings), study.plot
