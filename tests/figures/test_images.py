"""Points of images: measures against counts by hand, the arms, a training, and its rate."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import geometry
from lorentz_jax.models import BdeirMLR, ChenLinear, EuclideanHead, PoincareLinear, PoincareMLR
from lorentz_jax.nn import LorentzLinear, LorentzMLR
from notebooks.figures import image_measures, image_nets
from notebooks.figures.image_measures import CLASSES, episodes, few_shot, heights, mistakes, paths
from notebooks.figures.image_nets import ARMS, build
from notebooks.figures.image_training import Images, Settings, Trainer, best_rate, tuned

TINY = Settings(batch_size=16, steps=60, width=4, stages=(1,), rates=(0.03, 0.1, 0.3))


def test_the_tree_of_clothes():
    height = heights(paths())
    assert height.shape == (10, 10)

    def between(a, b):
        return height[CLASSES.index(a), CLASSES.index(b)]

    assert between("Shirt", "Shirt") == 0
    assert between("Shirt", "Coat") == between("Sandal", "Ankle boot") == 1
    assert between("Shirt", "Dress") == between("Sneaker", "Bag") == 2
    assert between("Shirt", "Sandal") == between("Bag", "Trouser") == 3
    assert [len(set(level)) for level in paths().tolist()] == [10, 4, 2]
    # An ultrametric: of the heights among three classes the two largest are equal.
    assert (height[:, None] <= np.maximum(height[:, :, None], height[None])).all()
    with pytest.raises(ValueError, match="must have each of"):
        paths({"a": {"b": ("x", "x")}}, ("x", "y"))


def test_mistakes_by_hand():
    sandal, sneaker, bag, shirt = map(CLASSES.index, ("Sandal", "Sneaker", "Bag", "Shirt"))
    labels = np.array([sandal, sandal, sandal, sandal])
    found = mistakes(np.array([sandal, sneaker, bag, shirt]), labels, paths())
    assert found == {"accuracy": 0.25, "height": 6 / 4, "height of mistakes": 2.0}
    found = mistakes(labels, labels, paths())
    assert found == {"accuracy": 1.0, "height": 0.0, "height of mistakes": 0.0}


def test_foreign_images_are_those_of_low_scores():
    rng = np.random.default_rng(0)
    known, foreign = rng.integers(3, 9, 40).astype(float), rng.integers(0, 7, 30).astype(float)
    apart = known[:, None] - foreign
    want = np.mean((apart > 0) + 0.5 * (apart == 0))
    assert image_measures.auroc(known, foreign) == pytest.approx(want)
    assert want > 0.7


def test_episodes_draw_no_image_twice():
    labels = np.array([0, 1, 2, 3] * 12)
    drawn = episodes(labels, [1, 3], 7, 20, 0)
    assert drawn.shape == (20, 2, 7)
    assert (labels[drawn] == [[[1], [3]]]).all()
    assert all(len(set(own)) == 7 for episode in drawn.tolist() for own in episode)
    assert len({tuple(sorted(own)) for own in drawn[:, 0].tolist()}) > 10
    np.testing.assert_array_equal(drawn, episodes(labels, [1, 3], 7, 20, 0))
    with pytest.raises(ValueError, match="class 1 needs 13 images, got 12"):
        episodes(labels, [1, 3], 13, 20, 0)


@pytest.mark.parametrize("kappa", [None, 1.0])
def test_prototypes_are_centroids(kappa):
    """Against a loop over episodes and queries."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 8)
    points = (rng.normal(size=(24, 2)) + 3 * np.eye(3, 2)[labels]).astype(np.float32)
    points *= rng.uniform(0.5, 3, size=(24, 1)).astype(np.float32)
    drawn = episodes(labels, [0, 1, 2], 6, 5, 0)
    right = []
    for episode in drawn:
        support = points[episode[:, :3]]
        if kappa is None:
            prototypes = support.mean(axis=1)
        else:  # the sum of the points of the hyperboloid, scaled back onto it
            sums = np.asarray(geometry.lift(support, kappa)).sum(axis=1)
            size = np.sqrt(sums[:, :1] ** 2 - np.sum(sums[:, 1:] ** 2, axis=1, keepdims=True))
            prototypes = sums[:, 1:] / size
        for label, own in enumerate(episode):
            for query in points[own[3:]]:
                far = (
                    np.linalg.norm(query - prototypes, axis=-1)
                    if kappa is None
                    else np.asarray(geometry.dist(query, prototypes, kappa))
                )
                right.append(far.argmin() == label)
    assert few_shot(points, drawn, 3, kappa) == pytest.approx(np.mean(right))
    assert 0.4 < np.mean(right) < 0.95


