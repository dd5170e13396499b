"""Where a run computes: devices, how arrays lie on them, and what to say when they are full."""

import hashlib
import json
import os
import platform
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from lorentz_jax._src.output import report_error
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
        return jax.tree.map(lambda leaf: put(leaf, self.replicated), tree)

    def split(self, *arrays: np.ndarray) -> tuple[Any, ...]:
        """Split arrays, equal in every process, over the devices by their first axis."""
        return tuple(put(array, self.batch) for array in arrays)

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


def keep_programs() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX has been given another one.

    There is a folder for each kind of CPU: a home may be shared, and a program for one kind can
    stop another. A folder that cannot be written is left alone.
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    try:
        kind = Path("/proc/cpuinfo").read_text()
        kind = "".join(sorted(set(re.findall(r"^(?:flags|Features)\s*:.*$", kind, re.MULTILINE))))
    except OSError:
        kind = platform.processor()
    digest = hashlib.sha256(kind.encode()).hexdigest()[:12]
    folder = home / "lorentz-jax" / f"{platform.machine()}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))


def start(config: TrainConfig) -> None:
    """Ready JAX for the run, before anything is computed.

    Raises:
        ValueError: the device that was asked for is not there, or the other processes are not.
    """
    if config.compilation_cache is not None:
        off = config.compilation_cache == Path("off")
        folder = None if off else str(config.compilation_cache)
        jax.config.update("jax_compilation_cache_dir", folder)
    if config.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    if config.multihost:
        _join_processes(config.join_timeout)
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


def put(leaf: Any, sharding: Sharding | None) -> Any:
    """Copy an array, equal in every process, to where the sharding says; None for anywhere."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    # `device_put` would compare the values of all processes, every time.
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def from_main(action: Callable[[], Any]) -> Any:
    """Run `action` in the main process only; every process returns its JSON, or raises.

    Raises:
        OSError: in the other processes, for any error of the main one.
    """
    if jax.process_count() == 1:
        return action()
    value, failure = None, None
    if is_main():
        try:
            value = action()
        except Exception as error:
            failure = error
    outcome = {"value": value, "error": None if failure is None else f"process 0: {failure}"}
    text = np.frombuffer(json.dumps(outcome).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(text.size)))
    text = multihost_utils.broadcast_one_to_all(np.resize(text, size))
    if failure is not None:
        raise failure
    outcome = json.loads(np.asarray(text).tobytes())
    if outcome["error"] is not None:
        raise OSError(outcome["error"])
    return outcome["value"]


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


def _join_processes(seconds: int) -> None:
    """Find the other processes: from the cluster's environment, or from three variables."""
    if jax.distributed.is_initialized():
        return
    count, index, address = (
        os.environ.get(f"JAX_{name}")
        for name in ("NUM_PROCESSES", "PROCESS_ID", "COORDINATOR_ADDRESS")
    )
    # Its complaint about a port in use would be a second line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        if address is not None:
            _check_address(address)
        with _deadline(seconds, f"process {index} of {count}, the first at {address}"):
            jax.distributed.initialize(
                num_processes=None if count is None else int(count),
                process_id=None if index is None else int(index),
                # When its own time is up, JAX aborts the process with a C++ stack.
                initialization_timeout=seconds + 60,
            )
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"multihost: {error}; without Slurm, Open MPI or a TPU pod set JAX_COORDINATOR_ADDRESS "
            "(host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        ) from None


def _check_address(address: str) -> None:
    """Raise `ValueError` for a coordinator's address that cannot be one."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"JAX_COORDINATOR_ADDRESS must be host:port, got {address!r}")


@contextmanager
def _deadline(seconds: int, what: str) -> Iterator[None]:
    """End the process with one line unless the body ends in time: nothing else stops JAX there."""

    def end() -> None:
        reason = f"multihost: the processes did not all join within {seconds} s ({what})"
        report_error("train.py", reason, 2)
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _missing(device: str) -> str:
    seen = ", ".join(f"{d.platform} ({d.device_kind})" for d in jax.devices()[:4])
    hint = '; for an NVIDIA GPU install "jax[cuda13]"' if device == "gpu" else ""
    return f"no {device} found: jax {jax.__version__} sees only {seen}{hint}"
