"""A signal is never lost, whatever the process is doing."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lorentz_jax._src.signals import WATCH, Watch

ROOT = Path(__file__).parents[2]
SMALL = ("--stages=1", "--width=2", "--batch-size=8", "--epochs=30")


@contextlib.contextmanager
def process_of(*command):
    """A process that ends with the block, also where a test fails in it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def send(number):
    os.kill(os.getpid(), number)


def test_a_held_signal_is_noted_and_a_second_one_interrupts():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    watch = Watch()
    with pytest.raises(KeyboardInterrupt), watch.hold():  # noqa: PT012
        assert watch.came is None
        send(signal.SIGINT)
        assert watch.came == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        # Leaving raises what nobody looked at.
    with watch.hold():
        assert watch.came is None
        send(signal.SIGTERM)
        send(signal.SIGTERM)
    assert watch.came == signal.SIGTERM
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_in_a_callback_that_drops_exceptions_is_noted():
    class Collected:
        def __del__(self):
            send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), WATCH.hold():  # noqa: PT012
        Collected()
        assert WATCH.came == signal.SIGINT


COMMAND = """
import time
from lorentz_jax._src.signals import WATCH
WATCH.start("program")
WATCH.on_exit.append(lambda: print("released", flush=True))
{body}
time.sleep(60)
"""
READY = """
print("ready", flush=True)
"""
HELD = """
with WATCH.hold():
    print("ready", flush=True)
    while WATCH.came is None:
        time.sleep(0.01)
    print("held", flush=True)
    time.sleep(60)
"""
INTERRUPTED = 130, "released\n", "program: error: interrupted\n"


def test_the_command_ends_at_once_outside_a_run():
    with process_of(sys.executable, "-c", COMMAND.format(body=READY)) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        result = process.communicate(timeout=30)
    assert (process.returncode, *result) == INTERRUPTED


def test_a_run_goes_on_to_the_end_of_its_step_and_a_second_signal_ends_it():
    with process_of(sys.executable, "-c", COMMAND.format(body=HELD)) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "held\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        result = process.communicate(timeout=30)
    assert (process.returncode, *result) == INTERRUPTED


def test_closed_streams_are_opened(tmp_path):
    code = """
import os, sys
from lorentz_jax.commands import open_streams
open_streams()
print("lost"); print("lost", file=sys.stderr); os.write(2, b"lost"); sys.stderr.flush()
with open("file", "w") as file:  # would be number 1 or 2, and get what is printed
    print(file.fileno(), file=file)
    sys.stdout.flush()
    os.write(2, b"lost"); os.write(1, b"lost")
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for closed in ("2>&-", "<&- >&- 2>&-"):
        command = f'"$0" -c "$1" {closed}'
        subprocess.run(
            ["sh", "-c", command, sys.executable, code], cwd=tmp_path, env=environment, check=True
        )
        assert int((tmp_path / "file").read_text()) > 2


def start(folder, *arguments):
    return process_of(sys.executable, "train.py", *SMALL, f"--run-dir={folder}", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 1.0, 2.0, 3.0, 4.0])
def test_an_interrupt_before_the_first_step_is_one_line_and_leaves_nothing(delay, tmp_path):
    with start(tmp_path / "runs", "--name=run") as process:
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    if not (tmp_path / "runs" / "run" / "config.json").exists():  # else it was in its steps
        assert (process.returncode, err) == (130, "train.py: error: interrupted\n")
        assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_interrupt_of_a_run_saves_it_and_a_second_one_ends_it(tmp_path):
    with start(tmp_path, "--name=run") as process:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(err.splitlines()) == 1
    assert "train.py: error: stopped at step" in err
    assert "go on with --resume" in err
    with start(tmp_path, "--name=run", "--resume") as process:
        while "resumed" not in (line := process.stdout.readline()):
            assert line, process.communicate()
        time.sleep(2)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert len(err.splitlines()) == 1
    assert err.startswith("train.py: error: ")


@pytest.mark.slow
def test_a_run_without_standard_error_trains(tmp_path):
    command = f'"$0" train.py --limit=80 --epochs=1 --run-dir={tmp_path} --name=run 2>&-'
    result = subprocess.run(
        ["sh", "-c", command, sys.executable], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert result.returncode == 0
    assert "test_accuracy" in result.stdout
