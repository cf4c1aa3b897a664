"""Which values are proposed beyond the end of a grid."""

import pandas as pd
import pytest

from analysis.decide.arms import Arm
from analysis.decide.grid_ends import Edge, _next_values


def test_a_warmup_in_percent_stays_below_the_whole_training():
    config = {"schedule": {}, "epochs": 9, "warmup_unit": "percent"}
    arms = {w: Arm(f"warmup={w:g}", pd.DataFrame(), config) for w in (30, 60)}

    assert _next_values(Edge("warmup", 1, is_upper=True, arms=arms)) == [80]


@pytest.mark.parametrize(
    ("longest", "milestones", "proposed"),
    [
        (2, [3, 6], [3]),  # a longer warmup than up to the next milestone has another peak
        (4, [], [8]),
        (6, [3, 6], [7.5]),  # 12 epochs would be longer than the training
        (6, [3, 6, 9], [7.5]),
        (8.5, [], [8.75]),
    ],
)
def test_warmups_stay_below_the_next_milestone_and_the_end_of_the_training(
    longest, milestones, proposed
):
    config = {"schedule": {"milestones": milestones}, "epochs": 9}
    arms = {w: Arm(f"warmup={w:g}", pd.DataFrame(), config) for w in (longest / 2, longest)}
    edge = Edge("warmup", 1, is_upper=True, arms=arms)

    assert _next_values(edge) == proposed
