"""The measures against brute force, layers fed with one coordinate, training, the command."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np
import pytest

from lorentz_jax import metrics
from notebooks.figures import mammals_study
from notebooks.figures.edges_study import NAMES, VARIANTS
from notebooks.figures.mammals_study import LAYERS, MEASURES, RATES, SETTINGS, TASKS, best, climb
from notebooks.figures.relations import Batches, Found, Ranking, distances, ranking, split, trainer
from notebooks.figures.tree_shapes import regular_tree
from tests.figures.test_wordnet import NOUNS

ROOT = Path(__file__).parents[2]


def closure(parents):
    """Tell what is below what in a tree."""
    related = np.zeros((len(parents),) * 2, bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            related[node] = related[parent]
            related[node, parent] = True
    return related


TREE = closure(regular_tree(2, 5))


def test_pairs_held_out_leave_every_node_one():
    parts = split(TREE, np.random.default_rng(0), 0.1)
    np.testing.assert_array_equal(sum(part.astype(int) for part in parts), TREE)
    assert parts.validation.sum() == parts.test.sum() == round(0.1 * TREE.sum())
    np.testing.assert_array_equal(parts.train.any(1), TREE.any(1))
    again, other = (split(TREE, np.random.default_rng(seed), 0.1) for seed in (0, 1))
    np.testing.assert_array_equal(again.test, parts.test)
    assert (other.test != parts.test).any()
    # All that may be held out has the same chance: children of the root have no pair to spare.
    counts = sum(split(TREE, np.random.default_rng(i), 0.1).test.astype(int) for i in range(400))
    shares = [counts[node][TREE[node]].mean() / 400 for node in (3, 20, 50)]
    assert not counts[TREE.sum(1) == 1].any()
    # A node of p pairs keeps one: (p - 1)/p of its pairs are among those that are drawn from.
    free = TREE.sum() - TREE.any(1).sum()
    drawn = round(0.1 * TREE.sum()) / free
    want = [drawn * (p - 1) / p for p in TREE.sum(1)[[3, 20, 50]]]
    np.testing.assert_allclose(shares, want, atol=0.04)
    with pytest.raises(ValueError, match="a pair each among 0 that can be held out, got 0 pairs"):
        split([[0, 0], [1, 0]], np.random.default_rng(0), 0.5)
    with pytest.raises(ValueError, match=r"got 0 pairs each, 0\.0 of 258"):
        split(TREE, np.random.default_rng(0), 0.0)


def test_ranks_are_those_of_counting():
    rng = np.random.default_rng(0)
    apart = rng.integers(0, 9, (20, 20)).astype(float)  # many are as far as others
    wanted, known = rng.random((2, 20, 20)) < 0.15
    wanted[4] = False
    known[7] = wanted[7]  # what is to be found is known itself
    np.fill_diagonal(wanted, False)
    ranks = []
    for u, v in np.argwhere(wanted):
        others = [w for w in range(20) if w != u and not wanted[u, w] and not known[u, w]]
        ranks.append(1 + sum(apart[u, w] <= apart[u, v] for w in others))
    found = ranking(apart, wanted, known)
    assert found.rank == pytest.approx(np.mean(ranks))
    left = np.where(known & ~wanted, np.inf, apart)
    want = metrics.mean_average_precision(left.astype(np.float32), wanted)
    assert found.precision == pytest.approx(float(want), rel=1e-5)
    assert ranking(apart, wanted) != found
    assert all(map(math.isnan, ranking(apart * math.nan, wanted)))
    with pytest.raises(ValueError, match="expected wanted pairs"):
        ranking(apart, np.zeros((20, 20), bool))


@pytest.mark.parametrize("name", LAYERS)
def test_one_coordinate_stands_for_a_one_hot_row(name, x64, kappa):
    rng = np.random.default_rng(0)
    start = dict(VARIANTS[name].init(rng, 6, 3))
    params = jax.tree.map(lambda p: p + rng.normal(0, 0.3, np.shape(p)), start)
    want = VARIANTS[name].embed(params, 1.3 * np.eye(6), kappa)
    np.testing.assert_allclose(LAYERS[name].embed(params, 1.3, kappa), want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["euclidean", "fgg"])
def test_distances_of_all_pairs(name, x64):
    x = np.random.default_rng(0).normal(size=(5, 3))
    want = LAYERS[name].dist(x[:, None], x[None], 0.5)
    np.testing.assert_allclose(distances(LAYERS[name], x, 0.5), want, rtol=1e-12)


def test_the_loss_is_that_of_the_paper():
    """Nodes 1 and 2 are kinds of 0. So the one negative of 1 is 2, as often as it was drawn."""
    place = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.8]])
    still = replace(LAYERS["euclidean"], embed=lambda p, x, kappa: p["at"] + x)
    related = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0]], bool)
    run = trainer(still, 0.0, 1.0, Batches(300, 1, 12))
    losses = run({"at": place}, 0, 1e-12, related, 1).losses
    near, far = np.array([0.5, 0.8]), math.hypot(0.5, 0.8)
    drawn = (np.exp(losses[:, None]) - 1) * np.exp(far - near)  # were u node 1, were it node 2
    whole = np.abs(drawn - np.round(drawn)) < 1e-6
    assert whole.any(1).all()
    counts = np.round(drawn)[whole]
    assert counts.min() >= 0
    assert counts.max() <= 12
    clear = whole.sum(1) == 1
    assert whole[clear][:, 0].mean() == pytest.approx(0.5, abs=0.1), "both nodes have their turn"
    found = np.round(drawn)[clear][whole[clear]]
    assert found.mean() == pytest.approx(4, abs=0.4), "any of three nodes is drawn"


def test_the_rate_starts_at_a_tenth():
    """Adam's first step is as long as the rate."""
    start = LAYERS["euclidean"].init(np.random.default_rng(0), len(TREE), 2)
    run = trainer(LAYERS["euclidean"], 1.0, 1.0, Batches(1, 200, 20))
    moved = run(start, 0, 0.5, TREE, 5).points - start["kernel"]
    step = np.abs(moved - np.median(moved, axis=0))  # apart from the bias, which all share
    assert np.quantile(step, 0.9) == pytest.approx(0.1, rel=0.01), "0.05 one way, 0.05 the other"


