"""How the cost of a training step grows with batch, width, image size and depth."""

from collections.abc import Iterator

import jax
import numpy as np

from lorentz_jax.studies.networks import BASE, _batch, build, training_arm
from lorentz_jax.studies.timing import Row, interleave

DEFAULTS = {"width": 16, "batch": 32, "size": 16, "depth": 1}
SWEEPS = {
    "batch": (8, 16, 32, 64),
    "width": (8, 16, 32, 64),
    "size": (8, 16, 32),
    "depth": (1, 2, 4),
}


def step(width: int, batch: int, size: int, depth: int, kappa: float, seconds: float) -> list[Row]:
    """Euclidean and Lorentz training step of two stages of `depth` blocks, interleaved."""
    images, labels = _batch(batch, size)
    arms = {
        name: training_arm(build(name, (depth, depth), width, kappa), images, labels)
        for name in (BASE, "lorentz")
    }
    rows = interleave(arms, BASE, seconds)
    jax.clear_caches()
    return rows


def tables(kappa: float, seconds: float) -> Iterator[tuple[str, list[Row]]]:
    """One table for each value of each sweep, the other sizes at `DEFAULTS`."""
    for name, values in SWEEPS.items():
        for value in values:
            yield (
                f"{name}={value}",
                step(**(DEFAULTS | {name: value}), kappa=kappa, seconds=seconds),
            )


def exponents(results: dict) -> dict[str, dict[str, float]]:
    """Fitted p of `time ~ value^p` for each sweep and arm, by least squares in logarithms."""
    fits: dict[str, dict[str, float]] = {}
    for name in SWEEPS:
        found = {t: rows for t, rows in results["tables"].items() if t.startswith(f"{name}=")}
        values = [float(title.split("=")[1]) for title in found]
        for index, row in enumerate(next(iter(found.values()))):
            times = [rows[index]["milliseconds"] for rows in found.values()]
            slope = np.polyfit(np.log(values), np.log(times), 1)[0]
            fits.setdefault(name, {})[row["name"]] = float(slope)
    return fits


def describe(fits: dict[str, dict[str, float]]) -> str:
    """One line a sweep: `time ~ batch^p: euclidean p = 0.97, lorentz p = 0.98`."""
    return "\n".join(
        f"time ~ {sweep}^p: " + ", ".join(f"{arm} p = {p:.2f}" for arm, p in found.items())
        for sweep, found in fits.items()
    )
