"""Cost of whole networks against the Euclidean ResNet: training step and inference."""

import functools
from collections.abc import Iterator, Sequence
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
from lorentz_jax.models import MODELS, ResNet
from lorentz_jax.models.resnet import ConvNorm
from lorentz_jax.training.state import merge, split

BASE = "euclidean"
TRAINED = (BASE, "euclidean, norm by hand", "lorentz", "lorentz, plain", "hcnn", "poincare")


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalise(x, scale, bias, epsilon):
    return _normalise_forward(x, scale, bias, epsilon)[0]


def _normalise_forward(x, scale, bias, epsilon):
    mean = jnp.mean(x, axis=(0, 1, 2))
    variance = jnp.maximum(jnp.mean(x * x, axis=(0, 1, 2)) - mean * mean, 0)
    rate = jax.lax.rsqrt(variance + epsilon)
    return ((x - mean) * (rate * scale) + bias, mean, variance), (x, scale, mean, rate)


def _normalise_backward(epsilon, kept, cotangents):
    x, scale, mean, rate = kept
    g = cotangents[0]
    g_bias, dots = jnp.sum(g, axis=(0, 1, 2)), jnp.sum(g * x, axis=(0, 1, 2))
    g_scale = rate * (dots - mean * g_bias)
    pixels = x.size // x.shape[-1]
    slope = rate * g_scale / pixels
    g_x = (rate * scale) * (g - g_bias / pixels - (x - mean) * slope)
    return g_x, g_scale, g_bias


_normalise.defvjp(_normalise_forward, _normalise_backward)


class HandWrittenBatchNorm(nnx.Module):
    """Batch norm with a backward pass as short as the fused Lorentz one's: the fair opponent."""

    def __init__(self, features: int):
        self.scale = nnx.Param(jnp.ones((features,)))
        self.bias = nnx.Param(jnp.zeros((features,)))
        self.mean = nnx.BatchStat(jnp.zeros((features,)))
        self.var = nnx.BatchStat(jnp.ones((features,)))

    def __call__(self, x: Array, kappa: Any = None, use_running_average: Any = None) -> Array:
        """Images to images, in training mode."""
        results: Any = _normalise(x, self.scale[...], self.bias[...], 1e-5)
        out, mean, variance = results
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * jax.lax.stop_gradient(mean)
        self.var[...] = 0.9 * self.var[...] + 0.1 * jax.lax.stop_gradient(variance)
        return out


def build(name: str, stages: Sequence[int], width: int, kappa: float) -> ResNet:
    """The network that a name of `TRAINED` stands for, with 10 classes and 3 channels."""
    family, _, variant = name.partition(", ")
    options: dict[str, Any] = {} if family == BASE else {"kappa": kappa}
    make: Any = MODELS[family]
    model = make(tuple(stages), width, 10, 3, rngs=nnx.Rngs(0), **options)
    units: list[Any] = [unit for _, unit in nnx.iter_modules(model) if isinstance(unit, ConvNorm)]
    for unit in units:
        if variant == "norm by hand":
            unit.norm = HandWrittenBatchNorm(unit.norm.num_features)
        if variant == "plain":
            unit.call = None
    return model


def training_arm(model: ResNet, images: Array, labels: Array) -> Arm:
    """One step of SGD with momentum: loss, gradient, update, running statistics."""
    graphdef, params, stats = split(model)
    optimiser = optax.sgd(0.05, 0.9, nesterov=True)

    def step(params, stats, momentum, images, labels):
        def loss_fn(params):
            model = merge(graphdef, params, stats)
            loss = cross_entropy(model(images, train=True), labels).mean()
            return loss, split(model)[2]

        (loss, new), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, momentum = optimiser.update(gradients, momentum, params)
        return optax.apply_updates(params, updates), new, momentum, loss

    return compile_arm(step, params, stats, optimiser.init(params), images, labels)


def _batch(batch: int, size: int) -> tuple[Array, Array]:
    images = jax.random.normal(jax.random.key(0), (batch, size, size, 3))
    return images, jnp.arange(batch, dtype=jnp.int32) % 10


