"""A trace of a few steps for TensorBoard, XProf or Perfetto."""

from pathlib import Path

import jax

# Counted from the first step of the process, which is not typical.
FIRST, LAST = 2, 5


class Profile:
    """Traces the steps `FIRST .. LAST - 1` into a folder, or nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._step, self._tracing = folder, 0, False

    def at_step(self) -> None:
        """Tell that a step begins."""
        if self._folder is not None and self._step == FIRST:
            jax.profiler.start_trace(self._folder)
            self._tracing = True
        if self._step == LAST:
            self._stop()
        self._step += 1

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False
