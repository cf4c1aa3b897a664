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


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """CIEDE2000: Sharma, Wu & Dalal 2005, Color Research and Application 30(1), 21-30."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean7 = ((np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7
    grown = 1.5 - 0.5 * np.sqrt(mean7 / (mean7 + 25.0**7))
    c1, c2 = np.hypot(grown * a1, b1), np.hypot(grown * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, grown * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180
    hue, chroma, light = (h1 + turn / 2) % 360, (c1 + c2) / 2, (l1 + l2) / 2
    at = np.radians(hue)
    weight = (
        1 - 0.17 * np.cos(at - np.radians(30)) + 0.24 * np.cos(2 * at)
        + 0.32 * np.cos(3 * at + np.radians(6)) - 0.2 * np.cos(4 * at - np.radians(63))
    )  # fmt: skip
    of_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    of_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    of_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * weight)
    share = np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    both = -2 * share * np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return float(np.sqrt(of_light**2 + of_chroma**2 + of_hue**2 + both * of_chroma * of_hue))


def test_the_distance_is_that_of_the_paper():
    """Pairs 1 and 7 and 17 of table 1."""
    pairs = [((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
             ((50, 0, 0), (50, -1, 2), 2.3669),
             ((50, 2.5, 0), (73, 25, -18), 27.1492)]  # fmt: skip

    for one, other, expected in pairs:
        assert distance(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(("count", "least"), [(5, 16), (6, 13), (7, 10), (8, 9), (10, 6.5)])
def test_ordered_marks_stay_apart_without_a_kind_of_cone(count, least, seen):
    colors = [lab(mark.color, seen) for mark in style.ordered_marks(count)]

    assert min(distance(*pair) for pair in combinations(colors, 2)) > least


def test_neighbours_of_many_ordered_marks_differ_in_line_too():
    styles = [mark.linestyle for mark in style.ordered_marks(10)]

    assert styles == ["-", "--"] * 5
    assert {mark.linestyle for mark in style.ordered_marks(6)} == {"-"}
