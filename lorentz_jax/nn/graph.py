"""Graph convolution: a linear layer at every node, and centroids over its neighbours."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional
from lorentz_jax._src.centred import check_center
from lorentz_jax.nn import initializers
from lorentz_jax.nn.modules import NORMALS, Activation, HyperplaneLayer

__all__ = ["LorentzGraphConv"]


class LorentzGraphConv(HyperplaneLayer):
    """Lorentz graph convolution: `functional.linear`, then `functional.aggregate` over neighbours.

    Its Euclidean twin, and flat limit, is a linear layer before a weighted mean. The graph is an
    argument of the call: a matrix, dense or sparse, or lists of edges. Self-loops are edges like
    any other. A node without edges goes to the origin.

    Args:
        in_features: D_in, space coordinates of the input.
        out_features: D_out, space coordinates of the output.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernel.
        learn_kappa: make kappa a parameter, see `Kappa`.
        activation: elementwise on space parts, after the centroids; None for none.
        center: of the sums, "origin", or "middle" for points far out, see `functional.aggregate`.
        weight_norm: train direction and length of a unit apart, `w = softplus(g) a/|a|`.
        use_bias: with b.
        init: preset of `initializers`; "fast" learns quickly, "paper" is the reference's.
        param_dtype: dtype of the parameters; the output has the dtype of the input.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), no such `init`, or a
            size below 1.

    Example:
        >>> layer = LorentzGraphConv(3, 5, kappa=1.0, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((4, 3)), adjacency=jnp.eye(4)).shape
        (4, 5)
        >>> senders, receivers = jnp.array([0, 1, 2]), jnp.array([1, 2, 3])
        >>> layer(jnp.ones((4, 3)), senders=senders, receivers=receivers).shape
        (4, 5)
    """

    def __init__(
        self, in_features: int, out_features: int, *, kappa: float, rngs: nnx.Rngs,
        learn_kappa: bool = False, activation: Activation | None = None, center: str = "origin",
        weight_norm: bool = True, use_bias: bool = True, init: str = "fast",
        param_dtype: Any = jnp.float32,
    ):  # fmt: skip
        shape = (in_features, out_features)
        values = initializers.affine(rngs.params(), shape, init, weight_norm, param_dtype)
        super().__init__(values, kappa, learn_kappa, activation, init, use_bias)
        self.center = check_center(center)

    compiles, constant_names = True, NORMALS

    def __call__(
        self, x: Array, kappa: Any = None, adjacency: Any = None, *, senders: Array | None = None,
        receivers: Array | None = None, weights: Array | None = None,
        num_segments: int | None = None,
    ) -> Array:  # fmt: skip
        """Map the nodes `(..., N, D_in)` to nodes `(..., M, D_out)`.

        Args:
            x: points of the nodes.
            kappa: overrides the layer's own.
            adjacency: weights >= 0 `(..., M, N)` of every node in its neighbours' centroids, or a
                `BCOO` matrix `(M, N)`.
            senders: instead of a matrix, the node that each edge comes from, integers `(E,)`.
            receivers: the node that it goes to.
            weights: of the edges, `(E,)`. Default: equal.
            num_segments: M, the number of receiving nodes. Default: N.

        Raises:
            TypeError: there is no graph, or there are two.
        """
        listed = senders is not None and receivers is not None
        if listed == (adjacency is not None) or (senders is None) != (receivers is None):
            raise TypeError("expected either an adjacency matrix, or senders and receivers")
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        y = functional.linear(x, normals, kappa)
        if senders is not None and receivers is not None:
            count = x.shape[-2] if num_segments is None else num_segments
            edges = receivers, count, kappa, weights, senders
            y = functional.segment_aggregate(y, *edges, self.center)
        else:
            y = functional.aggregate(y, adjacency, kappa, self.center)
        return y if self.activation is None else self.activation(y)
