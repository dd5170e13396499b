"""Time whole networks against their Euclidean twin: training step, inference, data, scaling."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from lorentz_jax import data
from lorentz_jax.bench.timing import Arm, Row, compile_arm, interleave
from lorentz_jax.inference import compile_cached_v
from lorentz_jax.metrics import cross_entropy
from lorentz_jax.models import FLAT, MODELS, TRANSFORMERS, Network
from lorentz_jax.models.resnet import ConvNorm
from lorentz_jax.training.state import merge, split

BASE, BASE_VIT = "euclidean", "euclidean-vit"
PALLAS = ", pallas"
"""How the name of an arm ends that is traced inside `functional.kernels("pallas")`."""
TRANSFORMER_ARMS = ("lorentz-vit", "lorentz-vit, no bias")
TRAINED = (BASE, "euclidean, norm by hand", "lorentz", "lorentz, plain", "hcnn", "poincare")
"""Arms of the training step: models, and variants of them after a comma (see `build`)."""
COMPILED = ("lorentz, pallas", "lorentz, bias")
"""More of them, which `bench.py accelerator` compiles."""


@dataclass(frozen=True)
class Sizes:
    """A network and its images.

    Attributes:
      width: channels of the first stage.
      batch: images of a batch.
      stages: residual blocks of each stage.
      kappa: curvature -kappa.
      pixels: side of the images.
      patch: side of a patch of a vision transformer, which has four heads.
    """

    width: int = 16
    batch: int = 64
    stages: tuple[int, ...] = (2, 2, 2, 2)
    kappa: float = 0.1
    pixels: int = 32
    patch: int = 4

    def images(self) -> tuple[Array, Array]:
        """Return a batch of images with three channels, and its labels."""
        shape = (self.batch, self.pixels, self.pixels, 3)
        labels = jnp.arange(self.batch, dtype=jnp.int32) % 10
        return jax.random.normal(jax.random.key(0), shape), labels


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalise(x, scale, bias, epsilon):
    return _normalise_forward(x, scale, bias, epsilon)[0]


def _normalise_forward(x, scale, bias, epsilon):
    mean = jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.maximum(jnp.mean(x * x, axis=(0, 1, 2)) - mean * mean, 0)
    rate = jax.lax.rsqrt(variance + epsilon)
    return ((x - mean) * (rate * scale) + bias, mean, variance), (x, scale, mean, rate)


def _normalise_backward(epsilon, residuals, cotangents):
    x, scale, mean, rate = residuals
    g = cotangents[0]
    g_bias, dots = jnp.sum(g, axis=(0, 1, 2)), jnp.sum(g * x, axis=(0, 1, 2))
    g_scale = rate * (dots - mean * g_bias)
    pixels = x.size // x.shape[-1]
    slope = rate * g_scale / pixels
    g_x = (rate * scale) * (g - g_bias / pixels - (x - mean) * slope)
    return g_x, g_scale, g_bias


_normalise.defvjp(_normalise_forward, _normalise_backward)


class HandWrittenBatchNorm(nnx.Module):
    """Batch norm of `x` to `scale (x - mean)/sqrt(var + 1e-5) + bias`, with its own backward pass.

    XLA's derivative of batch norm reads the images more often than needed. The Lorentz norm has a
    hand-written backward pass that does not; against an opponent with one, too, a comparison tells
    what the geometry costs and not what the derivative saves. It runs in training mode alone.
    """

    def __init__(self, features: int):
        self.scale = nnx.Param(jnp.ones((features,)))
        self.bias = nnx.Param(jnp.zeros((features,)))
        self.mean = nnx.BatchStat(jnp.zeros((features,)))
        self.var = nnx.BatchStat(jnp.ones((features,)))

    def __call__(self, x: Array, kappa: Any = None, use_running_average: Any = None) -> Array:
        """Normalise images by their batch, and blend its statistics into the running ones."""
        results: Any = _normalise(x, self.scale[...], self.bias[...], 1e-5)
        out, mean, variance = results
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * jax.lax.stop_gradient(mean)
        self.var[...] = 0.9 * self.var[...] + 0.1 * jax.lax.stop_gradient(variance)
        return out


def build(name: str, sizes: Sizes) -> Network:
    """Build the network of an arm, with 10 classes.

    The variants are "norm by hand", with `HandWrittenBatchNorm`; "plain", whose convolutions and
    norms are not fused; "pallas", which differs where it is compiled (`PALLAS`); "bias", of a
    Lorentz network, whose convolutions have one; and "no bias", of a vision transformer.
    """
    model_name, _, variant = name.partition(", ")
    options: dict[str, Any] = {} if model_name in FLAT else {"kappa": sizes.kappa}
    if model_name in TRANSFORMERS:
        options |= {"image_size": sizes.pixels, "patch_size": sizes.patch, "heads": 4}
    if variant in ("bias", "no bias"):
        options["use_bias"] = variant == "bias"
    make: Any = MODELS[model_name]
    model = make(sizes.stages, sizes.width, 10, 3, rngs=nnx.Rngs(0), **options)
    units: list[Any] = [unit for _, unit in nnx.iter_modules(model) if isinstance(unit, ConvNorm)]
    for unit in units:
        if variant == "norm by hand":
            unit.norm = HandWrittenBatchNorm(unit.norm.num_features)
        if variant == "plain":
            unit.call = None
    return model


STATE = 3
"""How many arguments of a training step are its state, which it gives new: it may use up theirs."""


def training_step(
    name: str, sizes: Sizes, dtype: Any = jnp.float32
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a step of SGD with momentum, running statistics included, and its arguments.

    The first `STATE` arguments are donated where it is compiled, as `train.py` does.
    `dtype` is what the network computes in.
    """
    graphdef, params, stats = split(build(name, sizes))
    optimiser = optax.sgd(0.05, 0.9, nesterov=True)
    options = {} if dtype == jnp.float32 else {"dtype": dtype}

    def step(params, stats, momentum, images, labels):
        def loss_fn(params):
            model = merge(graphdef, params, stats)
            loss = cross_entropy(model(images, train=True, **options), labels).mean()
            return loss, split(model)[2]

        (loss, new), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, momentum = optimiser.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), new, momentum, loss

    return step, (params, stats, optimiser.init(params), *sizes.images())


