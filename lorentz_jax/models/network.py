"""What every network has: a kappa, a description, and images to check."""

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx
from jax import Array

from lorentz_jax import nn
from lorentz_jax._src.arguments import as_array, check_sizes

__all__ = ["Network", "check_stages"]


def check_stages(stages: Any) -> tuple[int, ...]:
    """Return numbers of blocks as a tuple.

    Raises:
        ValueError: there is none, or one is below 1.
        TypeError: they are no sequence of whole numbers.
    """
    if not isinstance(stages, Sequence) or isinstance(stages, str | bytes):
        raise TypeError(f"stages must be a sequence of numbers of blocks, got {stages!r}")
    check_sizes(**{"the number of stages": len(stages)})
    for blocks in stages:
        check_sizes(**{"every entry of stages": blocks})
    return tuple(map(operator.index, stages))  # JSON takes no numbers of NumPy


class Network(nnx.Module):
    """Base of every network: images `(N, H, W, C)` to logits `(N, num_classes)`.

    Args:
        built: keyword arguments that build it again, as JSON has them, for `description`.
        kappa: what the network passes to its layers where a call gives none: a fixed number, a
            `nn.Kappa`, or None where they have their own or need none.

    Attributes:
        description: how to build the network again: class and keyword arguments, as JSON.
    """

    passes_kappa = True

    def __init__(self, built: Mapping[str, Any], kappa: float | nn.Kappa | None):
        self.kappa, self.in_channels = kappa, built["in_channels"]
        self.description = json.dumps([type(self).__name__, built])
        self.use_running_average = False  # set by train() and eval()

    def resolve_kappa(self, kappa: Any = None) -> Any:
        """Return the kappa that a call with this `kappa` passes to the layers.

        It is None in a flat network, and where each layer has its own and none is given.
        """
        return None if self.kappa is None else nn.resolve_kappa(self.kappa, kappa)

    def kappa_at(self, path: str, kappa: Any = None) -> Any:
        """Return the kappa of the hyperboloid that the output of a module lies on.

        Args:
            path: of the module, such as `"stages/0/1/first"`.
            kappa: what the network is called with.
        """
        return self.resolve_kappa(kappa)

    def check_images(self, x: Any) -> Array:
        """Return images as an array.

        Raises:
            ValueError: x has another shape.
            TypeError: x is not floating-point.
        """
        x = as_array("x", x, min_ndim=4)
        if x.ndim != 4 or x.shape[-1] != self.in_channels:
            raise ValueError(f"expected images (N, H, W, {self.in_channels}), got shape {x.shape}")
        return x
