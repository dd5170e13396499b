"""A compiled model as StableHLO, which runs wherever JAX is, without this package.

from pathlib import Path
import jax
model = jax.export.deserialize(Path("model.stablehlo").read_bytes())
logits = model.call(images)    # any batch size from 1 on
"""

import os
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp

from lorentz_jax.arguments import compute_dtype
from lorentz_jax.inference.compiled import Compiled
from lorentz_jax.inference.files import write_atomic


def export(
    compiled: Compiled,
    sample_shape: Sequence[int],
    path: str | os.PathLike | None = None,
    *,
    platforms: Sequence[str] | None = None,
) -> jax.export.Exported:
    """The whole model, weights included, as one function of a batch `(b, *sample_shape)`.

    The batch size b stays a symbol, so one export serves every b >= 1; an empty batch is refused
    by the call ("expected ... batch >= 1"). Its input has the precision of the model's constants
    (float32, or float64), whatever precision the activations have.

    Args:
      compiled: the model.
      sample_shape: one image `(H, W, C)`, or one point `(D,)`.
      path: also write `serialize()` there, whole or not at all.
      platforms: for example `("cpu", "cuda")`; default, the present one.
    """
    sizes = tuple(int(size) for size in sample_shape)
    if not sizes or min(sizes) < 1:
        raise ValueError(f"sample_shape must be the shape of one sample, got {sample_shape}")
    (batch,) = jax.export.symbolic_shape("batch")
    dtype = jnp.result_type(*(compute_dtype(value.dtype) for value in compiled.params.values()))
    sample = jax.ShapeDtypeStruct((batch, *sizes), dtype)
    function = jax.jit(lambda x: compiled.apply(compiled.params, x))
    exported = jax.export.export(function, platforms=platforms)(sample)
    if path is not None:
        data = exported.serialize()
        write_atomic(Path(path), lambda file: file.write(data))
    return exported
