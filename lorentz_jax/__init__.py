"""Lorentz (hyperbolic) neural networks in JAX: exact at every curvature, as fast as Euclidean."""

from lorentz_jax import ambient, functional, geometry, hyperplane
from lorentz_jax._version import __version__

__all__ = ["__version__", "ambient", "functional", "geometry", "hyperplane"]
