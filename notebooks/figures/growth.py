"""Compute how far one step moves a layer's output: the paper's propositions on growth.

With s = sqrt(kappa), X the ambient input (time first), |X| its Euclidean length and all updates
of size (Frobenius norm) at most `rate`:

(a) Chen et al.'s layer has output `y = M X`, at distance `asinh(s |M X|)/s <= asinh(s |M| |X|)/s`
    from the origin. T updates give |M| <= |M_0| + rate T: the distance grows as a logarithm, and
    distance d takes at least `(sinh(s d)/(s |X|) - |M_0|)/rate` of them (`least_updates`).
(b) An FGG unit at signed distance rho from its hyperplane gives `asinh(|w| sinh(s rho))/s`, and
    rho moves by delta when b/|w| does, for an input on the axis of w: linear, with slope 1 far
    out. A Poincare unit gives `|w| rho`.
(c) Which of the two, |w| or b, gradients choose is another matter (`settled_ratio`).

That a tree of depth h needs outputs at distance O(h) is in `tree_shapes`.
Everything is float64, whatever the default.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from scipy.optimize import root_scalar

from lorentz_jax import functional, geometry
from lorentz_jax.bench.convergence import check_name, run_compiled
from lorentz_jax.hyperplane import normals
from lorentz_jax.models import chen, poincare

__all__ = [
    "LABELS",
    "LAYERS",
    "OPTIMISERS",
    "Ascent",
    "Reach",
    "Trace",
    "ascent",
    "each",
    "least_updates",
    "reach",
    "settled_ratio",
    "trace",
]

Params = Mapping[str, Any]


def _fgg(p: Params, x: Any, kappa: Any) -> Array:
    return functional.linear(x, normals(p["kernel"], p["bias"], kappa), kappa)


def _chen(p: Params, x: Any, kappa: Any) -> Array:
    return chen.linear(x, p["kernel"], p["bias"], kappa)


def _poincare(p: Params, x: Any, kappa: Any) -> Array:
    return poincare.linear(x, poincare.plane_normals(p["kernel"], p["bias"], kappa), kappa)


# `(params, x, kappa)` to points. `bias` is b, the weights of the time, and r.
LAYERS: dict[str, Callable[[Params, Any, Any], Array]] = {
    "fgg": _fgg,
    "chen": _chen,
    "poincare": _poincare,
}
LABELS = {"fgg": "FGG", "chen": "Chen et al.", "poincare": "Poincaré"}
# All behind the paper's clipping: no gradient is longer than 1.
OPTIMISERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adam": optax.adam,
}


def each(function: Callable[[Any], Any], jobs: Sequence[Any]) -> dict[Any, Any]:
    """Return results by job. Two run at a time: running keeps one core busy, compiling another."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        return dict(zip(jobs, pool.map(function, jobs), strict=True))


def least_updates(
    distance: Any, length: float, rate: float, kappa: float, start: float = 0.0
) -> np.ndarray:
    """Return how many updates of size `rate` Chen's layer needs to reach a distance, by (a).

    Args:
      distance: of the output from the origin, `(...)`, s distance below 700.
      length: |X| of the ambient input, `sqrt(cosh(2 s r)/kappa)` at distance r.
      rate: largest Frobenius norm of an update.
      kappa: curvature -kappa.
      start: |M_0|, that of the weights before.
    """
    if not min(length, rate, kappa) > 0:
        raise ValueError(f"length, rate, kappa must be positive, got {(length, rate, kappa)}")
    s = math.sqrt(kappa)
    needed = np.sinh(s * np.asarray(distance, float)) / (s * length)
    return np.maximum(needed - start, 0) / rate


@dataclass(frozen=True)
class Reach:
    """Distances of a layer's output when its weights moved by `moved`; n amounts.

    Attributes:
      moved: Euclidean length of the change of the weights, `(n,)`.
      measured: distance of the layer's output from the origin, `(n,)`.
      formula: what (a) or (b) says, `(n,)`; for Chen's layer a bound that this change attains.
    """

    moved: np.ndarray
    measured: np.ndarray
    formula: np.ndarray


def reach(layer: str, moved: Any, kappa: float = 1.0, radius: float = 1.0) -> Reach:
    """Return the output distance of a unit, w = 1 and b = 0 at first, whose weights move best.

    For FGG and Poincare the bias moves, for Chen (w, w_t) moves along X, which is the direction of
    steepest ascent. The input is at `radius` on the axis.
    """
    check_name(layer, LAYERS, "layer")
    if not kappa > 0:
        raise ValueError(f"kappa must be positive (the curvature is -kappa), got {kappa}")
    s, moved = math.sqrt(kappa), np.asarray(moved, float)
    X = np.array([math.cosh(s * radius), math.sinh(s * radius)]) / s
    length = float(np.linalg.norm(X))
    if layer == "chen":
        # From M = X/|X|, of length 1 as w is.
        weights = (1 + moved)[:, None] * X / length
        kernel, bias = weights[:, 1], weights[:, 0]
        formula = np.arcsinh(s * (1 + moved) * length) / s
    else:
        # The normal of length 1 in the ball is z = w/2, and r = -b/(4 |z|).
        share = 1.0 if layer == "fgg" else 0.5
        kernel = np.full(moved.shape, share)
        bias = moved if layer == "fgg" else -moved / 2
        formula = radius + moved
    params = {"kernel": kernel[:, None, None], "bias": bias[:, None]}
    with jax.enable_x64(True):
        out = jax.vmap(lambda p: geometry.dist0(LAYERS[layer](p, X[1:], kappa), kappa))(params)
        return Reach(moved, np.asarray(out), formula)


