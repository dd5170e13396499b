"""`nnx.tabulate`: alone in its file, since it leaves classes changed where it fails."""

import jax
import pytest
from flax import nnx

from lorentz_jax import models
from lorentz_jax.training import diagnostics
from tests.models.test_transforms import IMAGES, LAYERS, NETWORKS, layer


@pytest.mark.parametrize("name", [*LAYERS, *NETWORKS])
def test_tabulate(name):
    """`nnx.tabulate` runs every public method under `jit`. Traced, since it compiles them all."""
    tables = []

    def run(x):
        model = layer(name)[0] if name in LAYERS else NETWORKS[name](rngs=nnx.Rngs(0))
        tables.append(nnx.tabulate(model, x, console_kwargs={"width": 200}))
        return x

    jax.eval_shape(run, layer(name)[1] if name in LAYERS else IMAGES)
    assert "Total Parameters" in tables[0]


def test_a_table_does_not_disturb_what_a_run_captures():
    def run(x):
        nnx.tabulate(models.LorentzResNet((1,), 4, rngs=nnx.Rngs(0)), x)
        return x

    jax.eval_shape(run, IMAGES)
    model = models.LorentzResNet((1,), 4, rngs=nnx.Rngs(0))
    assert "sow" in vars(type(model))  # a fault of Flax; without it `_drop_copies` may go
    diagnostics._drop_copies(model)
    assert "sow" not in vars(type(model))
