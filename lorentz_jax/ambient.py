"""`geometry` and the layers on the paper's ambient `(D + 1)` vectors, time first.

For arrays that come from, or go to, code that stores the time. Every function here is the one of
the same name on space parts, with its arguments dropped and its result lifted:

- a point is `(x_t, x)`, checked by `geometry.drop` when concrete;
- a tangent vector at x is `(v_t, v)` with `v_t = x.v/x_t`, at the origin `(0, v)`. A concrete time
  may be off by the square root of the dtype's epsilon, relative to the vector's largest entry (it
  is recomputed from v); more is a `ValueError`, for such a vector is not tangent;
- coordinates of a ball, weights, normals and numbers are what they are in `geometry`.

The last axis of every ambient argument must hold D + 1 coordinates: `ValueError`, traced or not.

Gradients are those along the manifold: the result does not depend on the times that are passed, so
their cotangents are 0 and those of the space coordinates are total derivatives. The Riemannian
gradient `P_x J g` of such a g is that of any other ambient expression of the same function.
"""

import inspect
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from lorentz_jax import functional, geometry, hyperplane
from lorentz_jax._src.arguments import as_array, as_kappa, compute_dtype, concrete, operation
from lorentz_jax._src.charts import scaled_time

__all__ = [
    "centroid",
    "dist",
    "dist0",
    "exp",
    "exp0",
    "from_klein",
    "from_poincare",
    "inner",
    "linear",
    "log",
    "log0",
    "mlr",
    "signed_distance",
    "tangent_inner",
    "tangent_norm",
    "to_klein",
    "to_poincare",
    "translate",
    "transport",
    "transport_from_origin",
    "transport_to_origin",
]

_WORDS = {
    "point": "a point `(..., D + 1)`",
    "origin": "a tangent vector at the origin `(0, ...)`, shape `(..., D + 1)`",
    "ball": "a point of the ball, shape `(..., D)`",
    "number": "an array without the coordinate axis",
    "tangent": "a tangent vector at {}, shape `(..., D + 1)`",
}


def _describe(kind: str) -> str:
    name, *at = kind.split()
    return _WORDS[name].format(*at)


@operation
def _lift_tangent(x, v, kappa):
    """`(x.v/x_t, v)`."""
    time = jnp.sqrt(kappa) * jnp.sum(x / scaled_time(x, kappa) * v, axis=-1, keepdims=True)
    return jnp.concatenate([time, jnp.broadcast_to(v, time.shape[:-1] + v.shape[-1:])], axis=-1)


def _check_dimensions(vectors: dict[str, Array], normals: hyperplane.Normals | None) -> None:
    first = next(iter(vectors))
    if normals is None:
        expected, reason = vectors[first].shape[-1], f"as {first} has"
    else:
        expected, reason = normals.space.shape[-2] + 1, "D_in being the input of the normals"
    for name, X in vectors.items():
        if X.shape[-1] != expected:
            D = "D" if normals is None else "D_in"
            raise ValueError(
                f"{name} must have {D} + 1 = {expected} coordinates in the last axis, time first, "
                f"{reason}; got shape {X.shape}"
            )
        if X.shape[-1] < 2:
            raise ValueError(
                f"{name} must have D + 1 >= 2 coordinates in the last axis, time first; "
                f"got shape {X.shape}"
            )


def _check_point(name: str, X: Array, kappa) -> None:
    """`geometry.drop` of X, repeated where kappa has a larger batch than X."""
    if not (concrete(X) and concrete(kappa)):
        return
    try:
        batch = jnp.broadcast_shapes(X.shape[:-1], np.shape(kappa))
    except ValueError:
        return  # the function itself names both shapes
    try:
        geometry.drop(jnp.broadcast_to(X, batch + X.shape[-1:]), kappa)
    except ValueError as error:
        raise ValueError(f"{name} is {error}") from None


def _check_tangent(name: str, V: Array, at: str, X: Array | None) -> None:
    """That `v_t = x.v/x_t`, or 0 at the origin (X None), within the tolerance of the module."""
    if not (concrete(V) and concrete(X)):
        return
    v, tolerance = np.asarray(V, np.float64), float(jnp.finfo(V.dtype).eps) ** 0.5
    time = np.zeros(v.shape[:-1])
    if X is not None:
        x = np.asarray(X, np.float64)
        try:
            time = np.sum(x[..., 1:] / x[..., :1] * v[..., 1:], axis=-1)
        except ValueError:
            return  # the function itself names both shapes
    with np.errstate(invalid="ignore"):
        good = np.abs(v[..., 0] - time) <= tolerance * np.abs(v).max(axis=-1)
    if not good.all():
        row = tuple(int(i) for i in np.argwhere(~good)[0])
        got = np.broadcast_to(v[..., 0], good.shape)[row]
        raise ValueError(
            f"{name} is not a tangent vector at {at}: row {row} has time {got:.6g}, its space part "
            f"needs {time[row]:.6g}"
        )


