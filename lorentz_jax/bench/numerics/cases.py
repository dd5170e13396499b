"""The functions that `bench.numerics` measures: how each is called, and its truth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import mpmath as mp

from lorentz_jax import functional, geometry, hyperplane
from lorentz_jax.bench.numerics import truth
from lorentz_jax.bench.numerics.truth import minkowski, normal, plane_distance, point, tangent


@dataclass(frozen=True)
class Case:
    """One row of the table: a function of one sample.

    Attributes:
      module: where the function is defined.
      inputs: keys of `grid.samples`; kappa comes last everywhere but in `weight_norm`.
      output: "scalar", "vector" (with the coordinates of the inputs), "lift" (time and those),
        "triple" or "plain" (three or four other entries).
      call: the function of those arrays.
      truth: the same function of nested lists of `mpf`.
      share: part of the radius that the dtype can represent in which the function works.
      kink: whether the value 0 has no derivative (but one by convention, which is not compared).
      note: why it errs more than by its conditioning, where it does.
      second_note: the same of its Hessian.
    """

    module: str
    inputs: tuple[str, ...]
    output: str
    call: Callable[..., Any]
    truth: Callable[..., Any]
    share: float = 1.0
    kink: bool = False
    note: str = ""
    second_note: str = ""


# Inputs whose last axis are coordinates, which `spread` may make more of.
COORDINATES = frozenset(
    ["x", "y", "v", "u", "o", "poincare", "klein", "points", "w", "space", "mean", "beta"]
)
# Reasons beside rows that exceed what their conditioning allows.
_SUM = "sums of 192 and 768 equal terms, which all round the same way; up to 48 it is within 8 ulps"
_NO_DIGIT = "a sample whose limit exceeds 1/eps: of such a result no digit is owed"
_PAIR = (
    "the pair (time, space) is rounded: near a plane at distance r it is worth eps e^(2 s r). One "
    "product of matrices is what the layer may cost; an exact form needs x - w (w.x)/|w|^2 a unit"
)
_NOTES = {
    "normals, space": _SUM,
    "weights, w": _SUM,
    "weight_norm": _SUM,
    "translate": _SUM,
    "translate back": _SUM,
    "tangent_norm": "in kappa, of v nearly orthogonal to x: twice the limit, both near 1e9 ulps",
    "exp": _NO_DIGIT,
    "transport": _NO_DIGIT,
    "dist0": "in kappa, within 100 times of the smallest number (bfloat16): underflow",
    "centroid": "in the weights, at the edge of the range (float32, s r = 87.5): 1/x_t underflows",
    "linear of (w, b)": _PAIR,
    "mlr of (w, b)": _PAIR,
    "batch_mean": "fast form: eps e^(2 s r) for a mean at radius r; `geometry.centroid` is exact",
    "center": "rank-2 update: eps e^(s(r_x + r_mean)); it multiplies the sizes of three points",
    "scale_distance": "in kappa, near the origin: a difference of equal terms",
    "lorentzian, relu": "the derivative in kappa is 0: what remains is a difference of equal terms",
    "lorentzian, tanh": "where tanh is 1 its derivative is rounded to 0",
}
_NEAR = "in p, of a point near the origin and kappa near 0: the largest block is as small as it"
_EDGE = "at the edge of the range: the second derivative of the time cancels by e^(2 s r)"
_SECOND_NOTES = {
    "translate": _NEAR,
    "translate back": _NEAR,
    "linear": _EDGE,
    "linear of (w, b)": _PAIR,
    "mlr of (w, b)": _PAIR,
    "batch_mean": _NOTES["batch_mean"],
    "center": _NOTES["center"],
    "lorentzian, relu": "exactly 0 but for the corner, and so is its truth",
    "lorentzian, tanh": _NOTES["lorentzian, tanh"],
}
CASES: dict[str, Case] = {}


def _add(module: str, name: str, inputs: str, output: str, call: Any, truth: Any, **options: Any):
    options |= {"note": _NOTES.get(name, ""), "second_note": _SECOND_NOTES.get(name, "")}
    CASES[name] = Case(module, tuple(inputs.split()), output, call, truth, **options)


def _geometry() -> None:
    p, t, o, half = point, tangent, truth.origin, mp.mpf(0.5)

    def at_origin(v):
        return [mp.mpf(0), *v]

    def squared_distance(x, y, k):
        return truth.distance(p(x, k), p(y, k), k) ** 2

    def transport(x, y, v, k):
        return truth.transported(p(x, k), p(y, k), t(x, v, k), k)[1:]

    def transport_to_origin(x, v, k):
        return truth.transported(p(x, k), o(x, k), t(x, v, k), k)[1:]

    def transport_from_origin(y, v, k):
        return truth.transported(o(y, k), p(y, k), at_origin(v), k)[1:]

    def translate(x, y, k):
        return truth.translated(p(x, k), p(y, k), k)[1:]

    def centroid(points, weights, k):
        return truth.centre([p(x, k) for x in points], weights, k)[1:]

    functions = {
        "time": ("x", "scalar", truth.time),
        "lift": ("x", "lift", point),
        "dist0": ("x", "scalar", lambda x, k: truth.distance(o(x, k), p(x, k), k)),
        "inner": ("x y", "scalar", lambda x, y, k: minkowski(p(x, k), p(y, k))),
        "dist": ("x y", "scalar", lambda x, y, k: truth.distance(p(x, k), p(y, k), k)),
        "squared_dist": ("x y", "scalar", squared_distance),
        "exp0": ("o", "vector", lambda v, k: truth.exponential(o(v, k), at_origin(v), k)[1:]),
        "log0": ("x", "vector", lambda x, k: truth.logarithm(o(x, k), p(x, k), k)[1:]),
        "exp": ("x v", "vector", lambda x, v, k: truth.exponential(p(x, k), t(x, v, k), k)[1:]),
        "log": ("x y", "vector", lambda x, y, k: truth.logarithm(p(x, k), p(y, k), k)[1:]),
        "transport": ("x y v", "vector", transport),
        "transport_to_origin": ("x v", "vector", transport_to_origin),
        "transport_from_origin": ("y o", "vector", transport_from_origin),
        "tangent_inner": ("x u v", "scalar", lambda x, u, v, k: minkowski(t(x, u, k), t(x, v, k))),
        "tangent_norm": ("x v", "scalar", lambda x, v, k: truth.lorentz_norm(t(x, v, k))),
        "translate": ("x y", "vector", translate),
        "to_poincare": ("x", "vector", lambda x, k: truth.ball(x, k, half)),
        "from_poincare": ("poincare", "vector", lambda y, k: truth.from_ball(y, k, half)),
        "to_klein": ("x", "vector", lambda x, k: truth.ball(x, k, 1)),
        "from_klein": ("klein", "vector", lambda y, k: truth.from_ball(y, k, 1)),
    }
    for name, (inputs, output, exact) in functions.items():
        # (Of a square with the value 0 the one-sided difference is not 0.)
        kink = name in ("dist0", "dist", "squared_dist", "tangent_norm")
        call = getattr(geometry, name)
        _add("geometry", name, f"{inputs} kappa", output, call, exact, kink=kink)

    def back(x, y, k):
        return geometry.translate(-x, y, k)

    def exactly_back(x, y, k):
        return translate([-a for a in x], y, k)

    def mean(points, weights, k):
        return geometry.centroid(points, k, weights)

    _add("geometry", "translate back", "x y kappa", "vector", back, exactly_back)
    _add("geometry", "centroid", "points weights kappa", "vector", mean, centroid)


def _plane(space, time, length):
    return hyperplane.Normals(time[None], space[:, None], length[None])


def _unit(w, b, kappa):
    return hyperplane.normals(w[:, None], b[None], kappa)


def _hyperplane() -> None:
    def add(name: str, inputs: str, output: str, call: Any, exact: Any) -> None:
        _add("hyperplane", name, f"{inputs} kappa", output, call, exact)

    def w_of(space, time, length, kappa):
        return hyperplane.weights(_plane(space, time, length), kappa)[0][:, 0]

    def b_of(space, time, length, kappa):
        return hyperplane.weights(_plane(space, time, length), kappa)[1][0]

    def exact_w(v, t, n, k):
        return [n * a / truth.length(v) for a in v]

    def exact_b(v, t, n, k):
        return -n / mp.sqrt(k) * mp.asinh(t / n)

    def exact_point(distances, k):
        return [mp.sinh(mp.sqrt(k) * a) / mp.sqrt(k) for a in distances]

    planes = "space time length"
    add("normals, time", "w b", "scalar", lambda *a: _unit(*a).times[0], lambda *a: normal(*a)[0])
    add(
        "normals, space",
        "w b",
        "vector",
        lambda *a: _unit(*a).space[:, 0],
        lambda *a: normal(*a)[1:],
    )
    add("weights, w", planes, "vector", w_of, exact_w)
    add("weights, b", planes, "scalar", b_of, exact_b)
    for scale in (None, "inside", "outside"):

        def distance(x, v, t, n, kappa, scale=scale):
            return hyperplane.signed_distance(x, _plane(v, t, n), kappa, scale)[0]

        def exact_distance(x, v, t, n, k, scale=scale):
            return plane_distance(x, [t, *v], n, k, scale)

        add(f"signed_distance, {scale}", f"x {planes}", "scalar", distance, exact_distance)
    call = hyperplane.point_from_distances
    add("point_from_distances", "distances", "triple", call, exact_point)


def _functional() -> None:
    def add(name: str, inputs: str, output: str, call: Any, exact: Any, share: float = 0.5) -> None:
        _add("functional", name, inputs, output, call, exact, share=share)

    def linear(x, v, t, k):
        return functional.linear(x, _plane(v, t, t), k)[0]

    def exact_linear(x, v, t, k):
        return minkowski(point(x, k), [t, *v])

    def linear_of_weights(x, w, b, k):
        return functional.linear(x, _unit(w, b, k), k)[0]

    def exact_linear_of_weights(x, w, b, k):
        return minkowski(point(x, k), normal(w, b, k))

    def mlr(x, w, b, k):
        return functional.mlr(x, _unit(w, b, k), k)[0]

    def exact_mlr(x, w, b, k):
        return plane_distance(x, normal(w, b, k), truth.length(w), k, "inside")

    def conv(image, kernel, time, k):
        v = hyperplane.Normals(time[None], kernel[..., None, None])
        return functional.conv(image[..., None], v, k).ravel()

    def exact_mean(points, k):
        return truth.centre([point(x, k) for x in points], [1] * len(points), k)[1:]

    def weight_norm(w, gain):
        return functional.weight_norm(w[:, None], gain[None])[:, 0]

    def exact_weight_norm(w, gain):
        return [gain * a / truth.length(w) for a in w]

    def exact_relu(x, k):
        return truth.activated(lambda a: max(a, mp.mpf(0)), x, k)

    def exact_tanh(x, k):
        return truth.activated(mp.tanh, x, k)

    def exact_center(*arguments):
        return truth.centred(*arguments)[1:]

    def scaled(x, gain, k):
        return functional.scale_distance(x[None], gain, k)[0]

    def exact_scaled(x, gain, k):
        return mp.sinh(gain * mp.asinh(mp.sqrt(k) * x)) / mp.sqrt(k)

    relu, tanh = map(functional.lorentzian, (jax.nn.relu, jax.numpy.tanh))
    weights = "x w b kappa"
    add("linear", "x space time kappa", "scalar", linear, exact_linear)
    add("linear of (w, b)", weights, "scalar", linear_of_weights, exact_linear_of_weights)
    add("mlr of (w, b)", weights, "scalar", mlr, exact_mlr)
    add("conv", "image kernel distance kappa", "plain", conv, truth.convolved)
    add("batch_mean", "points kappa", "vector", functional.batch_mean, exact_mean)
    add("center", "x mean beta kappa", "vector", functional.center, exact_center, share=0.3)
    add("weight_norm", "w gain", "vector", weight_norm, exact_weight_norm)
    add("scale_distance", "distance gain kappa", "scalar", scaled, exact_scaled)
    add("lorentzian, relu", "distance kappa", "scalar", relu, exact_relu, share=1.0)
    add("lorentzian, tanh", "distance kappa", "scalar", tanh, exact_tanh, share=1.0)


_geometry()
_hyperplane()
_functional()
