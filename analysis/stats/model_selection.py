"""What fits of several laws have in common: Akaike's criterion, and minima over a grid."""

import numpy as np

from analysis.stats.replicates import Array


def aicc(rss: Array, count: int, num_parameters: int) -> Array:
    """Akaike's criterion of a least-squares fit, corrected for few points.

    ``n log(rss / n) + 2 k + 2 k (k + 1) / (n - k - 1)``, where k counts the variance too.

    Args:
        rss: residual sums of squares.
        count: points, more than ``num_parameters + 2``.
        num_parameters: of the law, without the variance.

    Source:
        Burnham & Anderson 2002, Model Selection, section 2.4.
    """
    k = num_parameters + 1
    penalty = 2 * k + 2 * k * (k + 1) / (count - k - 1)
    return count * np.log(np.maximum(rss, 1e-12) / count) + penalty


def lowest(sums: Array, grid: Array) -> tuple[Array, Array]:
    """The least value of each row, and where on the grid it lies.

    Between grid points the place is the vertex of the parabola through the least value and its
    neighbours.

    Args:
        sums: shape (rows, grid points).
        grid: evenly spaced places.

    Returns:
        Values and places, each of shape (rows,).
    """
    best = sums.argmin(axis=1)
    rows = np.arange(len(sums))
    inner = np.clip(best, 1, len(grid) - 2)
    left, mid, right = (sums[rows, inner + d] for d in (-1, 0, 1))
    bend = np.maximum(left - 2 * mid + right, np.finfo(float).tiny)
    shift = np.clip(0.5 * (left - right) / bend, -1, 1) * (grid[1] - grid[0])
    return sums[rows, best], np.where(best == inner, grid[inner] + shift, grid[best])
