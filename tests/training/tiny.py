"""A throw-away network with the leaf names of the real ones, quick to compile."""

import functools
import json

import jax
import jax.numpy as jnp
from flax import nnx

from lorentz_jax import data
from lorentz_jax.training import build, report, run, state


class Block(nnx.Module):
    def __init__(self, width, *, rngs):
        self.kernel = nnx.Param(0.3 * jax.random.normal(rngs.params(), (width, width)))
        self.gain = nnx.Param(jnp.ones(width))
        self.bias = nnx.Param(jnp.zeros(width))
        self.beta = nnx.Param(0.1 * jax.random.normal(rngs.params(), (width,)))
        self.mean = nnx.BatchStat(jnp.zeros(width))

    def __call__(self, x, train):
        y = x @ self.kernel[...] * self.gain[...] + self.bias[...]
        mean = y.mean(0) if train else self.mean[...]
        if train:
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * mean
        return jax.nn.relu(y - mean + self.beta[...])


class TinyNet(nnx.Module):
    """Sums the pixels into `width` columns; `kappa` scales the input, so that it matters."""

    def __init__(self, num_classes, width=8, kappa=0.1, *, rngs):
        self.kappa, self.width = kappa, width
        self.blocks = nnx.List([Block(width, rngs=rngs) for _ in range(2)])
        self.kernel = nnx.Param(0.3 * jax.random.normal(rngs.params(), (width, num_classes)))

    def __call__(self, x, *, train=False, kappa=None):
        x = x.reshape(x.shape[0], -1, self.width).mean(1)
        x = x * jnp.asarray(self.kappa if kappa is None else kappa, x.dtype)
        for block in self.blocks:
            x = block(x, train)
        return x @ self.kernel[...]


def build_tiny(config, num_classes, in_channels, rngs, image_size=None):
    """Stands in for `lorentz_jax.models.build_model`."""
    return TinyNet(num_classes, kappa=config.kappa, rngs=rngs)


def stand_in(patch):
    """Let runs train `TinyNet`, draw nothing, and share what does not differ between them.

    Networks of one structure share the program of their initial values, and runs of equal
    settings and data their compiled steps.
    """
    patch.setattr(build, "build_model", build_tiny)
    patch.setattr(build, "init_network", _init_network)
    patch.setattr(run, "compile_program", _compile_plan)
    patch.setattr(data, "load", _load)
    for picture in ("save_curves", "save_confusion"):
        patch.setattr(report, picture, lambda *arguments: None)


_compile, _load, _initial, _programs = build.compile_program, functools.cache(data.load), {}, {}
# Settings that no compiled step depends on.
ELSEWHERE = {"name", "run_dir", "resume", "overwrite", "checkpoint_every", "keep"}


def _init_network(make, seed):
    graphdef, values = state.initialiser(make)
    return graphdef, *_initial.setdefault(graphdef, values)(seed)


def _compile_plan(config, plan):
    settings = {name: v for name, v in config.to_json().items() if name not in ELSEWHERE}
    key = json.dumps(settings), plan.graphdef, plan.fingerprint, data.load, data.prepare
    if key not in _programs:
        _programs[key] = _compile(config, plan)
    return _programs[key]._replace(plan=plan)
