"""What `bench.py` measures: `cli` has its commands, every other module one subject."""
