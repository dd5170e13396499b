"""Every bad setting is refused with its name, before anything else happens."""

import json
from pathlib import Path
from typing import get_args

import pytest

from lorentz_jax.models import MODELS
from lorentz_jax.training.config import INDIFFERENT, RECIPES, TrainConfig, decisive


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", 0, "epochs must be at least 1, got 0"),
        ("batch_size", 0, "batch_size must be at least 1"),
        ("width", -4, "width must be at least 1"),
        ("stages", (), "at least one stage"),
        ("stages", (2, 0), "every entry of stages must be at least 1, got 0"),
        ("limit", 0, "limit must be at least 1"),
        ("shift", -1, "shift must be at least 0"),
        ("seed", -1, "seed must be at least 0"),
        ("kappa", -1.0, "kappa must be finite and positive"),
        ("kappa", 0.0, "kappa must be finite and positive"),
        ("kappa", float("nan"), "kappa must be finite and positive"),
        ("kappa", float("inf"), "kappa must be finite and positive"),
        ("lr", 0.0, "lr must be finite and positive, got 0"),
        ("lr", float("nan"), "lr must be finite"),
        ("momentum", 1.0, r"momentum must be finite and in \[0, 1\)"),
        ("weight_decay", -1e-4, "weight_decay must be finite and at least 0"),
        ("max_turn", 0.0, "max_turn must be finite and positive, or None for no limit, got 0"),
        ("gamma", 0.0, r"gamma must be finite and in \(0, 1\]"),
        ("model", "euclid", "model must be one of lorentz, euclidean, .* got 'euclid'"),
        ("init", "slow", "init must be one of fast, paper"),
        ("schedule", "linear", "schedule must be one of cosine, step, constant"),
        ("optimiser", "adam", "optimiser must be one of sgd, adamw, muon"),
        ("precision", "float16", "precision must be one of float32, bfloat16"),
        ("device", "gpu0", "device must be one of auto, cpu, gpu, tpu"),
        ("keep", 0, "keep must be at least 1"),
        ("checkpoint_every", 0, "checkpoint_every must be at least 1"),
        ("validation", -1, "validation must be at least 0"),
        ("skip_nonfinite", -1, "skip_nonfinite must be at least 0"),
        # 0 or infinite in float32, which computes with them.
        ("kappa", 1e-60, "kappa must be finite and positive .* in float32, got 1e-60"),
        ("kappa", 1e60, "kappa must be finite and positive .* in float32, got 1e"),
        ("kappa", 1e38, "kappa must be finite and positive .* in float32, got 1e"),
        ("lr", 1e-50, "lr must be finite and positive in float32"),
        ("lr", 1e39, "lr must be finite and positive in float32"),
        ("momentum", 1 - 1e-12, "momentum must be finite and in .* in float32"),
        ("weight_decay", 1e39, "weight_decay must be finite and at least 0 in float32"),
        ("weight_decay", 1e-50, "weight_decay must be finite and at least 0 in float32"),
        ("max_turn", 1e-46, "max_turn must be finite and positive"),
        ("gamma", 1e-46, "gamma must be finite and"),
        ("join_timeout", 0, "join_timeout must be at least 1"),
        ("run_dir", "gs://bucket/runs", "run_dir must be a local path, got the URL"),
        ("data_dir", Path("s3://bucket"), "data_dir must be a local path, got the URL"),
        ("init_from", Path("https://host/run"), "init_from must be a local path"),
        ("compilation_cache", "gs://bucket", "compilation_cache must be a local path"),
        ("run_dir", "~nobody-of-this-name/runs", "run_dir: .*home"),
        ("image_size", 9, r"image_size must be \(height, width\) or \(side,\), got 9"),
        ("name", "a/b", "plain folder name"),
        ("name", "..", "plain folder name"),
        ("name", "", "plain folder name"),
        ("name", "/tmp", "plain folder name"),
    ],
)
def test_bad_values(field, value, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{field: value})