def settled_ratio(kappa: float, radius: float = math.sqrt(2)) -> float:
    """Return the q = b/|w| at which ascending an FGG unit's distance from b = 0 stops to change it.

    For an input at `radius` on the axis of w the gradient for (|w|, b) is parallel to
    `(T - q, 1)`, `T = tanh(s (radius + q))/s`, so q grows until `q (T - q) = 1`. From there on
    the distance grows with log|w| alone, as Chen's does. T < 1/s, so there is no such q where
    kappa > 1/4 (infinity is returned): q passes T, then |w| shrinks and q runs away.
    """
    if not min(kappa, radius) > 0:
        raise ValueError(f"kappa and radius must be positive, got {kappa} and {radius}")
    s = math.sqrt(kappa)

    def over(q: Any) -> Any:
        return q * (np.tanh(s * (radius + q)) / s - q) - 1

    grid = np.linspace(0, 1 / s, 100_001)
    first = int(np.argmax(over(grid) >= 0))
    return root_scalar(over, bracket=grid[first - 1 : first + 1]).root if first else math.inf


@dataclass(frozen=True)
class Ascent:
    """An FGG unit whose output moves away as fast as its weights let it; K kappas, T steps.

    Attributes:
      distance: of the output from the origin, `(K, T)`; NaN after the last step.
      ratio: b/|w|, `(K, T)`.
    """

    distance: np.ndarray
    ratio: np.ndarray


def ascent(
    kappas: Sequence[float], steps: int, rate: float, radius: float = math.sqrt(2)
) -> Ascent:
    """Take steps of length `rate` along the gradient of the distance, from w = 1 and b = 0.

    The input is at `radius` on the axis of w. A step that would take |w| below `rate` is the last:
    beyond it the hyperplane is farther than float64 can tell.
    """

    def run(kappa):
        x = geometry.exp0(jnp.array([radius]), kappa)

        def step(state, _):
            w, b, distance, over = state
            ratio = b / w

            def far(w, b):
                y = _fgg({"kernel": w[None, None], "bias": b[None]}, x, kappa)
                return geometry.dist0(y, kappa)

            new, slope = jax.value_and_grad(far, (0, 1))(w, b)
            size = jnp.hypot(*slope)
            distance = jnp.where(over, distance, new)
            over = over | (w + rate * slope[0] / size < rate) | (distance > 300)
            share = jnp.where(over, 0, rate / size)
            w, b = w + share * slope[0], b + share * slope[1]
            return (w, b, distance, over), (distance, ratio, over)

        start = jnp.ones(()), jnp.zeros(()), jnp.zeros(()), jnp.zeros((), bool)
        return jax.lax.scan(step, start, length=steps)[1]

    with jax.enable_x64(True):
        all_kappas = jnp.asarray(kappas, float)
        outputs = run_compiled(jax.vmap(run), all_kappas, effort=0)
    distance, ratio, over = map(np.array, outputs)
    distance[over] = np.nan
    return Ascent(distance, ratio)


@dataclass(frozen=True)
class Trace:
    """What fitting a far target does at each step; K kappas, R rates, D targets, T steps.

    Attributes:
      distance: of the output from the origin, `(K, R, D, T)`, in geodesic length.
      gradient: Euclidean norm of the gradient of `d^2`, all parameters together, before clipping.
      update: Euclidean norm of the change of all parameters.
      gap: distance between output and target.
    """

    distance: np.ndarray
    gradient: np.ndarray
    update: np.ndarray
    gap: np.ndarray

    def steps(self, tolerance: float = 0.1) -> np.ndarray:
        """Count looks at the output until it is within `tolerance` of the target, `(K, R, D)`.

        The count is `T + 1` where it never is.
        """
        near = self.gap < tolerance
        return np.where(near.any(-1), near.argmax(-1), self.gap.shape[-1]) + 1


def trace(
    layer: str,
    optimiser: str,
    targets: Sequence[float],
    rates: Sequence[float] = (0.1,),
    kappas: Sequence[float] = (1.0,),
    steps: int = 1000,
    radius: float = math.sqrt(2),
    dim: int = 3,
) -> Trace:
    """Fit one input to targets at the distances `targets`, for every rate and kappa, at once.

    Input (at distance `radius`) and target lie along the first axis. The kernel starts as half the
    identity, the bias as 0. The loss is the squared distance; gradients are clipped at norm 1.
    """
    check_name(layer, LAYERS, "layer")
    check_name(optimiser, OPTIMISERS, "optimiser")
    if min(len(targets), len(rates), len(kappas), steps, dim) < 1:
        raise ValueError("targets, rates, kappas, steps and dim must each be at least one")
    embed, axis = LAYERS[layer], np.eye(dim)[0]
    start = {"kernel": np.eye(dim) / 2, "bias": np.zeros(dim)}

    def size(tree: Any) -> Array:
        return jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(tree)))

    def run(kappa, rate, target):
        x, goal = geometry.exp0(jnp.outer(jnp.stack([jnp.asarray(radius), target]), axis), kappa)
        transform = optax.chain(optax.clip_by_global_norm(1.0), OPTIMISERS[optimiser](rate))

        def loss(params):
            y = embed(params, x, kappa)
            gap = geometry.dist(y, goal, kappa)
            return gap**2, (geometry.dist0(y, kappa), gap)

        def step(state, _):
            params, memory = state
            (_, (distance, gap)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            update, memory = transform.update(gradient, memory)
            row = distance, size(gradient), size(update), gap
            return (optax.apply_updates(params, update), memory), row

        return jax.lax.scan(step, (start, transform.init(start)), length=steps)[1]

    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        run = jax.vmap(run, axes)
    # Optax's Adam mixes floats and integers, which strict promotion refuses.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        arguments = [jnp.asarray(a, float) for a in (kappas, rates, targets)]
        return Trace(*map(np.asarray, run_compiled(run, *arguments, effort=0)))
