"""`bench.py` as a user calls it: what it prints, writes and refuses."""

import json

import pytest

import bench
from lorentz_jax.bench import learning_report


def test_layers_print_and_write(tmp_path, capsys):
    to, plot = tmp_path / "layers.json", tmp_path / "layers.png"
    arguments = ["layers", "--widths", "4", "--batch", "8", "--seconds", "0.01"]
    assert bench.main([*arguments, "--json", str(to), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("quartiles", "fgg cached", "jax="))
    results = json.loads(to.read_text())
    assert {row["name"] for row in results["tables"]["d=4"]} >= {"euclidean", "fgg", "chen"}
    assert plot.read_bytes().startswith(b"\x89PNG")

    assert bench.main(["compare", str(to), str(to)]) == 0
    assert "d=4 fgg cached" in capsys.readouterr().out
    results["environment"]["device"] = "gpu: another"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(results))
    assert bench.main(["compare", str(to), str(other)]) == 2
    assert "different devices" in capsys.readouterr().err


def test_data_compares_the_path_of_a_batch_with_a_step(capsys):
    arguments = ["data", "--width", "2", "--batch", "4", "--stages", "1", "--images", "9"]
    assert bench.main([*arguments, "--seconds", "0.01"]) == 0
    printed = capsys.readouterr().out
    assert "training step" in printed
    assert "data path" in printed


def test_convergence_counts_steps(tmp_path, capsys):
    to = tmp_path / "convergence.json"
    arguments = ["convergence", "--methods", "fgg", "--distances", "1", "--cap", "100"]
    assert bench.main([*arguments, "--json", str(to)]) == 0
    assert json.loads(to.read_text())["curves"]["fgg"]["iterations"] == [[42]]
    assert "FGG" in capsys.readouterr().out


def test_learning_trains_what_its_options_say(monkeypatch):
    arguments = [
        "learning", "--models", "euclidean", "lorentz", "--kappas", "0.5", "--rates", "0.3",
        "--seeds", "4", "--epochs", "2", "--limit", "90", "--validation", "9", "--max-turn", "0.01",
        "--learn-kappa", "--kappa-per-layer", "--weight-decay", "0.25", "--every", "7",
    ]  # fmt: skip
    seen = []
    monkeypatch.setattr(learning_report, "run", lambda *what: seen.append(what) or {})
    assert bench.main(arguments) == 0
    ((arms, settings),) = seen
    assert list(arms) == ["euclidean", "lorentz, kappa 0.5, learned per layer"]
    for arm in arms.values():
        assert (arm.epochs, arm.limit, arm.validation, arm.max_turn) == (2, 90, 9, 0.01)
        assert arm.weight_decay == 0.25
    assert (settings.rates, settings.seeds, settings.every) == ((0.3,), (4,), 7)


@pytest.mark.parametrize("flag", ["--lr", "--seed", "--model", "--resume", "--run-dir"])
def test_learning_has_no_flag_that_would_do_nothing(flag, capsys):
    with pytest.raises(SystemExit):
        bench.main(["learning", flag, "1"])
    assert f"Unrecognized options: {flag}" in capsys.readouterr().err


def test_mistakes_end_with_one_line(tmp_path, capsys):
    lost = str(tmp_path / "no" / "folder.json")
    assert bench.main(["layers", "--json", lost]) == 2
    assert bench.main(["convergence", "--plot", str(tmp_path / "figure.foo")]) == 2
    assert bench.main(["convergence", "--methods", "adam"]) == 2
    assert bench.main(["compare", lost, lost]) == 2
    (tmp_path / "other.json").write_text("{}")
    assert bench.main(["compare", *2 * [str(tmp_path / "other.json")]]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 5
    assert all(line.startswith("bench.py: error: ") for line in errors)
