"""Benchmarks against the Euclidean twin: `python bench.py {layers,conv,resnet,scaling} --help`.

Each runs all its arms interleaved in one process and prints a table; `--json FILE` and
`--plot FILE` keep it. Ratios are to the Euclidean arm of the same run. `python bench.py compare A
B` prints two JSON files side by side, if they come from the same device.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import subcommand


@dataclass(frozen=True)
class Common:
    """Options of every benchmark."""

    json: Path | None = None
    """Write the table to this file."""
    plot: Path | None = None
    """Draw the ratios to this PNG file."""
    seconds: float = 0.0
    """Time to spend on each comparison; 0 for the default of the benchmark."""


@dataclass(frozen=True)
class Layers(Common):
    """Inference of one layer (the paper's Table 2): FGG cached and not, Chen, Poincare."""

    widths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    batch: int = 512
    kappa: float = 1.0

    def tables(self):
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.studies import layers

        for d in self.widths:
            yield f"d={d}", layers.linear_inference(d, self.batch, self.seconds or 6, self.kappa)


@dataclass(frozen=True)
class Conv(Common):
    """Forward and backward pass of one 3x3 convolution on 32x32 images."""

    sizes: tuple[tuple[int, int], ...] = ((16, 64), (64, 32))
    """Pairs of width and batch."""
    kappa: float = 0.1

    def tables(self):
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.studies import layers

        for width, batch in self.sizes:
            rows = layers.convolution_step(width, batch, 32, self.seconds or 20, self.kappa)
            yield f"width={width} batch={batch}", rows


@dataclass(frozen=True)
class Resnet(Common):
    """Training step and compiled inference of whole networks on 32x32 images."""

    width: int = 16
    batch: int = 64
    stages: tuple[int, ...] = (2, 2, 2, 2)
    kappa: float = 0.1
    models: tuple[str, ...] = ()
    """Arms of the training step, see `studies.networks.TRAINED`; all by default."""

    def tables(self):
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.studies import networks

        sizes = {"width": self.width, "batch": self.batch, "stages": self.stages}
        names = tuple(dict.fromkeys((networks.BASE, *(self.models or networks.TRAINED))))
        label = f"width={self.width} batch={self.batch}"
        seconds, kappa = self.seconds or 90, self.kappa
        rows = networks.training(names, kappa=kappa, seconds=seconds, **sizes)
        yield f"training step, {label}", rows
        rows = networks.inference(kappa=kappa, seconds=seconds / 4, **sizes)
        yield f"inference, {label}", rows


@dataclass(frozen=True)
class Scaling(Common):
    """How the cost of a Lorentz training step grows with batch, width, image size and depth."""

    kappa: float = 0.1

    def tables(self):
        """Measure; yields a title and its rows at a time."""
        from lorentz_jax.studies import scaling

        yield from scaling.tables(self.kappa, self.seconds or 4)


@dataclass(frozen=True)
class Compare:
    """Print the ratios of two JSON files of one device side by side."""

    first: tyro.conf.Positional[Path]
    second: tyro.conf.Positional[Path]


Command = (
    Annotated[Layers, subcommand("layers")]
    | Annotated[Conv, subcommand("conv")]
    | Annotated[Resnet, subcommand("resnet")]
    | Annotated[Scaling, subcommand("scaling")]
    | Annotated[Compare, subcommand("compare")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns the exit status."""
    command = tyro.cli(Command, description=__doc__, args=arguments)
    from lorentz_jax.studies import report

    try:
        if isinstance(command, Compare):
            files = (command.first, command.second)
            print(report.compare(*(json.loads(path.read_text()) for path in files)))
            return 0
        report.check_writable(command.json, command.plot)
        results = report.run(command.tables())
        if command.json:
            command.json.write_text(json.dumps(results, indent=1) + "\n")
        if command.plot:
            report.plot(results, command.plot)
    except (ValueError, TypeError, OSError) as error:
        print(f"bench.py: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
