"""The layers that the paper compares with, right at every kappa and without forming patches."""

from lorentz_jax.baselines import chen, hcnn, poincare

__all__ = ["chen", "hcnn", "poincare"]
