"""The transformer block and the vision transformer: flat limit, options, and train.py's needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import data, geometry, inference, load_run, models
from lorentz_jax.models.vit import pool_tokens
from lorentz_jax.training import TrainConfig, build, train
from lorentz_jax.training.diagnostics import make_diagnostic_step
from lorentz_jax.training.optimiser import make_optimiser
from lorentz_jax.training.state import init_state, merge, split
from lorentz_jax.training.step import make_train_step
from tests.compiled import quick_jit, run
from tests.oracle import assert_close

F32 = np.float32
SIZES = {"image_size": 4, "patch_size": 2, "heads": 2}
IMAGES = np.random.default_rng(0).normal(size=(3, 4, 4, 1)).astype(F32)


def vit(kind=models.LorentzViT, **options):
    return kind((1,), 4, 3, 1, rngs=nnx.Rngs(0), **{**SIZES, **options})


def paired():
    """Both networks in float64, with one set of weights."""
    ours = vit(kappa=1e-9, weight_norm=False, param_dtype=jnp.float64)
    twin = vit(models.EuclideanViT, param_dtype=jnp.float64)
    (graphdef, params, _), (flat, like, _) = split(ours), split(twin)
    rng = np.random.default_rng(1)
    params = {name: a + 0.3 * rng.normal(size=a.shape) for name, a in params.items()}
    thirds = {}
    for name, array in params.items():
        if "/qkv/" in name:
            parts = zip(("query", "key", "value"), jnp.split(array, 3, -1), strict=True)
            thirds |= {name.replace("qkv", part): third for part, third in parts}
    weights = {name: {**params, **thirds}[name].reshape(a.shape) for name, a in like.items()}
    return (graphdef, params), (flat, weights)


def test_the_vision_transformer_tends_to_its_twin(x64, monkeypatch):
    """Values and the gradient of the image at kappa 1e-9, with one set of weights.

    Flax attends by dot products: keys of equal lengths would make the two the same, so the twin
    attends by distances here.
    """

    def by_distances(query, key, value, **_):
        squares = jnp.sum(jnp.square(query[:, :, None] - key[:, None]), -1)
        weights = jax.nn.softmax(-squares / (2 * query.shape[-1] ** 0.5), axis=2)
        return jnp.einsum("nqkh,nkhd->nqhd", weights, value)

    monkeypatch.setattr(nnx, "dot_product_attention", by_distances)

    def derivative(graphdef, weights):
        def loss(x):
            logits = merge(graphdef, weights, {})(x)
            return jnp.sum(jnp.sin(logits)), logits

        (_, logits), slope = quick_jit(jax.value_and_grad(loss, has_aux=True))(np.float64(IMAGES))
        return logits, slope

    for a, b in zip(*(derivative(*pair) for pair in paired()), strict=True):
        assert_close(a, b, 1e-6, axis=None)


def test_a_block_with_a_mask_a_kappa_and_dropout():
    def make(**options):
        return models.LorentzTransformerBlock(4, 2, 6, kappa=0.5, rngs=nnx.Rngs(0), **options)

    block, x = make(), np.random.default_rng(0).normal(size=(2, 5, 4)).astype(F32)
    mask = np.tri(5, dtype=bool)
    assert block.first.kernel.shape == (4, 6)

    @quick_jit
    def parts(block):
        y = block.attention(block.norm_attention(x), 0.7, mask=mask) + x
        return y + block.second(jax.nn.gelu(block.first(block.norm_perceptron(y), 0.7)), 0.7)

    got = run(block, x, 0.7, mask)
    np.testing.assert_allclose(got, parts(block), rtol=1e-4, atol=1e-5)
    learned = nnx.eval_shape(lambda: make(learn_kappa=True))
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(learned)) if path[-1] == "raw"]
    assert paths == [("kappa", "raw")]
    dropped = make(dropout=0.5)
    first = run(dropped, x, 0.7, mask)
    assert np.abs(run(dropped, x, 0.7, mask) - first).max() > 0.1
    dropped.eval()
    np.testing.assert_allclose(run(dropped, x, 0.7, mask), run(make(), x, 0.7, mask))
    twin = models.EuclideanTransformerBlock(4, 2, rngs=nnx.Rngs(0))
    assert nnx.eval_shape(lambda: twin(x, 0.7, mask=mask)).shape == x.shape


@pytest.mark.parametrize("kind", models.TRANSFORMERS.values(), ids=list(models.TRANSFORMERS))
def test_sizes_that_do_not_fit(kind):
    for change, message in (
        ({"image_size": 5}, r"patch_size must divide .*got 2 and image_size \(5, 5\)"),
        ({"image_size": (4, 6, 2)}, "patch_size must divide"),
        ({"heads": 3}, "heads must divide the width 4, got 3"),
        ({"patch_size": 0}, "patch_size must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            nnx.eval_shape(lambda change=change: vit(kind, **change))
    with pytest.raises(ValueError, match="every entry of stages must be at least 1, got 0"):
        kind((0,), 4, rngs=nnx.Rngs(0), **SIZES)
    with pytest.raises(TypeError, match="stages must be a sequence of numbers of blocks, got 2"):
        kind(2, 4, rngs=nnx.Rngs(0), **SIZES)
    bare = nnx.eval_shape(lambda: vit(use_bias=False))
    assert [name for name in split(bare)[1] if name.endswith("bias") and "norm" not in name] == [
        "head/bias"
    ]
    model = nnx.eval_shape(lambda: vit(kind, image_size=(2, 4)))
    assert model.positions.shape == (2, 4)
    with pytest.raises(ValueError, match=r"expected images of \(2, 4\) pixels"):
        nnx.eval_shape(lambda m: m(jnp.zeros((1, 4, 4, 1))), model)
    half = nnx.eval_shape(lambda m: m(jnp.zeros((1, 2, 4, 1)), dtype="bfloat16"), model)
    assert half.dtype == jnp.float32
    with pytest.raises(ValueError, match="needs the image_size"):
        models.build_model(TrainConfig(model="lorentz-vit"), 3, 1, nnx.Rngs(0))


def test_compiled_saved_and_exported(tmp_path):
    """Normals of every linear layer and of the classifier are constants; kappa is a number."""
    model = vit(learn_kappa=True)
    want = quick_jit(lambda m, x: m(x))(model, IMAGES)
    compiled = inference.compile_cached_v(model)
    assert len(compiled.layers) == 6
    assert "positions" in compiled.params
    np.testing.assert_allclose(compiled(IMAGES), want, rtol=2e-4, atol=1e-5)
    inference.save(compiled, tmp_path / "m.npz")
    np.testing.assert_array_equal(inference.load(tmp_path / "m.npz")(IMAGES), compiled(IMAGES))
    served = inference.export(compiled, (4, 4, 1))
    np.testing.assert_allclose(served.call(IMAGES[:2]), want[:2], rtol=2e-4, atol=1e-5)
    # The order of the patches shows in their positions alone.
    swapped = IMAGES[:, [2, 3, 0, 1]]
    assert np.abs(compiled(swapped) - want).max() > 1e-2
    blind = {**compiled.params, "positions": 0 * compiled.params["positions"]}
    apply = jax.jit(compiled.apply)
    np.testing.assert_allclose(apply(blind, swapped), apply(blind, IMAGES), rtol=1e-4, atol=1e-5)


def test_points_are_pooled_by_their_centroid(kappa):
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(F32)
    want = geometry.centroid(x, kappa)
    np.testing.assert_allclose(pool_tokens(x, kappa), want, rtol=1e-5, atol=1e-6)


def tiny_images():
    pixels = np.random.default_rng(0).integers(0, 255, (24, 4, 4, 1)).astype(np.uint8)
    labels = np.arange(24, dtype=np.int32) % 3
    return data.Dataset.from_arrays(pixels[:16], labels[:16], pixels[16:], labels[16:], name="tiny")


OPTIONS = {"model": "lorentz-vit", "stages": (1,), "width": 4, "heads": 2, "batch_size": 8,
           "learn_kappa": True, "precision": "bfloat16", "schedule": "constant"}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimiser": "adamw"}, {"model": "euclidean-vit", "learn_kappa": False}],
    ids=["sgd", "adamw", "twin"],
)
def test_every_step_of_a_run_is_traced(changes):
    """In half precision, with a learned kappa, a group for every parameter, and diagnostics."""
    config, dataset = TrainConfig(**{**OPTIONS, **changes}), tiny_images()
    graphdef, params, stats = split(
        nnx.eval_shape(lambda: build.model_maker(config, dataset)(nnx.Rngs(0)))
    )
    optimiser = make_optimiser(config, params, 2)
    state = jax.eval_shape(lambda: init_state(params_like(params), {}, optimiser, 0))
    prepare = build.preparation(config, dataset)
    batch = dataset.train_images, dataset.train_labels, np.arange(8)
    options = {"dtype": build.network_dtype(config)}
    step = make_train_step(graphdef, optimiser, prepare, **options)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs it
        after, metrics = jax.eval_shape(step.jitted, state, *batch)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert metrics.loss.dtype == jnp.float32
    step = make_diagnostic_step(graphdef, prepare, **options)
    measures = jax.eval_shape(step.jitted, params, stats, *batch, jax.random.key(0))
    assert {"blocks/0/attention/radius", "positions/gradient"} <= set(measures)


def params_like(shapes):
    return {name: jnp.zeros(a.shape, a.dtype) for name, a in shapes.items()}


def test_heads_are_checked_with_the_other_settings():
    with pytest.raises(ValueError, match="heads must divide the width 4, got 3"):
        TrainConfig(**{**OPTIONS, "heads": 3})
    with pytest.raises(ValueError, match="patch_size must be at least 1"):
        TrainConfig(patch_size=0)


@pytest.mark.slow
def test_train_py_trains_resumes_and_reloads_it(tmp_path):
    """With radii and diagnostics; the reloaded network knows the size of the images."""
    common = {**OPTIONS, "run_dir": tmp_path, "diagnostics": True, "log_radius": True}
    train(TrainConfig(**common, epochs=1), tiny_images())
    summary = train(TrainConfig(**common, epochs=2, resume=True), tiny_images())
    assert np.isfinite(summary["train_loss"])
    assert summary["steps"] == 4
    loaded = load_run(tmp_path / "lorentz-vit-tiny-seed0")
    images = loaded.prepare(tiny_images().test_images)
    assert jax.eval_shape(loaded.model, images).shape == (8, 3)
    rows = (loaded.path / "metrics.jsonl").read_text()
    assert "blocks/0/attention/radius" in rows
