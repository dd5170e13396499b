"""Where a run computes: devices, how arrays lie on them, and what to say when they are full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lorentz_jax.training.config import TrainConfig


class OutOfMemoryError(MemoryError):
    """A device is too small for the run; the message says what to try."""


class Placement(NamedTuple):
    """How arrays lie on the devices; both are None when there is only one."""

    replicated: NamedSharding | None
    batch: NamedSharding | None

    @property
    def devices(self) -> int:
        """Number of devices that a batch is split over."""
        return 1 if self.batch is None else self.batch.mesh.size

    def everywhere(self, tree: Any) -> Any:
        """Copy a tree of arrays, equal in every process, to every device."""
        return jax.tree.map(lambda leaf: _put(leaf, self.replicated), tree)

    def split(self, *arrays: np.ndarray) -> tuple[Any, ...]:
        """Split arrays, equal in every process, over the devices by their first axis."""
        return tuple(_put(array, self.batch) for array in arrays)

    def local_rows(self, size: int) -> np.ndarray:
        """Return the rows of a batch of `size` that lie on the devices of this process."""
        rows = np.arange(size)
        if self.batch is None:
            return rows
        parts = self.batch.addressable_devices_indices_map((size,)).values()
        return np.unique(np.concatenate([rows[part] for part in parts]))

    def join(self, size: int, local: np.ndarray) -> jax.Array:
        """Split an array over the devices of which this process has only its `local_rows`."""
        if self.batch is None:
            return jax.device_put(local)
        rows, everyone = self.local_rows(size), np.arange(size)

        def part(index: Any) -> np.ndarray:
            return local[np.searchsorted(rows, everyone[index[0]])]

        return jax.make_array_from_callback((size, *local.shape[1:]), self.batch, part)


def start(config: TrainConfig) -> None:
    """Ready JAX for the run, before anything is computed.

    Raises:
        ValueError: the device that was asked for is not there, or the other processes are not.
    """
    if config.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(config.compilation_cache))
    if config.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    if config.multihost:
        _join_processes()
    if config.device == "auto":
        return
    try:
        jax.devices(config.device)
    except RuntimeError:
        raise ValueError(_missing(config.device)) from None
    if jax.default_backend() != config.device:
        raise ValueError(_missing(config.device))


def place(batch_size: int) -> Placement:
    """Lay the batch over all devices of all processes: one mesh with the axis `data`.

    Raises:
        ValueError: the batch does not divide by the number of devices.
    """
    devices = jax.devices()
    if batch_size % len(devices):
        raise ValueError(
            f"a batch of {batch_size} images does not divide by {len(devices)} devices; "
            f"the next that does is {-(-batch_size // len(devices)) * len(devices)}"
        )
    if len(devices) == 1:
        return Placement(None, None)
    mesh = Mesh(np.asarray(devices), ("data",))
    return Placement(
        NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    )


def is_main() -> bool:
    """Tell whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def print_main(text: str) -> None:
    """Print, in the main process only."""
    if is_main():
        print(text)


def program_bytes(program: jax.stages.Compiled) -> int | None:
    """Return the device memory of a call, arguments included; None if the backend cannot tell."""
    memory = program.memory_analysis()
    if memory is None:
        return None
    new_outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes + new_outputs


@contextmanager
def explain_memory(config: TrainConfig, image_shape: tuple[int, ...]) -> Iterator[None]:
    """Turn XLA's report of a full device into `OutOfMemoryError`."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        half = "" if config.precision == "bfloat16" else "--precision bfloat16, "
        raise OutOfMemoryError(
            f"out of memory on {jax.device_count()} x {jax.devices()[0].device_kind}: batch "
            f"{config.batch_size}, images of {'x'.join(map(str, image_shape))}, "
            f"{config.precision}, width {config.width}; try a smaller --batch-size, {half}"
            "a smaller --width or more devices"
        ) from error


def _put(leaf: Any, sharding: NamedSharding | None) -> Any:
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    # `device_put` would compare the values of all processes, every time.
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _join_processes() -> None:
    """Find the other processes: from the cluster's environment, or from three variables."""
    if jax.distributed.is_initialized():
        return
    count, index = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(
            num_processes=None if count is None else int(count),
            process_id=None if index is None else int(index),
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"multihost: {error}; without Slurm, Open MPI or a TPU pod set JAX_COORDINATOR_ADDRESS "
            "(host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None


def _missing(device: str) -> str:
    seen = ", ".join(f"{d.platform} ({d.device_kind})" for d in jax.devices()[:4])
    hint = '; for an NVIDIA GPU install "jax[cuda13]"' if device == "gpu" else ""
    return f"no {device} found: jax {jax.__version__} sees only {seen}{hint}"
