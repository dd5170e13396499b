"""The golden data's conventions: reference names, ambient vectors, images with channels first."""

import numpy as np


def reference_name(path):
    # The module needs Flax, and the tests of the pure functions run without it.
    from lorentz_jax.models import reference

    return reference.reference_name(path)


def space(point):
    return point[..., 1:]


def pull_back(gradient, point):
    """Derivative by the space part of an ambient gradient: the time follows along."""
    return space(gradient) + gradient[..., :1] * space(point) / point[..., :1]


def channels_last(images):
    return np.moveaxis(images, -3, -1)


def arrays(golden: dict, prefix: str, like: dict) -> dict:
    """Reference arrays `prefix + name` under the paths, and in the form, of our arrays `like`."""
    return {path: _ours(path, golden[prefix + reference_name(path)], like[path]) for path in like}


def gradients(golden: dict, prefix: str, points: str, like: dict) -> dict:
    """The same for gradients of parameters, whose points are the arrays `points + name`."""
    result = {}
    for path in like:
        gradient = golden[prefix + reference_name(path)]
        if path.endswith("beta"):
            result[path] = pull_back(gradient, golden[points + reference_name(path)])
        else:
            result[path] = _ours(path, gradient, like[path])
    return result


def _ours(path, value, like):
    leaf = path.rsplit("/", 1)[-1]
    if leaf in ("beta", "mean"):
        return space(value)
    return -value[0] if leaf == "bias" else value.reshape(like.shape)
