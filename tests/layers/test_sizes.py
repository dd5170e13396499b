"""Sizes, windows and normals that no layer can have are refused in words, wherever they come in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lorentz_jax import ambient, functional, hyperplane, models, nn
from lorentz_jax.models import chen, poincare

DENSE = [
    nn.LorentzLinear, nn.LorentzMLR, models.ChenLinear, models.PoincareLinear, models.PoincareMLR,
    models.PoincareHead, models.BdeirMLR, models.EuclideanHead,
]  # fmt: skip
CONVS = [nn.LorentzConv, models.ChenConv, models.PoincareConv, models.EuclideanConv]
NORMS = [
    nn.LorentzBatchNorm, models.VarianceBatchNorm, models.HCNNBatchNorm, models.PoincareBatchNorm,
    models.EuclideanBatchNorm,
]  # fmt: skip


def make(cls, *sizes, **options):
    curved = {} if cls.__name__.startswith("Euclidean") else {"kappa": 0.5}
    return cls(*sizes, rngs=nnx.Rngs(0), **curved, **options)


def name(cls):
    return cls.__name__


@pytest.mark.parametrize("cls", DENSE, ids=name)
@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (-1, 4), (4, -3)])
def test_a_dense_layer_without_features(cls, sizes):
    with pytest.raises(ValueError, match=r"put features must be at least 1, got (0|-1|-3)$"):
        make(cls, *sizes)


@pytest.mark.parametrize("init", ["fast", "paper"])
def test_every_preset_refuses_a_layer_without_features(init):
    for cls in (nn.LorentzLinear, nn.LorentzMLR, models.BdeirMLR, models.PoincareLinear):
        with pytest.raises(ValueError, match="features must be at least 1, got 0"):
            make(cls, 0, 4, init=init)


@pytest.mark.parametrize("cls", [*DENSE, *CONVS], ids=name)
def test_sizes_are_whole_numbers(cls):
    with pytest.raises(TypeError, match=r"the output features must be a whole number, got 2\.5"):
        make(cls, 3, 2.5)
    with pytest.raises(TypeError, match="the input features must be a whole number, got None"):
        make(cls, None, 2)
    make(cls, np.int64(3), np.int32(2))


@pytest.mark.parametrize("cls", CONVS, ids=name)
def test_the_window_of_a_convolution(cls):
    images = jnp.ones((1, 4, 4, 2))
    one, two = make(cls, 2, 3, 2), make(cls, 2, 3, (2, 2))
    np.testing.assert_array_equal(one(images), two(images))
    assert make(cls, 2, 3).kernel.shape == make(cls, 2, 3, [3, 3]).kernel.shape == (3, 3, 2, 3)
    for size, message in [
        (0, "kernel_size must be at least 1, got 0"),
        ((0, 0), "kernel_size must be at least 1, got 0"),
        ((3, -1), "kernel_size must be at least 1, got -1"),
        ((3,) * 4, r"kernel_size must be one number or (two|1 to 3 of them), got \(3, 3, 3, 3\)"),
        ((), "kernel_size must be one number or"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(cls, 2, 3, size)
    for strides in (0, (1, -1), (1, 1, 1)):
        with pytest.raises(ValueError, match="strides must be one positive number or 2 of them"):
            make(cls, 2, 3, strides=strides)
    for shape in ((1, 0, 0, 2), (1, 4, 0, 2), (0, 0, 4, 2)):
        with pytest.raises(ValueError, match="expected images with pixels, got shape"):
            one(jnp.ones(shape))
    assert one(jnp.ones((0, 4, 4, 2))).shape[0] == 0


@pytest.mark.parametrize("cls", [c for c in CONVS if c is not models.EuclideanConv], ids=name)
def test_a_padding_that_there_is_not(cls):
    for padding in ("same?", "ab", ""):
        with pytest.raises(ValueError, match='padding must be "SAME" or "VALID"') as caught:
            make(cls, 2, 3, padding=padding)
        assert str(caught.value).endswith(f"got {padding!r}")
    with pytest.raises(ValueError, match="padding must name 2 spatial axes"):
        make(cls, 2, 3, padding=(1, 1, 1))
    assert make(cls, 2, 3, padding="same")(jnp.ones((1, 4, 4, 2))).shape == (1, 4, 4, 3)


@pytest.mark.parametrize("cls", NORMS, ids=name)
def test_a_norm_without_features(cls):
    for size in (0, -2):
        with pytest.raises(ValueError, match=f"features must be at least 1, got {size}"):
            make(cls, size)
    with pytest.raises(TypeError, match="features must be a whole number"):
        make(cls, 1.5)


@pytest.mark.parametrize("cls", models.RESNETS.values(), ids=name)
def test_a_network_of_no_size_and_an_image_of_no_pixel(cls):
    for change in ({"width": 0}, {"num_classes": 0}, {"in_channels": 0}):
        sizes = {"width": 2, "num_classes": 3, "in_channels": 1} | change
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            cls((1,), rngs=nnx.Rngs(0), **sizes)
    for stages in ((), (0,), (1, -1)):
        with pytest.raises(ValueError, match="stages"):
            cls(stages, 2, 3, 1, rngs=nnx.Rngs(0))
    model = nnx.eval_shape(lambda: cls((1,), 2, 3, 1, rngs=nnx.Rngs(0)))
    for train in (True, False):
        with pytest.raises(ValueError, match="pixels"):
            nnx.eval_shape(lambda m, x, t=train: m(x, train=t), model, jnp.ones((2, 0, 0, 1)))


X, IMAGES = jnp.ones((5, 3)), jnp.ones((2, 4, 4, 3))
W, B = jnp.ones((3, 4)), jnp.zeros(4)
V = hyperplane.normals(W, B, 1.0)
POINTS = jnp.concatenate([jnp.full((5, 1), 2.0), X], axis=1)
TAKE_NORMALS = {
    "linear": lambda v: functional.linear(X, v, 1.0),
    "conv": lambda v: functional.conv(IMAGES, v, 1.0),
    "conv_center": lambda v: functional.conv_center(IMAGES, v, B, 1.0),
    "mlr": lambda v: functional.mlr(X, v, 1.0),
    "signed_distance": lambda v: hyperplane.signed_distance(X, v, 1.0),
    "weights": lambda v: hyperplane.weights(v, 1.0),
    "ambient.linear": lambda v: ambient.linear(POINTS, v, 1.0),
    "ambient.mlr": lambda v: ambient.mlr(POINTS, v, 1.0),
    "ambient.signed_distance": lambda v: ambient.signed_distance(POINTS, v, 1.0),
    "poincare.linear": lambda v: poincare.linear(X, v, 1.0),
    "poincare.conv": lambda v: poincare.conv(IMAGES, v, 1.0),
    "poincare.mlr": lambda v: poincare.mlr(X, v, 1.0),
}


@pytest.mark.parametrize("call", TAKE_NORMALS.values(), ids=TAKE_NORMALS)
def test_what_is_no_normals_is_named(call):
    layer = nn.LorentzLinear(3, 4, kappa=1.0, rngs=nnx.Rngs(0))
    for wrong, got in [
        (W, "ArrayImpl"), (np.ones((3, 4)), "ndarray"), ((B, W), "tuple"), (None, "NoneType"),
        (layer, "LorentzLinear"), ({"time": B, "space": W}, "dict"),
        (hyperplane.Normals(None, None), "Normals"),
    ]:  # fmt: skip
        with pytest.raises(TypeError, match=rf"normals must be Normals.*got {got}$"):
            call(wrong)


@pytest.mark.parametrize("call", TAKE_NORMALS.values(), ids=TAKE_NORMALS)
def test_normals_whose_arrays_do_not_fit_each_other(call):
    """One time for four units would broadcast, and give another layer without a word."""
    kernel = W if call is not TAKE_NORMALS["conv"] else jnp.ones((3, 3, 3, 4))
    for time in (jnp.zeros(1), jnp.zeros(()), jnp.zeros(3), jnp.zeros((4, 1))):
        with pytest.raises(ValueError, match=r"time.* must have shape \(4,\) to go with normals"):
            call(hyperplane.Normals(time, kernel))
    with pytest.raises(ValueError, match=r"time and length must have shape \(4,\)"):
        call(hyperplane.Normals(B, kernel, jnp.ones(3)))


def test_normals_go_through_transformations():
    """They are a pytree, whose leaves may be tracers or batched."""
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), V)
    out = jax.jit(jax.vmap(lambda v: functional.linear(X, v, 1.0)))(many)
    np.testing.assert_allclose(out[0], functional.linear(X, V, 1.0), rtol=1e-6)
    assert chen.linear(X, W, B, 1.0).shape == (5, 4)
