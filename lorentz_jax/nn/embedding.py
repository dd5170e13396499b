"""A table of points: the embedding of words, labels or nodes."""

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import geometry
from lorentz_jax._src.arguments import check_sizes
from lorentz_jax.nn import initializers
from lorentz_jax.nn.modules import HyperbolicModule

__all__ = ["LorentzEmbedding"]


class LorentzEmbedding(HyperbolicModule):
    """Table of points by number, with the space parts as its parameter `points`.

    A point is `exp_0(v)` of a random v at the start, `v_i ~ N(0, scale^2)`. No projection is needed
    in training: every space part is a point. Plain rules of optax train them; those of `optim` for
    points (`riemannian_adam`, `riemannian_sgd`) take steps as long at every radius.

    Args:
        num_embeddings: number of points.
        features: D, space coordinates of a point.
        kappa: curvature parameter; the curvature is -kappa.
        rngs: the stream `params` draws the points.
        scale: deviation of the coordinates; None for `1/sqrt(D)`, as of `nnx.Embed`. An embedding
            that is trained by distances alone does best with a small one, such as 1e-2.
        learn_kappa: make kappa a parameter, see `Kappa`. The space parts are what is kept then.
        param_dtype: dtype of the points.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), `scale` is not
            positive, or a size is below 1.

    Example:
        >>> embedding = LorentzEmbedding(10, 3, kappa=1.0, rngs=nnx.Rngs(0))
        >>> embedding(jnp.array([[1, 2], [2, 9]])).shape
        (2, 2, 3)
    """

    def __init__(
        self, num_embeddings: int, features: int, *, kappa: float, rngs: nnx.Rngs,
        scale: float | None = None, learn_kappa: bool = False, param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        super().__init__(kappa, learn_kappa, param_dtype)
        check_sizes(num_embeddings=num_embeddings, features=features)
        scale = 1 / math.sqrt(features) if scale is None else scale
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be finite and > 0, got {scale}")
        shape = (num_embeddings, features)
        v = initializers.draw_normal(rngs.params(), shape, scale, param_dtype)
        self.points = nnx.Param(geometry.exp0(v, self.resolve_kappa()))

    def __call__(self, ids: Array) -> Array:
        """Map integers of any shape to points `(*shape, D)`.

        Negative numbers count from the end, and one beyond the table gives NaN.

        Raises:
            TypeError: the numbers are not integers.
        """
        ids = jnp.asarray(ids)
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise TypeError(f"expected integers, the numbers of points, got dtype {ids.dtype}")
        return jnp.take(self.points[...], ids, axis=0, mode="fill")
