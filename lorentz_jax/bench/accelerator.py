"""Compile networks for an accelerator, here or not, and compare what their programs cost.

XLA compiles for a GPU or a TPU on a machine that has none, from a description of the device. What
it cannot tell without one is time. But a training step of a convolutional network is bound by the
memory, and kernels, bytes and temporary memory of the compiled program are exact. Kernels are not
tuned there for either network (`--xla_gpu_autotune_level=0`).
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from rich.table import Table

from lorentz_jax import functional
from lorentz_jax.bench import hlo, layers
from lorentz_jax.bench.networks import BASE, PALLAS, STATE, Sizes, build, training_step
from lorentz_jax.bench.style import COLOURS, make_console, make_panels, make_table
from lorentz_jax.bench.timing import call_seconds, environment
from lorentz_jax.inference import compile_cached_v
from lorentz_jax.training.state import merge, split

PARTS = ("training", "block", "inference", "conv", "layer")
"""What can be compiled: a training step, a block or a 3x3 convolution forward and backward,
compiled inference, the inference of one fully connected layer."""

_H100 = """gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclass(frozen=True)
class Target:
    """A device to compile for.

    Attributes:
        description: in words.
        package: what to install to compile for it.
        topology: arguments of `jax.experimental.topologies.get_topology_desc`.
    """

    description: str
    package: str
    topology: dict[str, Any]


TARGETS = {
    "h100": Target(
        "NVIDIA H100",
        "jax[cuda12]",
        {"platform": "cuda", "topology_name": "1x1x1", "topology": "1x1x1", "target_config": _H100},
    ),
    "v5e": Target("TPU v5e", "libtpu", {"platform": "tpu", "topology_name": "v5e:2x2"}),
}
LOCAL = "local"
"""The target that is the device of this machine, where programs are timed, too."""


@dataclass(frozen=True)
class Row:
    """What a program costs; `ratios` are to the Euclidean one.

    `bytes` are those of `hlo.count`, and XLA's own count for a TPU.
    """

    name: str
    kernels: int
    bytes: float
    temporary_bytes: int
    compile_seconds: float
    milliseconds: float | None = None

    def ratios(self, base: "Row") -> dict[str, float | None]:
        """Return the costs over those of `base`."""
        mine, theirs = vars(self), vars(base)
        costs = (name for name in mine if name != "name")
        return {
            name: mine[name] / theirs[name] if mine[name] and theirs[name] else None
            for name in costs
        }


def device_of(target: str) -> Any:
    """Return the device to compile for, present or described.

    Raises:
        ValueError: there is no such target, or its compiler is not installed.
    """
    if target == LOCAL:
        return jax.devices()[0]
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join((*TARGETS, LOCAL))}, got {target!r}")
    _describe_devices()
    from jax.experimental import topologies

    wanted = TARGETS[target]
    try:
        with contextlib.redirect_stderr(None):
            return topologies.get_topology_desc(**wanted.topology).devices[0]
    except Exception as error:  # of any kind: they are those of a plugin
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"cannot compile for {wanted.description} here; pip install '{wanted.package}' brings "
            f"its compiler ({first[:120]})"
        ) from None


