"""The loop over epochs and steps, from where a run stands to its end."""

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from tqdm import tqdm

from lorentz_jax.metrics import ratio
from lorentz_jax.training.build import Program
from lorentz_jax.training.checkpoint import Store
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.devices import is_main
from lorentz_jax.training.reload import facts
from lorentz_jax.training.report import Profile, epoch_line
from lorentz_jax.training.run_directory import versions
from lorentz_jax.training.state import TrainState
from lorentz_jax.training.step import StepMetrics


class NonFiniteLossError(ArithmeticError):
    """The loss or a gradient became NaN or infinite; training stops at the step in the message."""


class Terminated(Exception):
    """The process was asked to end (SIGTERM or SIGINT); a checkpoint is saved, and named."""


@dataclasses.dataclass
class Progress:
    """Where a run stands: with the state, all that a checkpoint needs to go on.

    Attributes:
        epoch: the current epoch, from 1.
        losses: of the steps of this epoch so far; None for a skipped one.
        correct: right predictions in those steps.
        skipped: skipped steps of the whole run.
        history: the rows of `metrics.jsonl`.
        best: epoch, step and accuracy that are the best on the validation images.
    """

    epoch: int = 1
    losses: list[float | None] = dataclasses.field(default_factory=list)
    correct: int = 0
    skipped: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: dict[str, Any] | None = None

    def finish_epoch(self, row: dict[str, Any]) -> None:
        """Move on to the next epoch. Of equally good epochs the first stays the best."""
        self.history.append(row)
        self.epoch, self.losses, self.correct = row["epoch"] + 1, [], 0
        accuracy = row.get("validation_accuracy")
        if accuracy is not None and (self.best is None or accuracy > self.best["accuracy"]):
            self.best = {"epoch": row["epoch"], "step": row["step"], "accuracy": accuracy}


