"""The centred convolution with what follows it, by the kernels of `kernels`, and its derivatives.

On other devices, in forward mode and in second derivatives it is the form that XLA has.
"""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from lorentz_jax._src import centering
from lorentz_jax._src import kernels as _kernels
from lorentz_jax._src.arguments import spec
from lorentz_jax._src.conv import conv_images, conv_tangent
from lorentz_jax._src.forms import choose, varying
from lorentz_jax._src.linear_map import linear_map

KERNELS = ("xla", "pallas")
"""Who writes the kernels of a GPU."""

# A part of the key of every compiled function; a JAX before 0.7.2 has no such thing.
_chosen: Any = jax.make_user_context("xla") if hasattr(jax, "make_user_context") else None


def kernels(name: str) -> AbstractContextManager:
    """Choose who writes a GPU's kernels of a convolution with its centring norm, inside `with`.

    "pallas" takes kernels of our own, with the residual sum and the ReLU inside, where a network is
    compiled for an NVIDIA GPU and has no bias; they move fewer bytes than those that XLA makes, the
    default. It counts where a function is traced, and is a part of what `jax.jit` remembers.
    **They have not run on a GPU yet**: off one, an interpreter has tested them. They see one
    device's points: under automatic sharding XLA brings all points to every device. Pallas lowers
    them by Triton, which JAX wants to remove. `jax.export` refuses programs that hold them.

    Args:
        name: "xla" or "pallas".

    Returns:
        A context manager; the innermost one counts.

    Raises:
        ValueError: there is no such choice, or this JAX cannot remember it.

    >>> v = hyperplane.normals(jnp.ones((3, 3, 2, 4)), None, 1.0)
    >>> with functional.kernels("pallas"):
    ...     y, mean = functional.conv_center(jnp.ones((8, 6, 6, 2)), v, jnp.zeros(4), 1.0)
    """
    if name not in KERNELS:
        raise ValueError(f"kernels must be one of {', '.join(KERNELS)}, got {name!r}")
    if _chosen is None:
        raise ValueError(f"a choice of kernels needs jax 0.7.2 or later, this is {jax.__version__}")
    return _chosen(name)


class Step(NamedTuple):
    """What follows the convolution, and whether an interpreter runs the kernels."""

    relu: bool = False
    interpret: bool = False


def wanted() -> bool:
    """Whether kernels of our own are chosen here."""
    return _chosen is not None and _chosen.value == "pallas"


def takes(x: Array, space: Array, *others: Array) -> bool:
    """Whether kernels of our own are wanted, and can be had, for a convolution."""
    if not wanted() or space.shape[-1] > _kernels.MAX_WIDTH:
        return False
    alone = not any(spec(a) or varying(a) for a in (x, space, *others))
    return alone and math.prod(x.shape[:-1]) * space.shape[-1] < 2**31  # they count in 32 bits


def _finish(out, residual, relu):
    out = out if residual is None else out + residual
    return choose(out) if relu else out


def _ahead_xla(relu, z, scale, beta, kappa, residual):
    (out, mu), kept = centering.keep(z, scale, beta, kappa)
    return _finish(out, residual, relu), mu, jnp.stack(kept.constants)


def _back_xla(relu, z, scale, beta, kappa, mu, constants, out, g):
    del mu, constants
    g = jnp.where(out > 0, g, 0) if relu else g
    return (*centering.pull_back(centering.keep(z, scale, beta, kappa)[1], g), g)


def _ahead_own(step, *arguments):
    return _kernels.forward(*arguments, relu=step.relu, interpret=step.interpret)


def _back_own(step, added, z, scale, beta, kappa, mu, constants, out, g):
    out = out if added else None
    arguments = z, scale, beta, kappa, mu, constants, out, g
    return _kernels.backward(*arguments, relu=step.relu, interpret=step.interpret)


def _choose(step: Step, own: Callable, xla: Callable, *arguments: Any) -> Any:
    """Our kernels on an NVIDIA GPU, XLA's elsewhere and for derivatives of the result."""

    @jax.custom_jvp
    def run(*arguments):
        if step.interpret:
            return own(*arguments)
        return lax.platform_dependent(*arguments, cuda=own, default=xla)

    run.defjvp(lambda primals, tangents: jax.jvp(xla, primals, tangents))
    return run(*arguments)


@functools.partial(jax.custom_jvp, nondiff_argnums=(6, 7))
def conv_center(x, space, scale, beta, kappa, residual, window, step):
    """`relu(centred(scale conv(x)) + residual)`, and the mean."""
    return _keep(x, space, scale, beta, kappa, residual, window, step)[0]


def _keep(x, space, scale, beta, kappa, residual, window, step):
    kernel = space.astype(x.dtype)
    z = conv_images(x, kernel, window)
    arguments = z, scale, beta, kappa
    own, xla = functools.partial(_ahead_own, step), functools.partial(_ahead_xla, step.relu)
    out, mu, constants = _choose(step, own, xla, *arguments, residual)
    return (out, mu), (x, kernel, *arguments, residual, mu, constants, out)


def _push(window, step, kept, tangents):
    x, kernel, z, scale, beta, kappa, residual, *_ = kept
    dx, dspace, *rest = tangents

    def after(*arguments):
        return _ahead_xla(step.relu, *arguments)[0]

    primals = z, scale, beta, kappa, residual
    moves = conv_tangent(x, dx, kernel, dspace, z, window), *rest
    pairs = zip(primals, moves, strict=True)
    moves = [jnp.zeros_like(p) if m is None and p is not None else m for p, m in pairs]
    return jax.jvp(after, primals, tuple(moves))[1]


def _pull(window, step, kept, g):
    x, kernel, z, scale, beta, kappa, residual, mu, constants, out = kept
    own = functools.partial(_back_own, step, residual is not None)
    xla = functools.partial(_back_xla, step.relu)
    arguments = z, scale, beta, kappa, mu, constants, out, g
    g_z, g_beta, g_kappa, g_residual = _choose(step, own, xla, *arguments)
    return (*centering.pull_conv(x, kernel, scale, g_z, window), g_beta, g_kappa, g_residual)


def _jvp(window, step, primals, tangents):
    (out, mu), kept = _keep(*primals, window=window, step=step)
    push, pull = functools.partial(_push, window, step), functools.partial(_pull, window, step)
    return (out, mu), (linear_map(push, pull, kept, tangents, out), jnp.zeros_like(mu))


conv_center.defjvp(_jvp, symbolic_zeros=True)
