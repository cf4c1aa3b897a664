"""The model beside published numbers."""

import pytest

from benchmarks.frontier import horovod_points, mlperf_points, one_node_points

POINTS = [*one_node_points(), *mlperf_points(), *horovod_points()]


@pytest.mark.parametrize("found", POINTS, ids=lambda found: f"{found.source} {found.point}")
def test_every_published_point_is_within_10_percent(found):
    assert found.predicted == pytest.approx(found.published, rel=0.1)
