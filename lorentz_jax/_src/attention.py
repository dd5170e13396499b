"""Attention between points: scores of all pairs by one product, and weighted centroids.

`functional` re-exports `attention`. `(D176)` and so on are equations of `docs/derivations.md`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from lorentz_jax._src.aggregate import centroids, dense, floor
from lorentz_jax._src.arguments import as_array, concrete, row
from lorentz_jax._src.centred import Centred, at_origin, centred, check_center, middle, tangent
from lorentz_jax._src.pairwise import pair_arguments, squared_chords

SCORES = ("distance", "product")
"""Scores of `attention`."""


@jax.custom_jvp
def squared_arc(chord: Array, kappa: Array) -> Array:
    """Squared distance of a squared chord `4 p^2 >= 0`, a smooth function of it (D176)."""
    u = kappa * chord
    return jnp.square(_ratio(u)) * (1 + u / 4) * chord


def _ratio(u: Array) -> Array:
    """`x/sinh(x)`, x being `s d`, of `u = 2 cosh(x) - 2 >= 0`; autodiff of it is good (D176)."""
    far = jnp.maximum(u, 0.0625)
    sinh = jnp.sqrt(far * (1 + far / 4))
    series, terms = jnp.zeros_like(u), 5 if jnp.finfo(u.dtype).bits == 32 else 9
    for n in reversed(range(terms)):
        c = (-1) ** n * math.factorial(n) ** 2 / math.factorial(2 * n + 1)
        series = series * u + jnp.asarray(c, u.dtype)
    # Not log1p, which takes three times as long: its argument is never small.
    return jnp.where(u < 0.0625, series, jnp.log(1 + far / 2 + sinh) / sinh)


def _squared_arc_jvp(primals, tangents):
    (chord, kappa), (dchord, dkappa) = primals, tangents
    slope, out = _ratio(kappa * chord), squared_arc(chord, kappa)
    dout = slope * tangent(dchord)
    if not isinstance(dkappa, SymbolicZero):
        dout += (slope * chord - out) / kappa * dkappa
    return out, dout


squared_arc.defjvp(_squared_arc_jvp, symbolic_zeros=True)


def _views(query, key, value, name, kappa) -> tuple[Centred, ...]:
    """Queries and keys from one centre, values from one of their own."""
    if name == "origin":
        return at_origin(query, kappa), at_origin(key, kappa), at_origin(value, kappa)
    there, here = middle(key, kappa), middle(value, kappa)
    return centred(query, there, kappa), centred(key, there, kappa), centred(value, here, kappa)


@partial(jax.jit, static_argnames=("name", "score", "causal"))
def _attention(query, key, value, name, kappa, temperature, mask, score, causal):
    if causal:
        shape = query.shape[-2], key.shape[-2]
        rows, columns = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        below = row(rows >= columns, query)
        mask = below if mask is None else mask & below
    if mask is not None:  # 0 times what fills a key that nobody sees may be NaN
        seen = jnp.any(mask, axis=-2)[..., None]
        key, value = jnp.where(seen, key, 0), jnp.where(seen, value, 0)
    query, key, value = _views(query, key, value, name, kappa)
    chords = squared_chords(query, key, kappa)
    if score == "distance":
        chords = floor(chords)
    # The largest score of a row is that of its nearest key. A row may have any scale.
    nearest = lax.stop_gradient(jnp.min(chords, -1, keepdims=True, where=mask, initial=jnp.inf))
    if mask is not None:
        nearest = jnp.where(nearest == jnp.inf, 0, nearest)
        chords = jnp.where(mask, chords, nearest)

    def penalty(chords):
        return squared_arc(chords, kappa) if score == "distance" else chords

    weights = jnp.exp((penalty(nearest) - penalty(chords)) * (0.5 / temperature))
    weights = weights if mask is None else jnp.where(mask, weights, 0)
    return centroids(value, kappa, partial(dense, weights))  # which divides by their sums


def check_temperature(temperature: Any, batch: tuple[int, ...]) -> Array:
    """The temperature as an array; `ValueError` unless it is positive and of the batch shape."""
    temperature = jnp.asarray(temperature)
    if concrete(temperature) and not (np.asarray(temperature) > 0).all():
        raise ValueError(f"temperature must be positive, got {temperature}")
    try:
        jnp.broadcast_to(temperature, batch)
    except ValueError:
        raise ValueError(
            f"temperature of shape {temperature.shape} does not broadcast to {batch}"
        ) from None
    return temperature


def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    kappa: ArrayLike,
    mask: ArrayLike | None = None,
    score: str = "distance",
    temperature: ArrayLike | None = None,
    causal: bool = False,
    center: str = "middle",
) -> Array:
    """Attend from queries to keys, and take the weighted Lorentz centroids of the values.

    The weights are a softmax of `-d(q, k)^2/(2 t)` ("distance") or of `(q o k + 1/kappa)/t`
    ("product", which is the same for near pairs and steeper for far ones). Both tend to
    `-|q - k|^2/(2 t)` in the flat limit. All pairs come from one matrix product about the middle of
    the keys, as those of `geometry.pairwise_dist` with "product", and the centroids are those of
    `aggregate`. A boost of all points moves the result with them.

    Args:
        query: Points `(..., M, D)`; heads are one of the batch axes.
        key: Points `(..., N, D)`.
        value: Points `(..., N, E)`.
        kappa: Minus the curvature, one number or of the batch shape `(...)`.
        mask: Booleans that broadcast to `(..., M, N)`: which keys a query sees. One that sees none
            gives the origin, with gradient 0. A key that no query sees may hold anything, NaN too.
        score: "distance" or "product".
        temperature: t > 0, one number or of the batch shape. Default: `sqrt(D)`.
        causal: Let query i see the keys up to i alone.
        center: What products and sums are formed about: "middle" of the keys and of the values, or
            "origin", a cheaper form. The error grows with the distance from it, see `aggregate`.

    Returns:
        Points `(..., M, E)`.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if there is no such score, a concrete temperature is not positive, or shapes do
            not fit.

    >>> x = jnp.array([[0.0], [0.75]])
    >>> print(functional.attention(x, x, x, 1.0, mask=jnp.array([[True, False], [True, True]])))
    [[0.    ]
     [0.3961]]
    """
    check_center(center)
    if score not in SCORES:
        raise ValueError(f"score must be one of {SCORES}, got {score!r}")
    names = ("query", "key")
    query, key, kappa, dtype = pair_arguments(query, key, kappa, names)
    value = as_array("value", value, min_ndim=2)
    batch = query.shape[:-2]
    try:
        broadcast = jnp.broadcast_to(value, batch + value.shape[-2:])
    except ValueError:
        broadcast = None
    if broadcast is None or value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value must be points {(*batch, key.shape[-2], 'E')} to go with key {key.shape}, got "
            f"{value.shape}"
        )
    if mask is not None:
        mask = jnp.asarray(mask)
        if mask.dtype != jnp.bool_:
            raise TypeError(f"mask must be boolean, got dtype {mask.dtype}")
        shape = (*batch, query.shape[-2], key.shape[-2])
        try:
            jnp.broadcast_to(mask, shape)
        except ValueError:
            raise ValueError(f"mask must broadcast to {shape}, got {mask.shape}") from None
        mask = row(mask, query)
    if temperature is None:
        temperature = math.sqrt(query.shape[-1])
    temperature = check_temperature(temperature, batch)
    temperature = row(temperature[..., None, None], query) if temperature.ndim else temperature
    dtype = jnp.result_type(dtype, value)
    arguments = query, key, broadcast, kappa, temperature
    query, key, broadcast, kappa, temperature = (a.astype(query.dtype) for a in arguments)
    out = _attention(query, key, broadcast, center, kappa, temperature, mask, score, causal)
    return out.astype(dtype)


attention.__module__ = "lorentz_jax.functional"
