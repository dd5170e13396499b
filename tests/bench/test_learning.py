"""The study of learning: its runs are those of train.py, its choices those of a hand count."""

import dataclasses
import json
import math

import numpy as np
import pytest
from rich.console import Console

from lorentz_jax import data
from lorentz_jax.bench import learning
from lorentz_jax.bench import learning_report as report
from lorentz_jax.bench.learning import Run, Trainer
from lorentz_jax.training import build
from lorentz_jax.training.config import TrainConfig
from lorentz_jax.training.run import train
from tests.training.tiny import build_tiny

TINY = TrainConfig(
    model="euclidean", stages=(1,), width=2, epochs=2, batch_size=32, limit=160, validation=40
)


def test_arms_multiply_what_a_network_has():
    found = learning.arms(
        TINY, ("euclidean", "lorentz"), (0.1, 1.0), ("fast", "paper"), ("sgd", "adamw")
    )
    assert list(found)[:3] == ["euclidean", "euclidean, adamw", "lorentz, kappa 0.1"]
    assert len(found) == 8
    assert "lorentz, kappa 1, adamw" in found
    one = found["lorentz, kappa 1, paper"]
    assert (one.model, one.kappa, one.init, one.width) == ("lorentz", 1.0, "paper", 2)
    assert not any("paper, adamw" in name for name in found)  # beta is moved by Riemannian SGD


def test_a_learned_curvature_is_that_of_networks_that_have_one():
    config = dataclasses.replace(TINY, model="lorentz", learn_kappa=True, kappa_per_layer=True)
    found = learning.arms(config, ("euclidean", "hcnn", "lorentz"), (0.5,), ("fast",), ("sgd",))
    assert {name: (one.learn_kappa, one.kappa_per_layer) for name, one in found.items()} == {
        "euclidean": (False, False),
        "hcnn, kappa 0.5, learned": (True, False),
        "lorentz, kappa 0.5, learned per layer": (True, True),
    }


def test_a_gain_on_the_distance_is_that_of_lorentz():
    config = dataclasses.replace(TINY, model="lorentz", distance_gain=True)
    found = learning.arms(config, ("euclidean", "hcnn", "lorentz"), (0.5,), ("fast",), ("sgd",))
    assert {name: one.distance_gain for name, one in found.items()} == {
        "euclidean": False,
        "hcnn, kappa 0.5": False,
        "lorentz, kappa 0.5, distance gain": True,
    }


