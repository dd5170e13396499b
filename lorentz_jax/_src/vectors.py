"""Ambient vectors, time first: refused where they are not what they stand for, dropped and lifted.

For `lorentz_jax.ambient`, whose docstring tells the tolerances.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lorentz_jax._src.arguments import (
    as_array,
    as_kappa,
    check_normals,
    compute_dtype,
    concrete,
    operation,
)
from lorentz_jax._src.charts import drop
from lorentz_jax._src.smooth import scaled_time


def checked(kappa: Any, **vectors: Any) -> tuple[Array, ...]:
    """The vectors as arrays of `D + 1` coordinates each, and kappa as an array of any shape."""
    arrays = {name: as_array(name, vector) for name, vector in vectors.items()}
    first, expected = next(iter(arrays.items()))
    for name, X in arrays.items():
        _check_width(name, X, expected.shape[-1], "D", f"as {first} has")
    dtype = compute_dtype(jnp.result_type(*arrays.values()))
    return (*arrays.values(), as_kappa(kappa, dtype, None))


def checked_input(kappa: Any, x: Any, normals: Any) -> tuple[Array, Array]:
    """Points that go into a layer with these normals, and kappa as an array of any shape."""
    check_normals(normals)
    X, width = as_array("x", x), normals.space.shape[-2] + 1
    _check_width("x", X, width, "D_in", "D_in being the input of the normals")
    return X, as_kappa(kappa, compute_dtype(X.dtype), None)


def _check_width(name: str, X: Array, expected: int, D: str, reason: str) -> None:
    if X.shape[-1] != expected:
        raise ValueError(
            f"{name} must have {D} + 1 = {expected} coordinates in the last axis, time first, "
            f"{reason}; got shape {X.shape}"
        )
    if X.shape[-1] < 2:
        raise ValueError(
            f"{name} must have D + 1 >= 2 coordinates in the last axis, time first; "
            f"got shape {X.shape}"
        )


def drop_point(name: str, X: Array, kappa: Array) -> Array:
    """Space part of points, checked by `geometry.drop` where they and kappa are concrete."""
    if concrete(X) and concrete(kappa):
        try:  # X may be repeated, where kappa has a larger batch
            batch = jnp.broadcast_shapes(X.shape[:-1], np.shape(kappa))
        except ValueError:
            return X[..., 1:]  # the function itself names both shapes
        try:
            drop(jnp.broadcast_to(X, batch + X.shape[-1:]), kappa)
        except ValueError as error:
            raise ValueError(f"{name} is {error}") from None
    return X[..., 1:]


def drop_tangent(name: str, V: Array, at: str, X: Array) -> Array:
    """Space part of tangent vectors at X, named `at`; their time is `x.v/x_t`."""
    if concrete(V) and concrete(X):
        v, x = np.asarray(V, np.float64), np.asarray(X, np.float64)
        try:
            time = np.sum(x[..., 1:] / x[..., :1] * v[..., 1:], axis=-1)
        except ValueError:
            return V[..., 1:]  # the function itself names both shapes
        _check_time(name, V, at, time)
    return V[..., 1:]


def drop_origin(name: str, V: Array) -> Array:
    """Space part of tangent vectors at the origin; their time is 0."""
    if concrete(V):
        _check_time(name, V, "the origin", np.zeros(V.shape[:-1]))
    return V[..., 1:]


def _check_time(name: str, V: Array, at: str, time: np.ndarray) -> None:
    """Raise `ValueError` unless V has this time, within the tolerance of the module."""
    v, tolerance = np.asarray(V, np.float64), float(jnp.finfo(V.dtype).eps) ** 0.5
    with np.errstate(invalid="ignore"):
        good = np.abs(v[..., 0] - time) <= tolerance * np.abs(v).max(axis=-1)
    if not good.all():
        row = tuple(int(i) for i in np.argwhere(~good)[0])
        got = np.broadcast_to(v[..., 0], good.shape)[row]
        raise ValueError(
            f"{name} is not a tangent vector at {at}: row {row} has time {got:.6g}, its space part "
            f"needs {time[row]:.6g}"
        )


@operation
def lift_tangent(x: ArrayLike, v: ArrayLike, kappa: ArrayLike) -> Array:
    """`(x.v/x_t, v)` of space parts."""
    x, v, kappa = jnp.asarray(x), jnp.asarray(v), jnp.asarray(kappa)
    time = jnp.sqrt(kappa) * jnp.sum(x / scaled_time(x, kappa) * v, axis=-1, keepdims=True)
    return jnp.concatenate([time, jnp.broadcast_to(v, time.shape[:-1] + v.shape[-1:])], axis=-1)


def lift_origin(v: Array) -> Array:
    """`(0, v)`."""
    return jnp.concatenate([jnp.zeros_like(v[..., :1]), v], axis=-1)