def test_a_tilde_is_the_home_folder_in_every_path(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    fields = ("data_dir", "run_dir", "init_from", "compilation_cache")
    config = TrainConfig(**{field: Path("~") / field for field in fields})
    for field in fields:
        assert getattr(config, field) == Path("/somewhere") / field
    assert TrainConfig(run_dir="~/a", name="b").path == Path("/somewhere/a/b")
    # A colon alone makes no URL.
    assert TrainConfig(run_dir="a:b/c").run_dir == Path("a:b/c")


@pytest.mark.parametrize("field", ["decay_gains", "distance_gain", "nesterov", "resume"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_switches_are_true_or_false(field, value):
    with pytest.raises(TypeError, match=f"{field} must be True or False, got {value!r}"):
        TrainConfig(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("epochs", 1.5), ("seed", True), ("stages", ("2",))])
def test_bad_types(field, value):
    with pytest.raises(TypeError, match="whole number"):
        TrainConfig(**{field: value})


def test_settings_that_do_not_fit_together():
    with pytest.raises(ValueError, match="positive and increasing"):
        TrainConfig(schedule="step", epochs=200, milestones=(60, 60))
    with pytest.raises(ValueError, match="no milestone"):
        TrainConfig(schedule="step", epochs=60, milestones=(60, 120))
    with pytest.raises(ValueError, match="needs a fixed kappa"):
        TrainConfig(init="paper", learn_kappa=True)
    with pytest.raises(ValueError, match=r"kappa_per_layer goes with .* got hcnn"):
        TrainConfig(kappa_per_layer=True, learn_kappa=True, model="hcnn")
    with pytest.raises(ValueError, match="got lorentz and learn_kappa False"):
        TrainConfig(kappa_per_layer=True)
    for model in ("euclidean", "hcnn", "lorentz-vit"):
        with pytest.raises(ValueError, match=f"distance_gain goes with .* lorentz, got {model}"):
            TrainConfig(distance_gain=True, model=model)
    with pytest.raises(ValueError, match="paper goes with the optimiser sgd, not muon"):
        TrainConfig(init="paper", optimiser="muon")
    with pytest.raises(ValueError, match="choose one"):
        TrainConfig(resume=True, overwrite=True)
    with pytest.raises(ValueError, match="hcnn computes in float32"):
        TrainConfig(precision="bfloat16", model="hcnn")
    assert TrainConfig(schedule="step", epochs=61, milestones=(60, 120)).gamma == 0.2


def test_every_model_can_be_chosen():
    assert get_args(TrainConfig.__dataclass_fields__["model"].type) == tuple(MODELS)


def test_what_a_checkpoint_must_agree_with():
    decisive = TrainConfig().decisive()
    assert {"kappa", "epochs", "seed", "validation", "precision", "stages"} <= set(decisive)
    assert not {"name", "run_dir", "resume", "keep", "device", "tensorboard"} & set(decisive)
    assert set(TrainConfig.__dataclass_fields__) >= INDIFFERENT


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_the_papers(name):
    config = TrainConfig(**RECIPES[name])
    assert config.dataset == name.removeprefix("paper-")
    assert (config.epochs, config.batch_size, config.lr, config.weight_decay) == (
        200,
        128,
        0.1,
        5e-4,
    )
    assert (config.momentum, config.nesterov, config.init) == (0.9, True, "paper")
    assert (config.schedule, config.milestones, config.gamma) == ("step", (60, 120, 160), 0.2)
    assert (config.stages, config.width) == ((2, 2, 2, 2), 64)


def test_the_folder_of_the_run():
    assert TrainConfig(seed=3).path == Path("runs/lorentz-digits-seed3")
    assert TrainConfig(run_dir=Path("a/b"), name="c").path == Path("a/b/c")
    own = TrainConfig(dataset="folder:~/pictures/pets/")
    assert own.path == Path("runs/lorentz-pets-seed0")
    # Where they lie decides nothing; what they are, their fingerprint tells.
    assert own.decisive() == TrainConfig(dataset="folder:elsewhere", image_size=(9, 8)).decisive()
    assert own.decisive() != TrainConfig(dataset="npz:pets.npz").decisive()


def test_json_holds_every_field():
    values = json.loads(json.dumps(TrainConfig(name="x").to_json()))
    assert set(values) == set(TrainConfig.__dataclass_fields__)
    assert TrainConfig.from_json(values) == TrainConfig(name="x")
    own = TrainConfig(dataset="folder:x", image_size=(9, 8), data_memory=0.5, workers=0)
    assert TrainConfig.from_json(json.loads(json.dumps(own.to_json()))) == own
    assert (own.image_shape, TrainConfig(image_size=(7,)).image_shape) == ((9, 8), (7, 7))


def test_a_config_of_another_version_is_refused():
    values = TrainConfig().to_json()
    with pytest.raises(TypeError, match="lacks max_turn"):
        TrainConfig.from_json({k: v for k, v in values.items() if k != "max_turn"})
    with pytest.raises(TypeError, match="unknown fields turn_limit"):
        TrainConfig.from_json(values | {"turn_limit": 1})


def test_settings_from_before_the_transformers_are_read():
    values = TrainConfig(heads=2, patch_size=4).to_json()
    old = {name: v for name, v in values.items() if name not in ("heads", "patch_size")}
    assert TrainConfig.from_json(old) == TrainConfig()
    assert TrainConfig(heads=2).decisive() == decisive(old), "a ResNet has no heads"
    with_heads = {"model": "lorentz-vit", "heads": 2}
    assert TrainConfig(**with_heads).decisive()["heads"] == 2


@pytest.mark.parametrize(("field", "other"), [("decay_gains", False), ("distance_gain", True)])
def test_settings_from_before_a_field_have_its_default(field, other):
    old = {name: v for name, v in TrainConfig().to_json().items() if name != field}
    assert TrainConfig.from_json(old) == TrainConfig()
    assert TrainConfig().decisive() == decisive(old), "an older run can go on"
    changed = TrainConfig(**{field: other})
    assert TrainConfig.from_json(changed.to_json()) == changed
    assert changed.decisive()[field] is other