@pytest.mark.parametrize(
    ("model", "init", "precision"),
    [
        ("euclidean", "fast", "float32"),
        ("lorentz", "fast", "bfloat16"),
        ("lorentz", "paper", "float32"),
    ],
)
def test_a_run_is_that_of_train(tmp_path, monkeypatch, model, init, precision):
    """The learning rate as an argument, loss and validation accuracy of every epoch."""
    if init == "paper":  # its Riemannian SGD takes long to compile: on the smallest network
        monkeypatch.setattr(build, "build_model", build_tiny)
    arm = dataclasses.replace(TINY, model=model, init=init, precision=precision, max_turn=0.001)
    config = dataclasses.replace(arm, lr=0.3, seed=1, run_dir=tmp_path)
    train(config)
    lines = (config.path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    trainer = Trainer("tiny", arm, data.load("digits", limit=160))
    trainer.run(0.01, 0, every=6)  # compiles the step, for all rates
    run, weights = trainer.run(0.3, 1, every=3)
    assert (run.arm, run.rate, run.seed, run.diverged) == ("tiny", 0.3, 1, False)
    losses = np.reshape(run.loss, (2, 3)).mean(axis=1)
    np.testing.assert_allclose(losses, [row["train_loss"] for row in rows], rtol=1e-5)
    assert run.validation == [(row["step"], row["validation_accuracy"]) for row in rows]
    assert run.accuracy == rows[-1]["validation_accuracy"]
    assert weights[0]["kernel" if init == "paper" else "head/kernel"].shape[1] == 10


def test_a_run_that_diverges_ends_there():
    trainer = Trainer("tiny", TINY, data.load("digits", limit=160))
    run, _ = trainer.run(1e6, 0, every=1)
    assert run.diverged
    assert len(run.loss) < 6
    assert run.late_loss(1) == math.inf
    assert run.accuracy == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rates", (0.1, -0.1), "rates must be distinct and positive numbers"),
        ("rates", (0.1, float("nan")), "rates must be"),
        ("rates", (0.1, 0.1), "rates must be distinct"),
        ("rates", (), "at least one, got"),
        ("seeds", (0, -1), "seeds must be distinct and from 0"),
        ("targets", (2.0,), r"targets must be distinct and in \(0, 1\]"),
        ("every", 0, "every must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense(field, value, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(report.Settings((0.1,), (0,)), **{field: value})


def test_all_arms_are_checked_before_any_is_trained(monkeypatch):
    monkeypatch.setattr(Trainer, "run", None)
    arms = {"tiny": TINY, "far": dataclasses.replace(
        TINY, model="lorentz", kappa=500.0, learn_kappa=True
    )}  # fmt: skip
    with pytest.raises(ValueError, match="learnable kappa must start inside"):
        report.study(arms, report.Settings((0.1,), (0,)), Console(quiet=True))
    with pytest.raises(ValueError, match="init must be one of"):
        learning.arms(TINY, ("euclidean",), (0.1,), ("nope",), ("sgd",))


@pytest.mark.parametrize("validation", [0, 150])
def test_images_that_do_not_suffice(validation):
    config, dataset = (
        dataclasses.replace(TINY, validation=validation),
        data.load("digits", limit=160),
    )
    with pytest.raises(ValueError, match=f"at least 32 others to train on, got {validation} of"):
        Trainer("tiny", config, dataset)


def hand_made(arm, rate, seed, losses, accuracies, test=None, diverged=False):
    course = [(2 * (i + 1), value) for i, value in enumerate(accuracies)]
    return Run(arm, rate, seed, losses, course, test, diverged, 1.0)


RUNS = [
    hand_made("euclidean", 0.1, 0, [2, 2, 1, 0.6], [0.5, 0.8]),
    hand_made("euclidean", 0.1, 1, [2, 2, 1, 0.6], [0.7, 0.9]),
    hand_made("euclidean", 0.2, 0, [2, 2, 0.5, 0.3], [0.6, 0.9], 0.88),
    hand_made("euclidean", 0.2, 1, [2, 2, 0.5, 0.3], [0.8, 0.9], 0.92),
    hand_made("lorentz", 0.1, 0, [2, 1, 0.9, 0.7], [0.9, 0.95], 0.9),
    hand_made("lorentz", 0.1, 1, [2, 1, 0.4, 0.4], [0.9, 0.91], 0.9),
    hand_made("lorentz", 0.2, 0, [2, 60], [], diverged=True),
    hand_made("lorentz", 0.2, 1, [2, 1, 0.2, 0.2], [0.9, 0.99]),
]
RESULTS = {
    "runs": [dataclasses.asdict(run) for run in RUNS],
    "steps_per_epoch": 2,
    "settings": {"targets": [0.8]},
}


def test_the_rate_is_chosen_on_validation_over_all_seeds():
    assert report.best_rate(RUNS, "euclidean") == 0.2
    assert report.best_rate(RUNS, "lorentz") == 0.1
    even = [hand_made("a", rate, 0, [loss], [0.9]) for rate, loss in ((1, 0.3), (2, 0.1), (3, 0.2))]
    assert report.best_rate(even, "a") == 2


def test_the_table_counts_as_by_hand():
    table = report.table(RESULTS)
    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    # Last losses .8 and .4 of Euclidean; Lorentz (.8 + .4)/2; the first step with 0.8: 4 and 4, ...
    assert cells == [
        ("euclidean", "0.1", "0.800", "2.00", "85.00 ± 7.07", "4", ""),
        ("euclidean", "0.2*", "0.400", "1.00", "90.00 ± 0.00", "3", "90.00 ± 2.83"),
        ("lorentz", "0.1*", "0.600", "1.50", "93.00 ± 2.83", "2", "90.00 ± 0.00"),
        ("lorentz", "0.2", "1 of 2 diverged", "-", "49.50 ± 70.00", "-", ""),
    ]


def test_without_a_euclidean_result_there_are_no_ratios():
    runs = [dataclasses.asdict(hand_made("euclidean", 0.1, 0, [60], [], diverged=True)),
            dataclasses.asdict(hand_made("lorentz", 0.1, 0, [2, 1], [0.9]))]  # fmt: skip
    table = report.table(RESULTS | {"runs": runs})
    assert list(table.columns[3].cells) == ["-", "-"]


def test_the_plot_is_drawn(tmp_path):
    report.plot(RESULTS, tmp_path / "learning.png")
    assert (tmp_path / "learning.png").stat().st_size > 10_000
    lost = [dataclasses.asdict(hand_made("lorentz", 0.1, 0, [60], [], diverged=True))]
    report.plot(RESULTS | {"runs": lost}, tmp_path / "lost.png")
