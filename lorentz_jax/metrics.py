"""Losses and exact counts of a classifier, and how well an embedding keeps a graph.

Integers are counted as integers, and nothing is averaged twice: `evaluate` gives the same accuracy
for every batch size. Needs JAX alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax._src.graphs import (
    Distortion,
    distortion,
    gromov_delta,
    mean_average_precision,
    sampled_gromov_delta,
)

__all__ = [
    "Counts",
    "Distortion",
    "correct_predictions",
    "count_batch",
    "cross_entropy",
    "distortion",
    "evaluate",
    "format_metric",
    "gromov_delta",
    "mean_average_precision",
    "ragged_batches",
    "ratio",
    "sampled_gromov_delta",
    "summarise",
]

for _object in (
    Distortion, distortion, gromov_delta, mean_average_precision, sampled_gromov_delta
):  # fmt: skip
    _object.__module__ = __name__


class Counts(NamedTuple):
    """Sums over some examples.

    Attributes:
        loss: sum of the losses.
        correct: int32 `(num_classes,)`, right predictions by label.
        total: int32 `(num_classes,)`, examples by label.
        confusion: int32 `(num_classes, num_classes)`, examples by label and prediction. A
            prediction beyond the classes, as of an extra logit, is in no column.
    """

    loss: Array
    correct: Array
    total: Array
    confusion: Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the cross-entropy of every example in nats, in float32 or better.

    Args:
        logits: `(B, num_classes)`.
        labels: integers `(B,)`.

    Returns:
        An array `(B,)`.

    >>> print(cross_entropy(jnp.zeros((1, 10)), jnp.array([3])))
    [2.3025851]
    """
    logits = logits.astype(compute_dtype(logits.dtype))
    # Only the logits of the labels meet the normaliser, not all of them.
    picked = jnp.take_along_axis(logits, jnp.expand_dims(labels, -1), axis=-1).take(0, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - picked


def correct_predictions(logits: Array, labels: Array) -> Array:
    """Tell for every example whether the largest logit is the label's: bool `(B,)`.

    >>> print(correct_predictions(jnp.array([[0.0, 1.0], [0.0, 1.0]]), jnp.array([1, 0])))
    [ True False]
    """
    return jnp.argmax(logits, axis=-1).astype(labels.dtype) == labels


def count_batch(logits: Array, labels: Array, mask: Array, num_classes: int) -> Counts:
    """Count one batch.

    Args:
        logits: `(B, num_classes)`, or more columns.
        labels: int32 `(B,)`.
        mask: bool `(B,)`; False leaves the example out, whatever its logits.
        num_classes: rows and columns of the confusion.
    """

    def by_class(flags: Array) -> Array:
        return jax.ops.segment_sum(flags.astype(jnp.int32), labels, num_classes)

    loss = jnp.sum(jnp.where(mask, cross_entropy(logits, labels), 0))
    predicted = jnp.argmax(logits, axis=-1).astype(labels.dtype)
    known = mask & (predicted < num_classes)
    pairs = jnp.where(known, labels * num_classes + predicted, 0)
    confusion = jax.ops.segment_sum(known.astype(jnp.int32), pairs, num_classes**2)
    return Counts(
        loss,
        by_class(mask & correct_predictions(logits, labels)),
        by_class(mask),
        confusion.reshape(num_classes, num_classes),
    )


def ragged_batches(count: int, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield `(indices, mask)` of batches of one size that hold each of `count` examples once.

    The last batch is filled up with masked copies of example 0.

    >>> [(indices.tolist(), mask.tolist()) for indices, mask in ragged_batches(3, 2)]
    [([0, 1], [True, True]), ([2, 0], [True, False])]
    """
    for start in range(0, count, batch_size):
        indices = np.arange(start, start + batch_size, dtype=np.int32)
        mask = indices < count
        yield np.where(mask, indices, 0), mask


def summarise(batches: Iterable[Counts]) -> dict[str, Any]:
    """Return `loss`, `accuracy`, `count`, `class_accuracy` and `confusion` over all batches.

    A value without any example (no data, or a class that does not occur) is None, not NaN.
    """
    batches = jax.device_get(list(batches))
    if not batches:
        return {"loss": None, "accuracy": None, "count": 0, "class_accuracy": [], "confusion": []}
    loss = math.fsum(float(batch.loss) for batch in batches)

    def total_of(field: str) -> np.ndarray:
        return np.stack([getattr(batch, field) for batch in batches]).sum(0, dtype=np.int64)

    correct, total = total_of("correct"), total_of("total")
    count = int(total.sum())
    return {
        "loss": ratio(loss, count),
        "accuracy": ratio(int(correct.sum()), count),
        "count": count,
        "class_accuracy": [ratio(int(c), int(t)) for c, t in zip(correct, total, strict=True)],
        "confusion": total_of("confusion").tolist(),
    }


def evaluate(
    eval_step: Callable[[np.ndarray, np.ndarray], Counts], count: int, batch_size: int
) -> dict[str, Any]:
    """Summarise `count` examples in batches of one size, each of them counted once.

    Args:
        eval_step: `(indices, mask) -> Counts`, as `count_batch` gives them.
        count: number of examples.
        batch_size: size of every batch, the last one included.

    Returns:
        What `summarise` returns.
    """
    return summarise(eval_step(*batch) for batch in ragged_batches(count, batch_size))


def ratio(part: float, count: int) -> float | None:
    """Return `part / count`, or None where there is nothing to divide by."""
    return part / count if count else None


def format_metric(value: float | None, spec: str = ".4f") -> str:
    """Return a metric as text, `no data` for None."""
    return "no data" if value is None else format(value, spec)
