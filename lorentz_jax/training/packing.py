"""Pack a training state into few flat arrays with checksums, and unpack it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lorentz_jax.training.state import TrainState
from lorentz_jax.training.step import all_finite


def flatten(state: TrainState) -> dict[str, Any]:
    """Return every array of the state by its path, the key as its data."""
    state = state._replace(key=jax.random.key_data(state.key))
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


def unflatten(arrays: Mapping[str, Any], like: TrainState) -> TrainState:
    """Invert `flatten`, in the structure and with the kind of key of `like`."""
    key = jax.random.wrap_key_data(arrays["key"], impl=jax.random.key_impl(like.key))
    # The key itself is a leaf like its data, so the structure is that of `flatten`'s paths.
    leaves = [arrays[path] for path in flatten(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)._replace(key=key)


def describe(arrays: Mapping[str, Any]) -> dict[str, list]:
    """Return shape and dtype of every array, as JSON."""
    return {path: [list(x.shape), x.dtype.name] for path, x in arrays.items()}


def join(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Join all arrays, flat and in alphabetical order, to one array for each dtype, by its name."""
    parts: dict[str, list] = {}
    for _, x in sorted(arrays.items()):
        parts.setdefault(x.dtype.name, []).append(x.reshape(-1))
    return {dtype: jnp.concatenate(flat) for dtype, flat in parts.items()}


def split(joined: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `join`, with the paths and shapes of `like`."""
    ends = dict.fromkeys(joined, 0)
    arrays = {}
    for path, x in sorted(like.items()):
        dtype = x.dtype.name
        start, ends[dtype] = ends[dtype], ends[dtype] + x.size
        arrays[path] = joined[dtype][start : ends[dtype]].reshape(x.shape)
    return arrays


def checksums(joined: Mapping[str, Any]) -> dict[str, Any]:
    """Return a number of 32 bits for each joined array, which changes with any one bit of it."""
    sums = {}
    for dtype, x in joined.items():
        unsigned = jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}")
        words = jax.lax.bitcast_convert_type(x, unsigned).reshape(-1).astype(jnp.uint32)
        sums[dtype] = jnp.sum(words * (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1))
    return sums


def join_and_check(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return `join`, whether everything in it is finite, and `checksums`."""
    joined = join(arrays)
    return joined, all_finite(joined), checksums(joined)
