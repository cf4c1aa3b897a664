"""Every plotted number is in a frame, and only runs that may be compared share a figure."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from simulated_studies import simulated_curves, simulated_runs, with_settings, write_results

import analysis
from analysis.cli import main
from analysis.figures import sheet
from analysis.figures.curves import curve_points
from analysis.figures.draw import draw_all
from analysis.figures.points import points, reading_note, split_by_rule
from analysis.tables.comparable_runs import file_names, group_comparable
from analysis.tables.metric import Measured
from analysis.tables.validity import doubts


@pytest.fixture
def runs():
    return simulated_runs(
        [256, 512], [0, 5], 3, accuracy=lambda b, w: 0.5 + 0.1 * (w == 5), noise=0.01,
        rng=np.random.default_rng(2),
    )  # fmt: skip


def test_a_diverged_run_is_counted_and_not_averaged(runs):
    runs.loc[0, ["outcome", "val_accuracy"]] = ["diverged", 0.0]

    frame = points(runs)

    assert frame.loc[0, "num_diverged"] == 1
    assert frame.loc[0, "mean"] == pytest.approx(runs["val_accuracy"][1:3].mean())
    interval = stats.binomtest(1, 3).proportion_ci(method="wilson")
    assert frame.loc[0, ["diverged_low", "diverged_high"]].tolist() == pytest.approx(interval)
    words = "Diverged and not in the means: batch 256, warmup 0, lr linear: 1 of 3."
    assert reading_note(frame).endswith(words)


def test_what_is_not_drawn_is_counted_and_is_no_seed(runs):
    runs.loc[(runs["warmup_epochs"] == 0) | (runs["seed"] == 2), "val_accuracy"] = np.nan
    runs.loc[0, "outcome"] = "out_of_memory"

    assert reading_note(points(runs)) == (
        "Marks: means over finished seeds (2 per point); bars: 95 % t intervals; small dots: "
        "seeds. Not drawn: 1 run without a result (out of memory, timed out, failed). Not drawn: "
        "7 runs that finished without this metric."
    )
    assert reading_note(points(runs[runs["seed"] == 0])).startswith("One seed per point: no int")


def test_epochs_of_diverged_runs_are_apart_from_those_of_finished_ones(runs):
    runs.loc[0, "outcome"] = "diverged"
    curves = simulated_curves(runs, 2)

    frame = curve_points(runs, curves)

    first = frame[(frame["global_batch"] == 256) & (frame["warmup_epochs"] == 0)]
    assert first["outcome"].tolist() == ["diverged"] * 2 + ["finished"] * 2
    assert first["num_seeds"].tolist() == [1, 1, 2, 2]


def test_curves_with_evaluations_within_epochs_are_drawn_against_examples(runs):
    """Else the evaluations of an epoch would be taken for replicates."""
    curves = simulated_curves(runs, 2).assign(epoch=0)
    curves["examples_seen"] = (curves.groupby("run_id").cumcount() + 1) * 500

    frame = curve_points(runs, curves)

    first = frame[(frame["global_batch"] == 256) & (frame["warmup_epochs"] == 0)]
    assert first["examples_seen"].tolist() == [500, 1000]
    assert first["num_seeds"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("tokens", "label"), [(np.nan, "examples"), (128.0, "sequences of 128 tokens")]
)
def test_the_axis_of_curves_says_what_is_counted(runs, tokens, label):
    runs = runs.assign(tokens_per_example=tokens)
    curves = simulated_curves(runs, 2)
    within = curves.assign(epoch=0, examples_seen=500 * curves["epoch"])

    for frame, expected in ((curves, "epoch"), (within, label)):
        figure = analysis.draw_per_epoch(runs, frame).figure
        labels = {figure.get_supxlabel(), *(axes.get_xlabel() for axes in figure.axes)}
        assert {"epoch", "examples", label} & labels == {expected}


def test_names_of_figures_stay_when_other_runs_arrive(runs):
    """The runs that were begun first keep the plain names, also if the others are more."""
    start = pd.Timestamp("2026-01-01", tz="UTC")
    first = runs.assign(started_at=start)
    others = [
        with_settings(runs, optimizer={"weight_decay": decay}).assign(started_at=start + delay)
        for decay, delay in ((0.0005, pd.Timedelta("1h")), (0.001, pd.Timedelta("2h")))
    ]

    named = [
        {group.name: len(group.runs) for group in group_comparable(pd.concat(some))}
        for some in ([first], [others[0], others[0], first], [*others, first])
    ]

    assert named[0] == {"": 12}
    assert named[1] == {"": 12, "weight_decay=0.0005": 24}
    assert named[2] == {"": 12, "weight_decay=0.0005": 12, "weight_decay=0.001": 12}


@given(st.lists(st.text() | st.sampled_from(["/a/b", "/a_b", "../..", "x" * 99]), unique=True))
def test_texts_of_any_kind_name_files_of_their_own(texts):
    """A rule's settings may be paths, and a metric's name may be anything."""
    names = file_names({text: f"lr_rule={text}" for text in texts})

    assert len(set(names.values())) == len(texts)
    for name in names.values():
        assert re.fullmatch(r"lr_rule=[\w=.-]*", name)
        assert len(name.encode()) <= 80


def test_names_of_files_tell_long_settings_apart(runs):
    """Two that begin with the same 80 characters; the class goes without saying."""
    texts = [
        {"optimizer": {"name": n, "_target_": f"torch.optim.{n}", "note": "x" * 90 + end}}
        for n, end in (("sgd", ""), ("adam", ""), ("adam", "y"))
    ]
    parts = [runs.assign(config_json=json.dumps(text)) for text in texts]

    names = [group.name for group in group_comparable(pd.concat(parts, ignore_index=True))]

    assert len(set(names)) == 3
    assert {len(name) for name in names} == {0, 14, 80}
    assert {name.partition("-")[0] for name in names} == {"", "optimizer=adam"}


def test_runs_of_several_versions_of_a_project_say_so(runs):
    """Of a run that was resumed with other sources too."""
    one = runs.assign(code_hash="a", resumed_code=None)
    two = runs.assign(code_hash="a", resumed_code=["c,b", *[None] * (len(runs) - 1)])

    (of_one,), (of_two,) = group_comparable(one), group_comparable(two)

    assert of_one.about == group_comparable(runs)[0].about
    assert of_two.about.endswith("made with 3 versions of the project's sources")


@pytest.mark.parametrize(
    "settings",
    [
        {"devices": 4, "micro_batch": 64, "results": "elsewhere"},  # where a run ran
        {"label_smoothing": None, "zero_init_last_norm": False, "base_lr": 0.1},  # switched off
    ],
)
def test_settings_that_change_no_numbers_make_no_group(runs, settings):
    both = pd.concat([runs, with_settings(runs, **settings)], ignore_index=True)

    assert len(group_comparable(both)) == 1


def test_the_command_writes_figures_their_frames_and_captions(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sheet, "FORMATS", ("svg",))  # the others take most of the time
    results, out = tmp_path / "results", tmp_path / "out"
    write_results(results, runs, simulated_curves(runs, 3))

    code = main(["figures", str(results), "--out", str(out), "--width", "text", "--target", "0.4"])

    assert code == 0
    names = {path.name for path in out.iterdir()}
    kinds = ("vs_batch", "vs_warmup", "per_epoch", "by_batch_and_warmup", "steps_to_target")
    assert names == {f"accuracy_{k}.{ending}" for k in kinds for ending in ("svg", "csv", "txt")}
    assert capsys.readouterr().out.count("wrote ") == len(names)
    drawn = pd.read_csv(out / "accuracy_vs_batch.csv").drop(columns="values")
    expected = points(runs).drop(columns="values")
    pd.testing.assert_frame_equal(drawn, expected, check_dtype=False)


def test_the_most_telling_figures_are_drawn_first_and_none_of_one_point(runs, tmp_path, capsys):
    decays = [with_settings(runs, optimizer={"weight_decay": d}) for d in (0.1, 0.2, 0.3)]
    every = pd.concat(decays, ignore_index=True)
    every = every.assign(run_id=[f"r{i}" for i in range(len(every))])
    write_results(tmp_path / "r", every, simulated_curves(every, 3))
    one = runs[(runs["global_batch"] == 256) & (runs["warmup_epochs"] == 5)]
    write_results(tmp_path / "one", one, simulated_curves(one, 1))

    def drawn(folder, *words):
        out = tmp_path / "out" / folder
        assert main(["figures", str(tmp_path / folder), "--out", str(out), *words]) == 0
        *said, last = capsys.readouterr().out.splitlines()
        return [line for line in said if line.endswith(".csv")], last

    few, last = drawn("r")
    assert len(few) == 6
    assert few[0].endswith("vs_batch_best.csv")
    assert last == "These are the 6 most telling figures; --all draws the others too."
    assert len(drawn("r", "--all")[0]) > 9
    assert drawn("one") == (
        [], "Nothing to draw: no runs that may be compared differ in batch, warmup or rate."
    )  # fmt: skip


def test_a_rule_with_another_exponent_is_another_point(runs):
    one = with_settings(runs, lr_rule={"name": "power", "exponent": 0.5}).assign(lr_rule="power")
    two = with_settings(runs, lr_rule={"name": "power", "exponent": 0.7}).assign(lr_rule="power")

    (compared,) = group_comparable(pd.concat([one, two], ignore_index=True))

    assert len(points(compared.runs)) == 8
    names = [group.name for group in split_by_rule(compared)]
    assert names == ["", "lr_rule=power_exponent=0.7"]
    assert sorted(compared.runs["lr_rule"].unique()) == ["power exponent=0.5", "power exponent=0.7"]


@pytest.mark.parametrize("words", [("figures",), ("paper", "mccord2021")])
def test_every_caption_says_which_points_are_not_to_be_compared(words, tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "FORMATS", ())
    apart = simulated_runs(
        [7680, 30720], [0, 5, 10], 2, accuracy=lambda b, w: 0.7, noise=0.01,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    spans = np.where(apart["global_batch"] == 7680, 768, 384)
    write_results(tmp_path / "r", apart.assign(bn_span=spans), simulated_curves(apart, 3))
    target = ["--target", "0.5"] if words == ("figures",) else []

    assert main([*words, str(tmp_path / "r"), "--out", str(tmp_path / "out"), *target]) == 0

    captions = [path.read_text() for path in (tmp_path / "out").rglob("*.txt")]
    assert len(captions) >= 6
    said = (
        "Not to be compared: Arms differ in more than the setting in question: BatchNorm span 768 "
        "at 7,680"
    )
    assert all(said in caption for caption in captions)


def test_a_figure_grows_with_its_words(runs, tmp_path, monkeypatch):
    """Matplotlib warns where words leave the panels no height, which fails a test."""
    monkeypatch.setattr(sheet, "FORMATS", ("svg",))
    long = runs.assign(data="D" * 300, model="M" * 300, data_about="about " * 100)

    paths = list(draw_all(Measured(long, simulated_curves(long, 3)), tmp_path))

    assert len(paths) == 12


def test_a_caption_gives_three_reasons_and_counts_the_rest(runs):
    """All four arms had the rates of another rule."""
    other = with_settings(runs, lr_rule={"name": "none"}).assign(lr_rule="none")

    found = doubts(pd.concat([runs, other], ignore_index=True))

    assert found.count("Not to be compared: These arms are the same") == 3
    assert found.endswith(" 1 more reason not to compare: see sweeper analysis claims.")


def test_a_figure_is_drawn_of_a_frame_and_an_estimator_names_the_frame_of_a_group(runs):
    two = pd.concat([runs, with_settings(runs, epochs=7)], ignore_index=True)

    assert len(analysis.draw_against_batch(runs).frame) == 4
    with pytest.raises(ValueError, match=r"got 2 groups\. Give one: "):
        analysis.paper_table(two)
    with pytest.raises(TypeError, match=r"Write its \.runs\."):
        analysis.best_warmups(analysis.group_comparable(runs)[0], np.random.default_rng(0))
