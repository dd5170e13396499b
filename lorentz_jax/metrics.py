"""Exact metrics: integers are counted as integers, and nothing is averaged twice."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from lorentz_jax._src.arguments import compute_dtype


class Counts(NamedTuple):
    """Sums over some examples: the loss, and by class right and all (int32).

    `confusion` (num_classes, num_classes) counts, int32, by label and by prediction. A prediction
    beyond the classes, as of an extra logit, is in no column.
    """

    loss: Array
    correct: Array
    total: Array
    confusion: Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Loss of every example, shape `(B,)`, in float32 or better."""
    logits = logits.astype(compute_dtype(logits.dtype))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def hits(logits: Array, labels: Array) -> Array:
    """Whether the largest logit is the label's, bool of shape `(B,)`."""
    return jnp.argmax(logits, axis=-1).astype(labels.dtype) == labels


def count_batch(logits: Array, labels: Array, mask: Array, num_classes: int) -> Counts:
    """Counts of one batch.

    Args:
        logits: `(B, num_classes)`.
        labels: int32, `(B,)`.
        mask: bool, `(B,)`; False leaves the example out, whatever its logits.
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
        by_class(mask & hits(logits, labels)),
        by_class(mask),
        confusion.reshape(num_classes, num_classes),
    )


def ragged_batches(count: int, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`(indices, mask)` of batches of one size that together hold each of `count` examples once.

    The last batch is filled up with masked copies of example 0.
    """
    for start in range(0, count, batch_size):
        indices = np.arange(start, start + batch_size, dtype=np.int32)
        mask = indices < count
        yield np.where(mask, indices, 0), mask


def summarise(batches: Iterable[Counts]) -> dict[str, Any]:
    """`loss`, `accuracy`, `count`, `class_accuracy` and `confusion` over all batches.

    A value without any example (no data, or a class that does not occur) is None, not NaN.
    """
    batches = jax.device_get(list(batches))
    if not batches:
        return {"loss": None, "accuracy": None, "count": 0, "class_accuracy": [], "confusion": []}
    loss = math.fsum(float(batch.loss) for batch in batches)
    correct = np.stack([batch.correct for batch in batches]).astype(np.int64).sum(axis=0)
    total = np.stack([batch.total for batch in batches]).astype(np.int64).sum(axis=0)
    confusion = np.stack([batch.confusion for batch in batches]).astype(np.int64).sum(axis=0)
    count = int(total.sum())
    return {
        "loss": ratio(loss, count),
        "accuracy": ratio(int(correct.sum()), count),
        "count": count,
        "class_accuracy": [ratio(int(c), int(t)) for c, t in zip(correct, total, strict=True)],
        "confusion": confusion.tolist(),
    }


def evaluate(
    eval_step: Callable[[np.ndarray, np.ndarray], Counts], count: int, batch_size: int
) -> dict[str, Any]:
    """`summarise` over `count` examples, by calls `eval_step(indices, mask)`."""
    return summarise(eval_step(*batch) for batch in ragged_batches(count, batch_size))


def ratio(part: float, count: int) -> float | None:
    """`part / count`, or None where there is nothing to divide by."""
    return part / count if count else None


def show(value: float | None, spec: str = ".4f") -> str:
    """A metric as text; `no data` for None."""
    return "no data" if value is None else format(value, spec)
