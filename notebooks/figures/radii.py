"""Picture how far from the origin a trained network works, layer by layer (the paper's Figure 3).

The outputs of a layer are points; the mean over images and pixels of their distance to the origin
is its radius, `asinh(s|x|)/s` by the space part x. Convolutions and norms are shown apart, since a
convolution may move points outwards and the norm after it back.

A Euclidean network has no hyperboloid to place its features on. Its radius is their norm |x|: the
distance to the origin in flat space, the limit of the above for kappa to 0, and the distance that
the point has if features are read as tangent vectors at the origin, at every kappa. Read as space
parts they would be nearer, by `asinh(s|x|)/(s|x|)`. Points of the Poincare network are stored by
their space parts, so their radius is that of the same point of the hyperboloid.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lorentz_jax.bench import style
from lorentz_jax.bench.style import COLOURS
from lorentz_jax.training.diagnostics import make_radius_step, with_convolutions
from lorentz_jax.training.state import Arrays

from .table1 import Trained

__all__ = ["Profile", "of_runs", "plot", "profile"]

_MARKERS = ("o", "s", "^", "v", "D")


@dataclass(frozen=True)
class Profile:
    """Radii of one network, in the order in which an image passes its K pairs of conv and norm.

    Attributes:
      names: of the pairs, "stem", "stages/0/0/first" ...; a block's "shortcut" comes after its
        "second", whose input it does not see.
      linear, norm: mean radius after the convolution and after the norm, `(K,)`; NaN where there
        is no norm.
    """

    names: tuple[str, ...]
    linear: np.ndarray
    norm: np.ndarray


def profile(graphdef: Any, params: Arrays, stats: Arrays, images: Any) -> Profile:
    """Measure radii for images `(N, H, W, C)` that are prepared as the network wants them.

    Raises:
      ValueError: no images, or a network without convolutions.
    """
    images = jnp.asarray(images)
    if images.ndim != 4 or not len(images):
        raise ValueError(f"expected images (N, H, W, C), at least one, got shape {images.shape}")
    step = make_radius_step(graphdef, lambda key, x: x, layers=with_convolutions)
    radii = step(params, stats, images, np.arange(len(images), dtype=np.int32))
    names = sorted((n.removesuffix("/conv") for n in radii if n.endswith("/conv")), key=_order)
    if not names:
        raise ValueError("the network has no layers named conv")
    normed = [any(key.startswith(f"{name}/norm/") for key in params) for name in names]
    return Profile(
        tuple(names),
        np.array([float(radii[f"{name}/conv"]) for name in names]),
        # A pair without a norm gives out what its convolution does.
        np.where(normed, [float(radii[name]) for name in names], np.nan),
    )


def _order(name: str) -> tuple[int, ...]:
    """Return a key that puts the stem first, then stages, blocks and their parts by number."""
    if name == "stem":
        return (-1,)
    *numbers, part = name.split("/")[1:]
    return (*map(int, numbers), ("first", "second", "shortcut").index(part))


def of_runs(runs: Iterable[Trained], count: int = 256) -> dict[str, list[Profile]]:
    """Return profiles of trained networks by model, for the first `count` test images."""
    profiles: dict[str, list[Profile]] = {}
    for run in runs:
        values = profile(run.graphdef, run.params, run.stats, run.images(count))
        profiles.setdefault(run.config.model, []).append(values)
    return profiles


def plot(networks: Mapping[str, Sequence[Profile]]) -> Figure:
    """Draw mean radius by depth, left after convolutions, right after norms; a colour a network.

    Lines are means over the networks of a name, bands their range. Shortcuts are hollow, above
    the second convolution of their block.

    Raises:
      ValueError: nothing to draw, or networks of one name with different layers.
    """
    if not networks or not all(networks.values()):
        raise ValueError(f"expected a profile for every name, got {dict(networks)}")
    figure, [panels] = style.make_panels(7, 2.9, columns=2, dpi=100, sharey=True)
    for number, (name, profiles) in enumerate(networks.items()):
        names = profiles[0].names
        if any(later.names != names for later in profiles):
            raise ValueError(f"the networks named {name!r} have different layers")
        side = np.array([n.endswith("shortcut") for n in names])
        depth, main = np.cumsum(~side), ~side
        colour, marker = COLOURS[1 + number % 6], _MARKERS[number % 5]
        look = {"color": colour, "marker": marker, "markersize": 4}
        for axes, part in zip(panels, ("linear", "norm"), strict=True):
            values = np.stack([getattr(p, part) for p in profiles])
            mean, low, high = values.mean(0), values.min(0), values.max(0)
            axes.plot(depth[main], mean[main], **look, linewidth=1.2, label=name)
            band = {"color": colour, "alpha": 0.25, "linewidth": 0}
            axes.fill_between(depth[main], low[main], high[main], **band)
            axes.plot(depth[side], mean[side], **look, linestyle="", markerfacecolor="white")
    for axes, part in zip(panels, ("convolution", "norm"), strict=True):
        style.finish(axes, "convolution, counted from the image", title=f"after the {part}")
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_ylabel("mean distance to the origin (length)", fontsize=8)
    style.add_legend(panels[0])
    return figure
