"""Diagnostics against a pass by hand and finite differences in float64, and in a run."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import data, models
from lorentz_jax.training import build, checkpoint, packing, report, run
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.diagnostics import make_diagnostic_step, make_radius_step
from lorentz_jax.training.state import init_network, merge, split
from tests.training.tiny import TinyNet, stand_in

BLOCK = "stages/0/0"
LAYERS = ("stem", f"{BLOCK}/first", f"{BLOCK}/second", BLOCK)
LABELS = np.array([0, 2, 1, 1], np.int32)
PICKED = np.array([3, 0, 1], np.int32)

# Family, its own kappa, whether that is learned, and the kappas of calls, which share a program.
# Of the Euclidean network none of them matters.
CASES = (
    ("lorentz", 1.0, False, (0.1, 2.5)),
    ("euclidean", None, False, (0.7,)),
    pytest.param("lorentz", 0.1, True, (None,), marks=pytest.mark.slow),
    *(
        pytest.param(family, 0.5, False, (None,), marks=pytest.mark.slow)
        for family in ("hcnn", "hcnn-paper", "poincare")
    ),
)


def network(family, kappa, learned, **options):
    """In float64, away from the first values, at many of which a gradient or a point is 0."""
    options |= {} if kappa is None else {"kappa": kappa, "learn_kappa": learned}
    kind = models.MODELS[family]
    graphdef, params, stats = init_network(
        lambda rngs: kind((1,), 2, 3, 1, param_dtype=jnp.float64, rngs=rngs, **options), 0
    )
    rng = np.random.default_rng(1)
    moved = {
        name: a if name.endswith("kappa/raw") else a + 0.2 * rng.normal(size=a.shape)
        for name, a in params.items()
    }
    return graphdef, moved, {name: a.astype(jnp.float64) for name, a in stats.items()}


@nnx.jit(static_argnums=0)
def run_module(function, model, *arguments):
    return function(model, *arguments)


def images(dtype=np.float64):
    return np.random.default_rng(2).normal(size=(4, 5, 4, 1)).astype(dtype)


def augment(key, pixels):
    """Stands in for the preparation of a batch: it shows whether the key arrived."""
    return pixels if key is None else pixels + 0.3 * jax.random.normal(key, pixels.shape, float)


def by_hand(model, x, kappa):
    """What the layers give out in training, and the logits; both from the modules one by one."""
    x = x if model.entry is None else model.entry(x, kappa)
    block, (stem, first, second, out) = model.stages[0][0], LAYERS
    found = {stem: model.stem(x, kappa, False)}
    x = model.relu(found[stem], kappa)
    found[first] = block.first(x, kappa, False)
    found[second] = block.second(model.relu(found[first], kappa), kappa, False)
    found[out] = model.relu(block.residual(found[second], x, kappa), kappa)
    if model.pool is not None:
        return found, model.head(model.pool(found[out], kappa), kappa)
    return found, model.head(found[out], kappa).mean((1, 2))


def cross_entropy(logits):
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return -log_p[np.arange(3), LABELS[PICKED]].mean()


def central_differences(loss, params, step=1e-6):
    """The gradient of every leaf, coordinate by coordinate."""
    found = {path: np.zeros(array.shape) for path, array in params.items()}
    for path, array in params.items():
        for place in np.ndindex(array.shape):
            for sign in (1, -1):
                moved = np.array(array)
                moved[place] += sign * step
                found[path][place] += sign * loss({**params, path: moved}) / (2 * step)
    return found


def measures(family, outputs, params, gradients, kappa):
    """What the diagnostics should be, in NumPy."""
    expected = {}
    for layer, points in outputs.items():
        points = np.asarray(points)
        lengths = np.sqrt((points**2).sum(-1))
        if family != "euclidean":
            lengths = np.arcsinh(np.sqrt(kappa) * lengths) / np.sqrt(kappa)
        expected[f"{layer}/radius"] = lengths.mean()
        expected[f"{layer}/scale"] = np.sqrt((points**2).mean())
        if layer != f"{BLOCK}/second":
            expected[f"{layer}/active"] = (points > 0).sum() / points.size
    for path, gradient in gradients.items():
        expected[f"{path}/gradient"] = np.sqrt((gradient**2).sum())
        if path.endswith("kernel"):
            kernel = np.asarray(params[path])
            units = [(kernel[..., j], gradient[..., j]) for j in range(kernel.shape[-1])]
            ratios = [np.sqrt((g**2).sum() / (a**2).sum()) for a, g in units]
            expected[f"{path}/speed"] = np.sqrt(np.mean(np.square(ratios)))
    return expected


def test_a_radius_is_measured_at_the_kappa_of_its_layer(x64):
    graphdef, params, stats = network("lorentz", 0.5, True, kappa_per_layer=True)
    raws = sorted(path for path in params if path.endswith("raw"))
    params |= {path: params[path] + 0.1 * i for i, path in enumerate(raws)}
    pixels = images()
    found = make_diagnostic_step(graphdef, augment)(params, stats, pixels, LABELS, PICKED, None)
    model = merge(graphdef, params, stats)
    outputs, _ = run_module(by_hand, model, pixels[PICKED], None)
    block, (stem, first, second, out) = model.stages[0][0], LAYERS
    owners = {stem: model.stem, first: block.first, second: block.second, out: block.second}
    kappas = {layer: float(unit.kappa()) for layer, unit in owners.items()}
    assert len(set(kappas.values())) == 3
    for layer, kappa in kappas.items():
        expected = measures("lorentz", {layer: outputs[layer]}, {}, {}, kappa)
        assert found[f"{layer}/radius"] == pytest.approx(expected[f"{layer}/radius"], rel=1e-9)
    assert {name for name in found if "kappa" in name} == {f"{raw}/gradient" for raw in raws}

    # A kappa of the call is that of every layer.
    radii = make_radius_step(graphdef, augment)(params, stats, pixels, PICKED, kappa=0.7)
    fresh = merge(graphdef, params, stats)  # the pass in training has moved the means of the other
    points = run_module(lambda model, x: model.stem(x, 0.7, True), fresh, pixels[PICKED])
    expected = measures("lorentz", {"stem": points}, {}, {}, 0.7)["stem/radius"]
    assert radii["stem"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("family", "own", "learned", "kappas"), CASES)
def test_every_measure_by_hand(x64, family, own, learned, kappas):
    # Flax's batch norm has float32 in it, which strict promotion keeps from meeting float64.
    with jax.numpy_dtype_promotion("standard" if family == "euclidean" else "strict"):
        graphdef, params, stats = network(family, own, learned)
        pixels, key = images(), jax.random.key(5)
        batch = augment(key, pixels[PICKED])
        step = make_diagnostic_step(graphdef, augment)

        @jax.jit
        def forward(params, kappa):
            model = merge(graphdef, params, stats)
            return by_hand(model, batch, model.kappa() if learned else kappa)

        for call in kappas:
            kappa = own if call is None else call
            gradients = central_differences(
                lambda moved, kappa=kappa: cross_entropy(np.asarray(forward(moved, kappa)[1])),
                params,
            )
            expected = measures(family, forward(params, kappa)[0], params, gradients, kappa)
            found = step(params, stats, pixels, LABELS, PICKED, key, kappa=call)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name].shape == ()
                assert found[name].dtype == jnp.float64
                assert float(found[name]) == pytest.approx(value, rel=1e-5, abs=1e-9), name
            # The case is telling: layers differ, ReLUs do something, every leaf matters.
            assert len({round(float(found[f"{layer}/radius"]), 3) for layer in LAYERS}) == 4
            assert 0.1 < found["stem/active"] < 0.9
            assert all(np.abs(gradient).max() > 1e-4 for gradient in gradients.values())
            assert ("kappa/raw/gradient" in found) == learned


def test_a_unit_of_length_0_does_not_turn():
    graphdef, params, stats = split(TinyNet(3, rngs=nnx.Rngs(0)))
    params["kernel"] = params["kernel"].at[:, 1].set(0)
    pixels = np.random.default_rng(3).normal(size=(4, 4, 4, 1)).astype(np.float32)
    found = make_diagnostic_step(graphdef, augment)(params, stats, pixels, LABELS, PICKED, None)

    def loss(kernel):
        logits = merge(graphdef, {**params, "kernel": kernel}, stats)(pixels[PICKED], train=True)
        return -jnp.mean(jax.nn.log_softmax(logits)[np.arange(3), LABELS[PICKED]])

    gradient = jax.jit(jax.grad(loss))(params["kernel"])
    columns, slopes = (np.asarray(a).T for a in (params["kernel"], gradient))
    ratios = [np.hypot.reduce(slopes[j]) / np.hypot.reduce(columns[j]) for j in (0, 2)]
    expected = np.sqrt(sum(np.square(ratios)) / 3)
    assert float(found["kernel/speed"]) == pytest.approx(expected, rel=1e-5)
    assert np.hypot.reduce(slopes[1]) > 0


def test_the_radius_is_that_of_the_outputs():
    graphdef, params, stats = init_network(
        lambda rngs: models.LorentzResNet((1,), 2, 3, 1, kappa=0.5, rngs=rngs), 0
    )
    pixels = jax.random.normal(jax.random.key(1), (3, 6, 6, 1))
    radii = make_radius_step(graphdef, augment)(params, stats, pixels, np.arange(2))

    def first_block(model, x):
        return model.stages[0][0](model.relu(model.stem(x, 0.5, True), 0.5), 0.5, True)

    block = np.asarray(run_module(first_block, merge(graphdef, params, stats), pixels[:2]), float)
    lengths = np.sqrt(0.5) * np.linalg.norm(block, axis=-1)
    expected = np.mean(np.arcsinh(lengths) / np.sqrt(0.5))
    np.testing.assert_allclose(radii["stages/0/0"], expected, rtol=1e-5)


def test_a_network_that_does_not_tell_its_kappa_is_refused():
    class Plain(nnx.Module):
        def __init__(self):
            self.kernel = nnx.Param(jnp.ones((1, 3)))

    graphdef, params, stats = split(Plain())
    message = r"^expected a network with an attribute kappa \(None for a flat one\), got Plain"
    with pytest.raises(TypeError, match=message):
        make_diagnostic_step(graphdef, augment)(
            params, stats, images(np.float32), LABELS, PICKED, None
        )
    with pytest.raises(TypeError, match=message):
        make_radius_step(graphdef, augment)(params, stats, images(np.float32), PICKED)


def test_numbers_that_json_cannot_hold_are_none():
    values = {"a": np.float32(0.5), "b": np.float32("inf"), "c": np.float32("nan")}
    assert build.finite_floats(values) == {"a": 0.5, "b": None, "c": None}


def rows(config):
    return [json.loads(line) for line in (config.path / "metrics.jsonl").read_text().splitlines()]


def test_a_run_is_the_same_with_and_without(tmp_path, monkeypatch):
    stand_in(monkeypatch)
    config = TrainConfig(
        epochs=2, batch_size=64, lr=0.5, kappa=1.0, name="with", run_dir=tmp_path, limit=300,
        diagnostics=True,
    )  # fmt: skip
    without = dataclasses.replace(config, name="without", diagnostics=False)
    dataset = data.load("digits", limit=300)
    plan = build.make_plan(config, dataset)
    expected = {"config": without.decisive(), "classes": 10}
    states = []
    for one in (config, without):
        run.train(one)
        states.append(checkpoint.restore(one.path / "checkpoints", plan.state, expected)[0])
    chex.assert_trees_all_equal(*(packing.flatten(state) for state in states))
    measured = [row.pop("diagnostics") for row in rows(config)]
    assert not any("diagnostics" in row for row in rows(without))
    assert measured[0] != measured[1]

    # The last row once more: the run's end, its first batch, its key.
    def prepare(key, pixels):
        return data.prepare(key, pixels, mean=dataset.mean, std=dataset.std, shift=1)

    step = make_diagnostic_step(plan.graphdef, prepare)
    again = step(
        states[0].params, states[0].stats, dataset.train_images, dataset.train_labels,
        np.random.default_rng((0, 1)).permutation(300)[:64], jax.random.key(0),
    )  # fmt: skip
    assert measured[1] == pytest.approx({name: float(value) for name, value in again.items()})


def test_events_hold_every_measure(tmp_path, monkeypatch):
    written = {}
    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: written.__setitem__(name, (value, step)),
        flush=lambda: None,
        close=lambda: None,
    )
    package = SimpleNamespace(SummaryWriter=lambda *args, **options: writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    events = report.Events(tmp_path, True, 0)
    events.write({
        "step": 7, "lr": 0.1, "radius": {"stem": 2.0},
        "diagnostics": {"stem/scale": 3.0, "head/kernel/speed": None},
    })  # fmt: skip
    assert written == {"lr": (0.1, 7), "radius/stem": (2.0, 7), "diagnostics/stem/scale": (3.0, 7)}
