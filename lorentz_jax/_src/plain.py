"""Plain formulas that square their arguments, as the layers may.

They stand for the exact ones of `geometry`, which cost more and compile slowly. `s = sqrt(kappa)`;
`(D69)` and so on are equations of `docs/derivations.md`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax._src.arguments import row, spec


def root(squares: Array) -> Array:
    """Square root of squares, 0 with gradient 0 where they underflow.

    Right wherever an even function of it comes next, as in `ratio`.
    """
    none = squares < float(jnp.finfo(squares.dtype).tiny)  # and not NaN, which must show
    return jnp.where(none, 0, jnp.sqrt(jnp.where(none, 1, squares)))


@jax.custom_jvp
def inverse(y: Array) -> Array:
    """`1 / y`, whose derivative is made of it: autodiff of a quotient divides twice more.

    XLA compiles a kernel for each division that a broadcast follows.
    """
    return 1 / y


@inverse.defjvp
def _inverse_jvp(primals, tangents):
    out = inverse(*primals)
    return out, -out * (out * tangents[0])  # in this order no square overflows


@jax.custom_jvp
def inverse_root(y: Array) -> Array:
    """`1 / sqrt(y)`, whose derivative is made of it, as that of `inverse` is."""
    return 1 / jnp.sqrt(y)


@inverse_root.defjvp
def _inverse_root_jvp(primals, tangents):
    out = inverse_root(*primals)
    return out, -out * (out * (out * (tangents[0] / 2)))


def radius(x: Array) -> Array:
    """`|x|` with the axis kept. It squares x, as layers may."""
    return root(jnp.sum(x * x, axis=-1, keepdims=True))


def ratio(function: Callable[[Array], Array], r: Array, at_zero: Any) -> Array:
    """`function(r)/r` for a result of `root`, and `at_zero` at 0.

    Autodiff of the quotient cancels like 1/r near 0, where it is multiplied by r again.
    """
    none = r <= 0
    safe = jnp.where(none, 1, r)
    return jnp.where(none, at_zero, function(safe) / safe)


def exp_origin(v: Array, kappa: Array) -> Array:
    """`geometry.exp0` in its plain form."""
    return v * ratio(jnp.sinh, jnp.sqrt(kappa) * radius(v), 1)


def log_origin(x: Array, kappa: Array) -> Array:
    """`geometry.log0` in its plain form."""
    return x * ratio(jnp.arcsinh, jnp.sqrt(kappa) * radius(x), 1)


def boost(p: Array, x: Array, kappa: Array) -> Array:
    """`geometry.translate` in its plain form `x + p (s x_t + kappa p.x/(1 + s p_t))`."""
    s, p = jnp.sqrt(kappa), row(p, x)
    along = jnp.sum(x * p, axis=-1, keepdims=True)
    return x + p * (s * time_of(x, kappa) + along * (kappa / (1 + s * time_of(p, kappa))))


def time_of(x: Array, kappa: Array) -> Array:
    """Time with the axis kept, in its plain form."""
    return jnp.sqrt(1 / kappa + jnp.sum(x * x, axis=-1, keepdims=True))


def mean_point(x: Array, kappa: Array, axes: tuple[int, ...]) -> Array:
    """Centroid over `axes`, the plain form of `geometry.centroid`; like `functional.batch_mean`."""
    mean, mean_time = jnp.mean(x, axis=axes), jnp.mean(time_of(x, kappa), axis=axes)
    return _on_hyperboloid(mean, mean_time, kappa)


def blend(a: Array, b: Array, share: float | Array, kappa: Array) -> Array:
    """Centroid of the points a and b `(..., D)` with weights 1 - share and share.

    `-M o M` of the sum M is `((1 - share)^2 + share^2)/kappa` and twice the weights' product times
    `a_t b_t - a.b`, which is at least 1/kappa: terms that are positive, of one small sum.
    """
    pairs = jnp.stack([a * a, b * b, a * b])
    squared_a, squared_b, product = jnp.sum(pairs, axis=-1, keepdims=True)
    times = jnp.sqrt(1 / kappa + squared_a) * jnp.sqrt(1 / kappa + squared_b)
    both = kappa * jnp.maximum(times - product, 1 / kappa)
    return combine(a, b, 1 - share, share, both)


def combine(a: Array, b: Array, u: float | Array, v: float | Array, both: Array) -> Array:
    """Centroid of a and b by weights u and v; `both`, at least 1, is their `-kappa a o b`."""
    length = jnp.sqrt(u**2 + v**2 + 2 * v * u * both)
    return (u * a + v * b) / length


def _on_hyperboloid(m: Array, time: Array, kappa: Array) -> Array:
    """The point on the ray of a mean vector, whose -M o M is never below 1/kappa."""
    size = radius(m)
    squared = jnp.maximum((time - size) * (time + size), 1 / kappa)
    return m / jnp.sqrt(kappa * squared)


def lorentz_length(squared: Array, time: Array, kappa: Array) -> Array:
    """Length `s sqrt(time^2 - squared)` of a timelike vector whose space part has this square.

    A mean of points has `time^2 - squared >= 1/kappa`, which is used as a floor (D69).
    """
    s = jnp.sqrt(kappa)
    rest = _at_least(1 - squared / time / time, 1 / (s * time) ** 2)
    return s * time * jnp.sqrt(rest)


@jax.custom_jvp
def _at_least(rest: Array, floor: Array) -> Array:
    """The larger one, with the derivative of `rest` also where rounding alone made it smaller.

    That is where the floor is well above rounding. For a far mean `rest` may be rounding alone, and
    the derivative is that of the larger one.
    """
    return jnp.maximum(rest, floor)


@_at_least.defjvp
def _at_least_jvp(primals, tangents):
    (rest, floor), (drest, dfloor) = primals, tangents
    told = (rest > floor) | (floor > 64 * float(jnp.finfo(floor.dtype).eps))
    return _at_least(rest, floor), jnp.where(told, drest, dfloor)


def to_hyperboloid(space: Array, time: Array, kappa: Array) -> Array:
    """Space part of the timelike vector `(time, space)`, `(D,)`, divided by its Lorentz length."""
    return space / lorentz_length(jnp.sum(space * space), time, kappa)


def point_time(p: Array, kappa: Array) -> Array:
    """Time of one point `(D,)`, a number; squares p, as layers do."""
    return jnp.sqrt(1 / kappa + jnp.sum(p * p))


def precise(x: Array, y: Array) -> Array:
    """Matrix product in full precision on every device; for skinny ones.

    A sum over what explicit axes of a mesh share out goes to every device.
    """
    options: Any = {"precision": lax.Precision.HIGHEST}
    lies = spec(x)
    if lies and lies[-1] is not None:
        options["out_sharding"] = jax.sharding.PartitionSpec()
    return jnp.matmul(x, y, **options)


def shifts(
    d: Array, e: Array, time: Array, m: Array, mu_t: Array, beta_t: Array, kappa: Array
) -> tuple[Array, Array]:
    """The numbers a and b of `center`, each `(..., 1)`, from those per point and `m = mean.beta`.

    They are linear in d, e and time (D70). As a matrix product XLA keeps them; as sums it would
    form them again for every channel, and in the next layer's backward pass in an order that suits
    no cache.
    """
    s = jnp.sqrt(kappa)
    k1, k2 = kappa / (1 + s * mu_t), kappa / (1 + s * beta_t)
    of_a = jnp.stack([k1, jnp.zeros_like(k1), -s])
    of_b = jnp.stack([k2 * m * k1 - kappa, k2, kappa * mu_t - k2 * m * s])
    rows = precise(jnp.concatenate([d, e, time], axis=-1), jnp.stack([of_a, of_b], axis=1))
    return rows[..., :1], rows[..., 1:]


def boost_by(y: Array, push: Array, pull: Array, kappa: float) -> Array:
    """Translation `T_p` of points `(..., D)`: `y + s p (y_t + pull.y)`.

    `push = s p` and `pull = s p/(1 + s p_t)`, shape `(D,)`, are made once, with the constants.
    """
    push, pull = push.astype(y.dtype), pull.astype(y.dtype)

    def with_product(y, push, pull):
        # With one column: two sums over the channels make XLA's CPU code read y slowly. In full
        # precision, since time and product may cancel.
        time = jnp.sqrt(1 / kappa + jnp.sum(y * y, axis=-1, keepdims=True))
        along = jnp.matmul(y, pull[:, None], precision=lax.Precision.HIGHEST)
        return y + (time + along) * row(push, y)

    def with_sums(y, push, pull):
        # On an accelerator one kernel makes both sums, and the next one all else. The axis is not
        # kept: the library that XLA has for a CPU takes no array of one channel.
        time = jnp.sqrt(1 / kappa + jnp.sum(y * y, axis=-1))
        along = jnp.sum(y * row(pull, y), axis=-1)
        return y + (time + along)[..., None] * row(push, y)

    # That library makes one program of many convolutions with what is between them, if the sums are
    # not products of matrices. It mostly pays where there is something to share out; how many
    # pixels there are is not known where a program is exported for any number.
    pixels = math.prod(y.shape[:-1])
    together = 16 < y.shape[-1] <= 64 and isinstance(pixels, int) and pixels >= 4096
    cpu = with_sums if together else with_product
    return lax.platform_dependent(y, push, pull, cpu=cpu, default=with_sums)