def _ambient(function: Callable, kinds: str, note: str = "") -> Callable[..., Array]:
    """`function` on ambient vectors; `kinds` reads "x: point, v: tangent x -> point".

    Arguments that `kinds` does not name pass unchanged.
    """
    arguments, result = kinds.split(" -> ")
    arguments = dict(argument.split(": ") for argument in arguments.split(", "))
    vectors = [name for name, kind in arguments.items() if kind != "ball"]
    signature = inspect.signature(function)
    name = function.__name__

    def ambient(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        values, kappa = bound.arguments, bound.arguments["kappa"]
        given = {key: as_array(key, values[key]) for key in vectors}
        if given:
            _check_dimensions(given, values.get("normals"))
            at = as_kappa(kappa, compute_dtype(jnp.result_type(*given.values())), None)
            if name == "centroid" and at.ndim:  # its kappa lacks the axis of the points
                axis = values.get("axis", -2)
                axis = axis - given["x"].ndim if axis >= 0 else axis
                at = jnp.expand_dims(at, axis + 1) if at.ndim >= -axis - 2 else at
        for key in vectors:
            kind, *where = arguments[key].split()
            if kind == "point":
                _check_point(key, given[key], at)
            elif kind == "tangent":
                _check_tangent(key, given[key], where[0], given[where[0]])
            else:
                _check_tangent(key, given[key], "the origin", None)
            values[key] = given[key][..., 1:]
        out = function(*bound.args, **bound.kwargs)
        kind, *where = result.split()
        if kind == "point":
            return geometry.lift(out, kappa)
        if kind == "origin":
            return jnp.concatenate([jnp.zeros_like(out[..., :1]), out], axis=-1)
        if kind == "tangent":
            return _lift_tangent(values[where[0]], out, kappa)
        return out

    ambient.__name__ = ambient.__qualname__ = name
    ambient.__signature__ = signature
    described = [f"{key}: {_describe(kind)}." for key, kind in arguments.items()]
    if note:
        described.append(note)
    lines = ["Here, with times first:", *(f"  {line}" for line in described)]
    lines.append(f"Returns {_describe(result)}.")
    ambient.__doc__ = f"{inspect.getdoc(function)}\n\n" + "\n".join(lines)
    return ambient


inner = _ambient(geometry.inner, "x: point, y: point -> number")
dist0 = _ambient(geometry.dist0, "x: point -> number")
dist = _ambient(geometry.dist, "x: point, y: point -> number")
exp = _ambient(geometry.exp, "x: point, v: tangent x -> point")
log = _ambient(geometry.log, "x: point, y: point -> tangent x")
exp0 = _ambient(geometry.exp0, "v: origin -> point")
log0 = _ambient(geometry.log0, "x: point -> origin")
transport = _ambient(geometry.transport, "x: point, y: point, v: tangent x -> tangent y")
transport_to_origin = _ambient(geometry.transport_to_origin, "x: point, v: tangent x -> origin")
transport_from_origin = _ambient(geometry.transport_from_origin, "y: point, v: origin -> tangent y")
tangent_inner = _ambient(geometry.tangent_inner, "x: point, u: tangent x, v: tangent x -> number")
tangent_norm = _ambient(geometry.tangent_norm, "x: point, v: tangent x -> number")
translate = _ambient(
    geometry.translate, "p: point, x: point -> point", "Of `-p` only the space part is negated."
)
centroid = _ambient(geometry.centroid, "x: point -> point")
to_poincare = _ambient(geometry.to_poincare, "x: point -> ball")
from_poincare = _ambient(geometry.from_poincare, "y: ball -> point")
to_klein = _ambient(geometry.to_klein, "x: point -> ball")
from_klein = _ambient(geometry.from_klein, "y: ball -> point")
linear = _ambient(functional.linear, "x: point -> point")
signed_distance = _ambient(hyperplane.signed_distance, "x: point -> number")
mlr = _ambient(functional.mlr, "x: point -> number")
