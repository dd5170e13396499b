"""State dicts of the paper's code, against the golden network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax.models import EuclideanResNet, LorentzResNet, load_reference
from lorentz_jax.models.reference import reference_name
from lorentz_jax.training.state import merge, split
from tests.compiled import quick_jit
from tests.oracle import assert_close, golden

pytestmark = pytest.mark.usefixtures("x64")
PREFIX = "resnet/k0.1/"


def network(**options):
    options = {"kappa": 0.1, "init": "paper", "param_dtype": jnp.float64, **options}
    return LorentzResNet((1, 1, 1, 1), 4, rngs=nnx.Rngs(0), **options)


@pytest.fixture(scope="module")
def state_dict():
    start = f"{PREFIX}sd0/"
    state = {k.removeprefix(start): v for k, v in golden("networks").items() if k.startswith(start)}
    # What the reference stores besides.
    return state | {"manifold._k": np.ones(()), "stage1.0.layer1.fc.V_auxiliary": np.ones((37, 4))}


@pytest.fixture(scope="module")
def empty():
    with jax.enable_x64(True):
        return split(network())


@pytest.mark.slow  # compiles the whole network
@pytest.mark.parametrize("init", ["paper", "fast"])
def test_golden_logits(init, state_dict, tmp_path):
    file = tmp_path / "weights.npz"
    np.savez(file, **state_dict)
    model = network(init=init, use_bias=True)
    assert load_reference(model, file) is model
    graphdef, params, stats = split(model)
    images = np.moveaxis(golden("networks")[f"{PREFIX}x"][0], 1, -1)
    run = quick_jit(lambda p, s, x: merge(graphdef, p, s)(x, train=False))
    want = golden("networks")[f"{PREFIX}logits_eval_x0"]
    assert_close(run(params, stats, images), want, 1e-12)


def test_signs_shapes_and_points(empty, state_dict):
    _, params, stats = split(load_reference(merge(*empty), state_dict))
    np.testing.assert_array_equal(params["head/bias"], -state_dict["classifier.a"][0])
    kernel = state_dict["stage2.0.layer1.fc.v"].reshape(3, 3, 4, 8)
    np.testing.assert_array_equal(params["stages/1/0/first/conv/kernel"], kernel)
    beta = state_dict["stage2.0.proj.1.beta"][1:]
    np.testing.assert_array_equal(params["stages/1/0/shortcut/norm/beta"], beta)
    mean = state_dict["input_proj.proj.1.running_mean"][1:]
    np.testing.assert_array_equal(stats["stem/norm/mean"], mean)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classifier.U": None}, r"missing \['classifier.U'\]"),
        ({"layer9.v": np.ones(3)}, r"left over \['layer9.v'\]"),
        ({"classifier.U": np.ones((3, 3))}, r"classifier.U: expected shape \(32, 10\)"),
        ({"bn": 0, "stage1.0.bn1.beta": np.eye(5)[0]}, "has time 1, on the hyperboloid of kappa"),
        ({"input_proj.proj.0.fc.g": np.full(4, np.nan)}, "fc.g is not finite"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(change, message, empty, state_dict):
    model = merge(*empty)
    changed = {k: v for k, v in (state_dict | change).items() if v is not None and k != "bn"}
    with pytest.raises(ValueError, match=message):
        load_reference(model, changed)
    for path, value in split(model)[1].items():
        np.testing.assert_array_equal(value, empty[1][path])


def test_models_and_files_of_another_kind_are_refused(empty, state_dict, tmp_path):
    others = [
        EuclideanResNet((1,), 4, rngs=nnx.Rngs(0)),
        LorentzResNet((1,), 4, learn_kappa=True, rngs=nnx.Rngs(0)),
        LorentzResNet((1,), 4, learn_kappa=True, kappa_per_layer=True, rngs=nnx.Rngs(0)),
    ]
    for model in others:
        with pytest.raises(TypeError, match="LorentzResNet with a fixed kappa"):
            load_reference(model, {})
    with pytest.raises(ValueError, match=r"left over .*\.a.* biases, .*use_bias=True"):
        load_reference(network(init="fast"), state_dict)
    with pytest.raises(ValueError, match=r"npz or .safetensors file of arrays, got .*weights.pt"):
        load_reference(merge(*empty), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="nothing like"):
        reference_name("stem/conv/scale")
