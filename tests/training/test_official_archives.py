"""From a dataset's official archive to a trained network."""

import pytest

from lorentz_jax.training import run
from lorentz_jax.training.config import TrainConfig
from tests.data.formats import random_examples, write_cifar


@pytest.mark.slow  # compiles a network for each
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_training_on_a_cifar_archive(name, classes, tmp_path, capsys):
    train, test = (random_examples(seed, 20, (32, 32, 3), classes) for seed in (0, 1))
    write_cifar(tmp_path, train, test, fine=name == "cifar100")
    options = {"dataset": name, "data_dir": tmp_path, "run_dir": tmp_path / "runs", "epochs": 1}
    sizes = {"stages": (1,), "width": 2, "batch_size": 8, "validation": 4}
    with pytest.raises(OSError, match="not the official file"):
        run.train(TrainConfig(**options, **sizes))  # not the official archive
    assert not (tmp_path / "runs").exists()
    summary = run.train(TrainConfig(**options, **sizes, verify=False))
    assert (summary["steps"], summary["test_count"]) == (2, 20)
    assert len(summary["test_class_accuracy"]) == classes
    assert "moved by up to 4 pixels, half of them mirrored" in capsys.readouterr().out