@pytest.mark.parametrize(("name", "dtype"), [("euclidean", "float32"), ("fgg", "float64")])
def test_training_finds_a_tree(name, dtype):
    layer = LAYERS[name]
    start = layer.init(np.random.default_rng(0), len(TREE), 8)
    run = trainer(layer, 1.0, 1.0, Batches(150, 32, 10, dtype))
    found = run(start, 0, 0.1, TREE, 5)
    assert (found.points.dtype, found.losses.shape) == (dtype, (150,))
    before = ranking(distances(layer, start["kernel"], 1.0), TREE)
    after = ranking(distances(layer, found.points, 1.0), TREE)
    assert after.precision > 0.7 > 0.3 > before.precision
    assert after.rank < 2.5 < 10 < before.rank
    again, other = (run(start, seed, 0.1, TREE, 5) for seed in (0, 1))
    np.testing.assert_array_equal(again.losses, found.losses)
    assert (other.losses != found.losses).any()


def test_the_best_rate_lies_between_others():
    def score(rate):
        asked.append(rate)
        return -abs(math.log(rate / 0.01))

    for first in (0, 4, 8):
        asked = []
        scores = climb(score, first)
        assert list(scores) == sorted(asked), "none is run twice"
        at = RATES.index(best(scores))
        assert RATES[at] == 0.01
        assert {RATES[at - 1], RATES[at + 1]} <= scores.keys()
    assert min(climb(lambda rate: -rate, 5)) == best(climb(lambda rate: -rate, 5)) == RATES[0]
    failing = climb(lambda rate: rate if rate < 0.05 else math.nan, 8)
    assert best(failing) == 0.03
    assert best({0.1: math.nan, 0.3: -1.0}) == 0.3


def test_links_are_tuned_on_one_part_and_measured_on_another(monkeypatch):
    shown, measured = [], []

    def trainer(layer, x, kappa, batches):
        def train(start, seed, rate, related, width):
            shown.append((seed, rate, related))
            return Found(start["kernel"], np.ones(batches.steps))

        return train

    def ranking(apart, wanted, known):
        measured.append((wanted, known))
        return Ranking(-abs(shown[-1][1] - 0.3), 1.0)

    monkeypatch.setattr(mammals_study, "trainer", trainer)
    monkeypatch.setattr(mammals_study, "ranking", ranking)
    settings = replace(SETTINGS, share=0.1)
    found = mammals_study.study(TREE, "euclidean", 2, TASKS, settings)
    assert found["links"]["rate"] == 0.3
    start = LAYERS["euclidean"].init(np.random.default_rng(0), len(TREE), 2)["kernel"]
    radius = found["reconstruction"]["runs"][0]["radius"]
    assert radius == pytest.approx(np.linalg.norm(start, axis=1).max()), "no hyperbolic distance"
    assert [seed for seed, *_ in shown] == [100] * 4 + [*range(5)] + [100] * 3 + [*range(5)]
    assert [rate for _, rate, _ in shown[-8:]] == [0.1, 0.3, 1.0] + [0.3] * 5
    for (seed, _, related), (wanted, known) in zip(shown[-8:], measured[-8:], strict=True):
        parts = split(TREE, np.random.default_rng(seed), 0.1)
        np.testing.assert_array_equal(related, parts.train)
        np.testing.assert_array_equal(known, TREE)
        np.testing.assert_array_equal(wanted, parts.validation if seed == 100 else parts.test)
    for (_, _, related), (wanted, known) in zip(shown[:9], measured[:9], strict=True):
        assert related is wanted is TREE
        assert known is None


