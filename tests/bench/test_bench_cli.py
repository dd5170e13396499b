"""`bench.py` as a user calls it: what it prints, writes and refuses."""

import json
import os
import sys

import jax
import pytest

from lorentz_jax.bench import cli as bench
from lorentz_jax.bench import (
    convergence_report,
    layers,
    learning_report,
    many,
    networks,
    options,
    spatial,
    timing,
)
from lorentz_jax.bench.numerics import measure


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


CASES = {
    "centroids": "centroids N=6 D=2, middle",
    "graph": "graph layer N=6 D=2, lorentz, no bias",
    "segments": "segments N=6 D=2 E=24, origin",
    "pairs": "pairs N=3 D=2, exact",
    "attention": "attention layer N=3 D=4 heads=4, product",
    "two-graphs": "two graph convolutions N=6 D=2, origin, no bias",
    "two-attentions": "two attention blocks N=3 D=4 heads=4, middle",
}


@pytest.mark.parametrize(
    "cases", [list(CASES)[:2], pytest.param(list(CASES)[2:], marks=pytest.mark.slow)]
)
def test_many_compares_layers_with_their_twins(cases, capsys):
    sizes = ["--nodes", "6", "--features", "2", "--pairs", "3", "2", "--sequences", "1", "3", "4"]
    assert bench.main(["many", "--cases", *cases, *sizes, "--seconds", "0.01"]) == 0
    printed = capsys.readouterr().out
    for name in cases:
        assert CASES[name] in printed


def test_convergence_counts_steps(tmp_path, capsys):
    to = tmp_path / "convergence.json"
    arguments = ["convergence", "--methods", "fgg", "--distances", "1", "--cap", "100"]
    assert bench.main([*arguments, "--json", str(to)]) == 0
    assert json.loads(to.read_text())["curves"]["fgg"]["iterations"] == [[42]]
    assert "FGG" in capsys.readouterr().out


def test_cost_counts_what_a_program_needs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # those of the other tests
    to, plot = tmp_path / "cost.json", tmp_path / "cost.png"
    arguments = [
        "cost",
        "--functions",
        "time",
        "from_klein",
        "drop",
        "--batch",
        "3",
        "--width",
        "2",
    ]
    few = ["--repeats", "1", "--rounds", "1"]
    assert bench.main([*arguments, *few, "--json", str(to), "--plot", str(plot)]) == 0
    assert "temporary bytes" in capsys.readouterr().out
    rows = {row["name"]: row for row in json.loads(to.read_text())["rows"]}
    assert list(rows) == ["time", "from_klein", "drop"]
    assert all(row["compile_seconds"] > 0 and row["microseconds"] > 0 for row in rows.values())
    assert rows["drop"]["lines"] < rows["time"]["lines"] < 300
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert bench.main(["cost", "--functions", "distance"]) == 2
    assert "no function 'distance'" in capsys.readouterr().err
    assert bench.main(["cost", "--rounds", "0"]) == 2
    assert "--rounds must be at least 1" in capsys.readouterr().err


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