def training(
    names: Sequence[str] = TRAINED, width: int = 16, batch: int = 64, size: int = 32,
    stages: Sequence[int] = (2, 2, 2, 2), kappa: float = 0.1, seconds: float = 60.0,
) -> list[Row]:  # fmt: skip
    """Training step of each network, interleaved; ratios to the Euclidean one."""
    images, labels = _batch(batch, size)
    arms = {name: training_arm(build(name, stages, width, kappa), images, labels) for name in names}
    return interleave(arms, BASE, seconds, min_rounds=3)


def inference(
    names: Sequence[str] = (BASE, "lorentz"), width: int = 16, batch: int = 64, size: int = 32,
    stages: Sequence[int] = (2, 2, 2, 2), kappa: float = 0.1, seconds: float = 30.0,
) -> list[Row]:  # fmt: skip
    """Compiled inference of each network: cached V, every norm folded that can be."""
    images, _ = _batch(batch, size)
    arms = {}
    for name in names:
        compiled = compile_cached_v(build(name, stages, width, kappa))
        arms[name] = compile_arm(compiled.apply, compiled.params, images)
    return interleave(arms, BASE, seconds)


def data_path(
    width: int = 16, batch: int = 64, size: int = 32, stages: Sequence[int] = (2, 2, 2, 2),
    kappa: float = 0.1, seconds: float = 30.0, count: int = 50_000,
) -> list[Row]:  # fmt: skip
    """A Lorentz training step, and what comes before it in training, as a share of its time.

    That is to pick a batch of `count` uint8 images, to shift and mirror each at random and to
    normalise them, as `train.py` does inside its step.
    """
    images, labels = _batch(batch, size)
    step = training_arm(build("lorentz", stages, width, kappa), images, labels)
    pixels = jax.random.bits(jax.random.key(1), (count, size, size, 3), "uint8")
    indices = jax.random.randint(jax.random.key(2), (batch,), 0, count)

    def prepare(seed, pixels, indices):
        usual = {"mean": (128.0,) * 3, "std": (64.0,) * 3, "shift": 4, "flip": True}
        return data.prepare(jax.random.key(seed), pixels[indices], **usual)

    arms = {"training step": step, "data path": compile_arm(prepare, 0, pixels, indices)}
    return interleave(arms, "training step", seconds)


DEFAULTS = {"width": 16, "batch": 32, "size": 16, "depth": 1}
SWEEPS = {
    "batch": (8, 16, 32, 64),
    "width": (8, 16, 32, 64),
    "size": (8, 16, 32),
    "depth": (1, 2, 4),
}


def step(width: int, batch: int, size: int, depth: int, kappa: float, seconds: float) -> list[Row]:
    """Euclidean and Lorentz training step of two stages of `depth` blocks, interleaved."""
    images, labels = _batch(batch, size)
    arms = {
        name: training_arm(build(name, (depth, depth), width, kappa), images, labels)
        for name in (BASE, "lorentz")
    }
    rows = interleave(arms, BASE, seconds)
    jax.clear_caches()
    return rows


def tables(kappa: float, seconds: float) -> Iterator[tuple[str, list[Row]]]:
    """One table for each value of each sweep, the other sizes at `DEFAULTS`."""
    for name, values in SWEEPS.items():
        for value in values:
            yield (
                f"{name}={value}",
                step(**(DEFAULTS | {name: value}), kappa=kappa, seconds=seconds),
            )


def exponents(results: dict) -> dict[str, dict[str, float]]:
    """Fitted p of `time ~ value^p` for each sweep and arm, by least squares in logarithms."""
    fits: dict[str, dict[str, float]] = {}
    for name in SWEEPS:
        found = {t: rows for t, rows in results["tables"].items() if t.startswith(f"{name}=")}
        values = [float(title.split("=")[1]) for title in found]
        for index, row in enumerate(next(iter(found.values()))):
            times = [rows[index]["milliseconds"] for rows in found.values()]
            slope = np.polyfit(np.log(values), np.log(times), 1)[0]
            fits.setdefault(name, {})[row["name"]] = float(slope)
    return fits


def describe(fits: dict[str, dict[str, float]]) -> str:
    """One line a sweep: `time ~ batch^p: euclidean p = 0.97, lorentz p = 0.98`."""
    return "\n".join(
        f"time ~ {sweep}^p: " + ", ".join(f"{arm} p = {p:.2f}" for arm, p in found.items())
        for sweep, found in fits.items()
    )
