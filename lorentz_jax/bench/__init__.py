"""What `bench.py` measures: `cli` has its commands, every other module one subject."""

from lorentz_jax._src.extras import require

require("lorentz_jax.bench", "bench", "flax", "tyro", "rich", "matplotlib", "mpmath")