def test_flat_and_curved_spaces_differ():
    x, y = jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 3.0], [0.0, 0.0]])
    for kappa, apart, far in [(None, math.sqrt(18), 3.0), (1.0, math.acosh(10), math.asinh(3))]:
        got = image_nets.distances(x, y, kappa)
        np.testing.assert_allclose(got, [[apart, far]], rtol=1e-5)
        np.testing.assert_allclose(image_nets.radius(x, kappa), [far], rtol=1e-5)
        mean = image_nets.centroid(jnp.stack([x[0], y[0]]), kappa)
        np.testing.assert_allclose(mean[0], mean[1])
        # The centroid is as far from both.
        away = image_nets.distances(mean[None], jnp.stack([x[0], y[0]]), kappa)
        np.testing.assert_allclose(away, apart / 2, rtol=1e-5)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_has_the_layers_of_its_geometry(arm):
    net = nnx.eval_shape(lambda: build(arm, 3, (10, 4, 2), 2, (1, 1), nnx.Rngs(0)))
    points, logits = jax.eval_shape(
        lambda net, x: net(x, train=False), net, jnp.zeros((5, 6, 6, 1))
    )
    assert points.shape == (5, 3)
    assert [of_level.shape for of_level in logits] == [(5, 10), (5, 4), (5, 2)]
    linear, classifier = {
        "euclidean": (nnx.Linear, EuclideanHead),
        "hcnn": (ChenLinear, BdeirMLR),
        "poincare": (PoincareLinear, PoincareMLR),
    }.get(arm, (LorentzLinear, LorentzMLR))
    assert isinstance(net.head.linear, linear)
    assert all(isinstance(c, classifier) for c in net.head.classifiers)
    if ARMS[arm].kappa is not None:
        assert net.head.linear.kappa == net.head.classifiers[0].kappa == ARMS[arm].kappa
    with pytest.raises(ValueError, match="no arm 'fgg, kappa 2'"):
        build("fgg, kappa 2", 3, (10,), 2, (1,), nnx.Rngs(0))


def stripes(count, seed=0):
    """Images of four classes, two to a group: horizontal or vertical stripes, wide or narrow."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=count)
    wave = np.where(np.arange(8) // np.array([[1], [2]]) % 2, 1.0, 0.0)
    rows = wave[labels % 2][:, :, None] * np.ones(8)
    pixels = np.where((labels < 2)[:, None, None], rows, rows.swapaxes(1, 2))
    return Images.of(pixels + 0.3 * rng.normal(size=pixels.shape), labels, 0.5, 0.5)


LEVELS = np.array([[0, 1, 2, 3], [0, 0, 1, 1]], np.int32)


def test_training_learns_all_levels():
    trainer = Trainer("euclidean", 2, LEVELS, TINY, stripes(64))
    new = stripes(50, seed=1)
    weights, loss = trainer.run(0.1, 0)
    assert trainer.accuracy(weights, new) > 0.9
    points, logits = trainer.outputs(weights, new.pixels, batch_size=32)
    assert points.shape == (50, 2)
    fine, coarse = (of_level.argmax(axis=-1) for of_level in logits)
    assert np.mean(fine == new.labels) == trainer.accuracy(weights, new)
    assert np.mean(coarse == LEVELS[1][new.labels]) > 0.9
    again, other = trainer.run(0.1, 0), trainer.run(0.1, 1)
    assert (again[1] == loss, other[1] == loss) == (True, False)
    assert trainer.run(1e-6, 0)[1] > 1.5 * loss, "the rate is an argument of the program"
    # Classes that are left out are not learned, in as many steps.
    weights, _ = trainer.run(0.1, 0, (0, 3))
    guesses = trainer.outputs(weights, new.pixels).logits[0].argmax(axis=-1)
    assert set(guesses.tolist()) <= {0, 3}
    assert sum(1 for _ in trainer._batches(0, (0, 3))) == TINY.steps
    drawn = np.concatenate(list(trainer._batches(0, (0, 3))))
    assert set(trainer.labels[drawn].tolist()) == {0, 3}
    with pytest.raises(ValueError, match="a batch of 16 needs as many images, got 0"):
        trainer.run(0.1, 0, (7,))


class Known:
    """Stands for a trainer whose accuracies are known; a rate of more than 2 diverges."""

    settings = Settings(rates=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0))

    def __init__(self, best):
        self.best, self.tried = best, []

    def run(self, rate, seed):
        assert seed == self.settings.tuning_seed
        self.tried.append(rate)
        return rate, math.nan if rate > 2 else 1.0

    def accuracy(self, rate, images):
        return 1 / (1 + abs(math.log(rate / self.best)))


@pytest.mark.parametrize("best", [0.01, 0.3, 1.0])
def test_tuning_tries_every_rate_that_is_not_known(best):
    known = Known(best)
    found = tuned(known, None)
    assert known.tried == list(found) == list(known.settings.rates)
    assert best_rate(found) == best
    assert found[3.0] == 0.0, "a training that diverged is worth nothing"
    some = {rate: found[rate] for rate in (0.1, 0.3)}
    known.tried = []
    assert tuned(known, None, some) == found
    assert known.tried == [0.01, 0.03, 1.0, 3.0]
    assert best_rate({0.1: 0.5, 0.3: 0.5}) == 0.1
