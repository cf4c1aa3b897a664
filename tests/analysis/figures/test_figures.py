"""Every plotted number is in a frame, and only runs that may be compared share a figure."""

import json

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, write_results

from analysis.cli import main
from analysis.figures.curves import curve_points
from analysis.figures.points import points, reading_note
from analysis.tables.comparable_runs import group_comparable


@pytest.fixture
def runs():
    return simulated_runs(
        [256, 512],
        [0, 5],
        3,
        accuracy=lambda b, w: 0.5 + 0.1 * (w == 5),
        noise=0.01,
        rng=np.random.default_rng(2),
    )


def with_setting(runs: pd.DataFrame, **settings: object) -> pd.DataFrame:
    texts = [json.dumps(json.loads(text) | settings) for text in runs["config_json"]]
    return runs.assign(config_json=texts)


def test_a_point_is_the_mean_and_range_of_its_seeds(runs):
    frame = points(runs)

    values = runs.groupby(["global_batch", "warmup_epochs"])["val_accuracy"]
    assert frame["mean"].tolist() == pytest.approx(values.mean().tolist())
    assert frame["low"].tolist() == values.min().tolist()
    assert frame["high"].tolist() == values.max().tolist()
    assert frame["num_finished"].tolist() == [3] * 4


def test_a_diverged_run_is_counted_and_not_averaged(runs):
    runs.loc[0, ["outcome", "val_accuracy"]] = ["diverged", 0.0]

    frame = points(runs)

    assert frame.loc[0, "num_diverged"] == 1
    assert frame.loc[0, "mean"] == pytest.approx(runs["val_accuracy"][1:3].mean())
    assert "diverged (1 run)" in reading_note(frame)


def test_a_run_without_an_end_is_counted(runs):
    runs.loc[0, ["outcome", "val_accuracy"]] = ["out_of_memory", np.nan]

    assert points(runs).loc[0, "num_other"] == 1
    assert "Not drawn: 1 run without a result" in reading_note(points(runs))


def test_one_seed_gives_no_interval(runs):
    assert reading_note(points(runs[runs["seed"] == 0])) == "One seed per point: no interval."


def test_epochs_of_diverged_runs_are_apart_from_those_of_finished_ones(runs):
    runs.loc[0, "outcome"] = "diverged"
    curves = simulated_curves(runs, 2)

    frame = curve_points(runs, curves)

    first = frame[(frame["global_batch"] == 256) & (frame["warmup_epochs"] == 0)]
    assert first["outcome"].tolist() == ["diverged"] * 2 + ["finished"] * 2
    assert first["num_seeds"].tolist() == [1, 1, 2, 2]


def test_runs_that_differ_in_weight_decay_are_two_groups(runs):
    other = with_setting(runs, optimizer={"weight_decay": 0.0005})

    found = group_comparable(pd.concat([runs, other, runs], ignore_index=True))

    assert [len(group.runs) for group in found] == [24, 12]
    assert [group.name for group in found] == ["", "weight_decay=0.0005"]
    assert "optimizer.weight_decay=0.0005" in found[1].about


def test_runs_of_several_versions_of_a_project_say_so(runs):
    """Of a run that was resumed with other sources too."""
    one = runs.assign(code_hash="a", resumed_code=None)
    two = runs.assign(code_hash="a", resumed_code=["c,b", *[None] * (len(runs) - 1)])

    (of_one,), (of_two,) = group_comparable(one), group_comparable(two)

    assert of_one.about == group_comparable(runs)[0].about
    assert of_two.about.endswith("made with 3 versions of the project's sources")


def test_where_a_run_ran_does_not_make_a_group(runs):
    other = with_setting(runs, devices=4, micro_batch=64, results="elsewhere")

    assert len(group_comparable(pd.concat([runs, other], ignore_index=True))) == 1


def test_the_command_writes_three_figures_and_their_frames(runs, tmp_path, capsys):
    write_results(tmp_path / "results", runs, simulated_curves(runs, 3))

    code = main(["figures", str(tmp_path / "results"), "--out", str(tmp_path / "out")])

    assert code == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    stems = ("accuracy_vs_batch", "accuracy_vs_warmup", "accuracy_per_epoch")
    assert names == {f"{s}.{ending}" for s in stems for ending in ("png", "pdf", "svg", "csv")}
    assert capsys.readouterr().out.count("wrote ") == 12
    drawn = pd.read_csv(tmp_path / "out" / "accuracy_vs_batch.csv")
    pd.testing.assert_frame_equal(drawn, points(runs), check_dtype=False)


def test_the_command_says_that_a_folder_is_empty(tmp_path, capsys):
    code = main(["figures", str(tmp_path), "--out", str(tmp_path / "out")])

    assert code == 2
    assert capsys.readouterr().out == (
        f"Error: results must hold runs; got {tmp_path}, which holds none. "
        "Run a sweep first, or name another folder.\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_rule_with_another_exponent_is_another_point(runs):
    one = with_setting(runs, lr_rule={"name": "power", "exponent": 0.5}).assign(lr_rule="power")
    two = with_setting(runs, lr_rule={"name": "power", "exponent": 0.7}).assign(lr_rule="power")

    (compared,) = group_comparable(pd.concat([one, two], ignore_index=True))

    assert len(points(compared.runs)) == 8
    assert sorted(compared.runs["lr_rule"].unique()) == ["power exponent=0.5", "power exponent=0.7"]


def test_a_switch_that_is_off_does_not_part_old_runs_from_new_ones(runs):
    new = with_setting(runs, label_smoothing=None, zero_init_last_norm=False, base_lr=0.1)

    assert len(group_comparable(pd.concat([runs, new], ignore_index=True))) == 1
