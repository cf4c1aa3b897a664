"""Runs of a module of one's own are compared by what it logs, in the direction that they name."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from simulated_studies import simulated_curves, simulated_runs, with_settings, write_results

from analysis.cli import main
from analysis.papers.judge import judge_paper, verdict_lines
from analysis.report.estimates import estimate_all
from analysis.report.page import report_data
from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.optimum import best_warmups
from analysis.stats.to_target import to_target
from analysis.tables.load import read_curves, read_runs
from analysis.tables.metric import ACCURACY, LOSS, AskedMetric, Metric, with_metric
from analysis.tables.validity import upper_edges
from sweeper.store.table_files import write_rows

RMSE = Metric("val/rmse", "min")


def simulated(**config) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    runs = simulated_runs(
        [256, 1024], [0, 2, 8], 3, noise=0.002, rng=rng,
        accuracy=lambda b, w: 0.8 - 0.02 * (w - 2) ** 2 / 8 - 0.1 * (b > 256),
    )  # fmt: skip
    return with_settings(runs, **config)


def write_regression(folder, name=RMSE.name, mode="min"):
    """Runs that have logged 1 - accuracy under a name, and no accuracy."""
    runs = simulated(metric=name, metric_mode=mode).assign(metric_name=name)
    curves = simulated_curves(runs, 4)
    nothing = dict.fromkeys(["val_accuracy", "val_loss", "train_accuracy"], np.nan)
    write_results(
        folder, runs.assign(**nothing, best_val_accuracy=np.nan), curves.assign(**nothing)
    )
    logged = curves[["run_id", "attempt", "epoch", "step"]]
    rows = logged.assign(name=name, value=1 - curves["val_accuracy"]).to_dict("records")
    write_rows([*rows, *logged.assign(name="val/r2", value=0.5).to_dict("records")], _file(folder))
    return runs.assign(**{name: 1 - curves.groupby("run_id")["val_accuracy"].last().to_numpy()})


def _file(folder):
    return folder / "metrics" / "compact-000.parquet"


def measured(folder, **asked):
    runs = read_runs(folder).frame
    return with_metric(folder, runs, read_curves(folder, runs).frame, AskedMetric(**asked))


@pytest.mark.parametrize("name", [RMSE.name, "val_loss"])  # a loss of the user's own
def test_the_metric_that_runs_name_stands_beside_them_and_their_epochs(tmp_path, name):
    truth = write_regression(tmp_path, name).set_index("run_id")[name]

    found = measured(tmp_path)

    assert found.metric == Metric(name, "min")
    last = found.runs.set_index("run_id")[name]
    pd.testing.assert_series_equal(last, truth.reindex(last.index), check_index_type=False)
    assert found.curves[name].notna().all()
    ends = found.curves.groupby("run_id")[name].last()
    assert ends.to_dict() == pytest.approx(truth.to_dict())


def test_a_name_that_no_run_logged_is_answered_with_those_that_there_are(tmp_path):
    write_regression(tmp_path)

    sentence = (
        "--metric must be a name that these runs logged; got val/mae, they logged val/r2, "
        "val/rmse. Choose one of them."
    )
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        measured(tmp_path, name="val/mae")


def test_results_that_name_several_metrics_ask_for_one(tmp_path):
    write_regression(tmp_path)
    runs = simulated().assign(metric_name="val_accuracy")
    runs["run_id"] = "f" + runs["run_id"].str[1:]
    write_results(tmp_path, runs, simulated_curves(runs, 4))

    sentence = (
        "results must be compared by one metric; the runs of these name val/rmse, val_accuracy. "
        "Choose one with --metric NAME."
    )
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        measured(tmp_path)
    assert measured(tmp_path, name="val/rmse").metric == RMSE
    by_accuracy = measured(tmp_path, name="val_accuracy")
    assert by_accuracy.metric == ACCURACY
    assert set(by_accuracy.runs_with_metric["run_id"]) == set(runs["run_id"])


def test_runs_of_ours_without_an_accuracy_are_compared_by_their_loss(tmp_path):
    runs = simulated().assign(val_accuracy=np.nan, results=str(tmp_path))

    assert with_metric(tmp_path, runs, simulated_curves(runs, 1)).metric == LOSS


def test_runs_that_all_failed_before_they_logged_their_metric_have_none(tmp_path):
    """Every command reads its column, which a table of failed runs lacked."""
    runs = write_regression(tmp_path).assign(outcome="failed")
    write_results(tmp_path, runs.drop(columns=RMSE.name), simulated_curves(runs, 1)[:0])
    _file(tmp_path).unlink()

    found = measured(tmp_path)

    assert found.metric == RMSE
    assert found.runs[RMSE.name].isna().all()
    assert estimate_all(found, draws=50)


@pytest.fixture
def both():
    """Runs with an accuracy, and 1 minus it as an error."""
    runs = simulated()
    return runs.assign(**{RMSE.name: 1 - runs["val_accuracy"]})


def test_estimates_by_an_error_are_those_by_the_accuracy(both):
    def estimates(metric):
        rng = np.random.default_rng(0)
        warmups = best_warmups(both, rng, 50, metric=metric).table()
        at_two = both[both["warmup_epochs"] == 2]
        return warmups, breaking_batch(at_two, rng, 0.05, 50, metric).value

    (by_error, breaks_at), (by_accuracy, expected) = estimates(RMSE), estimates(ACCURACY)

    pd.testing.assert_frame_equal(by_error, by_accuracy)
    assert by_error["is_interior"].all()
    assert breaks_at == pytest.approx(expected)
    assert 256 < breaks_at < 1024


def test_an_error_reaches_its_target_by_falling(both):
    curves = simulated_curves(both, 5)
    errors = curves.assign(**{RMSE.name: 1 - curves["val_accuracy"]})

    found = to_target(both, errors, 0.4, RMSE)

    assert found["reached_target"].any()
    expected = to_target(both, curves, 0.6)
    assert found["epochs_to_target"].equals(expected["epochs_to_target"])


def test_the_longest_warmup_is_best_where_the_error_is_lowest(both):
    falling = both.assign(**{RMSE.name: 1 / (1 + both["warmup_epochs"])})

    assert [batch for batch, *_ in upper_edges(falling, RMSE)] == [256, 1024]
    assert upper_edges(both, RMSE) == []


def test_margins_of_a_metric_of_ones_own_are_shares_of_it(tmp_path):
    write_regression(tmp_path)

    found = measured(tmp_path)

    questions = [estimated.question for estimated in estimate_all(found, draws=50)]

    smallest = found.runs[found.runs["global_batch"] == 256]
    margin = smallest.groupby("warmup_epochs")["val/rmse"].mean().min() / 100  # at its best
    question = f"At which batch does val/rmse break ({margin:.2g}, 1 % worse than at the smallest"
    assert f"{question} batch)?" in questions
    assert not [question for question in questions if "ccuracy" in question or "points" in question]


def test_a_run_that_finished_with_an_infinite_metric_has_diverged(tmp_path, capsys):
    runs = simulated_runs([256, 512], [0], 3, accuracy=lambda *_: 0.7, noise=0.01)
    runs = runs.assign(val_loss=runs["val_loss"].mask(runs.index == 1, np.inf))
    write_results(tmp_path / "results", runs, simulated_curves(runs, 2))
    words = ["table", f"{tmp_path}/results", "--metric", "val_loss", "--out", f"{tmp_path}/tables"]

    assert main(words) == 0

    assert "1 of 3 (6 to 79 %)" in capsys.readouterr().out


def test_a_run_that_logged_no_number_has_diverged_rather_than_left_the_others_alone(tmp_path):
    write_regression(tmp_path)
    logged = pq.read_table(_file(tmp_path)).to_pylist()
    first = logged[0]["run_id"]
    is_nan = [row["run_id"] == first and row["name"] == RMSE.name for row in logged]
    rows = [
        row | {"value": np.nan} if lost else row for row, lost in zip(logged, is_nan, strict=True)
    ]
    write_rows(rows, _file(tmp_path))

    runs = measured(tmp_path).runs.set_index("run_id")

    assert runs["outcome"].value_counts().to_dict() == {"finished": 17, "diverged": 1}
    assert runs.loc[first, "outcome"] == "diverged"


def test_claims_about_accuracy_are_one_line_without_it(tmp_path):
    write_regression(tmp_path)
    found = measured(tmp_path)

    judged = judge_paper("mccord2021", found.runs, found.curves)

    assert verdict_lines(judged) == [
        ("not tested", "11 claims: these runs have no validation accuracy"),
        ("not tested", "1 claim: these runs have no validation loss"),
    ]


def test_a_command_takes_a_metric_and_its_direction(tmp_path, capsys):
    write_regression(tmp_path)
    command = ["estimates", str(tmp_path), "--metric", "val/r2"]

    assert main(command) == 2
    assert "Add --metric-mode max or min." in capsys.readouterr().out

    assert main([*command, "--metric-mode", "max"]) == 0
    assert "does val/r2 break (0.005, 1 % worse" in capsys.readouterr().out


def test_the_page_shows_the_metric_and_no_empty_accuracy(tmp_path):
    write_regression(tmp_path)

    data = report_data([str(tmp_path)], "command")

    assert data["metric"] == {"name": "val/rmse", "mode": "min"}
    assert data["measures"][0] == "val/rmse"
    names = [column["name"] for column in data["columns"]]
    assert "val/rmse" in names
    assert not {"val_accuracy", "best_val_accuracy", "train_accuracy"} & {*names}


def test_a_direction_that_contradicts_a_metric_of_ours_is_refused(tmp_path, capsys):
    write_results(tmp_path, simulated(), simulated_curves(simulated(), 3))

    for command in ("table", "estimates"):
        code = main([command, str(tmp_path), "--metric", "val_loss", "--metric-mode", "max"])
        assert code == 2
        assert capsys.readouterr().out == (
            "Error: --metric-mode must be min for val_loss; got --metric-mode max. Leave it out.\n"
        )


def test_a_name_of_which_no_run_has_a_value_does_not_count(tmp_path):
    runs = simulated().assign(metric_name="val_loss", metric=0.5)
    typo = runs[:2].assign(metric_name="val/los", metric=np.nan, val_loss=np.nan, outcome="failed")
    typo["run_id"] = "f" + typo["run_id"].str[1:]
    write_results(tmp_path, pd.concat([runs, typo]), simulated_curves(runs, 2))

    found = measured(tmp_path)

    assert found.metric == LOSS
    assert len(found.runs_with_metric) == len(runs)
    assert not set(typo["run_id"]) & set(found.runs_with_metric["run_id"])
