"""A bounded number of compiled programs for arguments of any shapes."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

KEPT = 16
"""Programs that are kept, the most recently used ones."""
EXACT = 8
"""Shapes of arguments that get a program of their own before batches are padded."""


class Programs:
    """`function(params, *args)`, compiled for each of the shapes that `args` come in.

    `jax.jit` alone keeps a program for each shape for ever.

    Args:
      function: pure.
      rows: whether the result has a row for each row of the only argument, which depends on that
        row alone. Then the sizes of batches that come after the first `EXACT` shapes are padded
        with zeros to powers of two, on the host, where no size needs a program of its own.
    """

    def __init__(self, function: Callable, rows: bool):
        self._rows, self._exact = rows, set()

        @functools.lru_cache(KEPT)
        def program(shapes: Any) -> Callable:
            # A function of its own: what is compiled is freed when the cache lets go of it.
            return jax.jit(lambda params, *args: function(params, *args))

        self._function, self._program = function, program

    def __call__(self, params: Any, *args: Any) -> Any:
        """Compute `function(params, *args)`."""
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)):
            return self._function(params, *args)
        shapes = _shapes(args)
        if shapes not in self._exact:
            if len(self._exact) < EXACT:
                self._exact.add(shapes)
            elif self._rows and len(args) == 1 and getattr(args[0], "size", 0):
                return self._padded(params, np.asarray(args[0]))
        return self._program(shapes)(params, *args)

    def _padded(self, params: Any, x: np.ndarray) -> Any:
        count = len(x)
        blank = np.zeros(((1 << (count - 1).bit_length()) - count, *x.shape[1:]), x.dtype)
        x = np.concatenate([x, blank])
        out = self._program(_shapes((x,)))(params, x)
        return jax.tree.map(lambda y: jax.device_put(np.asarray(y)[:count]), out)


def _shapes(args: Any) -> Any:
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(jax.typeof(leaf) for leaf in leaves)