NOTHING_IS_MEASURED = [
    ("layers --widths -1", "--widths must be at least 1, got -1"),
    ("layers --widths 4 0", "--widths must be at least 1, got 0"),
    ("layers --widths", "--widths needs at least one value"),
    ("layers --batch 0", "--batch must be at least 1, got 0"),
    ("layers --seconds -1", "--seconds must be 0 or a positive number, got -1.0"),
    ("layers --seconds nan", "--seconds must be 0 or a positive number, got nan"),
    ("layers --seconds inf", "--seconds must be 0 or a positive number, got inf"),
    ("layers --kappa 0", "--kappa must be a positive number of float32, got 0.0"),
    ("layers --kappa -1", "--kappa must be a positive number of float32, got -1.0"),
    ("layers --kappa 1e-60", "--kappa must be a positive number of float32, got 1e-60"),
    ("layers --kappa nan", "--kappa must be a positive number of float32, got nan"),
    ("layers --peers", "--peers needs the package hyperbolix"),
    ("conv --sizes 16 0", "--sizes must be at least 1, got 0"),
    ("conv --kappa inf", "--kappa must be a positive number of float32, got inf"),
    ("conv --peers", "--peers needs the package hyperbolix"),
    ("spatial --cases nope", "nope"),
    ("spatial --cases", "--cases needs at least one value"),
    ("spatial --kappa 0", "--kappa must be a positive number"),
    ("many --nodes 0", "--nodes must be at least 1, got 0"),
    ("many --pairs 4 0", "--pairs must be at least 1, got 0"),
    ("many --sequences 1 4 6", "4 heads must divide the last"),
    ("many --kappa 0", "--kappa must be a positive number of float32, got 0.0"),
    ("many --peers", "--peers needs the package hyperbolix"),
    ("resnet --models nope", "no model 'nope', there are 'euclidean'"),
    ("resnet --models", "--models needs at least one value"),
    ("vit --patch 5", "--patch must divide 32, got 5"),
    ("vit --width 6", "--width: 4 heads must divide it, got 6"),
    ("vit --depth 0", "--depth must be at least 1, got 0"),
    ("resnet --batch -4", "--batch must be at least 1, got -4"),
    ("resnet --width 0", "--width must be at least 1, got 0"),
    ("resnet --stages 1 0", "--stages must be at least 1, got 0"),
    ("resnet --stages", "--stages needs at least one value"),
    ("inference --models euclidean nope", "no model 'nope', there are 'lorentz'"),
    ("inference --batches 1 0", "--batches must be at least 1, got 0"),
    ("inference --kappa 1e60", "--kappa must be a positive number of float32, got 1e+60"),
    ("data --images 0", "--images must be at least 1, got 0"),
    ("data --batch 0", "--batch must be at least 1, got 0"),
    ("scaling --kappa 0", "--kappa must be a positive number of float32, got 0.0"),
    ("scaling --seconds -1", "--seconds must be 0 or a positive number, got -1.0"),
    ("convergence --methods adam", "no method 'adam'"),
    ("convergence --methods", "--methods needs at least one value"),
    ("convergence --distances", "--distances needs at least one value"),
    ("convergence --distances 1 400", "distances must be below 300/s"),
    ("convergence --distances 1 nan", "distances must be positive, got [1.0, nan]"),
    ("convergence --distances 0", "distances must be positive, got [0.0]"),
    ("convergence --cap 0", "--cap must be at least 1, got 0"),
    ("convergence --seeds 0", "must each be at least one"),
    ("numerics --dtypes int8", "dtypes must be among"),
    ("numerics --dtypes", "--dtypes needs at least one value"),
    ("numerics --samples 0", "--samples must be at least 1, got 0"),
    ("numerics --functions nope", "nope"),
    ("numerics --peers", "--peers needs the package hyperbolix"),
    ("learning --models nope", "nope"),
    ("learning --models", "--models needs at least one value"),
    ("learning --rates 0", "rates must be distinct and positive numbers"),
    ("learning --kappas 0", "kappa"),
    ("learning --seeds -1", "seeds must be distinct and from 0"),
    ("learning --every 0", "every must be at least 1, got 0"),
    ("learning --targets 2", "targets must be distinct and in (0, 1]"),
    ("learning --epochs 0", "epochs"),
    ("learning --batch-size 0", "batch_size"),
]


