"""Many devices and several processes give the run of one device."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from lorentz_jax import data
from lorentz_jax.training import build, checkpoint, devices, packing
from lorentz_jax.training.config import TrainConfig

ROOT = Path(__file__).parents[2]
# Twenty steps of a real network, batch norm included.
SMALL = {"limit": 80, "batch_size": 16, "epochs": 4, "stages": (1,), "width": 2}
FLAGS = ["--limit=80", "--batch-size=16", "--epochs=4", "--stages=1", "--width=2"]


def start(folder, name, *arguments, device_count=1, **environment):
    """`train.py` as a process with so many simulated devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags += f" --xla_force_host_platform_device_count={device_count}"
    command = [
        sys.executable, str(ROOT / "train.py"), *FLAGS, f"--run-dir={folder}", f"--name={name}",
    ]  # fmt: skip
    return subprocess.Popen(
        [*command, *arguments],
        env=os.environ | {"XLA_FLAGS": flags} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes):
    outputs = [process.communicate(timeout=300) for process in processes]
    for process, (_, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
    return [out for out, _ in outputs]


def result(path):
    """Every array of the last checkpoint, and the losses."""
    config = TrainConfig(**SMALL)
    plan = build.make_plan(config, data.load("digits", limit=80))
    expected = {"config": config.decisive(), "classes": 10}
    state, meta = checkpoint.restore(path / "checkpoints", plan.state, expected)
    assert meta["step"] == 20
    lines = (path / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)[f"{split}_loss"] for line in lines for split in ("train", "test")]
    arrays = {path: np.asarray(x) for path, x in packing.flatten(state).items()}
    return {**arrays, "losses": np.asarray(losses)}


def close(first, second):
    assert first.keys() == second.keys()
    for path, array in first.items():
        np.testing.assert_allclose(second[path], array, rtol=1e-5, atol=1e-5, err_msg=path)


@pytest.mark.slow
def test_eight_devices_give_the_run_of_one(tmp_path):
    finish(start(tmp_path, "one"))
    out = finish(start(tmp_path, "eight", device_count=8))[0]
    assert "8 devices, 2 images each" in out
    close(result(tmp_path / "one"), result(tmp_path / "eight"))
    finish(start(tmp_path, "streamed", "--stream=on", device_count=8))
    close(result(tmp_path / "one"), result(tmp_path / "streamed"))
    refused = start(tmp_path, "twenty", "--batch-size=20", device_count=8)
    _, err = refused.communicate(timeout=120)
    assert refused.returncode == 2
    assert "a batch of 20 images does not divide by 8 devices" in err
    assert not (tmp_path / "twenty").exists()


@pytest.mark.slow
def test_two_processes_give_the_run_of_one(tmp_path):
    def both(*arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return [
            start(
                tmp_path, "two", "--multihost", *arguments, device_count=2, JAX_NUM_PROCESSES="2",
                JAX_COORDINATOR_ADDRESS=f"127.0.0.1:{port}", JAX_PROCESS_ID=str(index),
            )
            for index in range(2)
        ]  # fmt: skip

    first, second = finish(*both())
    assert "4 devices, 4 images each" in first
    assert "test_accuracy" in first
    assert "test_accuracy" not in second
    finish(start(tmp_path, "one"))
    close(result(tmp_path / "one"), result(tmp_path / "two"))
    # Process 0 refuses the folder for both.
    for process in both():
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2, err
        assert "already holds" in err
        assert len(err.splitlines()) == 1
    (tmp_path / "two" / "checkpoints" / "20.safetensors").write_bytes(b"")
    first, _ = finish(*both("--resume"))
    assert "resumed from step 15" in first
    close(result(tmp_path / "one"), result(tmp_path / "two"))


def test_one_device_needs_no_mesh():
    placement = devices.place(7)
    assert placement == devices.Placement(None, None)
    assert placement.devices == 1


def test_a_batch_that_does_not_divide_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: ["a device"] * 8)
    with pytest.raises(
        ValueError, match=r"batch of 20 images .* 8 devices; the next that does is 24"
    ):
        devices.place(20)


