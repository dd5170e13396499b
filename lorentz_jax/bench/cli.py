"""Benchmarks: `python bench.py --help` lists them.

Those that measure time run all their arms interleaved in one process and print ratios to the first
arm; `convergence` counts the steps of the paper's Figure 2, `learning` trains networks, `numerics`
measures errors. `--json FILE` and `--plot FILE` keep the results. `python bench.py compare A B`
prints two JSON files side by side, if they come from the same device.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import subcommand

from lorentz_jax._src.output import report_error
from lorentz_jax.bench import commands


@dataclass(frozen=True)
class Compare:
    """Print the ratios of two JSON files of one device side by side."""

    first: tyro.conf.Positional[Path]
    second: tyro.conf.Positional[Path]


Command = (
    Annotated[commands.Layers, subcommand("layers")]
    | Annotated[commands.Conv, subcommand("conv")]
    | Annotated[commands.Resnet, subcommand("resnet")]
    | Annotated[commands.Inference, subcommand("inference")]
    | Annotated[commands.Scaling, subcommand("scaling")]
    | Annotated[commands.Data, subcommand("data")]
    | Annotated[commands.Convergence, subcommand("convergence")]
    | Annotated[commands.Learning, subcommand("learning")]
    | Annotated[commands.Numerics, subcommand("numerics")]
    | Annotated[Compare, subcommand("compare")]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns the exit status."""
    command = tyro.cli(Command, description=__doc__, args=arguments)
    from lorentz_jax.bench import timing

    try:
        if isinstance(command, Compare):
            files = (command.first, command.second)
            print(timing.compare(*(json.loads(path.read_text()) for path in files)))
            return 0
        timing.check_writable(command.json, command.plot)
        results, plot = command.run()
        if command.json:
            command.json.write_text(json.dumps(results, indent=1) + "\n")
        if command.plot:
            plot(results, command.plot)
    except (ValueError, TypeError, OSError) as error:
        return report_error("bench.py", error, 2)
    return 0