def training_arm(name: str, sizes: Sizes) -> Arm:
    """Compile `training_step`."""
    function, arguments = training_step(name, sizes)
    return compile_arm(function, *arguments, donated=STATE)


def training(
    names: Sequence[str], sizes: Sizes, seconds: float = 60.0, base: str = BASE
) -> list[Row]:
    """Time the training step of each arm and of the Euclidean network, the base of all ratios."""
    arms = {name: training_arm(name, sizes) for name in dict.fromkeys((base, *names))}
    return interleave(arms, base, seconds, min_rounds=3)


def inference(
    names: Sequence[str], sizes: Sizes, seconds: float = 30.0, base: str = BASE
) -> list[Row]:
    """Time compiled inference (cached V, norms folded) of models and of the Euclidean network."""
    arms, (images, _) = {}, sizes.images()
    for name in dict.fromkeys((base, *names)):
        compiled = compile_cached_v(build(name, sizes))
        arms[name] = compile_arm(compiled.apply, compiled.params, images)
    return interleave(arms, base, seconds)


def data_path(sizes: Sizes, count: int = 50_000, seconds: float = 30.0) -> list[Row]:
    """Time a Lorentz training step, and what comes before it in training as a share of its time.

    That is to pick a batch of `count` uint8 images, to shift and mirror each at random and to
    normalise them, as `train.py` does inside its step.
    """
    side = sizes.pixels
    pixels = jax.random.bits(jax.random.key(1), (count, side, side, 3), "uint8")
    indices = jax.random.randint(jax.random.key(2), (sizes.batch,), 0, count)

    def prepare(seed, pixels, indices):
        usual = {"mean": (128.0,) * 3, "std": (64.0,) * 3, "shift": 4, "flip": True}
        return data.prepare(jax.random.key(seed), pixels[indices], **usual)

    arms = {
        "training step": training_arm("lorentz", sizes),
        "data path": compile_arm(prepare, 0, pixels, indices),
    }
    return interleave(arms, "training step", seconds)


SWEEPS = {
    "batch": (8, 16, 32, 64),
    "width": (8, 16, 32, 64),
    "size": (8, 16, 32),
    "depth": (1, 2, 4),
}
"""Values of each size that scaling is measured in; "depth" is that of each of two stages."""


def sweep_tables(kappa: float, seconds: float) -> Iterator[tuple[str, list[Row]]]:
    """Time Euclidean and Lorentz training steps; yield a table for each value of each sweep."""
    middle = Sizes(width=16, batch=32, stages=(1, 1), kappa=kappa, pixels=16)
    for name, values in SWEEPS.items():
        for value in values:
            field = {"size": "pixels", "depth": "stages"}.get(name, name)
            sizes = replace(middle, **{field: (value, value) if name == "depth" else value})
            arms = {arm: training_arm(arm, sizes) for arm in (BASE, "lorentz")}
            rows = interleave(arms, BASE, seconds)
            jax.clear_caches()
            yield f"{name}={value}", rows


def exponents(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Fit p of `time ~ value^p` for each sweep and arm, by least squares in logarithms."""
    fits: dict[str, dict[str, float]] = {}
    for name in SWEEPS:
        tables = {t: rows for t, rows in results["tables"].items() if t.startswith(f"{name}=")}
        values = [float(title.split("=")[1]) for title in tables]
        for index, row in enumerate(next(iter(tables.values()))):
            times = [rows[index]["milliseconds"] for rows in tables.values()]
            slope = np.polyfit(np.log(values), np.log(times), 1)[0]
            fits.setdefault(name, {})[row["name"]] = float(slope)
    return fits


def describe(fits: dict[str, dict[str, float]]) -> str:
    """Write a line for each sweep: `time ~ batch^p: euclidean p = 0.97, lorentz p = 0.98`."""
    return "\n".join(
        f"time ~ {sweep}^p: " + ", ".join(f"{arm} p = {p:.2f}" for arm, p in powers.items())
        for sweep, powers in fits.items()
    )
