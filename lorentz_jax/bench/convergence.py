"""Count the steps to fit a hyperplane at a given distance (the paper's Figure 2).

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
  point is not at distance 0 from itself. "poincare" has the right distance; notebook 3 repeats the
  published curve.
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
      label: its name in tables and pictures.
      init: NumPy parameters from a random generator and the dimension.
      distance: `(params, x, Y, kappa)` to distances `(batch,)`, of the layer's outputs for points
        `x`, shape `(batch, dim)`, from the target's ambient vector `Y`, `(dim + 1,)`.
      kappa: curvature -kappa.
      learning_rate: of SGD without momentum.
      random: whether `init` uses the generator.
    """

    label: str
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
    """Return `arccosh(-kappa X o Y)/s` of ambient vectors, the product at least 1 + 1e-7; `(...)`.

    The paper prints the distance so and its experiments compute it so, for any pair of vectors, on
    the hyperboloid or not. It loses about `eps e^(s (r_x + r_y))/4` of the product.
    """
    # Each product is rounded by itself, as in the published runs: at d = 19 that decides when a
    # fit ends. A multiply-add would skip one rounding; the maximum, never active, prevents it.
    times = jnp.maximum(X[..., 0] * Y[..., 0], 1 / kappa)
    product = times - jnp.sum(X[..., 1:] * Y[..., 1:], axis=-1)
    return jnp.arccosh(jnp.maximum(kappa * product, 1 + 1e-7)) / math.sqrt(kappa)


def _identity(rng: np.random.Generator, dim: int) -> Params:
    return {"kernel": np.eye(dim) / 2, "bias": np.zeros(dim)}


def _uniform(rng: np.random.Generator, dim: int) -> Params:
    matrix = rng.uniform(-0.02, 0.02, (dim, dim + 1))
    return {"time": matrix[:, 0], "kernel": matrix[:, 1:].T}


def _fgg(params: Params, x: Array, kappa: float) -> Array:
    planes = normals(params["kernel"], params["bias"], kappa)
    return functional.linear(x, planes, kappa, jax.nn.relu)


def _fgg_arccosh(params: Params, x: Array, Y: Array, kappa: float) -> Array:
    return arccosh_dist(geometry.lift(_fgg(params, x, kappa), kappa), Y, kappa)


def _fgg_exact(params: Params, x: Array, Y: Array, kappa: float) -> Array:
    return geometry.dist(_fgg(params, x, kappa), Y[1:], kappa)


def _chen_arccosh(params: Params, x: Array, Y: Array, kappa: float) -> Array:
    X = chen.reference_linear(geometry.lift(x, kappa), params["kernel"], params["time"], kappa)
    return arccosh_dist(X, Y, kappa)


def poincare_layer(params: Params, x: Array, kappa: float) -> Array:
    """Return the outputs of the Poincare layer with ReLU, by their space parts."""
    planes = poincare.plane_normals(params["kernel"], params["bias"], kappa)
    return jax.nn.relu(poincare.linear(x, planes, kappa))


def _poincare_exact(params: Params, x: Array, Y: Array, kappa: float) -> Array:
    return geometry.dist(poincare_layer(params, x, kappa), Y[1:], kappa)


METHODS = {
    "fgg": Method("FGG", _identity, _fgg_arccosh),
    "fgg, exact": Method("FGG, exact distance", _identity, _fgg_exact),
    "chen": Method("Chen et al.", _uniform, _chen_arccosh, learning_rate=0.1, random=True),
    "poincare": Method("Poincaré", _identity, _poincare_exact, kappa=0.01),
}
FIGURE = ("fgg", "chen", "poincare")
"""The methods of the paper's figure."""


def _program(method: Method, settings: Settings, x: Array) -> Callable[..., Any]:
    """Return all fits as one function of starts `(S, ...)` and targets `(K, dim + 1)`."""

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

        def repeat(p):
            return jnp.broadcast_to(p[:, None], (*shape, *p.shape[1:]))

        params = jax.tree.map(repeat, starts)
        active, iterations = jnp.ones(shape, bool), jnp.zeros(shape, int)
        history = jnp.zeros((settings.cap, *shape))
        state = jnp.zeros((), int), params, targets, active, iterations, history
        return jax.lax.while_loop(lambda s: (s[0] < settings.cap) & jnp.any(s[3]), body, state)

    return run


def _ambient(distances: Any, dim: int, kappa: float) -> np.ndarray:
    """Return ambient vectors `(K, dim + 1)` of the points at these distances along the first axis.

    They come from the C library's cosh and sinh, as in the published runs. The time counts to its
    last bit, in which NumPy's differ from one processor to another.
    """
    s, X = math.sqrt(kappa), np.zeros((len(distances), dim + 1))
    angles = [s * float(distance) for distance in distances]
    if not np.abs(angles).max() < 300:  # their products have to be representable
        raise ValueError(f"distances must be below 300/s at s = {s:g}, got {list(distances)}")
    X[:, 0] = [math.cosh(angle) / s for angle in angles]
    X[:, 1] = [math.sinh(angle) / s for angle in angles]
    return X


def check_name(name: str, names: Iterable[str], what: str) -> None:
    """Raise a `ValueError` that lists the valid names unless `name` is one."""
    names = tuple(names)
    if name not in names:
        raise ValueError(f"no {what} {name!r}, there are {', '.join(map(repr, names))}")


def select(names: Iterable[str]) -> dict[str, Method]:
    """Return the methods of these names; `ValueError` for a name that is none of `METHODS`."""
    names = tuple(names)
    for name in names:
        check_name(name, METHODS, "method")
    return {name: METHODS[name] for name in names}


def check(methods: Mapping[str, Method], settings: Settings) -> None:
    """Raise `ValueError` where a method cannot represent a target, before the first is fitted."""
    if not all(distance > 0 for distance in settings.distances):
        raise ValueError(f"distances must be positive, got {list(settings.distances)}")
    for method in methods.values():
        _ambient(settings.distances, settings.dim, method.kappa)


def run_compiled(function: Callable[..., Any], *arguments: Any, effort: int = 1) -> Any:
    """Compile with little effort, as that takes longer than running, and run once."""
    options: dict[str, Any] = {"xla_backend_optimization_level": effort}
    return jax.jit(function).lower(*arguments).compile(options)(*arguments)


def fit(method: Method, settings: Settings = DEFAULTS) -> Fit:
    """Fit with one method for all distances and starts."""
    # NumPy makes all arrays: compiling ten small programs for them takes as long as the large one.
    x = _ambient([settings.radius] * settings.batch, settings.dim, method.kappa)[:, 1:]
    targets = _ambient(settings.distances, settings.dim, method.kappa)
    rngs = [np.random.default_rng(seed) for seed in range(settings.seeds if method.random else 1)]
    starts = jax.tree.map(lambda *p: np.stack(p), *(method.init(r, settings.dim) for r in rngs))
    with jax.enable_x64(True):
        program = _program(method, settings, jnp.asarray(x))
        count, _, _, active, iterations, history = run_compiled(program, starts, targets)
        iterations, history = np.array(iterations), np.array(history)[: int(count)]
    history[np.arange(len(history))[:, None, None] >= iterations] = np.nan
    return Fit(iterations, ~np.array(active), history)
