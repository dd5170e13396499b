"""Table 1 from folders of runs whose results are known."""

import json
import statistics
from pathlib import Path

import pytest

from lorentz_jax.training.config import TrainConfig
from notebooks.figures import table1
from notebooks.figures.table1 import open_run, read_run


def write(root, accuracy, **fields):
    config = TrainConfig(run_dir=root, **fields)
    config.path.mkdir(parents=True)
    (config.path / "config.json").write_text(json.dumps(config.to_json()))
    summary = {"test_accuracy": accuracy, "test_count": 360, "seconds": 60 + config.seed}
    (config.path / "summary.json").write_text(json.dumps(summary))
    return config.path


@pytest.fixture
def runs(tmp_path):
    values = {"lorentz": (0.99, 0.97, 0.98), "euclidean": (0.9, 0.95, 0.97)}
    return [
        write(tmp_path, accuracy, model=model, seed=seed)
        for model, accuracies in values.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def test_mean_and_sample_deviation(runs):
    found = table1.collect(reversed(runs))
    ours = found["digits", "lorentz"]
    assert ours.seeds == (0, 1, 2)
    assert ours.accuracy == (0.99, 0.97, 0.98)
    assert ours.mean == pytest.approx(0.98)
    assert ours.std == pytest.approx(0.01)
    theirs = found["digits", "euclidean"]
    assert theirs.std == pytest.approx(statistics.stdev((0.9, 0.95, 0.97)))
    assert ours.seconds == (60, 61, 62)


def test_the_printed_table(runs, tmp_path, capsys):
    single = write(tmp_path, 0.5, model="poincare", dataset="fashion_mnist", limit=10)
    assert table1.main((*runs, single)) == 0
    text = capsys.readouterr().out
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert "98.00 ± 1.00 (3)" in rows["FGG (Lorentz)"]
    assert "94.00 ± 3.61 (3)" in rows["Euclidean"]
    assert "50.00 (1)" in rows["Poincaré"]
    assert "61 / -" in rows["Euclidean"]


def test_settings_under_one_name_must_agree(runs, tmp_path, capsys):
    other = write(tmp_path, 0.9, seed=3, lr=0.05, epochs=5)
    with pytest.raises(ValueError, match=r"lorentz on digits.*epochs 20 and 5, lr 0.1 and 0.05"):
        table1.collect([*runs, other])
    assert table1.main((*runs, other)) == 2
    assert "may differ in their seed alone" in capsys.readouterr().err


def test_what_does_not_decide_the_numbers_may_differ(runs, tmp_path):
    other = write(tmp_path / "elsewhere", 0.9, seed=3, keep=1, export=True, name="again")
    assert len(table1.collect([*runs, other])["digits", "lorentz"].seeds) == 4


def test_a_seed_counts_once(runs, tmp_path):
    again = write(tmp_path, 0.9, seed=1, name="again")
    with pytest.raises(ValueError, match="seed 1 of lorentz on digits comes twice"):
        table1.collect([*runs, again])


def test_methods_may_differ_and_the_table_says_so(runs, tmp_path, capsys):
    other = write(tmp_path, 0.9, model="hcnn", kappa=1.0)
    table1.run([*runs, other])
    assert "digits: kappa differs: lorentz 0.1, euclidean 0.1, hcnn 1.0" in capsys.readouterr().out


def test_folders_that_hold_no_finished_run(tmp_path, runs):
    with pytest.raises(ValueError, match="got none"):
        table1.collect([])
    with pytest.raises(ValueError, match=r"not the folder of a finished run.*config\.json"):
        table1.collect([tmp_path])
    (runs[0] / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"has no summary\.json"):
        table1.collect(runs)
    (runs[1] / "summary.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_run(runs[1])
    (runs[2] / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match="no test accuracy"):
        table1.collect(runs[2:])
    values = json.loads((runs[3] / "config.json").read_text())
    (runs[3] / "config.json").write_text(json.dumps(values | {"flavour": 1}))
    with pytest.raises(ValueError, match=r"another version of lorentz_jax: .*flavour"):
        read_run(runs[3])


def test_reading_gives_the_configuration_back(tmp_path):
    config = TrainConfig(run_dir=tmp_path, stages=(1, 2), data_dir=Path("x"), seed=4)
    assert read_run(write(tmp_path, 0.5, stages=(1, 2), data_dir=Path("x"), seed=4))[0] == config


def test_a_run_without_its_weights_has_no_network(tmp_path):
    path = write(tmp_path, 0.5, stages=(1,), width=2)
    with pytest.raises(ValueError, match=r"summary.json and model.safetensors do not belong"):
        open_run(path)