@dataclasses.dataclass
class Loop:
    """The rest of a run.

    Attributes:
        config, program: of the run.
        progress: where it stands; moves on.
        store: gets the checkpoints.
        on_step: called with the finite result of every step, before anything is written.
        on_row: called with the row of every epoch, before its checkpoint is saved.
        stop: called once a step; tells whether to save and stop after it.
    """

    config: TrainConfig
    program: Program
    progress: Progress
    store: Store
    on_step: Callable[[], object]
    on_row: Callable[[dict[str, Any]], None]
    stop: Callable[[int], bool]

    def run(self, state: TrainState) -> TrainState:
        """Train to the end of the last epoch.

        Raises:
            NonFiniteLossError: a step beyond `skip_nonfinite`, or an evaluation, is not finite.
            Terminated: `stop` asked for it.
        """
        config, plan, progress = self.config, self.program.plan, self.progress
        done = (progress.epoch - 1) * plan.steps_per_epoch + len(progress.losses)
        self.bar = tqdm(
            total=config.epochs * plan.steps_per_epoch * plan.batch_size,
            initial=done * plan.batch_size,
            unit="img",
            unit_scale=True,
            disable=None if is_main() and sys.stderr is not None else True,
        )
        folder = config.path / "profile" if config.profile and is_main() else None
        feeding = self.program.feed.train(done, config.epochs * plan.steps_per_epoch)
        with self.bar, Profile(folder) as self.profile, feeding as self.batches:
            for epoch in range(progress.epoch, config.epochs + 1):
                start, waited = time.perf_counter(), self.program.feed.waited
                state = self._train_epoch(state)
                row = self._evaluate_epoch(state, epoch, start, waited)
                if is_main():
                    self.bar.write(epoch_line(row, config.epochs))
                progress.finish_epoch(row)
                self.on_row(row)
                self._save(state)
                if epoch < config.epochs and self.stop(row["step"]):
                    self._terminate(row["step"])
        return state

    def _train_epoch(self, state: TrainState) -> TrainState:
        """Take the steps of the current epoch that are left."""
        steps, progress = self.program.plan.steps_per_epoch, self.progress
        every, before = self.config.checkpoint_every, (progress.epoch - 1) * steps
        pending = None
        for position in range(len(progress.losses), steps):
            step = before + position + 1
            self.profile.at_step()
            state, current = self.program.train(state, next(self.batches))
            if pending is not None:
                self._record(step - 1, pending)
            pending = current  # read one step late, so that the device never waits for the host
            if position + 1 == steps:
                continue  # the epoch's own checkpoint is next
            stop = self.stop(step)
            if stop or (every is not None and step % every == 0):
                self._record(step, pending)
                pending = None
                self._save(state)
            if stop:
                self._terminate(step)
        if pending is not None:
            self._record(before + steps, pending)
        return state

    def _record(self, step: int, result: StepMetrics) -> None:
        """Add the result of a step to the progress, and refuse one skipped step too many."""
        loss, progress = float(result.loss), self.progress
        if bool(result.finite):
            progress.losses.append(loss)
            progress.correct += int(result.correct)
        else:
            progress.losses.append(None)
            progress.skipped += 1
            cause, value = (
                ("a gradient", "not finite") if math.isfinite(loss) else ("the loss", loss)
            )
            if progress.skipped > self.config.skip_nonfinite:
                before = f" and {progress.skipped - 1} before it" if progress.skipped > 1 else ""
                self._fail(f"{cause} at step {step}{before} is {value}")
            if is_main():
                self.bar.write(f"warning: skipped step {step}: {cause} is {value}")
        self.on_step()
        images = self.program.plan.batch_size
        seen = images * max(1, len(progress.losses) - progress.losses.count(None))
        accuracy = progress.correct / seen
        self.bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.3f}", refresh=False)
        self.bar.update(images)

    def _evaluate_epoch(
        self, state: TrainState, epoch: int, start: float, waited: float | None
    ) -> dict[str, Any]:
        """Evaluate the network after an epoch; returns a row of `metrics.jsonl`."""
        plan, progress = self.program.plan, self.progress
        trained, now = time.perf_counter(), self.program.feed.waited
        if now is None or waited is None:
            wait = {}
        else:
            wait = {"data_wait": (now - waited) / (trained - start)}
        split = "validation" if self.config.validation else "test"
        result = self.program.evaluate(state.params, state.stats, split)
        step = epoch * plan.steps_per_epoch
        if not math.isfinite(result["loss"]):
            self._fail(f"the {split} loss after step {step} is {result['loss']}")
        losses = [loss for loss in progress.losses if loss is not None]
        measured = {"radius": self.program.radii(state.params, state.stats)}
        measured["diagnostics"] = self.program.diagnose(state)
        return {
            "epoch": epoch,
            "step": step,
            "train_loss": math.fsum(losses) / len(losses) if losses else None,
            "train_accuracy": ratio(progress.correct, len(losses) * plan.batch_size),
            f"{split}_loss": result["loss"],
            f"{split}_accuracy": result["accuracy"],
            f"{split}_count": result["count"],
            f"{split}_class_accuracy": result["class_accuracy"],
            # A skipped step does not move the schedule.
            "lr": float(self.program.schedule(max(step - 1 - progress.skipped, 0))),
            "skipped_steps": len(progress.losses) - len(losses),
            **wait,
            **{name: values for name, values in measured.items() if values},
            "train_seconds": trained - start,
            "eval_seconds": time.perf_counter() - trained,
        }

    def _save(self, state: TrainState) -> None:
        meta = {
            "config": self.config.to_json(),
            "data": self.program.plan.fingerprint,
            **facts(self.program.plan.dataset),
            "progress": dataclasses.asdict(self.progress),
            "versions": versions(),
        }
        try:
            self.store.save(state, meta)
        except ArithmeticError as error:
            raise NonFiniteLossError(f"{error}; try a smaller learning rate") from None

    def _terminate(self, step: int) -> NoReturn:
        self.store.wait()
        raise Terminated(f"stopped at step {step}; {self.store.last()}")

    def _fail(self, reason: str) -> NoReturn:
        raise NonFiniteLossError(f"{reason}; {self.store.last()}; try a smaller learning rate")