def test_cells():
    runs = [{"precision": value} for value in (0.1, 0.2, 0.6)]
    assert mammals_study.cell({"runs": runs}, "precision") == "0.300 ± 0.265"
    failed = [{"precision": None}, *runs[1:]]
    assert mammals_study.cell({"runs": failed}, "precision") == "- (1 of 3 failed)"


def test_the_command(tmp_path, monkeypatch, capsys):
    few = {2: Batches(20, 4, 3), 3: Batches(20, 4, 3, "float32")}
    quick = replace(SETTINGS, batches=few, seeds=2, share=0.12)
    monkeypatch.setattr(mammals_study, "SETTINGS", quick)
    monkeypatch.setattr(mammals_study, "WITHOUT", ())
    data, to = tmp_path / "data.noun", tmp_path / "mammals.json"
    data.write_text(NOUNS)
    assert mammals_study.main(to, data, ("euclidean",), (2,)) == 0
    first = json.loads(to.read_text())
    assert (first["nodes"], first["pairs"], list(first["parts"])) == (5, 9, ["euclidean, 2"])
    assert (
        mammals_study.main(to, data, ("euclidean", "points"), (2,), ("links",), missing=True) == 0
    )
    both = json.loads(to.read_text())
    assert both["parts"]["euclidean, 2"] == first["parts"]["euclidean, 2"]
    assert list(both["parts"]["points, 2"]) == ["links"]
    part = first["parts"]["euclidean, 2"]["links"]
    assert (len(part["runs"]), len(part["runs"][0]["loss"])) == (2, 20)
    assert part["runs"][0] != part["runs"][1]
    assert f"{part['rate']:g}" in part["tuning"]
    out = capsys.readouterr().out
    assert "links: mean average precision" in out
    assert mammals_study.cell(part, "rank") in out
    for arguments, message in (
        (
            (tmp_path / "x.json", tmp_path / "none", ("fgg",), (2,)),
            "expected WordNet's data.noun at",
        ),
        ((to, data, ("fog",), (2,)), "no layer 'fog', there are 'euclidean'"),
        ((to, data, ("fgg",), (4,)), "no dimension '4', there are '2', '3'"),
        ((to, data, ("fgg",), (2,), ("link",)), "no task 'link'"),
        ((tmp_path / "no" / "x.json", data, ("fgg",), (2,)), "No such file"),
    ):
        assert mammals_study.main(*arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert mammals_study.main(to, data, ("euclidean",), (2,), longer=2) == 2
    assert "has settings" in capsys.readouterr().err


def test_batches_are_checked():
    with pytest.raises(ValueError, match="at least one of each"):
        Batches(0, 1, 1)


def test_the_stored_study_is_the_one_on_the_page():
    stored = json.loads((ROOT / "notebooks" / "evidence_mammals.json").read_text())
    page = (ROOT / "docs" / "evidence_mammals.md").read_text()
    assert stored["settings"] == json.loads(json.dumps(asdict(SETTINGS)))
    assert (stored["nodes"], stored["pairs"]) == (1180, 6540)
    assert set(stored["parts"]) == {f"{name}, {dim}" for name in LAYERS for dim in SETTINGS.batches}

    def row(name, show):
        shown = (show(stored["parts"][f"{name}, {dim}"]) for dim in SETTINGS.batches)
        return f"| {NAMES[name]} | {' | '.join(shown)} |"

    def section(heading):
        return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]

    for name in LAYERS:
        far = row(name, lambda part: mammals_study.cell(part["reconstruction"], "radius"))
        rates = row(name, lambda part: " / ".join(f"{part[task]['rate']:g}" for task in TASKS))
        assert far in section("Distances")
        assert rates in section("Rates")
        for task in TASKS:
            tables = section(task.capitalize()).partition("Mean rank")
            for measure, text in zip(MEASURES, (tables[0], tables[2]), strict=True):
                cells = row(name, lambda p, t=task, m=measure: mammals_study.cell(p[t], m))
                assert cells in text


def test_every_stored_rate_lies_between_others():
    stored = json.loads((ROOT / "notebooks" / "evidence_mammals.json").read_text())
    for part in stored["parts"].values():
        for found in part.values():
            assert len(found["runs"]) == SETTINGS.seeds
            scores = {float(rate): run["precision"] for rate, run in found["tuning"].items()}
            numbers = {at: math.nan if s is None else s for at, s in scores.items()}
            assert min(numbers) < best(numbers) == found["rate"] < max(numbers)
