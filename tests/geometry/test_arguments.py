"""What every public function does with its arguments: dtypes, shapes, kappa, transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lorentz_jax import geometry
from lorentz_jax._src.arguments import as_array, as_kappa, operation
from tests.oracle import SPACE, assert_close, evaluate
from tests.samples import KINDS, SCALARS, Grid

F32 = np.float32


def functions():
    """Every function of `geometry` made by `operation`, and how many arrays it takes."""
    return [(name, getattr(geometry, name), len(kinds)) for name, kinds in KINDS.items()]


def test_the_table_of_functions_is_complete():
    assert set(KINDS) == set(geometry.__all__) - {"centroid", "drop", "pairwise_dist"}
    assert set(KINDS) == set(SPACE)


@pytest.mark.parametrize("kappa", [-1, 0.0, np.nan, np.inf, -np.inf, np.array([1.0, -2, 3])])
def test_kappa_must_be_finite_and_positive(kappa):
    x = np.ones((3, 2), F32)
    for name, function, count in [*functions(), ("centroid", geometry.centroid, 1)]:
        if name == "centroid" and np.ndim(kappa):
            continue  # a batch of one centroid
        for call in (function, jax.jit(lambda *a, f=function: f(*a, kappa))):
            arguments = [x] * count + ([kappa] if call is function else [])
            with pytest.raises(ValueError, match=r"kappa must be finite.*curvature is -kappa"):
                call(*arguments)


def test_kappa_must_be_a_number():
    for kappa in ("0.1", None, True, 1j, np.array([True])):
        with pytest.raises(TypeError, match="kappa must be a real number or array"):
            as_kappa(kappa, jnp.float32)
    assert as_kappa(2, jnp.float32).dtype == jnp.float32
    assert as_kappa(jnp.bfloat16(2), jnp.float32) == 2


def test_one_kappa_a_sample_never_meets_the_coordinates(x64):
    """The batch (3,) of points of D + 1 = 3 ambient coordinates."""
    x, y = np.zeros((3, 2)), np.tile([0.75, 0], (3, 1))
    got = geometry.dist(x, y, np.array([0.5, 1, 2]))
    assert_close(got, [0.718666631207, 0.693147180560, 0.653100116864], 1e-11, axis=None)
    message = r"kappa of shape .* does not broadcast to the batch shape"
    for name, function, count in functions():
        for shape in ((3, 1), (2,), (1, 3), (4,)):
            with pytest.raises(ValueError, match=message):
                function(*[y] * count, np.ones(shape))
            with pytest.raises(ValueError, match=message):
                jax.eval_shape(function, *[y] * count, np.ones(shape))
        square = jax.eval_shape(function, *[np.ones((4, 3, 2))] * count, np.ones((4, 1)))
        assert square.shape[:2] == (4, 3), name
    with pytest.raises(ValueError, match=message):
        geometry.dist0(y[0], np.ones(3))  # one point, three curvatures


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.complex64])
def test_only_real_floating_points(dtype):
    """Squares of integers would wrap."""
    bad, good = np.ones((3, 2), dtype), np.ones((3, 2), F32)
    for _, function, count in [*functions(), ("centroid", geometry.centroid, 1)]:
        for position in range(count):
            arguments = [bad if i == position else good for i in range(count)]
            with pytest.raises(TypeError, match=f"floating-point array, got dtype {bad.dtype}"):
                function(*arguments, 1.0)


def test_shapes_are_checked():
    f = geometry.dist
    for call in (f, jax.jit(f)):
        with pytest.raises(ValueError, match=r"last axis.*\{'x': 2, 'y': 3\}"):
            call(np.ones((4, 2), F32), np.ones((4, 3), F32), 1.0)
        with pytest.raises(ValueError, match=r"do not broadcast: \{'x': \(4, 2\), 'y': \(3, 2\)\}"):
            call(np.ones((4, 2), F32), np.ones((3, 2), F32), 1.0)
    with pytest.raises(ValueError, match=r"x holds no coordinate, got shape \(4, 0\)"):
        as_array("x", np.ones((4, 0), F32))
    with pytest.raises(ValueError, match=r"x must have at least 1 axes, got shape \(\)"):
        geometry.dist0(F32(1), 1.0)
    with pytest.raises(TypeError, match="missing a required argument: 'kappa'"):
        f(np.ones(2, F32), np.ones(2, F32))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtypes_and_shapes_of_results(x64, dtype):
    """Input dtype in, the same out; batches broadcast as NumPy's do, empty ones included."""
    for name, function, count in functions():
        for shapes in ([(0, 3)] * 3, [(4, 1, 3), (5, 3), (3,)]):
            arrays = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in shapes[:count]]
            batch = np.broadcast_shapes(*(s[:-1] for s in shapes[:count]))
            out = jax.eval_shape(function, *arrays, jax.ShapeDtypeStruct((), jnp.float32))
            tail = () if name in SCALARS else (4,) if name == "lift" else (3,)
            assert (out.dtype, out.shape) == (jnp.dtype(dtype), batch + tail), name


