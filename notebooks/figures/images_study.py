r"""Study where a hyperbolic network beats its Euclidean twin on images, in 2 and 8 dimensions.

Fashion-MNIST in 14 x 14 pixels, networks of `image_nets`, four measures of every run:

- "hierarchy": the mean height of the lowest common ancestor of predicted and true class in a tree
  over the classes (`image_measures.FASHION`), which the loss tells every network;
- "few-shot": a second training on six classes, with the same rate; then nearest prototypes of the
  other four, the centroids of 1 or 5 test images each;
- "foreign": whether digits have points nearer the origin than clothes, and a lower softmax;
- "noise": accuracy under Gaussian noise on the test images.

Every arm has its rate by the accuracy on validation images, for each dimension. Runs are written as
soon as they are there, and what the file holds of the same settings is not run again:

    python -m notebooks.figures.images_study notebooks/evidence_images.json \
        --data-dir /usr/share/datasets
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from lorentz_jax import data
from lorentz_jax._src.arguments import check_sizes
from lorentz_jax._src.output import check_writable, report_error, write_atomic
from lorentz_jax.bench.convergence import check_name
from lorentz_jax.bench.style import make_console
from lorentz_jax.bench.timing import environment

from .image_measures import CLASSES, auroc, episodes, few_shot, mistakes, paths
from .image_nets import ARMS, radius
from .image_training import Images, Settings, Trainer, best_rate, halved, tuned
from .images_report import tables

__all__ = ["DIMS", "MAIN", "SETTINGS", "Pictures", "load", "measure", "study"]

SETTINGS = Settings()
DIMS = (2, 8)
MAIN = ("euclidean", "fgg", "hcnn", "poincare")
"""The arms that are run where none are named."""


class Pictures:
    """The images of the study, in the scale of the training images of Fashion-MNIST.

    Attributes:
      train, validation, test: of Fashion-MNIST.
      digits: those of scikit-learn, enlarged from 8 x 8 by bilinear interpolation.
      changed: the first test images, to be changed by noise.
      shuffled: the same, all pixels in one random order: what they add up to stays the same.
    """

    def __init__(self, clothes: data.Dataset, digits: data.Dataset, settings: Settings) -> None:
        clothes, held = clothes.take(settings.train + settings.validation).hold_out(
            settings.validation, settings.tuning_seed
        )
        train = halved(np.asarray(clothes.train_images))
        scale = float(train.mean()), float(train.std())
        self.train = Images.of(train, clothes.train_labels, *scale)
        self.validation = Images.of(halved(np.asarray(held.images)), held.labels, *scale)
        self.test = Images.of(halved(np.asarray(clothes.test_images)), clothes.test_labels, *scale)
        ink = np.concatenate([digits.train_images, digits.test_images])[..., 0] / 16
        labels = np.concatenate([digits.train_labels, digits.test_labels])
        size = (len(ink), *train.shape[1:])
        ink = np.asarray(jax.image.resize(ink.astype(np.float32), size, "bilinear"))
        self.digits = Images.of(ink, labels, *scale)
        order = np.random.default_rng(0).permutation(train[0].size)
        self.changed = self.test.take(slice(settings.changed))
        pixels = self.changed.pixels
        shuffled = pixels.reshape(len(pixels), -1)[:, order].reshape(pixels.shape)
        self.shuffled = replace(self.changed, pixels=shuffled)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Return mean and deviation of the pixels, 1 being white, of clothes and digits."""
        parts = {"train": self.train, "test": self.test, "digits": self.digits}
        return {
            name: {
                "mean": part.mean + part.std * float(part.pixels.mean()),
                "deviation": part.std * float(part.pixels.std()),
            }
            for name, part in parts.items()
        }


def load(data_dir: Path | None, settings: Settings) -> Pictures:
    """Read Fashion-MNIST, from `data_dir` if it is there, and scikit-learn's digits."""
    clothes = data.load("fashion_mnist", data_dir=data_dir)
    return Pictures(clothes, data.load("digits"), settings)


