"""Radii layer by layer against a pass through the network by hand."""

import jax
import numpy as np
import pytest

from lorentz_jax import models
from lorentz_jax.training.state import init_network, merge
from notebooks.figures import radii
from notebooks.figures.radii import Profile

KAPPA = 0.5
# Compiling takes most of the time.
FAMILIES = (
    "lorentz", "euclidean", *(pytest.param(f, marks=pytest.mark.slow) for f in ("hcnn", "poincare"))
)  # fmt: skip


def network(family, stages=(1, 1)):
    options = {} if family == "euclidean" else {"kappa": KAPPA}
    kind = models.MODELS[family]
    graphdef, params, stats = init_network(
        lambda rngs: kind(stages, 2, 3, 1, rngs=rngs, **options), 0
    )
    # Norms that do something, as after training.
    move = {name: a + 0.3 for name, a in {**params, **stats}.items() if "norm" in name}
    return graphdef, params | {n: move[n] for n in params if n in move}, stats | {
        n: move[n] for n in stats if n in move
    }  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_each_layer_by_hand(family):
    parts = network(family)
    images = jax.random.normal(jax.random.key(1), (3, 6, 6, 1))
    found = radii.profile(*parts, images)
    assert found.names == (
        "stem", "stages/0/0/first", "stages/0/0/second",
        "stages/1/0/first", "stages/1/0/second", "stages/1/0/shortcut",
    )  # fmt: skip
    kappa = None if family == "euclidean" else KAPPA
    model = merge(*parts)
    x = images if model.entry is None else model.entry(images, kappa)
    conv = model.stem.conv(x, kappa)
    norm = model.stem.norm(conv, kappa, True)
    block, x = model.stages[0][0], model.relu(norm, kappa)
    later = block.first.conv(x, kappa)

    def radius(points):
        length = np.linalg.norm(np.asarray(points, np.float64), axis=-1)
        if family == "euclidean":
            return length.mean()
        return np.mean(np.arcsinh(np.sqrt(KAPPA) * length) / np.sqrt(KAPPA))

    assert found.linear[0] == pytest.approx(radius(conv), rel=1e-5)
    assert found.norm[0] == pytest.approx(radius(norm), rel=1e-5)
    assert found.linear[1] == pytest.approx(radius(later), rel=1e-5)
    assert abs(found.linear[0] - found.norm[0]) > 1e-3
    # The Poincare shortcut alone has no norm.
    np.testing.assert_array_equal(np.isnan(found.norm), [False] * 5 + [family == "poincare"])
    assert np.isfinite(found.linear).all()


def test_ten_blocks_stay_in_order():
    names = ["stem", *(f"stages/0/{block}/first" for block in range(11))]
    mixed = names[5:] + names[:5]
    assert sorted(mixed, key=radii._order) == names


def make(values):
    names = ("stem", "stages/0/0/first", "stages/0/0/second", "stages/0/0/shortcut")
    return Profile(names, np.array(values), 2 * np.array(values))


def test_the_picture_holds_means_and_puts_shortcuts_aside(tmp_path):
    found = {"a": [make([1.0, 2, 3, 4]), make([3.0, 2, 5, 6])], "b": [make([1.0, 1, 1, 1])]}
    figure = radii.plot(found)
    left, right = figure.axes
    assert left.lines[0].get_xydata().tolist() == [[1, 2], [2, 2], [3, 4]]
    assert left.lines[1].get_xydata().tolist() == [[3, 5]]
    assert right.lines[0].get_ydata().tolist() == [4, 4, 8]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["a", "b"]
    assert left.get_ylabel().endswith("(length)")
    figure.savefig(tmp_path / "x.png")


def test_mistakes():
    parts = network("euclidean", (1,))
    with pytest.raises(ValueError, match=r"at least one, got shape \(0, 6, 6, 1\)"):
        radii.profile(*parts, np.zeros((0, 6, 6, 1), np.float32))
    with pytest.raises(ValueError, match="a profile for every name"):
        radii.plot({"a": []})
    other = Profile(("stem",), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="'a' have different layers"):
        radii.plot({"a": [make([1.0, 2, 3, 4]), other]})