def test_empty_batches_and_other_spellings_of_arrays():
    empty = np.zeros((0, 2), F32)
    assert geometry.dist(empty, np.ones(2, F32), np.ones(0, F32)).shape == (0,)
    assert geometry.exp0(empty, 1.0).shape == (0, 2)
    assert geometry.drop(np.zeros((0, 3), F32), 1.0).shape == (0, 2)
    wanted = geometry.dist0(np.array([3, 4], F32), 1.0)
    for x in ([3.0, 4.0], (3.0, 4.0), np.array([3.0, 4.0]), jnp.array([3.0, 4.0])):
        assert geometry.dist0(x, 1.0) == wanted
        assert geometry.dist0(x=x, kappa=1.0) == wanted
    with pytest.raises(Exception, match="implicit dtype promotion"):  # strict, as configured
        geometry.dist(np.ones(2, F32), jnp.ones(2, jnp.bfloat16), 1.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_right_to_its_rounding(dtype):
    """Computed in float32 from the rounded inputs and rounded once, at the end."""
    grid = Grid([(0.3, 0.5, 0.7), (1, 2, 2), (2, 1, 0.1), (1, 1.2, 3.1), (0.01, 1, 1)], (0.5,), F32)
    kappa = grid.kappa
    for name in ("time", "dist", "exp0", "translate", "to_poincare"):
        arrays = [jnp.asarray(a, dtype) for a in grid.arrays(name)]
        got = getattr(geometry, name)(*arrays, kappa)
        assert got.dtype == jnp.dtype(dtype)
        want = evaluate(SPACE[name], *arrays, kappa=kappa)
        size = np.abs(want) if want.ndim == 1 else np.abs(want).max(-1, keepdims=True)
        gap = np.abs(np.asarray(got, np.float64) - want)
        assert np.all(gap <= 0.5 * float(jnp.finfo(dtype).eps) * np.abs(want) + 4e-6 * size), name
    points = jnp.asarray([[0.5, 0.25], [1, -1]], dtype)
    mean = geometry.centroid(points, 1.0)
    assert mean.dtype == jnp.dtype(dtype)
    exact = geometry.centroid(points.astype(F32), 1.0).astype(dtype)
    np.testing.assert_array_equal(mean, exact)


def test_the_spelling_of_kappa_compiles_nothing_again():
    """Numbers, NumPy scalars, arrays and a schedule of values are one compilation."""
    x, traces = jnp.full((5, 3), 0.3), []

    @operation
    def size(x, kappa):
        traces.append(1)
        return (x * kappa).sum(-1)

    spellings = (1.0, 0.5, 1, F32(1), np.float64(2), jnp.asarray(1.0), np.int64(3))
    for kappa in (*spellings, *np.linspace(0.5, 1, 100)):
        size(x, kappa)
    assert len(traces) == 1


@pytest.mark.parametrize("name", ["dist", "transport_to_origin"])
def test_vmap_and_jit_equal_the_batched_call(name):
    """And broadcasting equals repeating: over pairs, and over one kappa a sample."""
    grid = Grid([(0.5, 1, 1), (1, 2, 2), (0, 1, 0), (1, 1, 0)], (0.5, 2.0), F32)
    function, arrays = getattr(geometry, name), grid.arrays(name)
    want = function(*arrays, grid.kappa)
    assert_close(jax.jit(function)(*arrays, grid.kappa), want, 5e-7)
    assert_close(jax.vmap(function)(*arrays, grid.kappa), want, 5e-7)
    assert_close(jax.vmap(function, (0,) * len(arrays) + (None,))(*arrays, 0.5)[:4], want[:4], 5e-7)
    x, *rest = arrays
    table = function(x[:, None], *rest, grid.kappa)
    assert table.shape[:2] == (8, 8)
    assert_close(np.stack([table[i, i] for i in range(8)]), want, 5e-7)
    one = function(*(a[0] for a in arrays), grid.kappa[0])
    assert_close(one, want[0], 5e-7)
