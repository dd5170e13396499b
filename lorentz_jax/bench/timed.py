"""The benchmarks that measure time: what each one's options are, for `bench.cli`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax

from lorentz_jax.bench import accelerator, convergence, layers, many, networks, spatial, timing
from lorentz_jax.bench.options import Files, Outcome
from lorentz_jax.bench.timing import Row
from lorentz_jax.models import RESNETS

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

    cases: tuple[str, ...] = tuple(many.CASES)
    """Which of the comparisons, by name."""
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
        for name in self.cases:
            convergence.check_name(name, tuple(many.CASES), "case")

    def _tables(self) -> Tables:
        sizes = many.Sizes(self.nodes, self.features, self.pairs, self.sequences)
        return many.tables(self.cases, sizes, self.seconds or 10, self.kappa, self.peers)

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
    """Arms of the training step beside the Euclidean one, of those that are the default and
    "lorentz, bias"."""

    def check(self) -> None:
        """Refuse networks that there are not, too."""
        super().check()
        self._check_models(self.models, (*networks.TRAINED, "lorentz, bias"))

    def _tables(self) -> Tables:
        sizes, seconds = self._sizes(self.batch), self.seconds or 90
        label = f"width={self.width} batch={self.batch}"
        yield f"training step, {label}", networks.training(self.models, sizes, seconds)
        yield f"inference, {label}", networks.inference(("lorentz",), sizes, seconds / 4)


@dataclass(frozen=True)
class Vit(Timing):
    """Training step and compiled inference of a vision transformer, beside its Euclidean twin."""

    width: int = 64
    depth: int = 4
    batch: int = 32
    patch: int = 4
    """Side of a patch of the 32x32 images."""
    kappa: float = 0.1

    def check(self) -> None:
        """Refuse patches that do not fit and a width that four heads cannot share, too."""
        super().check()
        if 32 % self.patch:
            raise ValueError(f"--patch must divide 32, got {self.patch}")
        if self.width % 4:
            raise ValueError(f"--width: 4 heads must divide it, got {self.width}")

    def _tables(self) -> Tables:
        sizes = networks.Sizes(self.width, self.batch, (self.depth,), self.kappa, patch=self.patch)
        label = f"width={self.width} depth={self.depth} batch={self.batch} patch={self.patch}"
        for title, measure in (
            ("training step", networks.training), ("inference", networks.inference)
        ):  # fmt: skip
            arms = networks.TRANSFORMER_ARMS
            rows = measure(arms, sizes, self.seconds or 30, networks.BASE_VIT)
            yield f"{title}, {label}", rows


@dataclass(frozen=True)
class Inference(Network):
    """Compiled inference of whole networks: cached V, every norm folded, at several batch sizes."""

    width: int = 64
    batches: tuple[int, ...] = (1, 32, 256)
    models: tuple[str, ...] = ("lorentz",)
    """Networks beside the Euclidean one: keys of `models.RESNETS`."""

    def check(self) -> None:
        """Refuse networks that there are not, too."""
        super().check()
        self._check_models(self.models, tuple(RESNETS))

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
    """`training`, a step; `block` or `conv`, one block or convolution forward and backward;
    `inference`, compiled; or `layer`, the inference of one fully connected layer."""
    width: int = 64
    batch: int = 128
    precision: str = "bfloat16"
    """`float32` or `bfloat16`."""
    models: tuple[str, ...] = ("lorentz",)
    """Arms beside the Euclidean network: keys of `models.RESNETS` or of the training step, or
    `"lorentz, pallas"` with kernels of our own, `"lorentz, bias"` with biases. A part `conv`
    has one arm, `fgg`; a part `layer` has `fgg` and `fgg cached`."""
    peers: bool = False
    """Add the convolution of the hyperbolix package, which must be installed, to a part `conv`."""

    def check(self) -> None:
        """Refuse parts, dtypes, networks and devices that there are not, too."""
        super().check()
        convergence.check_name(self.part, accelerator.PARTS, "part")
        self._check_models(self.models, tuple({*RESNETS, *networks.TRAINED, *networks.COMPILED}))
        arms = {"conv": layers.CONVOLUTIONS, "layer": layers.LAYERS}
        if self.part in arms and self.models != ("lorentz",):
            raise ValueError(
                f"--models goes with networks, --part {self.part} has {arms[self.part]}"
            )
        if self.peers and self.part != "conv":
            raise ValueError(f"--peers goes with --part conv, got {self.part}")
        convergence.check_name(self.precision, ("float32", "bfloat16"), "precision")
        accelerator.device_of(self.target)

    def run(self) -> Outcome:
        """Compile and print the table."""
        title = f"{self.part}, width={self.width} batch={self.batch} {self.precision}"
        sizes, dtype = self._sizes(self.batch), jax.numpy.dtype(self.precision)
        of_part = {"conv": layers.CONVOLUTIONS[: 2 + self.peers], "layer": layers.LAYERS}
        arms = of_part.get(self.part, self.models)
        options = (self.part, arms, sizes, dtype, self.target, self.seconds or 5)
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


Timed = Layers | Conv | Spatial | Many | Resnet | Vit | Inference | Accelerator | Scaling | Data
