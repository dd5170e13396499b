"""Training: configuration, optimiser, the pure step and the loop around it."""
