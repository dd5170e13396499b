"""The golden data's conventions: reference names, ambient vectors, images with channels first."""

import re

import numpy as np

# Our modules and leaves, as the reference names them.
MODULES = {
    "stem/conv": "input_proj.proj.0.fc",
    "stem/norm": "input_proj.proj.1",
    "first/conv": "layer1.fc",
    "first/norm": "bn1",
    "second/conv": "layer2.fc",
    "second/norm": "bn2",
    "shortcut/conv": "proj.0.fc",
    "shortcut/norm": "proj.1",
    "head": "classifier",
}
LEAVES = {"kernel": "v", "gain": "g", "bias": "a", "beta": "beta", "mean": "running_mean"}


def reference_name(path: str) -> str:
    """`"stages/1/0/first/conv/kernel"` is the reference's `"stage2.0.layer1.fc.v"`."""
    stage, module, leaf = re.fullmatch(r"(?:stages/(\d+/\d+)/)?(.+)/(\w+)", path).groups()
    leaf = "U" if (module, leaf) == ("head", "kernel") else LEAVES[leaf]
    name = f"{MODULES[module]}.{leaf}"
    if stage is None:
        return name
    number, block = stage.split("/")
    return f"stage{int(number) + 1}.{block}.{name}"


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