def with_noise(images: Images, deviation: float, seed: int) -> Images:
    """Return images with Gaussian noise of a deviation in units of white; all arms get the same."""
    rng = np.random.default_rng((seed, len(images.labels)))
    noise = rng.standard_normal(images.pixels.shape, np.float32)
    return replace(images, pixels=images.pixels + np.float32(deviation / images.std) * noise)


def unseen_classes(seed: int, settings: Settings) -> list[int]:
    """Return the classes that the few-shot networks of a seed are not trained on, of all arms."""
    drawn = np.random.default_rng((seed, settings.unseen)).permutation(len(CLASSES))
    return sorted(drawn[: settings.unseen].tolist())


def few_shots(
    points: np.ndarray, labels: np.ndarray, seed: int, kappa: float | None, settings: Settings
) -> dict[str, float]:
    """Return the accuracy of the nearest prototype on unseen classes, by number of shots."""
    unseen = unseen_classes(seed, settings)
    found = {}
    for shots in settings.shots:
        drawn = episodes(labels, unseen, shots + settings.queries, settings.episodes, seed)
        found[f"{shots}-shot"] = few_shot(points, drawn, shots, kappa)
    return found


def measure(
    trainer: Trainer, rate: float, seed: int, levels: np.ndarray, pictures: Pictures
) -> dict[str, Any]:
    """Train the two networks of a seed and measure them on the test images."""
    settings, kappa, test = trainer.settings, ARMS[trainer.arm].kappa, pictures.test
    weights, loss = trainer.run(rate, seed)
    points, logits = trainer.outputs(weights, test.pixels)
    radii, sure = np.asarray(radius(points, kappa)), _surest(logits[0])
    found: dict[str, Any] = {
        "loss": _finite(loss),
        "hierarchy": mistakes(logits[0].argmax(axis=-1), test.labels, levels),
        "radius": float(radii.mean()),
        "foreign": {},
        "noise": {},
    }
    for name, foreign in (("digits", pictures.digits), ("shuffled", pictures.shuffled)):
        away, odd = trainer.outputs(weights, foreign.pixels)
        nearer = auroc(radii, np.asarray(radius(away, kappa)))
        found["foreign"][name] = {"radius": nearer, "softmax": auroc(sure, _surest(odd[0]))}
    found["noise"]["0"] = trainer.accuracy(weights, pictures.changed)
    for deviation in settings.noise:
        noisy = with_noise(pictures.changed, deviation, seed)
        found["noise"][f"{deviation:g}"] = trainer.accuracy(weights, noisy)
    unseen = unseen_classes(seed, settings)
    new = test.take(np.isin(test.labels, unseen))
    seen = np.setdiff1d(np.arange(len(CLASSES)), unseen)
    weights, loss = trainer.run(rate, seed, seen)
    found["few-shot loss"] = _finite(loss)
    points = trainer.outputs(weights, new.pixels).points
    found["few-shot"] = few_shots(points, new.labels, seed, kappa, settings)
    return found


def _finite(value: float) -> float | None:
    """Return None for what JSON has no number for: the loss of a training that diverged."""
    return value if math.isfinite(value) else None


def _surest(logits: np.ndarray) -> np.ndarray:
    """Return the largest softmax of every row."""
    return np.asarray(jax.nn.softmax(logits, axis=-1).max(axis=-1))


