"""A compiled model as StableHLO, which runs wherever JAX is, without this package.

from pathlib import Path
import jax
model = jax.export.deserialize(Path("model.stablehlo").read_bytes())
logits = model.call(images)  # any batch size from 1 on

JAX believes the bytes of such a file: of a flipped bit it makes other logits, or a crash. So its
SHA-256 lies beside it, in `model.stablehlo.sha256`. `load_exported` compares them, and so does
`sha256sum --check model.stablehlo.sha256`.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from lorentz_jax._src.archive import file_size
from lorentz_jax._src.arguments import compute_dtype
from lorentz_jax._src.output import check_writable, write_atomic
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
      path: also write `serialize()` there, whole or not at all, and its checksum beside it.
      arguments: `jax.ShapeDtypeStruct`s of all arguments, for a model that takes others than one
        array; `sample_shape` is then ignored.
      platforms: for example `("cpu", "cuda")`; default, the present one.
      vjp_order: 1 to export the derivative by the input too, as saliency maps need it.

    Returns:
      The exported function; `exported.call(x)`, and `exported.vjp()` with `vjp_order=1`.

    Raises:
      ValueError: sizes below 1; or `vjp_order=1` of a strided convolution of images whose size is
        a symbol, which JAX cannot differentiate; or `path` is a folder or a device.
    """
    for file in () if path is None else (Path(path), checksum_path(path)):
        check_writable(file)
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
        _write(Path(path), bytes(data))
    return exported


def _write(path: Path, data: bytes) -> None:
    line = f"{hashlib.sha256(data).hexdigest()}  {path.name}\n"  # as sha256sum has it
    # A kill between the two leaves a file that is refused, not one that is believed.
    checksum_path(path).unlink(missing_ok=True)
    write_atomic(path, lambda file: file.write(data))
    write_atomic(checksum_path(path), lambda file: file.write(line.encode()))


def checksum_path(path: str | os.PathLike) -> Path:
    """Return where the checksum of an exported model is."""
    return Path(f"{os.fspath(path)}.sha256")


def load_exported(path: str | os.PathLike, *, verify: bool = True) -> jax.export.Exported:
    """Read an exported model, after its checksum was compared with the one beside it.

    This finds damage. It does not tell who made a file: do not load one of somebody you mistrust.

    Args:
      path: a file of `export`.
      verify: False for a file without a checksum, such as one that JAX itself wrote.

    Returns:
      The exported function; `load_exported(path).call(x)`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: it has no checksum or another one, or is no exported model.
    """
    path, beside, expected = Path(path), checksum_path(path), "an exported model"
    file_size(path, expected)
    data: Any = path.read_bytes()
    if verify:
        if not beside.exists():
            raise ValueError(f"{path}: expected its checksum in {beside}; export it again")
        file_size(beside, "a checksum")
        with beside.open("rb") as file:
            said = file.read(64)
        if hashlib.sha256(data).hexdigest().encode() != said:
            raise ValueError(
                f"{path}: expected {expected} with the checksum in {beside.name}, got "
                f"{len(data)} other bytes: one of the two is damaged; export it again"
            )
    try:
        return jax.export.deserialize(data)
    except Exception as error:  # flatbuffers and XLA have many
        raise ValueError(f"{path}: expected {expected}, got {len(data)} bytes ({error})") from None
