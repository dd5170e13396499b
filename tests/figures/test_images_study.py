"""The study of images: its pictures, the measures of a run, and what is kept from run to run."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from notebooks.figures import image_training, images_report, images_study
from notebooks.figures.image_measures import paths
from notebooks.figures.image_training import Images, Settings, Trainer

ROOT = Path(__file__).parents[2]
TINY = Settings(batch_size=16, steps=2, width=2, stages=(1,))
BLACK = Images.of(np.zeros((20, 2, 2)), np.arange(20) % 10, 0.0, 1.0)


def test_pictures_have_one_scale():
    rng = np.random.default_rng(0)
    image = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)
    want = np.array([[[2.5, 4.5], [10.5, 12.5]]]) / 255
    np.testing.assert_allclose(image_training.halved(image), want, rtol=1e-6)

    def dataset(size, top, name):
        draw = rng.integers(top, size=(70, size, size, 1)).astype(np.uint8)
        labels = (np.arange(70) % 10).astype(np.int32)
        return images_study.data.Dataset(name, draw, labels, draw, labels, 10, (1.0,), (1.0,))

    settings = replace(TINY, train=40, validation=20, changed=30)
    found = images_study.Pictures(dataset(12, 256, "a"), dataset(4, 17, "b"), settings)
    parts = (found.train, found.validation, found.test, found.digits, found.changed)
    assert [len(part.labels) for part in parts] == [40, 20, 70, 140, 30]
    assert all(part.pixels.shape[1:] == (6, 6, 1) for part in parts)
    assert found.train.pixels.mean() == pytest.approx(0, abs=1e-4)
    assert found.train.pixels.std() == pytest.approx(1, abs=1e-4)
    # One order for all images: each keeps its pixels.
    a, b = (part.pixels.reshape(30, -1) for part in (found.changed, found.shuffled))
    np.testing.assert_array_equal(np.sort(a), np.sort(b))
    order = [int(np.flatnonzero((a == column[:, None]).all(0))[0]) for column in b.T]
    assert sorted(order) == list(range(36)) != order
    assert found.statistics()["digits"]["mean"] == pytest.approx(0.5, abs=0.05)
    noisy = images_study.with_noise(found.changed, 0.2, 0)
    noise = (noisy.pixels - found.changed.pixels) * found.changed.std
    assert (noise.mean(), noise.std()) == pytest.approx((0, 0.2), abs=0.02)


def test_a_run_is_measured():
    """The networks know Fashion-MNIST's ten classes; the images are noise, so that it is quick."""
    settings = replace(TINY, episodes=3, queries=4, seeds=(0,), shots=(1,))
    rng = np.random.default_rng(0)
    labels = np.arange(100) % 10
    some = Images.of(rng.random((100, 8, 8)), labels, 0.5, 0.3)
    pictures = images_study.Pictures.__new__(images_study.Pictures)
    for name in ("train", "validation", "test", "digits", "changed", "shuffled"):
        setattr(pictures, name, some)
    trainer = Trainer("euclidean", 2, paths(), settings, some)
    found = images_study.measure(trainer, 0.1, 0, paths(), pictures)
    json.dumps(found, allow_nan=False)
    # The same images are foreign and known, so nothing tells them apart.
    assert found["foreign"]["digits"] == {"radius": 0.5, "softmax": 0.5}
    weights, _ = trainer.run(0.1, 0)
    assert found["noise"]["0"] == found["hierarchy"]["accuracy"] == trainer.accuracy(weights, some)
    want = np.linalg.norm(trainer.outputs(weights, some.pixels).points, axis=-1).mean()
    assert found["radius"] == pytest.approx(want, rel=1e-5)
    assert list(found["few-shot"]) == ["1-shot"]
    assert len(images_study.unseen_classes(0, settings)) == 4
    for column in set(images_report.COLUMNS) - {"5-shot"}:
        assert math.isfinite(images_report.COLUMNS[column].of(found))