@pytest.mark.parametrize(("line", "message"), NOTHING_IS_MEASURED, ids=lambda text: text[:40])
def test_a_wrong_option_ends_before_measuring(line, message, capsys, monkeypatch):
    for module, name in [
        (timing, "interleave"), (timing, "compile_arm"), (layers, "compile_arm"),
        (networks, "compile_arm"), (many, "compile_arm"), (spatial, "compile_arm"),
        (convergence_report, "fit"), (learning_report, "Trainer"), (measure, "rows"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, pytest.fail)
    monkeypatch.setitem(sys.modules, "hyperbolix.manifolds", None)
    assert bench.main(line.split()) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("bench.py: error: ")
    assert message in error


COMMANDS = (
    "layers",
    "conv",
    "spatial",
    "many",
    "cost",
    "resnet",
    "vit",
    "inference",
    "data",
    "scaling",
    "convergence",
    "numerics",
)


@pytest.mark.parametrize("command", [*COMMANDS, "learning"])
def test_a_file_that_cannot_be_written_ends_before_measuring(
    command, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(options.Files, "run", pytest.fail)
    for cls in options.Files.__subclasses__():
        monkeypatch.setattr(cls, "run", pytest.fail)
    os.mkfifo(tmp_path / "pipe.png")
    one = str(tmp_path / "one.png")
    for arguments, message in [
        (("--json", str(tmp_path / "no" / "x.json")), "cannot write"),
        (("--plot", str(tmp_path / "no" / "x.png")), "cannot write"),
        (("--json", str(tmp_path)), "got a folder"),
        (("--json", "/dev/null"), "got a device"),
        (("--plot", str(tmp_path / "pipe.png")), "got a device"),
        (("--json", "/proc/x.json"), "cannot write /proc/x.json"),
        (("--plot", str(tmp_path / "figure.foo")), "figure.foo is no picture"),
        (("--json", one, "--plot", one), "--json and --plot are one file"),
    ]:
        assert bench.main([command, *arguments]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith("bench.py: error: ")
        assert message in error
    assert os.listdir(tmp_path) == ["pipe.png"]


QUICK = ("convergence", "--methods", "fgg", "--distances", "1", "--cap", "50")


def test_results_are_whole_and_survive_a_full_disk(tmp_path, capsys, monkeypatch):
    to = tmp_path / "old.json"
    to.write_text("old")

    def full(path, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(options, "write_atomic", full)
    assert bench.main([*QUICK, "--json", str(to)]) == 2
    printed = capsys.readouterr()
    assert "No space left" in printed.err
    assert '"iterations": [' in printed.out  # what was measured is not lost
    assert to.read_text() == "old"
    monkeypatch.undo()

    def broken(results, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    plot = tmp_path / "old.png"
    plot.write_text("old")
    monkeypatch.setattr(convergence_report, "plot", broken)
    assert bench.main([*QUICK, "--json", str(to), "--plot", str(plot)]) == 2
    assert json.loads(to.read_text())["curves"]
    assert plot.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["old.json", "old.png"]


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "MemoryError"),
        (OverflowError("too large"), 1, "too large"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 TB\nof memory"),
            1,
            "EXHAUSTED: 3 TB of",
        ),
    ],
)
def test_what_ends_a_measurement_is_one_line(error, status, text, capsys, monkeypatch):
    def run(*_):
        raise error

    monkeypatch.setattr(convergence_report, "run", run)
    assert bench.main(list(QUICK)) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench.py: error: ")
    assert text in line


def result(**changes):
    row = {"name": "a", "ratio": 1.5}
    return {"environment": {"device": "cpu"}, "tables": {"t": [row]}} | changes


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "3", "null", "[]", '"x"', "[" * 200_000, "\xff", "{}", '{"a": 1, "a": 2}',
        *map(json.dumps, [
            result(environment={}), result(environment=3), result(environment={"device": 3}),
            result(tables=None), result(tables=[]), result(tables={"t": 3}),
            result(tables={"t": [3]}), result(tables={"t": [{"name": "a"}]}),
            result(tables={"t": [{"name": "a", "ratio": "x"}]}),
            result(tables={"t": [{"name": "a", "ratio": 0}]}),
            result(tables={"t": [{"name": "a", "ratio": float("nan")}]}),
            result(tables={"t": [{"name": [], "ratio": 1.0}]}),
        ]),
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_compare_of_what_is_no_result(content, tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(result()))
    bad.write_bytes(content.encode("latin1"))
    for pair in ((good, bad), (bad, good)):
        assert bench.main(["compare", *map(str, pair)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"bench.py: error: {bad}: ")
    assert bench.main(["compare", str(good), str(good)]) == 0


def test_compare_of_other_files(tmp_path, capsys):
    good, other = tmp_path / "good.json", tmp_path / "other.json"
    good.write_text(json.dumps(result()))
    other.write_text(json.dumps(result(tables={"u": [{"name": "a", "ratio": 1.5}]})))
    for path, message in [
        (tmp_path / "none.json", "No such file"), (tmp_path, "got a folder"),
        ("/dev/zero", "no regular file"), (other, "no measurement in common"),
    ]:  # fmt: skip
        assert bench.main(["compare", str(good), str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
