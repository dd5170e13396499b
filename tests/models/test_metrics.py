"""Exact counting."""

import doctest
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import metrics


def fake(correct, labels, num_classes):
    """An eval step whose predictions are right exactly where `correct` says."""
    labels, correct = np.asarray(labels, np.int32), np.asarray(correct)

    def eval_step(indices, mask):
        predicted = np.where(correct[indices], labels[indices], (labels[indices] + 1) % num_classes)
        logits = jnp.asarray(np.eye(num_classes, dtype=np.float32)[predicted])
        return metrics.count_batch(logits, jnp.asarray(labels[indices]), mask, num_classes)

    return eval_step


def test_a_ragged_last_batch_counts_by_its_size():
    correct = np.arange(10000) < 78 * 128
    labels = np.arange(10000) % 10
    result = metrics.evaluate(fake(correct, labels, 10), 10000, 128)
    assert result["accuracy"] == 0.9984
    assert result["count"] == 10000


def test_no_data_is_none_and_never_nan():
    def never(indices, mask):
        raise AssertionError("there is nothing to evaluate")

    result = metrics.evaluate(never, 0, 128)
    assert result == {
        "loss": None, "accuracy": None, "count": 0, "class_accuracy": [], "confusion": [],
    }  # fmt: skip
    assert metrics.format_metric(result["accuracy"]) == "no data"
    assert metrics.format_metric(0.98765) == "0.9877"


def test_classes_that_do_not_occur_have_no_accuracy():
    result = metrics.evaluate(fake([True, False, True, True], [7, 7, 7, 7], 10), 4, 3)
    assert result["accuracy"] == 0.75
    assert result["class_accuracy"] == [None] * 7 + [0.75] + [None] * 2
    assert result["confusion"][7] == [0] * 7 + [3, 1, 0]
    assert sum(map(sum, result["confusion"])) == 4


def test_masked_examples_count_for_nothing_whatever_their_logits():
    logits = jnp.asarray([[5.0, 0.0], [0.0, 3e38]])
    counts = metrics.count_batch(
        logits, jnp.asarray([0, 0], jnp.int32), jnp.asarray([True, False]), 2
    )
    np.testing.assert_allclose(counts.loss, math.log1p(math.exp(-5)), rtol=1e-4)
    assert counts.correct.tolist() == [1, 0]
    assert counts.total.tolist() == [1, 0]
    assert counts.total.dtype == counts.correct.dtype == jnp.int32


def test_uniform_logits_lose_the_logarithm_of_the_classes():
    losses = metrics.cross_entropy(jnp.zeros((1, 10), jnp.bfloat16), jnp.asarray([3], jnp.int32))
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, 2.30258509299, rtol=1e-6)


@pytest.mark.parametrize(("count", "size"), [(10, 4), (8, 4), (3, 4), (1, 1)])
def test_batches_cover_each_example_once(count, size):
    batches = list(metrics.ragged_batches(count, size))
    assert all(i.shape == m.shape == (size,) and i.dtype == np.int32 for i, m in batches)
    covered = np.concatenate([i[m] for i, m in batches])
    np.testing.assert_array_equal(covered, np.arange(count))
    assert all((i < count).all() for i, _ in batches)


def test_examples_print_what_they_say():
    names = {name: getattr(metrics, name) for name in metrics.__all__}
    texts = [text for f in names.values() if ">>> " in (text := f.__doc__ or "")]
    for text in texts:
        test = doctest.DocTestParser().get_doctest(
            text, {**names, "jax": jax, "jnp": jnp}, "example", None, 0
        )
        result = doctest.DocTestRunner().run(test)
        assert result.attempted
        assert not result.failed
    assert len(texts) >= 7