def test_what_is_stored_is_not_run_again(tmp_path, monkeypatch, capsys):
    made = []

    def measure(trainer, rate, seed, levels, pictures):
        made.append((trainer[0], trainer[1], rate, seed))
        return {
            "loss": 1.0,
            "hierarchy": dict.fromkeys(("accuracy", "height", "height of mistakes"), 0.5),
            "radius": 1.0, "few-shot": {"1-shot": 0.1 * seed, "5-shot": 0.1},
            "foreign": {key: {"radius": 0.5, "softmax": 0.5} for key in ("digits", "shuffled")},
            "noise": dict.fromkeys(("0", "0.05", "0.1", "0.2"), 0.5),
        }  # fmt: skip

    class Nothing:
        train = validation = test = BLACK

        def statistics(self):
            return {}

    settings = replace(TINY, seeds=(0, 1), rates=(0.1, 0.3, 1.0))
    accuracies = {0.1: 0.4, 0.3: 0.6, 1.0: 0.5}
    monkeypatch.setattr(images_study, "SETTINGS", settings)
    monkeypatch.setattr(images_study, "load", lambda folder, settings: Nothing())
    monkeypatch.setattr(images_study, "Trainer", lambda arm, dim, *rest: (arm, dim))
    monkeypatch.setattr(images_study, "tuned", lambda *_: accuracies)
    monkeypatch.setattr(images_study, "measure", measure)
    monkeypatch.setattr(images_study, "few_shots", lambda *_: {"1-shot": 0.3, "5-shot": 0.4})
    to = tmp_path / "images.json"
    assert images_study.main(to, None, ("euclidean",), (2,)) == 0
    assert made == [("euclidean", 2, 0.3, 0), ("euclidean", 2, 0.3, 1)]
    assert images_study.main(to, None, ("euclidean", "hcnn"), (2,)) == 0
    assert made[2:] == [("hcnn", 2, 0.3, 0), ("hcnn", 2, 0.3, 1)]
    assert images_study.main(to, None, ("hcnn",), (2,), again=True) == 0
    assert made[4:] == made[2:4]
    # A rate that was not tried yet, and is the best: the runs of the other one go.
    settings = replace(settings, rates=(0.1, 0.3, 1.0, 3.0))
    monkeypatch.setattr(images_study, "SETTINGS", settings)
    stored = json.loads(to.read_text())
    stored["settings"]["rates"] = list(settings.rates)
    to.write_text(json.dumps(stored))
    accuracies[3.0] = 0.7
    assert images_study.main(to, None, ("hcnn",), (2,)) == 0
    assert made[6:] == [("hcnn", 2, 3.0, 0), ("hcnn", 2, 3.0, 1)]
    assert images_study.main(to, None, ("hcnn",), (2,)) == 0
    assert len(made) == 8
    accuracies[3.0] = 0.1
    assert images_study.main(to, None, ("hcnn",), (2,), again=True) == 0
    stored = json.loads(to.read_text())
    assert set(stored["runs"]) == {"euclidean", "hcnn"}
    assert images_report.rates(stored)["hcnn", 2] == (0.3, True)
    assert images_report.cell(stored, "hcnn", 2, "1-shot") == "5.0 ± 7.1"
    assert images_report.difference(stored, "hcnn", 2, "1-shot") == "+0.0 ± 0.0"
    assert images_report.cell(stored, "fgg", 2, "1-shot") == "-"
    out = capsys.readouterr().out
    assert "Differences from Euclidean" in out
    assert "HCNN" in out
    assert images_study.main(to, None, ("hnn",)) == 2
    assert "no arm 'hnn'" in capsys.readouterr().err
    assert images_study.main(to, None, ("hcnn",), (0,)) == 2
    assert "dims[0] must be at least 1, got 0" in capsys.readouterr().err
    monkeypatch.setattr(images_study, "SETTINGS", replace(settings, steps=41))
    before = to.read_text()
    assert images_study.main(to, None, ("hcnn",), (2,)) == 2
    assert "is of other settings" in capsys.readouterr().err
    assert to.read_text() == before


def test_the_stored_study_is_the_one_on_the_page():
    stored = json.loads((ROOT / "notebooks" / "evidence_images.json").read_text())
    page = (ROOT / "docs" / "evidence_images.md").read_text()
    assert stored["settings"] == json.loads(json.dumps(asdict(images_study.SETTINGS)))
    assert set(images_study.MAIN) <= set(stored["runs"])
    means = [images_report.rows(stored, columns) for columns in images_report.TABLES.values()]
    apart = images_report.rows(stored, images_report.DIFFERENCES, images_report.difference)
    for row in sum(means, apart):
        assert f"| {' | '.join(row)} |" in page
    for shots in ("1-shot", "5-shot"):
        found = [100 * of_seed[shots] for of_seed in stored["pixels"].values()]
        assert f"{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}" in page
    for (arm, dim), (rate, bracketed) in images_report.rates(stored).items():
        assert bracketed, f"{arm} in {dim} dimensions: a rate at an end of those tried"
        assert f"| {dim} | {images_report.ARMS[arm].label} | {rate:g} |" in page
