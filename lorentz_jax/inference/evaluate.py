"""The accuracy of a compiled model on a dataset."""

from typing import Any

import jax
import jax.numpy as jnp

from lorentz_jax.data import Dataset, normalise
from lorentz_jax.inference.compiled import Compiled
from lorentz_jax.models import has_extra_logit
from lorentz_jax.training import metrics


def evaluate(compiled: Compiled, dataset: Dataset, batch_size: int = 256) -> dict[str, Any]:
    """`loss`, `accuracy`, `count` and `class_accuracy` on the test set, exact for any batch size.

    Images are normalised as in training, by the dataset's mean and deviation. Raises `ValueError`
    for images or classes that the model is not made for.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    classes, config = dataset.num_classes, compiled.info.get("config", {})
    outputs = classes + has_extra_logit(config.get("model"), config.get("init"))

    def count(params, images, labels, indices, mask):
        batch = normalise(images[indices], dataset.mean, dataset.std)
        logits = compiled.apply(params, batch)
        if logits.shape != (*indices.shape, outputs):
            raise ValueError(
                f"{dataset.name} has {classes} classes, the model's output is {logits.shape[1:]}"
            )
        return metrics.count_batch(logits, labels[indices], mask, classes)

    images, labels = jnp.asarray(dataset.test_images), jnp.asarray(dataset.test_labels)
    step = jax.jit(count)
    return metrics.evaluate(
        lambda indices, mask: step(compiled.params, images, labels, indices, mask),
        len(dataset.test_labels),
        batch_size,
    )
