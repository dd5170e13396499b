"""What the notebooks draw: the figures of the paper and what lies around them."""
