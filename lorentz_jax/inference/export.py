"""A compiled model as StableHLO, which runs wherever JAX is, without this package.

from pathlib import Path
import jax
model = jax.export.deserialize(Path("model.stablehlo").read_bytes())
logits = model.call(images)  # any batch size from 1 on
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax._src.output import write_atomic
from lorentz_jax.inference.compiled import Compiled


def export(
    compiled: Compiled,
    sample_shape: Sequence[int | str],
    path: str | os.PathLike | None = None,
    *,
    arguments: Sequence[Any] | None = None,
    platforms: Sequence[str] | None = None,
    vjp_order: int = 0,
) -> jax.export.Exported:
    """Export the whole model, weights included, as one function of a batch `(b, *sample_shape)`.

    The batch size b stays a symbol, so one export serves every b >= 1; an empty batch is refused
    by the call ("expected ... batch >= 1"). Its input has the precision of the model's constants
    (float32, or float64), whatever precision the activations have.

    Args:
      compiled: the model.
      sample_shape: one image `(H, W, C)`, or one point `(D,)`. A name in the place of a number
        stays a symbol too: `("h", "w", 3)` serves every image size.
      path: also write `serialize()` there, whole or not at all.
      arguments: `jax.ShapeDtypeStruct`s of all arguments, for a model that takes others than one
        array; `sample_shape` is then ignored.
      platforms: for example `("cpu", "cuda")`; default, the present one.
      vjp_order: 1 to export the derivative by the input too, as saliency maps need it.

    Returns:
      The exported function; `exported.call(x)`, and `exported.vjp()` with `vjp_order=1`.

    Raises:
      ValueError: sizes below 1; or `vjp_order=1` of a strided convolution of images whose size is
        a symbol, which JAX cannot differentiate.
    """
    if arguments is None:
        sizes = tuple(s if isinstance(s, str) else int(s) for s in sample_shape)
        if not sizes or any(not isinstance(s, str) and s < 1 for s in sizes):
            raise ValueError(f"sample_shape must be the shape of one sample, got {sample_shape}")
        shape = jax.export.symbolic_shape(", ".join(map(str, ("batch", *sizes))))
        arrays = compiled.params.values()
        floating = (a.dtype for a in arrays if jnp.issubdtype(a.dtype, jnp.floating))
        dtype = jnp.result_type(jnp.float32, *map(compute_dtype, floating))
        arguments = (jax.ShapeDtypeStruct(shape, dtype),)
    function = jax.jit(lambda *args: compiled.apply(compiled.params, *args))
    exported = jax.export.export(function, platforms=platforms)(*arguments)
    if path is not None:
        try:
            data = exported.serialize(vjp_order=vjp_order)
        except ValueError as error:
            if "padding" not in str(error):
                raise
            raise ValueError(
                f"vjp_order={vjp_order} needs numbers for the image size, got {sample_shape}: JAX "
                "does not differentiate a strided convolution of a symbolic size"
            ) from None
        write_atomic(Path(path), lambda file: file.write(data))
    return exported
