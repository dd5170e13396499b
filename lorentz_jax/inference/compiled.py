"""The compiled form: a flat dict of arrays, and the model's own call as a pure function of them."""

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from lorentz_jax import metrics, nn
from lorentz_jax._src.archive import parse_json
from lorentz_jax._src.arguments import as_kappa
from lorentz_jax.data import Dataset, normalise
from lorentz_jax.inference.programs import Programs
from lorentz_jax.models import MODELS, Network, has_extra_logit
from lorentz_jax.nn import compiling
from lorentz_jax.nn.compiling import Frozen

Shapes = dict[str, tuple[int, ...]]

HALF = ("bfloat16", "float16")


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A model for inference. It is no module and holds nothing that could be trained.

    Attributes:
      params: flat `{"stages/0/1/first/conv/space": array}`: the path of a layer, and its array.
      layers: the layers that became constant, by path: `{"layer": class, "kappa": number or None,
        "folded": whether a norm is folded in, or is folded into the layer before it}`.
      graphdef: the rest of the model, as `nnx.split` gives it.
      paths: of every array in the model, by its name in `params`.
      kappas: the values of learned kappas, by path.
      fixed: state that is no array of numbers, such as the keys of a dropout layer.
      dtype: half precision that activations are kept in ("bfloat16", "float16"), or None for that
        of the input.
      description: how to build the network again (see `models.Network`), or None.
      structure: a digest of the classes and options of the model, to recognise it by.
      info: whatever else belongs to the model, as JSON: dataset, accuracy, class names.
    """

    params: Mapping[str, Array]
    layers: Mapping[str, Mapping[str, Any]]
    graphdef: Any
    paths: Mapping[str, tuple[Any, ...]]
    kappas: Mapping[str, float]
    fixed: Any = None
    dtype: str | None = None
    description: str | None = None
    structure: str = ""
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def kappa(self) -> float | None:
        """The kappa of all layers; None where they differ or have none."""
        values = {layer["kappa"] for layer in self.layers.values()} - {None}
        return values.pop() if len(values) == 1 else None

    @property
    def shapes(self) -> Shapes:
        """Shape of every array."""
        return {key: tuple(np.shape(value)) for key, value in self.params.items()}

    def arrays(self, name: str) -> dict[str, Any]:
        """The arrays of the layer at a path, by their own names."""
        return {
            str(path[-1]): self.params[key]
            for key, path in self.paths.items()
            if "/".join(map(str, path[:-1])) == name
        }

    def apply(self, params: Mapping[str, Array], *args: Any, **kwargs: Any) -> Any:
        """Call the model on these arrays; pure. Jit it: `jax.jit(compiled.apply)`.

        With `dtype`, floating arguments are taken in it and results given in the dtype of the first
        argument.

        Raises:
          ValueError: at trace time, for arrays of other shapes than the model's, or for a layer
            that computes statistics of its batch; and whatever the model's own call raises.
        """
        difference = mismatch(
            {key: tuple(np.shape(value)) for key, value in params.items()}, self.shapes
        )
        if difference:
            raise ValueError(f"these are not the arrays of this model: {difference}")
        model: Any = self.model(params)
        variables = {key: _variable(model, path) for key, path in self.paths.items()}
        call = model if self.dtype is None else _in_half(model, self.dtype)
        result = call(*map(_array, args), **kwargs)
        moved = [key for key, v in variables.items() if v.get_value() is not params[key]]
        if moved:
            raise ValueError(
                f"{', '.join(moved[:4])} changed in the call: the layer is in training mode, and a "
                "compiled model evaluates"
            )
        return result

    def model(self, params: Mapping[str, Array] | None = None) -> nnx.Module:
        """The compiled module itself, holding these arrays (default: its own)."""
        params = self.params if params is None else params
        state = nnx.from_flat_state(
            [(path, nnx.Variable(params[key])) for key, path in self.paths.items()]
        )
        return nnx.merge(self.graphdef, state, *(() if self.fixed is None else (self.fixed,)))

    def __call__(self, *args: Any) -> Any:
        """`apply` with the model's own arrays, compiled for the shapes of the arguments.

        The last 16 programs are kept. The first 8 shapes get one each. After them a network of
        `models` pads a new batch size with zero images to a power of two, and cuts the result.
        """
        return self._programs(self.params, *args)

    @functools.cached_property
    def _programs(self) -> Programs:
        return Programs(self.apply, rows=self.description is not None)


class Occurrence(NamedTuple):
    """A module at one of its places: a shared module has several."""

    path: str
    module: Any
    parents: tuple[Any, ...]  # outermost first


def occurrences(
    module: Any, path: tuple[Any, ...] = (), parents: tuple[Any, ...] = ()
) -> Iterator[Occurrence]:
    """Every module at every place, outermost first."""
    yield Occurrence("/".join(map(str, path)), module, parents)
    for name, child in nnx.iter_children(module):
        nested = isinstance(child, nnx.Pytree)
        if nested and not any(child is parent for parent in (*parents, module)):
            yield from occurrences(child, (*path, name), (*parents, module))


def assemble(
    model: nnx.Module, layers: Mapping[str, Mapping[str, Any]], dtype: str | None,
    info: Mapping[str, Any], description: str | None, structure: str,
) -> Compiled:  # fmt: skip
    """A frozen model as a `Compiled`.

    Raises:
      ValueError: values that are not finite; names the array.
    """
    graphdef, state, fixed = nnx.split(model, _is_array, ...)
    params, paths = {}, {}
    for path, variable in nnx.to_flat_state(state):
        key = "/".join(map(str, path))
        params[key], paths[key] = variable.get_value(), path
        if not np.isfinite(np.asarray(params[key], np.float64)).all():
            raise ValueError(f"{key} is not finite in {params[key].dtype}")
    kappas = {
        place.path: place.module.value
        for place in occurrences(model)
        if isinstance(place.module, nn.Kappa) and place.module.value is not None
    }
    return Compiled(
        params, layers, graphdef, paths, kappas, fixed if nnx.to_flat_state(fixed) else None,
        dtype, description, structure, dict(info),
    )  # fmt: skip


def assemble_from(
    model: nnx.Module, params: Mapping[str, Array], header: Mapping[str, Any]
) -> Compiled:
    """The `Compiled` of a file: `model` gives the structure, also if its arrays are abstract.

    Raises:
      ValueError: layers, kappas or arrays that are not those of the model.
    """
    if structure_of(model) != header["structure"]:
        raise ValueError(
            "the model differs from the one that was compiled, in a class or an option"
        )
    places = {place.path: place.module for place in occurrences(model)}
    for path, kappa in header["kappas"].items():
        module = places.get(path)
        if not isinstance(module, nn.Kappa):
            raise ValueError(f"the model has no learned kappa at {path!r}")
        as_kappa(kappa, np.float32)
        module.value, module.raw = float(kappa), None
    for path, layer in header["layers"].items():
        module = places.get(path)
        if module is None or type(module).__name__ != layer["layer"]:
            there = "nothing" if module is None else type(module).__name__
            raise ValueError(f"expected {layer['layer']} at {path!r}, the model has {there}")
        if not compiling.compiles(module):
            raise ValueError(f"{layer['layer']} at {path!r} has no constants")
        if layer["kappa"] is not None:
            as_kappa(layer["kappa"], np.float32)
        prefix = f"{path}/" if path else ""
        names = (key.removeprefix(prefix) for key in params if key.startswith(prefix))
        arrays = {name: params[prefix + name] for name in names if "/" not in name}
        _check_shapes(path, module, arrays)
        compiling.freeze(module, arrays, Frozen(path, layer["kappa"], bool(layer["folded"])))
    graphdef, state, fixed = nnx.split(model, _is_array, ...)
    flat = [(path, variable) for path, variable in nnx.to_flat_state(state)]
    paths = {"/".join(map(str, path)): path for path, _ in flat}
    expected = {key: tuple(v.get_value().shape) for key, (_, v) in zip(paths, flat, strict=True)}
    difference = mismatch({key: tuple(a.shape) for key, a in params.items()}, expected)
    if difference:
        raise ValueError(f"the arrays are not those of the model: {difference}")
    return Compiled(
        {key: params[key] for key in paths}, header["layers"], graphdef, paths, header["kappas"],
        fixed if nnx.to_flat_state(fixed) else None, header["dtype"], header["description"],
        header["structure"], header["info"],
    )  # fmt: skip


def _check_shapes(path: str, module: Any, arrays: Mapping[str, Array]) -> None:
    """The arrays of a layer fit each other and the kernel that they replace."""
    widths = {array.shape[-1:] for array in arrays.values()}
    kernel = getattr(module, "kernel", None)
    wide = [a.shape for a in arrays.values() if a.ndim > 1]
    same = kernel is None or wide in ([], [tuple(kernel.shape)])
    if len(widths) > 1 or not same:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"layer {path!r}: its arrays do not fit the model, got shapes {shapes}")


def build(description: str, most_blocks: int | None = None) -> Network:
    """The network of a description, in evaluation mode, its arrays abstract.

    Building takes time for each block; `most_blocks` bounds what a file can ask for.

    Raises:
      ValueError: a description of something else.
    """
    kinds: dict[str, Any] = {kind.__name__: kind for kind in MODELS.values()}
    try:
        name, options = parse_json(description)
        if name == "LorentzResNet":  # a file from before this was an option has biases
            options = {"use_bias": True} | options
        stages = options["stages"]
        if len(stages) > 32 or (most_blocks is not None and sum(stages) > most_blocks):
            raise ValueError(f"{len(stages)} stages of {sum(stages)} blocks are too many")
        if max(options["width"] << len(stages), options["num_classes"]) > 1 << 24:
            raise ValueError(f"width {options['width']} of {options['num_classes']} classes")
        model = nnx.eval_shape(lambda: kinds[name](**options, rngs=nnx.Rngs(0)))
    except Exception as error:  # whatever a class raises for options that a file holds
        raise ValueError(f"no description of a network ({error}): {description[:80]}") from None
    model.eval()
    return model


def structure_of(model: nnx.Module) -> str:
    """A digest of the classes and options of a model; lambdas all look alike."""
    lines = []
    for path, node in nnx.iter_graph(model):
        if "_pytree" not in "".join(map(str, path)) and not isinstance(node, nnx.Variable):
            kind = node if callable(node) and hasattr(node, "__qualname__") else type(node)
            plain = isinstance(node, str | int | float | bool | tuple | None)
            text = repr(node) if plain else f"{kind.__module__}.{kind.__qualname__}"
            lines.append(f"{'/'.join(map(str, path))}: {text}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _is_array(path: Any, value: Any) -> bool:
    """Whether state is numbers that belong to the model, not a key or count of random numbers."""
    return isinstance(value, nnx.Variable) and not isinstance(value, nnx.RngState)


def _variable(model: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        model = model[name] if isinstance(name, int) else getattr(model, name)
    return model


def _array(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def _in_half(model: Any, dtype: str) -> Callable:
    """The model's call with activations in half precision."""

    def cast(x: Any, to: Any) -> Any:
        floating = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(to) if floating else x

    def call(*args: Any, **kwargs: Any) -> Any:
        if "dtype" in inspect.signature(type(model).__call__).parameters:
            return model(*args, **{"dtype": dtype, **kwargs})  # it knows where it may
        like = args[0].dtype if args and hasattr(args[0], "dtype") else jnp.float32
        result = model(*(cast(x, dtype) for x in args), **kwargs)
        return jax.tree.map(lambda x: cast(x, like), result)

    return call


