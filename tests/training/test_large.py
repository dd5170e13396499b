"""Data that does not fit in memory: streamed at a bounded size, killed and resumed to the bit.

`STREAM_GB` in the environment sets the size of the made dataset; the numbers in `docs/own_data.md`
come from 4. All images in memory would break the bound from 1 on.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lorentz_jax import data
from lorentz_jax.training import build, checkpoint, packing
from lorentz_jax.training.config import TrainConfig
from tests.training.tiny import build_tiny

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
GB = float(os.environ.get("STREAM_GB", "1"))
SIDE, CLASSES, KILLS = 96, 4, 3
MORE_THAN_SMALL = 2**29  # bytes that a streamed run may take above a small one in memory

SCRIPT = """
import sys
from pathlib import Path
from lorentz_jax.training import build, run
from lorentz_jax.training.config import TrainConfig
from tests.training.tiny import build_tiny

build.build_model = build_tiny
original = build.Program.train
def train(self, state, batch):
    print("step", flush=True)
    return original(self, state, batch)
build.Program.train = train
run.train(TrainConfig(dataset=sys.argv[1], run_dir=Path(sys.argv[2]), name=sys.argv[3], {settings}))
"""
SETTINGS = {
    "epochs": 2 if GB < 1 else 1, "batch_size": 128, "kappa": 1.0, "lr": 0.05, "validation": 64,
    "stream": "on", "checkpoint_every": 5 if GB < 1 else 50, "resume": True, "shift": 2,
    "max_turn": None,
}  # fmt: skip


def make(root, count):
    """Write a folder of noise, which no compression makes smaller: four classes by brightness."""
    folders = [root / f"class {label}" for label in range(CLASSES)]
    for folder in folders:
        folder.mkdir(parents=True)

    def write(i):
        rng = np.random.default_rng(i)
        pixels = rng.integers(0, 256 - 20 * (i % CLASSES), (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folders[i % CLASSES] / f"{i}.png", compress_level=0)

    with ThreadPoolExecutor() as pool:
        for start in range(0, count, 10_000):
            list(pool.map(write, range(start, min(start + 10_000, count))))
    return root


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    kept = os.environ.get("STREAM_FOLDER")  # to make it once for several runs
    root = Path(kept) if kept else tmp_path_factory.mktemp("large") / "noise"
    return root if root.exists() else make(root, round(GB * 2**30 / (SIDE * SIDE * 3)))


def start(folder, runs, name, *, environment=None, **changes):
    settings = ", ".join(f"{key}={value!r}" for key, value in {**SETTINGS, **changes}.items())
    command = [sys.executable, "-c", SCRIPT.replace("{settings}", settings)]
    return subprocess.Popen(
        [*command, f"folder:{folder}", str(runs), name],
        cwd=ROOT, env=os.environ | (environment or {}), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def both(folder, runs, name):
    """Two processes that share the batch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = {"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"}
    return [
        start(
            folder, runs, name, multihost=True, workers=1,
            environment={**address, "JAX_PROCESS_ID": str(index)},
        )
        for index in range(2)
    ]  # fmt: skip


def finish(*processes):
    errors = [process.communicate(timeout=3600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), errors


def kill_in_training(processes, seconds):
    """Let them take steps for some seconds, and kill them; False when they were done before."""
    while (line := processes[0].stdout.readline()) != "step\n":
        assert line, processes[0].stderr.read()
    time.sleep(seconds)
    alive = [process.poll() is None for process in processes]
    everyone = [pid for process in processes for pid in family(process.pid)] if all(alive) else []
    for process in processes:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait()
        process.stdout.close()  # which a reader that is left would hold open
        process.stderr.close()
    end = time.monotonic() + 30
    while any(map(lives, everyone)):  # who reads for a killed process ends too
        assert time.monotonic() < end
        time.sleep(0.2)
    return all(alive)


def lives(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def outcome(folder, runs, name):
    """Every array at the end, and the rows without their times."""
    config = TrainConfig(run_dir=runs, name=name, dataset=f"folder:{folder}", **SETTINGS)
    rows = [json.loads(line) for line in (config.path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert 0 <= row.pop("data_wait") <= 1
        del row["train_seconds"], row["eval_seconds"]
    plan = build.make_plan(config, data.load(config.dataset, memory=0))
    expected = {"config": config.decisive(), "classes": CLASSES, "data": plan.fingerprint}
    state, _ = checkpoint.restore(config.path / "checkpoints", plan.state, expected)
    return {path: np.asarray(x) for path, x in packing.flatten(state).items()}, rows


def family(pid):
    children = []
    # Each thread knows the processes that it has started.
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            children += file.read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


class Memory:
    """The largest memory of a process and its children, pages that they share counted once."""

    def __init__(self, process):
        self.peak, self.processes, self._process = 0, 0, process
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._thread.join()

    def _watch(self):
        while self._process.poll() is None:
            total = 0
            try:
                everyone = family(self._process.pid)
                for pid in everyone:
                    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                    total += next(int(x.split()[1]) for x in lines if x.startswith("Pss:"))
            except (OSError, StopIteration):
                continue  # one of them has just ended
            self.peak = max(self.peak, total * 1024)
            self.processes = max(self.processes, len(everyone))
            time.sleep(0.2)


@pytest.fixture(scope="module")
def straight(large, tmp_path_factory):
    """The folder of runs, and the peak of the one that streamed everything without a break."""
    runs = tmp_path_factory.mktemp("runs")
    process = start(large, runs, "straight")
    with Memory(process) as memory:
        finish(process)
    assert memory.processes >= 3  # two readers among them
    return runs, memory.peak


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts so")
def test_memory_is_bounded_whatever_the_size(straight, tmp_path):
    small = make(tmp_path / "small", 400)
    process = start(small, tmp_path, "small", stream="off")
    with Memory(process) as memory:
        finish(process)
    print(f"\n{GB:g} GB: {straight[1] / 2**20:.0f} MiB, small: {memory.peak / 2**20:.0f} MiB")
    assert straight[1] < memory.peak + MORE_THAN_SMALL


@pytest.mark.parametrize("processes", [1, 2])
def test_kills_change_no_bit(large, straight, tmp_path, monkeypatch, processes):
    monkeypatch.setattr(build, "build_model", build_tiny)
    runs, moments = straight[0], random.Random(processes)

    def begin(name):
        return both(large, runs, name) if processes == 2 else [start(large, runs, name)]

    name, expected = f"killed-{processes}", "straight"
    if processes == 2:
        expected = "straight-2"
        finish(*begin(expected))
    killed = 0
    for _ in range(KILLS):
        killed += kill_in_training(begin(name), moments.uniform(0, 1 + 10 * GB))
    assert killed
    finish(*begin(name))
    arrays, rows = outcome(large, runs, name)
    want, want_rows = outcome(large, runs, expected)
    for path, array in want.items():
        np.testing.assert_array_equal(arrays[path], array, err_msg=path)
    assert rows == want_rows
    if processes == 2:  # and both read what one would
        alone, _ = outcome(large, runs, "straight")
        for path, array in alone.items():
            np.testing.assert_allclose(arrays[path], array, rtol=1e-3, atol=1e-4, err_msg=path)
