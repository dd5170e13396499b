"""The functions that `bench.numerics` measures: how each is called, and its truth."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from lorentz_jax import functional, geometry, hyperplane
from lorentz_jax.bench.numerics import truth
from lorentz_jax.bench.numerics.truth import mp, plane_distance, point, tangent

HALF = mp.mpf(0.5)


@dataclass(frozen=True)
class Case:
    """One row of the table: a function of one sample.

    Attributes:
      module: where the function is defined.
      inputs: keys of `numerics_grid.samples`; kappa comes last everywhere but in `weight_norm`.
      call: the function of those arrays.
      truth: the same of nested lists of `mpf`.
      output: "scalar", "vector" (with the coordinates of the inputs), "lift" (time and those),
        "triple" or "plain" (three or four other entries).
      share: part of the radius that the dtype can represent in which the function works.
      kink: whether the value 0 has no derivative (but one by convention, which is not compared).
      note: why it errs more than by its conditioning, where it does.
    """

    module: str
    inputs: tuple[str, ...]
    call: Callable[..., Any]
    truth: Callable[..., Any]
    output: str
    share: float = 1.0
    note: str = ""
    kink: bool = False


# Inputs whose last axis are coordinates, which `spread` may make more of.
COORDINATES = frozenset(
    ["x", "y", "v", "u", "o", "poincare", "klein", "points", "w", "space", "mean", "beta"]
)


def _geometry() -> dict[str, Case]:
    p, t = point, tangent

    def o(x, k):
        return truth.origin(x, k)

    def at_origin(v):
        return [mp.mpf(0), *v]

    table = {
        "time": ("x", "scalar", truth.time),
        "lift": ("x", "lift", point),
        "dist0": ("x", "scalar", lambda x, k: truth.distance(o(x, k), p(x, k), k)),
        "inner": ("x y", "scalar", lambda x, y, k: truth.minkowski(p(x, k), p(y, k))),
        "dist": ("x y", "scalar", lambda x, y, k: truth.distance(p(x, k), p(y, k), k)),
        "exp0": ("o", "vector", lambda v, k: truth.exponential(o(v, k), at_origin(v), k)[1:]),
        "log0": ("x", "vector", lambda x, k: truth.logarithm(o(x, k), p(x, k), k)[1:]),
        "exp": ("x v", "vector", lambda x, v, k: truth.exponential(p(x, k), t(x, v, k), k)[1:]),
        "log": ("x y", "vector", lambda x, y, k: truth.logarithm(p(x, k), p(y, k), k)[1:]),
        "transport": (
            "x y v", "vector",
            lambda x, y, v, k: truth.transported(p(x, k), p(y, k), t(x, v, k), k)[1:],
        ),
        "transport_to_origin": (
            "x v", "vector",
            lambda x, v, k: truth.transported(p(x, k), o(x, k), t(x, v, k), k)[1:],
        ),
        "transport_from_origin": (
            "y o", "vector",
            lambda y, v, k: truth.transported(o(y, k), p(y, k), at_origin(v), k)[1:],
        ),
        "tangent_inner": (
            "x u v", "scalar", lambda x, u, v, k: truth.minkowski(t(x, u, k), t(x, v, k))
        ),
        "tangent_norm": ("x v", "scalar", lambda x, v, k: truth.lorentz_norm(t(x, v, k))),
        "translate": (
            "x y", "vector", lambda x, y, k: truth.translated(p(x, k), p(y, k), k)[1:]
        ),
        "to_poincare": ("x", "vector", lambda x, k: truth.ball(x, k, HALF)),
        "from_poincare": ("poincare", "vector", lambda y, k: truth.from_ball(y, k, HALF)),
        "to_klein": ("x", "vector", lambda x, k: truth.ball(x, k, 1)),
        "from_klein": ("klein", "vector", lambda y, k: truth.from_ball(y, k, 1)),
    }  # fmt: skip
    cases = {
        name: Case(
            "geometry", (*keys.split(), "kappa"), getattr(geometry, name), exact, output,
            kink=name in ("dist0", "dist", "tangent_norm"),
        )
        for name, (keys, output, exact) in table.items()
    }  # fmt: skip
    cases["translate back"] = Case(
        "geometry", ("x", "y", "kappa"), lambda x, y, k: geometry.translate(-x, y, k),
        lambda x, y, k: truth.translated(p([-a for a in x], k), p(y, k), k)[1:], "vector",
    )  # fmt: skip
    cases["centroid"] = Case(
        "geometry", ("points", "weights", "kappa"), lambda x, w, k: geometry.centroid(x, k, w),
        lambda x, w, k: truth.centre([p(a, k) for a in x], w, k)[1:], "vector",
    )  # fmt: skip
    return cases


def _plane(space, time, length):
    return hyperplane.Normals(time[None], space[:, None], length[None])


def _unit(w, b, kappa):
    return hyperplane.normals(w[:, None], b[None], kappa)


_NORMAL = ("space", "time", "length")
_PAIR = (
    "the pair (time, space) is rounded: near a plane at distance r it is worth eps e^(2 s r). One "
    "product of matrices is what the layer may cost; an exact form needs x - w (w.x)/|w|^2 a unit"
)


def _hyperplane() -> dict[str, Case]:
    def distance(scale):
        def call(x, space, time, length, kappa):
            return hyperplane.signed_distance(x, _plane(space, time, length), kappa, scale)[0]

        return Case(
            "hyperplane", ("x", *_NORMAL, "kappa"), call,
            lambda x, v, t, n, k: plane_distance(x, [t, *v], n, k, scale), "scalar",
        )  # fmt: skip

    def restored(x, v, t, n, k):
        s, size = mp.sqrt(k), truth.length(v)
        return -n / s * mp.asinh(t / n) if x == "b" else [n * a / size for a in v]

    return {
        "normals, time": Case(
            "hyperplane", ("w", "b", "kappa"), lambda w, b, k: _unit(w, b, k).time[0],
            lambda w, b, k: truth.normal(w, b, k)[0], "scalar",
        ),
        "normals, space": Case(
            "hyperplane", ("w", "b", "kappa"), lambda w, b, k: _unit(w, b, k).space[:, 0],
            lambda w, b, k: truth.normal(w, b, k)[1:], "vector",
        ),
        "weights, w": Case(
            "hyperplane", (*_NORMAL, "kappa"),
            lambda *a: hyperplane.weights(_plane(*a[:3]), a[3])[0][:, 0],
            lambda *a: restored("w", *a), "vector",
        ),
        "weights, b": Case(
            "hyperplane", (*_NORMAL, "kappa"),
            lambda *a: hyperplane.weights(_plane(*a[:3]), a[3])[1][0],
            lambda *a: restored("b", *a), "scalar",
        ),
        "signed_distance, None": distance(None),
        "signed_distance, inside": distance("inside"),
        "signed_distance, outside": distance("outside"),
        "point_from_distances": Case(
            "hyperplane", ("distances", "kappa"), hyperplane.point_from_distances,
            lambda d, k: [mp.sinh(mp.sqrt(k) * a) / mp.sqrt(k) for a in d], "triple",
        ),
    }  # fmt: skip


def _functional() -> dict[str, Case]:
    def relu(a):
        return max(a, mp.mpf(0))

    def linear(x, w, b, kappa):
        return functional.linear(x, _unit(w, b, kappa), kappa)[0]

    def conv(image, kernel, time, kappa):
        v = hyperplane.Normals(time[None], kernel[..., None, None])
        return functional.conv(image[..., None], v, kappa).ravel()

    layer = {"module": "functional", "share": 0.5}
    mean_loss = "fast form: eps e^(2 s r) for a mean at radius r; `geometry.centroid` is exact"
    return {
        "linear": Case(
            inputs=("x", "space", "time", "kappa"),
            call=lambda x, v, t, k: functional.linear(x, _plane(v, t, t), k)[0],
            truth=lambda x, v, t, k: truth.minkowski(point(x, k), [t, *v]),
            output="scalar", **layer,
        ),
        "linear of (w, b)": Case(
            inputs=("x", "w", "b", "kappa"), call=linear, output="scalar", note=_PAIR,
            truth=lambda x, w, b, k: truth.minkowski(point(x, k), truth.normal(w, b, k)), **layer,
        ),
        "mlr of (w, b)": Case(
            inputs=("x", "w", "b", "kappa"),
            call=lambda x, w, b, k: functional.mlr(x, _unit(w, b, k), k)[0],
            truth=lambda x, w, b, k: plane_distance(
                x, truth.normal(w, b, k), truth.length(w), k, "inside"
            ),
            output="scalar", note=_PAIR, **layer,
        ),
        "conv": Case(
            inputs=("image", "kernel", "distance", "kappa"), call=conv, truth=truth.convolved,
            output="plain", **layer,
        ),
        "batch_mean": Case(
            inputs=("points", "kappa"), call=functional.batch_mean, output="vector", note=mean_loss,
            truth=lambda x, k: truth.centre([point(a, k) for a in x], [1] * len(x), k)[1:], **layer,
        ),
        "center": Case(
            inputs=("x", "mean", "beta", "kappa"), call=functional.center, output="vector",
            truth=lambda *a: truth.centred(*a)[1:], module="functional", share=0.3,
            note="rank-2 update: eps e^(s(r_x + r_mean)); it multiplies the sizes of three points",
        ),
        "weight_norm": Case(
            inputs=("w", "gain"), output="vector",
            call=lambda a, g: functional.weight_norm(a[:, None], g[None])[:, 0],
            truth=lambda a, g: [g * c / truth.length(a) for c in a], **layer,
        ),
        "lorentzian, relu": Case(
            inputs=("distance", "kappa"), call=functional.lorentzian(jax.nn.relu), output="scalar",
            truth=lambda x, k: truth.activated(relu, x, k), module="functional",
        ),
        "lorentzian, tanh": Case(
            inputs=("distance", "kappa"), call=functional.lorentzian(jax.numpy.tanh),
            truth=lambda x, k: truth.activated(mp.tanh, x, k), output="scalar", module="functional",
        ),
    }  # fmt: skip


_SUM = "sums of 192 and 768 equal terms, which all round the same way; up to 48 it is within 8 ulps"
# Reasons beside rows that exceed what their conditioning allows.
_NOTES = {
    "normals, space": _SUM,
    "weights, w": _SUM,
    "weight_norm": _SUM,
    "translate": _SUM,
    "translate back": _SUM,
    "tangent_norm": "in kappa, of v nearly orthogonal to x: twice the limit, both near 1e9 ulps",
    "exp": "a sample whose limit exceeds 1/eps: of such a result no digit is owed",
    "transport": "a sample whose limit exceeds 1/eps: of such a result no digit is owed",
    "dist0": "in kappa, within 100 times of the smallest number (bfloat16): underflow",
    "centroid": "in the weights, at the edge of the range (float32, s r = 87.5): 1/x_t underflows",
    "lorentzian, relu": "the derivative in kappa is 0: what remains is a difference of equal terms",
    "lorentzian, tanh": "where tanh is 1 its derivative is rounded to 0",
}
CASES: dict[str, Case] = {**_geometry(), **_hyperplane(), **_functional()}
CASES = {n: replace(c, note=_NOTES.get(n, c.note)) for n, c in CASES.items()}