def mismatch(got: Mapping[str, Any], expected: Mapping[str, Any], limit: int = 4) -> str:
    """What differs between two flat dicts of shapes (or of anything), in words; "" for nothing."""
    notes = [f"{key} is missing" for key in expected if key not in got]
    notes += [f"{key} is unknown" for key in got if key not in expected]
    notes += [
        f"{key}: expected {expected[key]}, got {got[key]}"
        for key in expected
        if key in got and got[key] != expected[key]
    ]
    more = f"; and {len(notes) - limit} more" if len(notes) > limit else ""
    return "; ".join(notes[:limit]) + more


def evaluate(compiled: Compiled, dataset: Dataset, batch_size: int = 256) -> dict[str, Any]:
    """`loss`, `accuracy`, `count` and `class_accuracy` on the test set, exact for any batch size.

    Images are normalised as in training, by the dataset's mean and deviation. Raises `ValueError`
    for images or classes that the model is not made for.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    classes, config = dataset.num_classes, compiled.info.get("config")
    config = config if isinstance(config, dict) else {}  # `info` is what anybody wrote
    outputs = classes + has_extra_logit(config.get("model"), config.get("init"))

    def count(params, images, labels, indices, mask):
        batch = normalise(images[indices], dataset.mean, dataset.std)
        logits = compiled.apply(params, batch)
        if logits.shape != (*indices.shape, outputs):
            raise ValueError(
                f"{dataset.name} has {classes} classes, the model's output is {logits.shape[1:]}"
            )
        return metrics.count_batch(logits, labels[indices], mask, classes)

    images, labels = jnp.asarray(dataset.test_images), jnp.asarray(dataset.test_labels)
    step = jax.jit(count)
    return metrics.evaluate(
        lambda indices, mask: step(compiled.params, images, labels, indices, mask),
        len(dataset.test_labels),
        batch_size,
    )
