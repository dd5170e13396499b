"""Trees and their measures against brute force, growth laws against known ones, training."""

import json
import math
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from lorentz_jax import geometry
from lorentz_jax.hyperplane import normals
from notebooks.figures import tree_shapes, trees, trees_report, trees_study
from notebooks.figures.tree_shapes import distortion, mean_average_precision, regular_tree
from notebooks.figures.trees import Settings, train
from notebooks.figures.trees_study import PAIR, fit_laws, tuned
from tests import oracle

ROOT = Path(__file__).parents[2]
SMALL = Settings(dim=3, rates=(0.05, 0.2), cap=60)


def breadth_first(parents):
    """Distances by walking from every node."""
    near = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            near[child].append(int(parent))
            near[parent].append(child)
    rows = []
    for start in range(len(parents)):
        row, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for other in near[node]:
                if other not in row:
                    row[other] = row[node] + 1
                    queue.append(other)
        rows.append([row[node] for node in range(len(parents))])
    return np.array(rows)


def random_tree(nodes, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([-1] + [int(rng.integers(node)) for node in range(1, nodes)])


@pytest.mark.parametrize("parents", [regular_tree(2, 3), regular_tree(3, 2), random_tree(25)])
def test_tree_distances_are_those_of_walking(parents):
    want = breadth_first(parents)
    np.testing.assert_array_equal(tree_shapes.tree_distances(parents), want)
    np.testing.assert_array_equal(tree_shapes.depths(parents), want[0])


@pytest.mark.parametrize(("branching", "depth"), [(1, 4), (2, 1), (2, 8), (3, 4)])
def test_regular_trees(branching, depth):
    parents = regular_tree(branching, depth)
    level = tree_shapes.depths(parents)
    assert np.bincount(level).tolist() == [branching**d for d in range(depth + 1)]
    assert set(np.bincount(parents[1:])) == {branching}


def test_the_taxonomy():
    names, parents = tree_shapes.mammals()
    level = tree_shapes.depths(parents)
    assert len(set(names)) == len(names)
    assert (len(names), level.max()) == (len(parents), 4)
    leaves = np.setdiff1d(np.arange(len(parents)), parents)
    assert 60 <= len(leaves) <= 120
    assert (level[leaves] == 4).all(), "every branch ends in a species"
    wolf, fox, cat = (names.index(n) for n in ("Canis lupus", "Vulpes vulpes", "Felis catus"))
    edges = tree_shapes.tree_distances(parents)
    # Wolf and fox share a family, wolf and cat an order.
    assert (edges[wolf, fox], edges[wolf, cat], edges[wolf, 0]) == (4, 6, 4)


def test_distortion_of_three_points():
    wanted = np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    found = np.array([[0, 1.5, 1], [1.5, 0, 1], [1, 1, 0]])
    average, worst = distortion(found, wanted)  # ratios 1.5, 0.5, 1
    assert (average, worst) == pytest.approx((1 / 3, 3))
    assert distortion(7 * found, wanted)[1] == pytest.approx(3)
    assert distortion(wanted, wanted) == (0, 1)
    assert distortion(0 * found, wanted) == (1, math.inf)


def test_precision_of_a_path():
    x = np.array([0.0, 1, 2, 3])
    edges = np.abs(x[:, None] - x).astype(int)
    assert mean_average_precision(np.abs(x[:, None] - x), edges) == 1
    # The last node moves next to the first.
    x = np.array([0.0, 1, 2.5, 0.25])
    found = np.abs(x[:, None] - x)
    node0 = 1 / 2  # sees 3 before its neighbour 1
    node1 = (1 / 2 + 2 / 3) / 2  # sees 3, then its neighbours 0 and 2
    node2 = (1 + 2 / 2) / 2  # sees its neighbours 1 and 3 first
    node3 = 1 / 3  # sees 0 and 1 before its neighbour 2
    want = (node0 + node1 + node2 + node3) / 4
    assert mean_average_precision(found, edges) == pytest.approx(want)
    # Where all points coincide, a neighbour is one of all others.
    assert mean_average_precision(0 * found, edges) == pytest.approx((1 + 2 + 2 + 1) / 3 / 4)


@pytest.mark.parametrize("name", ["linear", "exponential"])
def test_a_known_law_is_recovered(name):
    h = np.arange(2.0, 9)
    exact = 5 + 11 * h if name == "linear" else 3 * np.exp(0.7 * h)
    found = fit_laws(h, exact)
    law = found[name]
    assert (law.a, law.b) == pytest.approx((5, 11) if name == "linear" else (3, 0.7), rel=1e-6)
    assert trees_study.better(found) == name
    np.testing.assert_allclose(law(h), exact, rtol=1e-6)
    # With noise: within a few of its own standard errors, which are the scatter of many fits.
    rng = np.random.default_rng(0)
    fits = [fit_laws(h, exact * np.exp(0.1 * rng.normal(size=7)))[name] for _ in range(120)]
    slopes, errors = np.array([[f.b, f.b_error] for f in fits]).T
    assert np.mean(slopes) == pytest.approx(law.b, abs=0.05 * law.b)
    assert np.std(slopes) == pytest.approx(np.sqrt(np.mean(errors**2)), rel=0.15)
    # What was not reached is left out.
    law = fit_laws(np.append(h, 9), np.append(exact, np.nan))[name]
    assert law.b == pytest.approx(found[name].b)


def test_the_line_has_the_least_squares():
    h, steps = np.array([2.0, 3, 5, 6]), np.array([9.0, 30, 31, 90])
    law = fit_laws(h, steps)["linear"]

    def squares(a, b):
        return np.sum((np.log(steps) - np.log(a + b * h)) ** 2)

    for da, db in [(0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1)]:
        assert squares(law.a, law.b) < squares(law.a + da, law.b + db)


def results(steps, rates=(0.1, 0.3)):
    return {
        "problem": "tree", "sizes": [2, 3, 4, 5], "seconds": 1.0, "steps": steps,
        "settings": {"target": 0.1, "rates": list(rates)},
    }  # fmt: skip


# [size][rate][seed]: the first rate meets the target everywhere, the second is faster for a while.
LINEAR = [[[20, 20, 90], [9, 9, 9]], [[30] * 3, [15] * 3], [[40] * 3, [None, None, 20]],
          [[50] * 3, [None] * 3]]  # fmt: skip
GROWING = [[[10], [None]], [[30], [None]], [[90], [None]], [[270], [80]]]


def test_tuning_takes_the_rate_that_serves_every_size():
    of = tuned(results({"fgg": LINEAR}), "fgg")
    assert of.rates.tolist() == [0.1] * 4
    assert of.steps.tolist() == [20, 30, 40, 50], "the median, not the mean"
    assert of.span.tolist() == [[20, 30, 40, 50], [90, 30, 40, 50]]


def test_tuning_each_size_takes_the_fastest_rate_that_most_seeds_met():
    of = tuned(results({"fgg": LINEAR}), "fgg", per_size=True)
    assert of.rates.tolist() == [0.3, 0.3, 0.1, 0.1]
    assert of.steps.tolist() == [9, 15, 40, 50]
    never = tuned(results({"fgg": [[[10], [None]], [[None], [None]]]}), "fgg", per_size=True)
    assert never.steps[0] == 10
    assert np.isnan([*never.steps[1:], *never.rates[1:], *never.span[:, 1]]).all()


def test_one_rate_of_a_study():
    part = trees_study.at_rate(results({"fgg": LINEAR}), 0.3)
    assert part["settings"] == {"target": 0.1, "rates": [0.3]}
    assert part["steps"]["fgg"] == [[[9, 9, 9]], [[15] * 3], [[None, None, 20]], [[None] * 3]]


def test_points_and_distortion_before_the_first_step(kappa):
    """One-hot inputs at distance `radius`, through the layer, against textbook formulas."""
    settings = replace(SMALL, kappa=kappa, radius=0.8, edge=0.7, seeds=2, cap=2)
    edges = tree_shapes.tree_distances(regular_tree(2, 2))
    found = train("fgg", edges, settings, marks=(0, 1))
    assert found.points.shape == (2, 2, 2, 7, 3)
    params = trees.LAYERS["fgg"].init(np.random.default_rng(1), 7, 3)
    s = math.sqrt(kappa)
    x = math.sinh(0.8 * s) / s * np.eye(7)
    want = x @ params["kernel"]  # zero bias
    np.testing.assert_allclose(found.points[0, 1, 0], want, rtol=1e-12)
    apart = oracle.evaluate(oracle.SPACE["dist"], want[:, None], want[None], kappa=kappa)
    np.testing.assert_allclose(trees.apart("fgg", want, kappa), apart, rtol=1e-9, atol=1e-12)
    want = distortion(apart, 0.7 * edges)[0]
    np.testing.assert_allclose(found.history[:, 1, 0], want, rtol=1e-10)
    assert not np.allclose(found.points[0, 0, 0], found.points[0, 1, 0]), "seeds differ"
    # Adam's first step moves every weight by the rate.
    step = np.abs(found.points[1, 0, 1] - found.points[1, 0, 0]) / x[0, 0]
    assert step.max() < 0.2 * (1 + math.sqrt(7) / math.tanh(0.8 * s))


@pytest.mark.parametrize("layer", ["chen", "euclidean"])
def test_training_ends_at_the_target(layer):
    edges = tree_shapes.tree_distances(regular_tree(2, 2))
    found = train(layer, edges, replace(SMALL, target=0.3, rates=(1e-4, 0.1)), marks=(3, 59))
    assert found.reached.tolist() == [[False], [True]]
    assert found.steps[0, 0] == 60
    count = found.steps[1, 0]
    history = found.history[1, 0]
    assert history[count - 1] < 0.3 <= history[: count - 1].min()
    assert np.isnan(history[count:]).all()
    assert found.points[1, 0, 0].any()
    assert not found.points[1, 0, 1].any(), "this run did not see step 59"


def test_dealt_pairs_are_a_fair_sample():
    edges = tree_shapes.tree_distances(regular_tree(2, 4))
    settings = replace(SMALL, rates=(1e-9,), cap=200)
    everything = train("euclidean", edges, settings).history[0, 0]
    sample = train("euclidean", edges, replace(settings, pairs=124)).history[0, 0]
    assert np.ptp(everything) < 1e-4
    assert np.std(sample) > 1e-4
    error = np.std(sample) / math.sqrt(200)
    assert sample.mean() == pytest.approx(everything[0], abs=4 * error)


def test_layers_start_alike_and_published_values_are_those():
    rng = np.random.default_rng(0)
    params = trees.LAYERS["fgg, weight norm"].init(rng, 5, 3)
    kernel = params["kernel"] / np.linalg.norm(params["kernel"], axis=0) * math.log1p(math.e)
    planes = normals(kernel.astype(np.float32), params["bias"].astype(np.float32), 1.0)
    y = np.eye(5, dtype=np.float32) @ planes.space - math.sqrt(2) * planes.time
    got = trees.LAYERS["fgg, weight norm"].embed(
        {k: v.astype(np.float32) for k, v in params.items()}, np.eye(5, dtype=np.float32), 1.0
    )
    np.testing.assert_allclose(got, y, rtol=1e-5)


def test_two_outputs_on_their_way_apart():
    found = trees_study.separations(("euclidean",), 3, 0.1, 60)["euclidean"]
    start = trees.LAYERS["euclidean"].init(np.random.default_rng(0), 2, 10)["kernel"]
    first = math.sinh(1) * np.linalg.norm(start[0] - start[1])
    assert found[0] == pytest.approx(first, rel=1e-10)
    assert abs(found[-1] / 3 - 1) < 0.02 <= np.abs(found[:-1] / 3 - 1).min()


def test_quality_by_depth_and_dimension(monkeypatch):
    def quality(layer, parents, rate, marks, settings):
        assert (rate, marks) == (trees_study.RATES[layer], (40,))
        values = np.array([[settings.dim], [0], [len(parents)]])
        return trees.Quality(np.array(marks), *values, np.zeros(0))

    monkeypatch.setattr(trees_study, "quality", quality)
    found = json.loads(json.dumps(trees_study.by_depth((2, 1), (3, 5), 40, ("euclidean", "fgg"))))
    assert found["average"] == {name: [[3, 3], [5, 5]] for name in ("euclidean", "fgg")}
    assert found["precision"] == {name: [[7, 3], [7, 3]] for name in ("euclidean", "fgg")}


def test_the_stored_results_are_those_of_the_code():
    stored = json.loads((ROOT / "notebooks" / "5_trees.json").read_text())
    for name, (sizes, settings) in trees_study.STUDIES.items():
        found = stored[name]
        assert (found["problem"], found["sizes"]) == (name, list(sizes))
        assert found["settings"] == json.loads(json.dumps(asdict(settings)))
        assert list(found["steps"]) == list(trees.LAYERS)
    assert list(stored["depth"]["average"]) == list(trees.LAYERS)
    tree = stored["tree"]
    again = replace(trees_study.STUDIES["tree"][1], rates=(0.1,))
    again = trees_study.study("tree", (2,), again, ("euclidean",))["steps"]["euclidean"][0][0]
    was = tree["steps"]["euclidean"][0][tree["settings"]["rates"].index(0.1)]
    np.testing.assert_allclose(again, was, atol=1)  # a step more or less where rounding differs


@pytest.mark.slow
def test_two_nodes_part_fast_for_ours_and_slowly_for_chen():
    found = trees_study.study("pair", (8, 10, 12), replace(PAIR, rates=(0.1,), seeds=1, cap=3000),
                             ("fgg", "chen"))  # fmt: skip
    found = json.loads(json.dumps(found))
    ours, theirs = (tuned(found, name).steps for name in ("fgg", "chen"))
    assert (ours < 500).all()
    assert theirs[2] > 4 * ours[2]
    law = trees_study.laws(found, "chen")["exponential"]
    assert law.b == pytest.approx(0.5, abs=0.15), "coordinates of points h apart are e^(h/2)"
    assert trees_study.better(trees_study.laws(found, "chen")) == "exponential"
    assert trees_study.table(found).row_count == 2, "one rate is the best of one"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: regular_tree(0, 2), "branching and depth must be at least 1"),
        (lambda: tree_shapes.depths([0, 0]), "expected node 0 to be the one root"),
        (lambda: tree_shapes.tree_distances([-1, 2, 0]), "parents before their children"),
        (lambda: distortion(np.eye(2), np.eye(3)), r"targets must have shape \(2, 2\)"),
        (lambda: train("fog", np.ones((2, 2))), "no layer 'fog', there are 'fgg'"),
        (lambda: train("fgg", np.ones((2, 3))), "expected a square matrix"),
        (lambda: train("fgg", np.ones((2, 2))), "0 from a node to itself"),
        (lambda: Settings(cap=0), "at least one"),
        (lambda: Settings(kappa=-1.0), "must be positive"),
        (lambda: fit_laws([1, 2, 3], [1, 2, np.nan]), "three sizes or more"),
        (
            lambda: trees_study.study("forest", (2,)),
            "no problem 'forest', there are 'tree', 'pair'",
        ),
        (lambda: trees.quality("fgg", [-1, 0], 0.1, ()), "numbers of steps"),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_pictures(tmp_path):
    parents, settings = regular_tree(2, 2), Settings(dim=2, edge=1.0)
    q = trees.quality("euclidean", parents, 0.1, (5, 30), settings)
    assert q.average[1] < q.average[0]
    assert q.points.shape == (2, 7, 2)
    steps = results({"fgg": LINEAR, "chen": GROWING})
    figures = {
        "trees": trees_report.plot_trees({"one": q}, parents, 1.0),
        "quality": trees_report.plot_quality({("euclidean", 2): q}),
        "steps": trees_report.plot_steps([steps]),
        "depth": trees_report.plot_depth({
            "depths": [2, 3], "dims": [2, 10], "average": {"fgg": [[0.2, 0.3], [0.1, 0.2]]},
            "precision": {"fgg": [[1, 0.5], [1, 0.9]]},
        }),
        "apart": trees_report.plot_separations({"fgg": np.array([1.0, 2, 3])}, 3.0),
    }  # fmt: skip
    for name in ("trees", "steps"):
        figures[name].savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    legend = [text.get_text() for text in figures["steps"].legends[0].get_texts()]
    assert legend == ["FGG", "Chen et al."]
    titles = [axes.get_title() for axes in figures["depth"].axes]
    assert titles == ["D = 2", "D = 10", "", ""]
    axes = figures["trees"].axes[1]
    ways, dots = axes.collections
    places = np.asarray(dots.get_offsets())
    assert len(places) == 7
    # The root is in the middle, its children where an isometry puts them, and edges join nodes.
    np.testing.assert_allclose(places[0], 0, atol=1e-12)
    far = np.asarray(geometry.dist(q.points[1][:1], q.points[1], 1.0))
    np.testing.assert_allclose(2 * np.arctanh(np.linalg.norm(places, axis=1)), far, rtol=1e-4)
    for child, way in enumerate(ways.get_segments(), start=1):
        np.testing.assert_allclose(way[[0, -1]], places[[parents[child], child]], atol=1e-9)
    with pytest.raises(ValueError, match="expected 7 points of the plane"):
        trees_report.draw_tree(axes, q.points[1][:3], parents, 1.0)
