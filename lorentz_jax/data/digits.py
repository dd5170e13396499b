"""The handwritten digits that scikit-learn ships: 1797 real 8x8 images, no download."""

from typing import Any

import numpy as np

from lorentz_jax.data.dataset import Dataset

TEST_SIZE = 360
SPLIT_SEED = 0  # the split belongs to the dataset: it does not move with the run's seed


def load_digits() -> Dataset:
    """1437 training and 360 test images, `(8, 8, 1)`, 10 classes, stratified by class.

    Pixels are counts of ink from 0 to 16; they are kept as they are, so 16, not 255, is white.
    """
    # scikit-learn takes over a second to import, so only those who use it pay.
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    digits: Any = datasets.load_digits()
    images = digits.images.astype(np.uint8)[..., np.newaxis]
    labels = digits.target.astype(np.int32)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=TEST_SIZE, stratify=labels, random_state=SPLIT_SEED
    )
    return Dataset(
        name="digits",
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        num_classes=10,
        mean=(float(images[train].mean()),),
        std=(float(images[train].std()),),
    )
