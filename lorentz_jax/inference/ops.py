"""The operations of a compiled network, by the name that a file calls them.

Each takes points `x` by their space part, the layer's arrays by name and its options. Kappa is an
option, a plain number. Only the logits still need hyperbolic functions.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lorentz_jax import functional
from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax.hyperplane import Normals

Arrays = Mapping[str, Any]


class CompiledLayer(NamedTuple):
    """One layer of a compiled network.

    Attributes:
        description: JSON, `{"op": name, option: value, ...}`.
        arrays: its arrays by their own names.
    """

    description: Mapping[str, Any]
    arrays: Arrays


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "selu": jax.nn.selu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def linear(x, arrays, *, kappa, activation=None):
    """Apply `functional.linear` with cached V, then the boost of a folded batch norm, if any."""
    finish = _finish(arrays, kappa, activation)
    return functional.linear(x, _normals(arrays), kappa, finish)


def conv(x, arrays, *, kappa, strides, padding, activation=None):
    """Apply `functional.conv` with cached V, then the boost of a folded batch norm, if any."""
    finish = _finish(arrays, kappa, activation)
    return functional.conv(x, _normals(arrays), kappa, strides, padding, finish)


def center(x, arrays, *, kappa):
    """Apply a batch norm that is not folded: the isometry from its running mean to beta."""
    return functional.center(x, arrays["mean"], arrays["beta"], kappa)


def mlr(x, arrays, *, kappa, scale):
    """Return logits, float32 at least: half precision would spoil cross-entropy and means."""
    with jax.named_scope("logits"):
        return functional.mlr(x.astype(compute_dtype(x.dtype)), _normals(arrays), kappa, scale)


def activate(x, arrays, *, activation):
    """Apply an activation between layers."""
    return ACTIVATIONS[activation](x)


def activation_named(name: str | None) -> Callable[[Array], Array] | None:
    """Return the activation of that name; None for none."""
    return None if name is None else ACTIVATIONS[name]


def activation_name(activation: Callable | None) -> str | None:
    """Return the name of an activation in `ACTIVATIONS`; `ValueError` where it has none."""
    name = name_in(ACTIVATIONS, activation)
    if name is None and activation is not None:
        raise ValueError(
            f"activation {activation!r} has no name that a file could hold; "
            f"there are {', '.join(ACTIVATIONS)}"
        )
    return name


def name_in(table: Mapping[str, Callable], function: Callable | None) -> str | None:
    """Return the name of a function in a table; None where it has none."""
    return next((name for name, known in table.items() if known is function), None)


def as_json(value: Any) -> Any:
    """Return strides or padding as JSON has them."""
    if value is None or isinstance(value, str):
        return value
    return [as_json(item) for item in value] if isinstance(value, Sequence) else int(value)


def normal_arrays(normals: Normals) -> dict[str, Array]:
    """Return normals as arrays by name."""
    return {name: getattr(normals, name) for name in ("space", "time", "length", "excess")}


def _normals(arrays: Arrays) -> Normals:
    return Normals(arrays["time"], arrays["space"], arrays.get("length"), arrays.get("excess"))


def _finish(arrays: Arrays, kappa: float, activation: str | None):
    """Return what follows `x o v`, in its precision: boost and activation, or None."""
    h = activation_named(activation)
    if "push" not in arrays:
        return h
    move = functools.partial(boost, push=arrays["push"], pull=arrays["pull"], kappa=kappa)
    return move if h is None else lambda y: h(move(y))


def boost(y: Array, push: Array, pull: Array, kappa: float) -> Array:
    """Translate points `(..., D)` by `T_p`: `y + s p (y_t + pull.y)`.

    `push = s p` and `pull = s p/(1 + s p_t)`, shape `(D,)`, are made once, with the constants.
    """
    push, pull = push.astype(y.dtype), pull.astype(y.dtype)
    time = jnp.sqrt(1 / kappa + jnp.sum(y * y, axis=-1, keepdims=True))
    # A product with one column: two sums over the channels make XLA's CPU code read y slowly. In
    # full precision, since time and product may cancel.
    along = jnp.matmul(y, pull[:, None], precision=jax.lax.Precision.HIGHEST)
    return y + (time + along) * push


OPS: dict[str, Callable[..., Array]] = {
    "activate": activate,
    "center": center,
    "conv": conv,
    "linear": linear,
    "mlr": mlr,
}