def test_multihost_without_a_coordinator_says_what_to_set(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)

    def initialize(**options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(ValueError, match=r"multihost: .*set JAX_COORDINATOR_ADDRESS"):
        devices.start(TrainConfig(multihost=True))


@pytest.mark.parametrize(
    "address", ["nowhere", ":12", "host:", "host:99999", "host:0", "host:http"]
)
def test_a_malformed_address_is_refused_at_once(address, monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", None)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    with pytest.raises(ValueError, match=rf"must be host:port, got '{address}'"):
        devices.start(TrainConfig(multihost=True))


def test_a_process_that_nobody_joins_ends_in_time(monkeypatch, capsys):
    ended = threading.Event()

    def exit(status):
        assert status == 2
        ended.set()

    def initialize(**options):
        assert options["initialization_timeout"] > 1  # else JAX aborts the process before
        assert ended.wait(30)

    monkeypatch.setattr(os, "_exit", exit)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host:12")
    devices.start(TrainConfig(multihost=True, join_timeout=1))
    err = capsys.readouterr().err
    assert "multihost: the processes did not all join within 1 s" in err
    assert "the first at host:12" in err
    assert len(err.splitlines()) == 1
    # In time, it goes on.
    ended.clear()
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: None)
    devices.start(TrainConfig(multihost=True, join_timeout=1))
    assert not ended.wait(1.5)


@pytest.mark.slow
@pytest.mark.parametrize("index", ["0", "1"])
def test_a_wrong_address_is_one_line(index, tmp_path):
    process = start(
        tmp_path, "run", "--multihost", "--join-timeout=3", JAX_NUM_PROCESSES="2",
        JAX_COORDINATOR_ADDRESS="127.0.0.1:1" if index == "1" else "127.0.0.1:47113",
        JAX_PROCESS_ID=index,
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "did not all join within 3 s" in err
    assert len(err.splitlines()) == 1


def test_what_the_main_process_refuses_all_refuse(monkeypatch):
    def refuse():
        raise ValueError("no such run")

    assert devices.from_main(lambda: [1, "a"]) == [1, "a"]
    with pytest.raises(ValueError, match="no such run"):
        devices.from_main(refuse)
    # Of two processes, of which one has a value to tell.
    sent = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    broadcast = devices.multihost_utils
    monkeypatch.setattr(broadcast, "broadcast_one_to_all", lambda x: sent.append(x) or x)
    for action, error in ((lambda: [1, "a"], None), (refuse, "process 0: no such run")):
        sent.clear()
        monkeypatch.setattr(jax, "process_index", lambda: 0)
        if error is None:
            assert devices.from_main(action) == [1, "a"]
        else:
            with pytest.raises(ValueError, match="no such run"):
                devices.from_main(action)
        told = iter(list(sent))
        with monkeypatch.context() as patch:
            patch.setattr(jax, "process_index", lambda: 1)
            patch.setattr(broadcast, "broadcast_one_to_all", lambda x, told=told: next(told))
            if error is None:
                assert devices.from_main(None) == [1, "a"]
            else:
                with pytest.raises(OSError, match=error):
                    devices.from_main(None)


def test_programs_are_kept_in_the_users_cache_unless_jax_has_a_folder(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        jax.config.update("jax_compilation_cache_dir", "/given")
        devices.keep_programs()
        assert jax.config.jax_compilation_cache_dir == "/given"
        jax.config.update("jax_compilation_cache_dir", None)
        devices.keep_programs()
        [folder] = (tmp_path / "lorentz-jax").iterdir()
        assert jax.config.jax_compilation_cache_dir == str(folder)
        devices.start(TrainConfig(compilation_cache="off"))
        assert jax.config.jax_compilation_cache_dir is None
        # A file stands where the folder should be.
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        (tmp_path / "file").touch()
        devices.keep_programs()
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
