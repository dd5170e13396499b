"""The centring norm by kernels of our own, for a GPU (Pallas, lowered by Triton).

Four kernels read images, as many as a batch norm has: `_sum_points` and `_move` forward,
`_sum_cotangents` and `_pull` backward. A residual sum and a ReLU are inside. Between them two
kernels of one program each do the algebra of vectors. Nothing is kept but z, what comes out, and
vectors: numbers of a point are formed again from the image that a kernel reads anyway.

A program of a summing kernel walks over tiles of points and writes one sum. Triton wants sides
that are powers of 2, so tiles are padded and masked. `(D70)` and so on are equations of
`docs/derivations.md`. Pallas is imported when the first kernel is traced.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lorentz_jax._src import shifting
from lorentz_jax._src.shifting import Columns, Constants, Products

TILE, WARPS = 2048, 8
"""Numbers of a tile and warps of a program: a thread holds eight numbers of an image."""
PROGRAMS, PARTIAL = 512, 32_768
"""Most programs of a summing kernel, and most numbers in their sums, which one program adds up."""
MAX_WIDTH = 2048
"""Wider points leave a tile of a few of them, and too few registers."""


class _Layout(NamedTuple):
    """How points `(points, width)` are cut into tiles `(rows, side)`."""

    points: int
    width: int
    side: int
    rows: int
    blocks: int
    programs: int

    @property
    def steps(self) -> int:
        return -(-self.blocks // self.programs)


def _padded(size: int) -> int:
    """The power of 2 that holds so many."""
    return 1 << (size - 1).bit_length()


def _tile_shape(count: int, width: int) -> tuple[int, int]:
    """Rows and side of a tile of an array `(count, width)`."""
    side = _padded(width)
    return max(1, min(TILE // side, _padded(count))), side


def _layout(z: Array) -> _Layout:
    width = z.shape[-1]
    points = z.size // width
    rows, side = _tile_shape(points, width)
    blocks = -(-points // rows)
    return _Layout(points, width, side, rows, blocks, min(PROGRAMS, PARTIAL // side, blocks))


def _pallas() -> tuple[Any, Any]:
    """`pallas` and its Triton backend."""
    names = "jax.experimental.pallas", "jax.experimental.pallas.triton"
    core, triton = map(importlib.import_module, names)
    return core, triton


def _call(body: Callable, grid: int, results: Sequence[Any], interpret: bool, *arrays: Array):
    core, triton = _pallas()
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    return core.pallas_call(
        body,
        grid=(grid,),
        out_shape=shapes,
        interpret=interpret,
        name="lorentz" + body.__name__,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
    )(*arrays)


class _Tile:
    """Masked loads and stores of some points of an image, by the number of their tile."""

    def __init__(self, index: Any, lay: _Layout) -> None:
        self.rows = index * lay.rows + _range(lay.rows)
        columns = _range(lay.side)
        self.inside = self.rows < lay.points
        self.mask = self.inside[:, None] & (columns < lay.width)[None]
        self.at = self.rows[:, None], columns[None]

    def load(self, ref: Any, dtype: Any) -> Array:
        return _pallas()[1].load(ref.at[self.at], mask=self.mask, other=0).astype(dtype)

    def store(self, ref: Any, values: Array) -> None:
        _pallas()[1].store(ref.at[self.at], values.astype(ref.dtype), mask=self.mask)


def _range(size: int) -> Array:
    return lax.iota(np.int32, size)


def _program() -> Array:
    return _pallas()[0].program_id(0)


def _load(ref: Any, width: int, *at: Any) -> Array:
    """A padded vector of an array `(..., D)`."""
    columns = _range(_padded(width))
    return _pallas()[1].load(ref.at[(*at, columns)], mask=columns < width, other=0)


def _store(ref: Any, vector: Array, width: int, *at: Any) -> None:
    columns = _range(vector.size)
    _pallas()[1].store(ref.at[(*at, columns)], vector, mask=columns < width)


def _numbers(ref: Any) -> list[Array]:
    return [_pallas()[1].load(ref.at[np.int32(i)]) for i in range(ref.shape[0])]


def _total(ref: Any, count: int, width: int, *at: Any) -> Array:
    """The sum over the first axis of an array `(count, ..., width)`, a padded vector."""
    rows, side = _tile_shape(count, width)
    columns = _range(side)

    def add(step: Array, sums: Array) -> Array:
        index = step * rows + _range(rows)
        mask = (index < count)[:, None] & (columns < width)[None]
        place = index[:, None], *at, columns[None]
        return sums + _pallas()[1].load(ref.at[place], mask=mask, other=0)

    return jnp.sum(_loop(-(-count // rows), add, jnp.zeros((rows, side), ref.dtype)), axis=0)


def _loop(steps: int, body: Callable, start: Any) -> Any:
    return lax.fori_loop(np.int32(0), np.int32(steps), body, start)


def _rows(values: Array) -> Array:
    return jnp.sum(values, axis=1)


def _point_numbers(y, mu, beta, kappa):
    """`tau`, `d` and `e` of points `(rows, side)`."""
    tau = jnp.sqrt(1 / kappa + _rows(y * y))
    return tau, _rows(y * mu[None]), _rows(y * beta[None])


def _moved(y, numbers, mu, beta, kappa, n):
    tau, d, e = numbers
    a, b = shifting.shifts(d, e, tau, kappa, n)
    return y + a[:, None] * mu[None] + b[:, None] * beta[None]  # (D70)


def forward(
    z: Array, scale: Array, beta: Array, kappa: Array, residual: Array | None,
    relu: bool = False, interpret: bool = False,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """`relu(centred(scale z) + residual)`, the mean, and `Constants` as one array."""
    lay, dtype = _layout(z), kappa.dtype
    flat, width, points = z.reshape(lay.points, lay.width), lay.width, lay.points
    numbers = kappa[None]

    def _sum_points(z, scale, numbers, sums, times):
        (kappa,), scale = _numbers(numbers), _load(scale, width)
        program = _program()

        def add(step, carry):
            tile = _Tile(program + step * lay.programs, lay)
            y = scale[None] * tile.load(z, dtype)
            tau = jnp.where(tile.inside, jnp.sqrt(1 / kappa + _rows(y * y)), 0)
            return carry[0] + y, carry[1] + tau

        start = jnp.zeros((lay.rows, lay.side), dtype), jnp.zeros((lay.rows,), dtype)
        images, taus = _loop(lay.steps, add, start)
        _store(sums, jnp.sum(images, axis=0), width, program)
        _pallas()[1].store(times.at[program], jnp.sum(taus))

    def _mean(sums, times, beta, numbers, mu, constants):
        (kappa,), beta = _numbers(numbers), _load(beta, width)
        mean = _total(sums, lay.programs, width) / points
        time = jnp.sum(_load(times, lay.programs)) / points
        squares = jnp.sum(mean * mean), jnp.sum(mean * beta), jnp.sum(beta * beta)
        n = shifting.constants(*squares, time, kappa)
        _store(mu, mean / n.length, width)
        for index, number in enumerate(n):
            _pallas()[1].store(constants.at[np.int32(index)], number)

    def _move(z, scale, mu, beta, numbers, constants, *rest):
        out, (kappa,), n = rest[-1], _numbers(numbers), Constants(*_numbers(constants))
        scale, mu, beta = (_load(vector, width) for vector in (scale, mu, beta))
        tile = _Tile(_program(), lay)
        y = scale[None] * tile.load(z, dtype)
        u = _moved(y, _point_numbers(y, mu, beta, kappa), mu, beta, kappa, n)
        u = u if residual is None else u + tile.load(rest[0], dtype)
        tile.store(out, jnp.maximum(u, 0) if relu else u)

    partial = [((lay.programs, width), dtype), ((lay.programs,), dtype)]
    sums, times = _call(_sum_points, lay.programs, partial, interpret, flat, scale, numbers)
    solved = [((width,), dtype), ((len(Constants._fields),), dtype)]
    mu, n = _call(_mean, 1, solved, interpret, sums, times, beta, numbers)
    added = () if residual is None else (residual.reshape(flat.shape),)
    arrays = (flat, scale, mu, beta, numbers, n, *added)
    (out,) = _call(_move, lay.blocks, [(flat.shape, z.dtype)], interpret, *arrays)
    return out.reshape(z.shape), mu, n


def backward(
    z: Array, scale: Array, beta: Array, kappa: Array, mu: Array, constants: Array,
    out: Array | None, g: Array, relu: bool = False, interpret: bool = False,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """The cotangents of z, beta, kappa and the residual. `out` is read where there is one (D200).

    Without one a ReLU's mask is formed again from z.
    """
    lay, dtype = _layout(z), kappa.dtype
    width, points, masked = lay.width, lay.points, relu and out is not None
    images = z.reshape(points, width), g.reshape(points, width)
    numbers = kappa[None]

    def _cotangent(tile, g, y, rows, vectors):
        g = tile.load(g, dtype)
        return jnp.where(_moved(y, rows, *vectors) > 0, g, 0) if relu and not masked else g

    def _sum_cotangents(z, g, scale, mu, beta, numbers, constants, *rest):
        (kappa,), n = _numbers(numbers), Constants(*_numbers(constants))
        scale, mu, beta = (_load(vector, width) for vector in (scale, mu, beta))
        sums, along = rest[1:3] if masked else rest
        program = _program()

        def add(step, carry):
            tile = _Tile(program + step * lay.programs, lay)
            y = scale[None] * tile.load(z, dtype)
            tau, d, e = rows = _point_numbers(y, mu, beta, kappa)
            gy = _cotangent(tile, g, y, rows, (mu, beta, kappa, n))
            if masked:
                gy = jnp.where(tile.load(rest[0], dtype) > 0, gy, 0)
                tile.store(rest[3], gy)
            a, b = shifting.shifts(d, e, tau, kappa, n)
            p, q = _rows(gy * mu[None]), _rows(gy * beta[None])
            big = shifting.through_a(p, q, kappa, n)
            g_d, g_e, g_tau = shifting.pull_shifts(big, q, kappa, n)
            reach = _rows(y * y) / tau
            parts = a[:, None] * gy, b[:, None] * gy, big[:, None] * y, q[:, None] * y
            parts += g_d * d + g_e * e + g_tau * reach - a * p - b * q, reach
            return tuple(sum_ + part for sum_, part in zip(carry, parts, strict=True))

        wide, narrow = jnp.zeros((lay.rows, lay.side), dtype), jnp.zeros((lay.rows,), dtype)
        *vectors, of_g, of_time = _loop(lay.steps, add, (wide,) * 4 + (narrow,) * 2)
        for index, vector in enumerate(vectors):
            _store(sums, jnp.sum(vector, axis=0), width, program, np.int32(index))
        for index, number in enumerate((of_g, of_time)):
            _pallas()[1].store(along.at[np.int32(index), program], jnp.sum(number))

    def _pull_mean(sums, along, mu, beta, numbers, constants, g_beta, eta, results):
        (kappa,), n = _numbers(numbers), Constants(*_numbers(constants))
        mu, beta = (_load(vector, width) for vector in (mu, beta))
        columns = Columns(*(_total(sums, lay.programs, width, np.int32(i)) for i in range(4)))
        dots = Products(
            jnp.sum(columns.a_g * beta), jnp.sum(columns.a_y * mu), jnp.sum(columns.q_y * mu),
            jnp.sum(columns.q_y * beta),
        )  # fmt: skip
        pulled = shifting.pull_mean(columns, dots, mu, beta, kappa, n, points)
        of_beta, of_mean, of_time = pulled
        _store(g_beta, of_beta, width)
        _store(eta, of_mean, width)
        # Euler's theorem (D83), its sum over omega as (D201) has it.
        of_g, reach = (jnp.sum(_load(along, lay.programs, np.int32(i))) for i in range(2))
        total = of_g + of_time * reach + points * n.length * jnp.sum(of_mean * mu)
        g_kappa = (total + jnp.sum(of_beta * beta)) / (2 * kappa)
        for index, number in enumerate((of_time, g_kappa)):
            _pallas()[1].store(results.at[np.int32(index)], number)

    def _pull(z, g, scale, mu, beta, eta, numbers, constants, results, g_z):
        (kappa,), n = _numbers(numbers), Constants(*_numbers(constants))
        scale, mu, beta, eta = (_load(vector, width) for vector in (scale, mu, beta, eta))
        tile = _Tile(_program(), lay)
        y = scale[None] * tile.load(z, dtype)
        rows = _point_numbers(y, mu, beta, kappa)
        gy = _cotangent(tile, g, y, rows, (mu, beta, kappa, n))
        p, q = _rows(gy * mu[None]), _rows(gy * beta[None])
        big = shifting.through_a(p, q, kappa, n)
        g_d, g_e, g_tau = shifting.pull_shifts(big, q, kappa, n)
        omega = (g_tau + _numbers(results)[0]) / rows[0]
        # (D76)
        gy = gy + g_d[:, None] * mu[None] + g_e[:, None] * beta[None]
        tile.store(g_z, scale[None] * (gy + omega[:, None] * y + eta[None]))

    partial = [((lay.programs, 4, width), dtype), ((2, lay.programs), dtype)]
    vectors, kept = (scale, mu, beta, numbers, constants), ()
    if masked and out is not None:
        partial, kept = [*partial, ((points, width), g.dtype)], (out.reshape(points, width),)
    summed = _call(_sum_cotangents, lay.programs, partial, interpret, *images, *vectors, *kept)
    solved = [((width,), dtype), ((width,), dtype), ((2,), dtype)]
    arrays = (*summed[:2], mu, beta, numbers, constants)
    g_beta, eta, results = _call(_pull_mean, 1, solved, interpret, *arrays)
    g_out = summed[2] if masked else images[1]
    arrays = (images[0], g_out, scale, mu, beta, eta, numbers, constants, results)
    (g_z,) = _call(_pull, lay.blocks, [((points, width), z.dtype)], interpret, *arrays)
    return g_z.reshape(z.shape), g_beta, results[1], g_out.reshape(z.shape)
