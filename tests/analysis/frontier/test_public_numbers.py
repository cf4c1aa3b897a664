"""The model beside published numbers."""

import pytest

from benchmarks.frontier import compare_published, horovod_points, mlperf_points, one_node_points

POINTS = [*one_node_points(), *mlperf_points(), *horovod_points()]


@pytest.mark.parametrize("found", POINTS, ids=lambda found: f"{found.source} {found.point}")
def test_every_published_point_is_within_10_percent(found):
    assert found.predicted == pytest.approx(found.published, rel=0.1)


def test_only_single_nodes_of_eight_are_fitted():
    fitted = [found.point for found in POINTS if found.fitted]

    assert len(fitted) == 5
    assert all("8 GPUs" in point for point in fitted)


def test_the_table_has_every_point_with_its_error():
    table = compare_published()

    assert len(table) == len(POINTS) == 14
    assert table.loc[13, "error"] == f"{POINTS[13].predicted / POINTS[13].published - 1:+.1%}"
