"""Steps to fit a hyperplane at a given distance (the paper's Figure 2).

One input, at distance sqrt 2 from the origin along the first axis, has to be sent by one layer to
the point at distance d along the same axis. SGD on the squared distance between output and target,
with clipped gradients, runs until the distance is below a tolerance; what is counted is how often
the output was looked at, and `cap` stands for "never". Everything is float64, whatever the default.

How the distance is computed decides parts of the published figure:

- Its FGG curve is measured with `arccosh(-kappa X o Y)`, which float64 can no longer resolve at
  d = 18 and 19: the product is a difference of numbers near e^(2 d)/4 = 8e15. It rounds to 1, and
  fitting stops after 2109 and 2111 steps with 0.4 and 1.0 still to go. "fgg" does the same, within
  a step; "fgg, exact" measures with `geometry.dist` and takes 2111 and 2115.
- Its Poincare curve is measured with a Moebius difference in which one sign is wrong, so that a
  point is not at distance 0 from itself: "poincare, published". "poincare" has the right distance.
- Chen et al.'s layer ends with a ReLU that leaves the hyperboloid, see `chen.reference_linear`.
  (With the ReLU where it belongs, a start whose first coordinate is negative never moves.) The sign
  of that coordinate decides between 5 and 6 steps at d = 1 and 16 and 17 at d = 2.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax import functional, geometry
from lorentz_jax.hyperplane import normals
from lorentz_jax.models import chen, poincare

Params = Mapping[str, Any]
# Compiling takes longer than running, so it is told to make less of an effort.
_COMPILER: dict[str, Any] = {"xla_backend_optimization_level": 1}


@dataclass(frozen=True)
class Settings:
    """The experiment; defaults are those of the paper's figure.

    Attributes:
      distances: of the targets from the origin, in geodesic length.
      dim: space coordinates of input and output.
      batch: copies of the input. The paper has 64: equal ones, so a mean over them is one's value.
      radius: distance of the input from the origin.
      tolerance: mean distance to the target below which the fit is done.
      clip: largest norm of a gradient, over all parameters together.
      cap: steps after which a fit is given up.
      seeds: how many random starts, for methods that have one.
    """

    distances: tuple[float, ...] = tuple(range(1, 20))
    dim: int = 10
    batch: int = 1
    radius: float = math.sqrt(2)
    tolerance: float = 0.1
    clip: float = 1.0
    cap: int = 10_000
    seeds: int = 5

    def __post_init__(self):
        if not self.distances or min(self.dim, self.batch, self.cap, self.seeds) < 1:
            raise ValueError("distances, dim, batch, cap and seeds must each be at least one")


DEFAULTS = Settings()


@dataclass(frozen=True)
class Method:
    """A layer and how its output is compared with the target.

    Attributes:
      init: NumPy parameters from a random generator and the dimension.
      distance: `(params, x, Y, kappa)` to distances `(batch,)`, of the layer's outputs for points
        `x`, shape `(batch, dim)`, from the target's ambient vector `Y`, `(dim + 1,)`.
      kappa: curvature -kappa.
      learning_rate: of SGD without momentum.
      random: whether `init` uses the generator.
    """

    init: Callable[[np.random.Generator, int], Params]
    distance: Callable[[Params, Array, Array, float], Array]
    kappa: float = 1.0
    learning_rate: float = 1e-3
    random: bool = False


@dataclass(frozen=True)
class Fit:
    """What one method needed; S starts (1 without randomness), K distances.

    Attributes:
      iterations: steps, `(S, K)`, the cap where the target was not reached.
      reached: whether it was, `(S, K)`.
      history: mean distance to the target at each step, `(steps, S, K)`; NaN after the last one.
    """

    iterations: np.ndarray
    reached: np.ndarray
    history: np.ndarray


def arccosh_dist(X: Array, Y: Array, kappa: float) -> Array:
    """`arccosh(-kappa X o Y)/s` of ambient vectors, the product at least 1 + 1e-7; shape `(...)`.

    The distance as the paper prints and its experiments compute it, for any pair of vectors, on the
    hyperboloid or not. It loses about `eps e^(s (r_x + r_y))/4` of the product.
    """
    # Each product is rounded by itself, as in the published runs: at d = 19 that decides when a
    # fit ends. A multiply-add would skip one rounding; the maximum, never active, prevents it.
    times = jnp.maximum(X[..., 0] * Y[..., 0], 1 / kappa)
    product = times - jnp.sum(X[..., 1:] * Y[..., 1:], axis=-1)
    return jnp.arccosh(jnp.maximum(kappa * product, 1 + 1e-7)) / math.sqrt(kappa)


def published_poincare_dist(x: Array, y: Array, kappa: float) -> Array:
    """`(2/s) artanh(s |m|)` of points, m their Moebius difference with the published sign.

    In the ball `m = ((1 - c|x|^2) y - (1 + 2c x.y + c|y|^2) x)/(1 + 2c x.y + c^2 |x|^2 |y|^2)`,
    c = kappa, where `(-x) (+) y` has -2c x.y in both places. So it is not 0 at x = y, and a fit
    ends elsewhere: 12 from a target at distance 19.
    """
    x, y = geometry.to_poincare(x, kappa), geometry.to_poincare(y, kappa)
    xx, xy, yy = (kappa * jnp.sum(a * b, -1, keepdims=True) for a, b in ((x, x), (x, y), (y, y)))
    m = ((1 - xx) * y - (1 + 2 * xy + yy) * x) / (1 + 2 * xy + xx * yy)
    s = math.sqrt(kappa)
    return 2 / s * jnp.arctanh(s * jnp.sqrt(jnp.sum(m * m, axis=-1)))


def _identity(rng: np.random.Generator, dim: int) -> Params:
    return {"kernel": np.eye(dim) / 2, "bias": np.zeros(dim)}


def _uniform(rng: np.random.Generator, dim: int) -> Params:
    matrix = rng.uniform(-0.02, 0.02, (dim, dim + 1))
    return {"time": matrix[:, 0], "kernel": matrix[:, 1:].T}


def _fgg(params: Params, x: Array, kappa: float) -> Array:
    planes = normals(params["kernel"], params["bias"], kappa)
    return functional.linear(x, planes, kappa, jax.nn.relu)


def _poincare(params: Params, x: Array, kappa: float) -> Array:
    planes = poincare.plane_normals(params["kernel"], params["bias"], kappa)
    return jax.nn.relu(poincare.linear(x, planes, kappa))


def _chen_arccosh(params: Params, x: Array, Y: Array, kappa: float) -> Array:
    X = chen.reference_linear(geometry.lift(x, kappa), params["kernel"], params["time"], kappa)
    return arccosh_dist(X, Y, kappa)


METHODS = {
    "fgg": Method(
        _identity, lambda p, x, Y, k: arccosh_dist(geometry.lift(_fgg(p, x, k), k), Y, k)
    ),
    "fgg, exact": Method(_identity, lambda p, x, Y, k: geometry.dist(_fgg(p, x, k), Y[1:], k)),
    "chen": Method(_uniform, _chen_arccosh, learning_rate=0.1, random=True),
    "poincare": Method(
        _identity, lambda p, x, Y, k: geometry.dist(_poincare(p, x, k), Y[1:], k), kappa=0.01
    ),
    "poincare, published": Method(
        _identity,
        lambda p, x, Y, k: published_poincare_dist(_poincare(p, x, k), Y[1:], k),
        kappa=0.01,
    ),
}


def _program(method: Method, settings: Settings, x: Array) -> Callable[..., Any]:
    """All fits at once, as a function of starts `(S, ...)` and targets `(K, dim + 1)`."""

    def loss(params, target):
        distance = method.distance(params, x, target, method.kappa)
        return jnp.mean(distance**2), jnp.mean(distance)

    def step(params, target, active):
        (_, distance), gradient = jax.value_and_grad(loss, has_aux=True)(params, target)
        size = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
        # 1e-6 as in PyTorch's clipping, which the published runs used.
        rate = method.learning_rate * jnp.minimum(1, settings.clip / (size + 1e-6))
        active = active & (distance >= settings.tolerance)
        params = jax.tree.map(lambda p, g: jnp.where(active, p - rate * g, p), params, gradient)
        return params, distance, active

    steps = jax.vmap(jax.vmap(step), in_axes=(0, None, 0))

    def body(state):
        count, params, targets, active, iterations, history = state
        iterations = iterations + active.astype(iterations.dtype)
        params, distance, active = steps(params, targets, active)
        return count + 1, params, targets, active, iterations, history.at[count].set(distance)

    def run(starts, targets):
        shape = (len(jax.tree.leaves(starts)[0]), len(targets))
        params = jax.tree.map(
            lambda p: jnp.broadcast_to(p[:, None], (*shape, *p.shape[1:])), starts
        )
        state = (
            jnp.zeros((), int), params, targets, jnp.ones(shape, bool), jnp.zeros(shape, int),
            jnp.zeros((settings.cap, *shape)),
        )  # fmt: skip
        return jax.lax.while_loop(lambda s: (s[0] < settings.cap) & jnp.any(s[3]), body, state)

    return run


def _ambient(distances: Any, dim: int, kappa: float) -> np.ndarray:
    """Ambient vectors `(K, dim + 1)` of the points at these distances along the first axis.

    By cosh and sinh in NumPy, as in the published runs: the time counts to its last bit there.
    """
    s, out = math.sqrt(kappa), np.zeros((len(distances), dim + 1))
    angles = s * np.asarray(distances, np.float64)
    if not np.abs(angles).max() < 300:  # their products have to be representable
        raise ValueError(f"distances must be below 300/s at s = {s:g}, got {list(distances)}")
    out[:, 0], out[:, 1] = np.cosh(angles) / s, np.sinh(angles) / s
    return out


def check_name(name: str, names: Iterable[str], what: str) -> None:
    """A `ValueError` that tells which names exist, unless `name` is one."""
    names = tuple(names)
    if name not in names:
        raise ValueError(f"no {what} {name!r}, there are {', '.join(map(repr, names))}")


def check_methods(names: Iterable[str]) -> tuple[str, ...]:
    """The names, or a `ValueError` that tells which exist."""
    names = tuple(names)
    for name in names:
        check_name(name, METHODS, "method")
    return names


def fit(method: Method | str, settings: Settings = DEFAULTS) -> Fit:
    """Run one method (a name of `METHODS`, or a variant of one) for all distances and starts."""
    if isinstance(method, str):
        method = METHODS[check_methods([method])[0]]
    # NumPy makes all arrays: compiling ten small programs for them takes as long as the large one.
    x = _ambient([settings.radius] * settings.batch, settings.dim, method.kappa)[:, 1:]
    targets = _ambient(settings.distances, settings.dim, method.kappa)
    rngs = [np.random.default_rng(seed) for seed in range(settings.seeds if method.random else 1)]
    starts = jax.tree.map(lambda *p: np.stack(p), *(method.init(r, settings.dim) for r in rngs))
    with jax.enable_x64(True):
        run = jax.jit(_program(method, settings, jnp.asarray(x))).lower(starts, targets)
        count, _, _, active, iterations, history = run.compile(_COMPILER)(starts, targets)
        iterations, history = np.array(iterations), np.array(history)[: int(count)]
    history[np.arange(len(history))[:, None, None] >= iterations] = np.nan
    return Fit(iterations, ~np.array(active), history)
