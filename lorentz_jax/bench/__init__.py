"""What `bench.py` measures: `cli` has its commands, every other module one subject.

`numerics.truth` and `numerics.cases` need JAX and mpmath alone, so that tests can use them.
"""

from lorentz_jax._src.extras import require

require("lorentz_jax.bench", "bench", "mpmath")
