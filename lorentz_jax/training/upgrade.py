"""States that checkpoints of earlier format versions hold, as this version has them."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lorentz_jax.nn import Kappa
from lorentz_jax.training.state import TrainState


def from_version_1(state: TrainState, config: Mapping[str, Any]) -> TrainState:
    """Version 1 held b itself where version 2 has `b sqrt(1 + kappa in)`.

    So it was in Lorentz networks of the preset `fast`. The momentum of SGD, a sum of gradients, is
    divided by the factor.

    Args:
      state: as it was read.
      config: that of the run, from the meta data.
    """
    if (config["model"], config["init"]) != ("lorentz", "fast"):
        return state
    kappa = config["kappa"]
    if config["learn_kappa"]:
        learned = Kappa(1.0)
        learned.raw[...] = state.params["kappa/raw"]
        kappa = learned()

    def renew(place: Any, x: Any) -> Any:
        path = jax.tree_util.keystr(place, simple=True, separator="/")
        if not path.endswith("/bias"):
            return x
        momentum = "/trace/" in path
        name = path.split("/trace/")[1] if momentum else path.removeprefix("params/")
        inputs = math.prod(state.params[name.removesuffix("bias") + "kernel"].shape[:-1])
        factor = jnp.sqrt(1 + jnp.asarray(kappa, x.dtype) * inputs)
        return x / factor if momentum else x * factor

    return jax.tree_util.tree_map_with_path(renew, state)