def _describe_devices() -> None:
    """Say to JAX and XLA that the devices they compile for are not here."""
    jax.config.update("jax_platforms", "cpu")
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    if "autotune" not in os.environ.get("XLA_FLAGS", ""):
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
        os.environ["XLA_FLAGS"] = flags.strip()
    tpu = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4"}
    tpu |= {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    for name, value in tpu.items():
        os.environ.setdefault(name, value)


def program(part: str, name: str, sizes: Sizes, dtype: Any) -> tuple[Callable, tuple[Any, ...]]:
    """Return a function of arrays and its arguments.

    Args:
        part: one of `PARTS`. A block is the first of the network, its input one of its outputs.
        name: an arm of `networks.build`; for "conv", one of `layers.CONVOLUTIONS`; for "layer", of
            `layers.LAYERS`.
        sizes: of network and batch.
        dtype: what the network computes in.
    """
    if part == "conv":
        return layers.convolution(name, sizes.width, sizes.batch, sizes.kappa, dtype)
    if part == "layer":
        return layers.linear_layer(name, sizes.width, sizes.batch, sizes.kappa, dtype)
    images = sizes.images()[0]
    if part == "training":
        return training_step(name, sizes, dtype)
    if part == "inference":
        half: Any = {} if dtype == jnp.float32 else {"dtype": str(jnp.dtype(dtype))}
        compiled = compile_cached_v(build(name, sizes), **half)
        return compiled.apply, (compiled.params, images)
    if part != "block":
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    network: Any = build(name, sizes)
    kappa = network.resolve_kappa()
    graphdef, params, stats = split(network.stages[0][0])

    def step(params: Any, stats: Any, x: Array, g: Array) -> Any:
        def loss(params: Any, x: Array) -> Any:
            block = merge(graphdef, params, stats)
            return jnp.sum(block(x, kappa, False).astype(jnp.float32) * g), split(block)[2]

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    x = jnp.zeros((*images.shape[:3], sizes.width), dtype)
    return step, (params, stats, x, x)


def measure(part: str, name: str, sizes: Sizes, dtype: Any, target: str, seconds: float) -> Row:
    """Compile one program for a target and count; on the local device, time it too."""
    device = device_of(target)
    function, arguments = program(part, name, sizes, dtype)
    place = jax.sharding.SingleDeviceSharding(device)
    placed = functools.partial(jax.ShapeDtypeStruct, sharding=place)
    shapes = jax.tree.map(lambda a: placed(a.shape, a.dtype), arguments)
    donated = STATE if part == "training" else 0
    jitted = jax.jit(function, donate_argnums=tuple(range(donated)))
    with _written_by("pallas" if name.endswith(PALLAS) else "xla", target):
        lowered = jitted.lower(*shapes)
    start = time.process_time()
    compiled = lowered.compile()
    spent = time.process_time() - start
    kernels, moved = hlo.count(compiled.as_text() or "")
    if device.platform == "tpu":
        moved = float((compiled.cost_analysis() or {})["bytes accessed"])
    memory: Any = compiled.memory_analysis()
    row = (name, kernels, moved, int(memory.temp_size_in_bytes), spent)
    if target != LOCAL:
        return Row(*row, None)
    return Row(*row, _milliseconds(compiled, arguments, seconds, donated))


@contextlib.contextmanager
def _written_by(kernels: str, target: str) -> Iterator[None]:
    """Trace with a choice of `functional.kernels`, and tell Pallas the device."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(functional.kernels(kernels))
        if kernels == "pallas" and target in TARGETS:
            device = TARGETS[target].topology["platform"], TARGETS[target].description
            stack.enter_context(jax.sharding.use_abstract_mesh(_mesh(*device)))
        yield


def _mesh(platform: str, kind: str) -> Any:
    sharding: Any = jax.sharding  # whose abstract devices are newer than the oldest JAX
    described = sharding.AbstractDevice(device_kind=kind, num_cores=None, platform=platform)
    kinds = (sharding.AxisType.Auto,)
    return sharding.AbstractMesh((1,), ("one",), axis_types=kinds, abstract_device=described)


def _milliseconds(compiled: Callable, arguments: Any, seconds: float, donated: int) -> float:
    """Return the median time of a call."""
    call_seconds(compiled, arguments, donated)
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        times.append(call_seconds(compiled, arguments, donated))
    return 1e3 * sorted(times)[len(times) // 2]


def table(
    part: str, names: Sequence[str], sizes: Sizes, dtype: Any, target: str, seconds: float = 5.0
) -> list[dict[str, Any]]:
    """Measure the Euclidean network and others; return their costs, with ratios to the first."""
    rows: list[Row] = []
    for name in dict.fromkeys((BASE, *names)):
        rows.append(measure(part, name, sizes, dtype, target, seconds))
    return [vars(row) | {"ratios": row.ratios(rows[0])} for row in rows]


def run(tables: Iterable[tuple[str, list[dict[str, Any]]]], target: str) -> dict[str, Any]:
    """Print tables as they are measured; return them with the environment."""
    console, results = make_console(), {"environment": environment(), "target": target}
    results["tables"] = {}
    for title, rows in tables:
        results["tables"][title] = rows
        console.print(_printable(f"{title}, {target}", rows))
    return results


_COSTS = {
    "kernels": ("kernels", 1.0),
    "bytes": ("GB", 1e9),
    "temporary_bytes": ("temporary MB", 1e6),
    "compile_seconds": ("compile CPU s", 1.0),
    "milliseconds": ("ms", 1.0),
}
"""Name of a cost, with its heading and the unit that it is printed in."""


def _printable(title: str, rows: list[dict[str, Any]]) -> Table:
    printed = make_table(title, "", *(heading for heading, _ in _COSTS.values()))
    for row in rows:
        cells = []
        for name, (_, unit) in _COSTS.items():
            value, ratio = row[name], row["ratios"][name]
            number = "-" if value is None else f"{value / unit:.4g}"
            cells.append(number if ratio is None else f"{number} ({ratio:.2f})")
        printed.add_row(row["name"], *cells)
    return printed


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw the ratios to the Euclidean network, a panel for each table."""
    tables = results["tables"]
    figure, [panels] = make_panels(7 * len(tables), 3.6, columns=len(tables))
    for axes, (title, rows) in zip(panels, tables.items(), strict=True):
        names = [name for name in _COSTS if rows[0][name]]
        width = 0.8 / len(rows)
        for index, row in enumerate(rows):
            places = [i + (index + 0.5) * width - 0.4 for i in range(len(names))]
            heights = [row["ratios"][name] or 0 for name in names]
            axes.bar(places, heights, width, color=COLOURS[index % 7], label=row["name"])
        labels = [name.removesuffix("_seconds").replace("_", "\n") for name in names]
        axes.set_xticks(range(len(names)), labels, fontsize="small")
        axes.axhline(1, color=COLOURS[0], linewidth=1)
        axes.set_title(f"{title}, {results['target']}", fontsize="small")
    panels[0].set_ylabel("relative to the Euclidean network")
    panels[-1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150)
