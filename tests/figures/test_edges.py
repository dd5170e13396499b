"""What length costs apart from size: the trees, the variants of the layers, and the command."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np
import pytest

from lorentz_jax import hyperplane
from notebooks.figures import edges_study, tree_shapes, trees
from notebooks.figures.edges_study import STUDIES, VARIANTS, Study, best
from notebooks.figures.growth import LAYERS as GROWTH

POINTS = np.random.default_rng(0).normal(size=(4, 4))
KERNEL = np.random.default_rng(1).normal(size=(4, 3))
PLANES = {"kernel": KERNEL, "bias": np.array([0.3, -0.2, 0.0])}


def test_spiders_and_caterpillars():
    parents = tree_shapes.spider(3, 2)
    assert parents.tolist() == [-1, 0, 1, 0, 3, 0, 5]
    parents = tree_shapes.caterpillar(2, 3)
    assert parents.tolist() == [-1, 0, 1, 1, 1, 1, 2, 2, 2]
    for problem, (edges, _) in STUDIES["shapes"].problems.items():
        assert len(edges) == 31
        assert edges[0].max() == int(problem.split()[-1])
    with pytest.raises(ValueError, match="legs and length must be at least 1, got 0 and 2"):
        tree_shapes.spider(0, 2)
    with pytest.raises(ValueError, match="spine and leaves must be at least 1, got 2 and 0"):
        tree_shapes.caterpillar(2, 0)


def test_a_variant_is_what_its_name_says(x64):
    """By the signed distances from the same hyperplanes."""
    planes = hyperplane.normals(KERNEL, PLANES["bias"], 1.0)
    inside = hyperplane.signed_distance(POINTS, planes, 1.0, "inside")
    gain = np.array([0.5, 1.0, 2.0])
    want = {
        "fgg": np.sinh(inside),
        "fgg, outside": np.sinh(hyperplane.signed_distance(POINTS, planes, 1.0, "outside")),
        "fgg, gain": np.sinh(gain * inside),
        "fgg, linear gain": np.sinh((1 + np.log(gain)) * inside),
        "fgg, one gain": np.sinh(0.5 * inside),
    }
    for name, points in want.items():
        params = PLANES | {"log_gain": np.log(gain)}
        got = VARIANTS[name].embed(params, POINTS, 1.0)
        np.testing.assert_allclose(got, points, rtol=1e-12, err_msg=name)
    # Poincare's kernel is w/2 and its bias a distance: inside and outside agree where |w| = 1.
    params = {"kernel": KERNEL / np.linalg.norm(KERNEL, axis=0) / 2, "bias": PLANES["bias"]}
    got = VARIANTS["poincare, inside"].embed(params, POINTS, 1.0)
    np.testing.assert_allclose(got, GROWTH["poincare"](params, POINTS, 1.0), rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in VARIANTS if n not in ("chen", "fgg", "euclidean")])
def test_a_variant_starts_where_its_layer_does(name):
    """So that steps compare: a gain starts at 1."""
    rng = np.random.default_rng(0)
    params = VARIANTS[name].init(rng, 5, 3)
    leaves = jax.tree.leaves(params)
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert not params.get("log_gain", np.zeros(1)).any()


def test_the_best_rate_has_the_least_median():
    # Seeds that missed count as infinite: two of three misses leave no median.
    assert best([[10, 20, None], [5, None, None], [30, 31, 32]]) == (20, 3)
    steps, met = best([[5, None, None], [None, None, None]])
    assert (math.isnan(steps), met) == (True, 1)


def test_the_stored_study_is_the_one_on_the_page():
    root = Path(__file__).parents[2]
    stored = json.loads((root / "notebooks" / "5_edges.json").read_text())
    page = (root / "docs" / "trees.md").read_text()
    for name, found in stored.items():
        study = STUDIES[name]
        assert found["settings"] == json.loads(json.dumps(asdict(study.settings)))
        assert (found["problems"], list(found["steps"])) == (list(study.problems), [*study.layers])
        for layer, problems in found["steps"].items():
            cells = [edges_study.cell(rows) for rows in problems]
            assert f"| {edges_study.NAMES[layer]} | {' | '.join(cells)} |" in page


def test_a_ramp_wants_less_at_first_and_all_in_the_end():
    """Two nodes under small steps: they follow the wanted edge, and the target is the whole one."""
    edges, settings = np.ones((2, 2)) - np.eye(2), trees.Settings(
        dim=1, edge=2.0, rates=(0.05,), seeds=1, target=0.02, cap=400, ramp=100.0
    )  # fmt: skip
    course = trees.train("euclidean", edges, settings)
    assert course.reached.all()
    assert 150 <= course.steps[0, 0] <= 200
    history = course.history[0, 0, [50, 100]]  # 1 and 1.5 of 2 are wanted
    np.testing.assert_allclose(history, [0.5, 0.25], atol=0.08)
    straight = trees.train("euclidean", edges, replace(settings, ramp=0.0))
    assert straight.steps[0, 0] < 60
    with pytest.raises(ValueError, match="ramp must be finite and at least 0, got -1"):
        replace(settings, ramp=-1.0)


def test_the_command(tmp_path, monkeypatch, capsys):
    quick = replace(edges_study._SETTINGS, dim=3, seeds=1, cap=60, rates=(0.1,))
    path = {"0.2": (tree_shapes.tree_distances([-1, 0, 1]), 0.2)}
    found = Study(path, ("fgg, gain",), quick)
    sgd = Study(path, ("points, sgd",), replace(quick, rates=(0.01,)), sgd=True)
    monkeypatch.setattr(edges_study, "STUDIES", {"edges": found, "sgd": sgd})
    to = tmp_path / "edges.json"
    assert edges_study.main(to, ("edges",)) == 0
    assert edges_study.main(to, ("sgd",)) == 0
    stored = json.loads(to.read_text())
    for name, layer in (("edges", "fgg, gain"), ("sgd", "points, sgd")):
        assert 1 <= stored[name]["steps"][layer][0][0][0] <= 60
    assert "FGG, a gain e^g for each unit" in capsys.readouterr().out
    before = to.read_text()
    assert edges_study.main(to, ("edge",)) == 2
    assert "no study 'edge'" in capsys.readouterr().err
    other = tmp_path / "other.json"
    for text, message in (("{", "Expecting"), ('{"tree": 1}', "no results of this study")):
        other.write_text(text)
        assert edges_study.main(other, ("sgd",)) == 2
        assert message in capsys.readouterr().err
        assert other.read_text() == text
    assert to.read_text() == before
