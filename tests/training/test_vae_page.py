"""The page about the variational autoencoder runs, and its network learns."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lorentz_jax import geometry

PAGE = Path(__file__).parents[2] / "docs" / "vae.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_runs_and_its_network_learns(capsys):
    names = {"__name__": "page"}
    short = "".join(BLOCKS).replace("epochs=40", "epochs=15")
    assert "epochs=15" in short
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules need it
        exec(compile(short, str(PAGE), "exec"), names)
    assert capsys.readouterr().out.endswith(" nats\n")
    validation, model = names["validation"], names["model"]
    # Without a look at the image, each pixel at its mean costs 27.0 nats; the network takes fewer.
    mean = jnp.clip(names["train"].mean(0), 1e-3, 1 - 1e-3)
    blind = jnp.sum(validation * jnp.log(mean) + (1 - validation) * jnp.log(1 - mean), axis=1)
    assert float(names["result"]) > float(blind.mean()) + 1
    # Points of the plane: the two digits 0 and 1 lie apart.
    labels = np.asarray(names["digits"].train_labels)[-200:]
    points = model.encode(validation).mean
    zero, one = (geometry.centroid(points[labels == label], 0.1) for label in (0, 1))
    assert float(geometry.dist(zero, one, 0.1)) > 0.5
