"""The least value on a grid, between its places."""

import numpy as np

from analysis.stats.replicates import Array


def lowest(sums: Array, grid: Array) -> tuple[Array, Array]:
    """The least value of each row, and where on the grid it lies.

    Between grid points the place is the vertex of the parabola through the least value and its
    neighbours.

    The grid is evenly spaced.

    Returns:
        Values and places, each of shape (rows,).
    """
    best = sums.argmin(axis=1)
    rows = np.arange(len(sums))
    inner = np.clip(best, 1, len(grid) - 2)
    left, mid, right = (sums[rows, inner + d] for d in (-1, 0, 1))
    bend = np.maximum(left - 2 * mid + right, np.finfo(float).tiny)
    with np.errstate(over="ignore"):  # no bend at all: the clip has it
        shift = np.clip(0.5 * (left - right) / bend, -1, 1) * (grid[1] - grid[0])
    return sums[rows, best], np.where(best == inner, grid[inner] + shift, grid[best])