def study(
    results: dict[str, Any],
    pictures: Pictures,
    arms: Sequence[str],
    dims: Sequence[int],
    settings: Settings,
    write: Callable[[], None],
) -> None:
    """Run what `results` has not, seed by seed, and call `write` after every run.

    `results` gets "tuning", the validation accuracies by rate, and "runs", by seed what `measure`
    returns, both by arm and dimension; and "pixels", few-shot classification of the pixels
    themselves.
    """
    levels, trainers = paths(), {}
    results["pictures"] = pictures.statistics()
    tuning, runs = results.setdefault("tuning", {}), results.setdefault("runs", {})
    jobs = [(arm, dim) for arm in arms for dim in dims]

    def trainer(arm: str, dim: int) -> Trainer:
        if (arm, dim) not in trainers:
            trainers[arm, dim] = Trainer(arm, dim, levels, settings, pictures.train)
        return trainers[arm, dim]

    for arm, dim in jobs:
        found = tuning.setdefault(arm, {}).get(f"{dim}", {})
        known = {float(rate): value for rate, value in found.items()}
        if set(settings.rates) - set(known):
            found = tuned(trainer(arm, dim), pictures.validation, known)
            tuning[arm][f"{dim}"] = {f"{rate:g}": value for rate, value in found.items()}
            if known and best_rate(found) != best_rate(known):  # its runs are of another rate
                runs.get(arm, {}).pop(f"{dim}", None)
            write()
    for seed in settings.seeds:
        pixels = results.setdefault("pixels", {})
        if f"{seed}" not in pixels:
            new = pictures.test.take(np.isin(pictures.test.labels, unseen_classes(seed, settings)))
            flat = new.pixels.reshape(len(new.labels), -1)
            pixels[f"{seed}"] = few_shots(flat, new.labels, seed, None, settings)
        for arm, dim in jobs:
            done = runs.setdefault(arm, {}).setdefault(f"{dim}", {})
            if f"{seed}" not in done:
                rate = best_rate({float(r): a for r, a in tuning[arm][f"{dim}"].items()})
                done[f"{seed}"] = measure(trainer(arm, dim), rate, seed, levels, pictures)
                write()


def main(
    path: tyro.conf.Positional[Path],
    data_dir: Path | None = None,
    models: tuple[str, ...] = MAIN,
    dims: tuple[int, ...] = DIMS,
    again: bool = False,
) -> int:
    """Run the study, print its tables and write all to a file.

    Args:
      path: a JSON file; arms and dimensions of it that are not named stay.
      data_dir: folder of Fashion-MNIST, as of `train.py`.
      models: the networks to run: `euclidean`, `fgg`, `hcnn`, `poincare`, `fgg, outside` with a
        gain and the scale outside, or `fgg, kappa 1`.
      dims: the dimensions of an image's point.
      again: run anew what the file has of these arms and dimensions.
    """
    try:
        for name in models:
            check_name(name, ARMS, "arm")
        check_sizes(**{f"dims[{i}]": dim for i, dim in enumerate(dims)})
        results = _stored(path)
        check_writable(path)
        pictures = load(data_dir, SETTINGS)
    except (OSError, ValueError) as error:
        return report_error("images_study", error, 2)
    if again:
        for part in ("tuning", "runs"):
            for arm in models:
                for dim in dims:
                    results.get(part, {}).get(arm, {}).pop(f"{dim}", None)
    begin, before = time.perf_counter(), results["seconds"]

    def write() -> None:
        results["seconds"] = before + time.perf_counter() - begin
        text = json.dumps(results, indent=1, allow_nan=False) + "\n"
        write_atomic(path, lambda file: file.write(text.encode()))

    study(results, pictures, models, dims, SETTINGS, write)
    make_console().print(*tables(results))
    return 0


def _stored(path: Path) -> dict[str, Any]:
    """Return the results of a file, or new ones.

    Raises:
      ValueError: the file has other settings.
    """
    settings = json.loads(json.dumps(asdict(SETTINGS)))
    if not path.exists():
        return {"environment": environment(), "settings": settings, "seconds": 0.0}
    results = json.loads(path.read_text(encoding="utf-8"))
    found = results.get("settings") if isinstance(results, dict) else None
    if found != settings:
        raise ValueError(f"{path} is of other settings: {found}, not {settings}")
    return results


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
