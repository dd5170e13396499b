"""A training state as one flat dict of arrays by path, and back."""

from collections.abc import Mapping
from typing import Any

import jax

from lorentz_jax.training.state import TrainState


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
