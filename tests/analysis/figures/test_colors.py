"""Colours of ordered marks as people see them who lack a kind of cone."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from analysis.figures import style

#: In linear sRGB, at full severity: Machado, Oliveira & Fernandes 2009, A Physiologically-based
#: Model for Simulation of Color Vision Deficiency, IEEE TVCG 15(6), 1291-1298, table 1.
SEEN = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "all cones": np.eye(3),
}  # fmt: skip
#: From linear sRGB to XYZ, and its white: IEC 61966-2-1.
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color: str, seen: str) -> np.ndarray:
    """A colour in CIELAB as it is seen."""
    channels = np.array(to_rgb(color))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    x, y, z = TO_XYZ @ np.clip(np.array(SEEN[seen]) @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = (
        np.cbrt(v) if v > (6 / 29) ** 3 else v * (29 / 6) ** 2 / 3 + 4 / 29 for v in (x, y, z)
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(("count", "least"), [(5, 40), (6, 20), (7, 16), (8, 15), (10, 11)])
def test_ordered_marks_stay_apart_without_a_kind_of_cone(count, least, seen):
    colors = [lab(mark.color, seen) for mark in style.ordered_marks(count)]

    assert min(np.linalg.norm(one - other) for one, other in combinations(colors, 2)) > least


def test_neighbours_of_many_ordered_marks_differ_in_line_too():
    styles = [mark.linestyle for mark in style.ordered_marks(10)]

    assert styles == ["-", "--"] * 5
    assert {mark.linestyle for mark in style.ordered_marks(6)} == {"-"}
