"""A centring batch norm as one rotation and one boost, in float64 NumPy whatever JAX's precision.

In evaluation the norm is the isometry `T_beta o T_(-mean)`. Its Lorentz matrix has a polar
decomposition `B_p R`: a rotation R of space, which a linear layer before it can absorb, and one
boost to the point p. Both have a closed form whose terms do not cancel, however far the points are.
"""

from typing import NamedTuple

import numpy as np


class Polar(NamedTuple):
    """`T_beta o T_(-mean) = T_p o R`.

    Attributes:
        rotation: R `(D, D)`; it acts on space parts, `x -> R x`.
        point: space part `(D,)` of p, the image of the origin.
    """

    rotation: np.ndarray
    point: np.ndarray


def polar(beta: np.ndarray, mean: np.ndarray, kappa: float) -> Polar:
    """Return the polar form of the isometry that takes `mean` to `beta`, both space parts `(D,)`.

    With `b = s |beta|`, `m = s |mean|`, unit vectors u, v and `g = u - v`, `f = u + v`:
    `s p = m g + u ((b - m)(b + m)/(b m_t + m b_t) + (b_t - 1) m |g|^2/2)`, where
    `b_t = sqrt(1 + b^2)`. R turns the plane of u and v from u to v by twice the angle of
    `(S, W)`: `S = 1 - AM + AM |g|^2/2`, `W = AM |g||f|/2`, with `A = b/(1 + b_t)` and M alike,
    the radii in the Poincare ball. Zero vectors are allowed.
    """
    s = np.sqrt(np.float64(kappa))
    beta, mean = s * np.asarray(beta, np.float64), s * np.asarray(mean, np.float64)
    b, m = np.linalg.norm(beta), np.linalg.norm(mean)
    # The origin has no direction of its own: with that of the other point, nothing turns.
    u, v = _unit(beta if b > 0 else mean), _unit(mean if m > 0 else beta)
    difference, total = u - v, u + v
    g, f = np.linalg.norm(difference), np.linalg.norm(total)
    b_t, m_t = np.hypot(1, b), np.hypot(1, m)

    radial = (b - m) * (b + m) / max(b * m_t + m * b_t, np.finfo(np.float64).tiny)
    point = m * difference + u * (radial + b * (b / (1 + b_t)) * m * (g * g / 2))

    a_ball, m_ball = b / (1 + b_t), m / (1 + m_t)
    # 1 - AM from 1 - A = (1 + 1/(b_t + b))/(1 + b_t): both far out, the difference would cancel.
    gap = (1 + 1 / (b_t + b)) / (1 + b_t) + a_ball * (1 + 1 / (m_t + m)) / (1 + m_t)
    product = a_ball * m_ball
    S, W = gap + product * (g * g / 2), product * g * f / 2
    cosine_minus_1, sine = -2 * W * W / (S * S + W * W), 2 * S * W / (S * S + W * W)
    e1, e2 = _unit(total), _unit(difference)
    turn = cosine_minus_1 * (np.outer(e1, e1) + np.outer(e2, e2))
    turn += sine * (np.outer(e1, e2) - np.outer(e2, e1))
    return Polar(np.eye(len(beta)) + turn, point / s)


def _unit(x: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(x)
    return x / size if size > 0 else np.zeros_like(x)
