"""Signals: a run ends at the next step, everything else at once, and no signal is lost.

Python drops an exception that a signal handler raises inside a callback or a finaliser, and runs no
handler while the main thread is in compiled code. So a signal is noted, and a command has a thread
that hears of it whatever the main thread does.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

from lorentz_jax._src import output

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of an interrupted command."""


class Watch:
    """What came to this process.

    Attributes:
        came: the signal that asks a run to end, or None.
        held: whether a run will see `came` after its present step.
        on_exit: called before the process ends in the middle of something.
    """

    def __init__(self) -> None:
        self.came: int | None = None
        self.held = False
        self.on_exit: list[Callable[[], object]] = [output.discard_parts]
        self._thread: threading.Thread | None = None

    def note(self, number: int) -> bool:
        """Note a signal; tells whether nobody will wait for the end of a step."""
        first = self.came is None
        self.came = number
        return not (self.held and first)

    def start(self, program: str) -> None:
        """From now on SIGINT ends this command: in one line, a second one or outside a run at once.

        Must be called in the main thread.
        """
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.signal(signal.SIGINT, lambda *_: None)  # the thread does it; this lets Python listen
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        def listen() -> None:
            # `writer` stays open as long as this thread.
            while (number := reader.recv(1)) and writer:
                if number[0] == signal.SIGINT and self.note(signal.SIGINT):
                    self.end(program)

        self._thread = threading.Thread(target=listen, name="interrupts", daemon=True)
        self._thread.start()

    def end(self, program: str) -> None:
        """End the process now, whatever it is doing, with one line."""
        for action in self.on_exit:
            with contextlib.suppress(Exception):
                action()
        with contextlib.suppress(OSError):
            newline = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""
            os.write(2, f"{newline}{program}: error: interrupted\n".encode())
        os._exit(INTERRUPTED)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM of the main thread only set `came`; a second SIGINT interrupts.

        Raises:
            KeyboardInterrupt: SIGINT came and nobody looked.
        """

        def handler(number: int, frame: object) -> None:
            if self.note(number) and number == signal.SIGINT:
                raise KeyboardInterrupt

        numbers = [signal.SIGTERM]
        if self._thread is None:
            numbers.append(signal.SIGINT)
        self.came, self.held = None, True
        before = {number: signal.signal(number, handler) for number in numbers}
        try:
            yield
            if self.came == signal.SIGINT:
                raise KeyboardInterrupt
        finally:
            self.held = False
            for number, old in before.items():
                signal.signal(number, old)


WATCH = Watch()
"""A process has one."""
