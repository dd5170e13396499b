"""Graph convolution: a linear layer at every node, and centroids over its neighbours."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from lorentz_jax import functional
from lorentz_jax._src.centred import check_center
from lorentz_jax.nn.layers import LorentzLinear
from lorentz_jax.nn.modules import NORMALS

__all__ = ["LorentzGraphConv"]


class LorentzGraphConv(LorentzLinear):
    """Lorentz graph convolution: `functional.linear`, then `functional.aggregate` over neighbours.

    Its Euclidean twin, and flat limit, is a linear layer before a weighted mean. The graph is an
    argument of the call: a matrix, dense or sparse, or lists of edges. Self-loops are edges like
    any other. A node without edges goes to the origin.

    Args:
        in_features: D_in, space coordinates of the input.
        out_features: D_out, space coordinates of the output.
        kappa: curvature parameter; the curvature is -kappa, and a call can override it.
        rngs: the stream `params` draws the kernel.
        center: of the sums, "origin", or "middle" for points far out, see `functional.aggregate`.
        **options: the others of `LorentzLinear`. The `activation` comes after the centroids.

    Raises:
        ValueError: `kappa` is not positive (or not in the bounds of `Kappa`), no such `init` or
            `center`, or a size below 1.

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
        center: str = "origin", **options: Any,
    ):  # fmt: skip
        super().__init__(in_features, out_features, kappa=kappa, rngs=rngs, **options)
        self.center = check_center(center)

    compiles, constant_names = True, (*NORMALS, "distance_gain")

    def fold(self, norm: nnx.Module, kappa: float) -> None:
        """Return None: a norm after the centroids stays what it is."""

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
            TypeError: there is no graph, or there are two; arguments of edges beside a matrix, or
                a matrix of integers.
        """
        edges = {"weights": weights, "num_segments": num_segments}
        _check_graph(kappa, adjacency, senders, receivers, edges)
        normals, kappa = self.normals(kappa), self.resolve_kappa(kappa)
        y = self.apply_gain(functional.linear(x, normals, kappa), kappa)
        if senders is not None and receivers is not None:
            count = x.shape[-2] if num_segments is None else num_segments
            y = functional.segment_aggregate(
                y, receivers, count, kappa, weights, senders, self.center
            )
        else:
            y = functional.aggregate(y, adjacency, kappa, self.center)
        return y if self.activation is None else self.activation(y)


def _check_graph(
    kappa: Any, adjacency: Any, senders: Any, receivers: Any, edges: dict[str, Any]
) -> None:
    """Raise `TypeError` unless there is one graph; `edges` are what a matrix has no use for."""
    expected = "expected either an adjacency matrix, or senders and receivers"
    if adjacency is None and senders is None and receivers is None:
        hint = "" if kappa is None else "; the second argument is kappa, so write adjacency=..."
        raise TypeError(f"{expected}, got neither{hint}")
    if adjacency is None:
        if senders is None or receivers is None:
            missing = "senders" if senders is None else "receivers"
            raise TypeError(f"{expected}, {missing} are missing")
        return
    names = {"senders": senders, "receivers": receivers, **edges}
    beside = [name for name, value in names.items() if value is not None]
    if beside:
        raise TypeError(f"{expected}, got an adjacency and {' and '.join(beside)}")
    dtype = getattr(adjacency, "dtype", None)
    dtype = jnp.asarray(adjacency).dtype if dtype is None else dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"adjacency must hold floating-point weights, got dtype {dtype}: give it the dtype of "
            "the points, as by .astype(x.dtype); edges are given as senders=... and receivers=..."
        )
