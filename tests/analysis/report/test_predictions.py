"""Predicted time and memory beside what runs took."""

import math

import pandas as pd
import pytest

from analysis.report.predictions import prediction_errors


def runs(**changes) -> pd.DataFrame:
    columns = {
        "outcome": "finished",
        "attempt": 1,
        "model": ["a", "a", "b"],
        "device_kind": "cpu",
        "wall_s": [110.0, 80.0, 300.0],
        "predicted_s": [100.0, 100.0, 200.0],
        "predicted_least_s": [90.0, 90.0, 190.0],
        "predicted_most_s": [120.0, 120.0, 210.0],
        "peak_memory_gib": [1.1, 0.8, 2.0],
        "predicted_memory_gib": [1.0, 1.0, None],
    }
    return pd.DataFrame({**columns, **changes})


def test_errors_are_medians_of_runs_and_that_of_the_sum():
    found = prediction_errors(runs()).set_index("model")

    assert found.loc["a", "median_error"] == pytest.approx(0.15)
    assert found.loc["a", "median_signed_error"] == pytest.approx(-0.05)
    assert found.loc["a", "within_bounds"] == 0.5
    assert found.loc["a", "median_memory_error"] == pytest.approx(0.15)
    assert math.isnan(found.loc["b", "median_memory_error"])
    assert found.loc["all", "runs"] == 3
    assert found.loc["all", "median_error"] == pytest.approx(0.2)
    assert found.loc["all", "error_of_sum"] == pytest.approx(490 / 400 - 1)
    assert found.loc["all", "within_bounds"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"attempt": [1, 2, 1]}, 2),
        ({"outcome": ["diverged", "finished", "finished"]}, 2),
        ({"predicted_s": [None, None, 200.0], "predicted_memory_gib": None}, 1),
        ({"predicted_s": None}, 2),
    ],
    ids=str,
)
def test_only_runs_that_finished_in_their_first_attempt_count(changes, number):
    assert prediction_errors(runs(**changes)).set_index("model").loc["all", "runs"] == number


def test_without_predictions_there_is_nothing_to_tell():
    with pytest.raises(ValueError, match=r"got none of 3\. A run is predicted if"):
        prediction_errors(runs(predicted_s=None, predicted_memory_gib=None))
