"""Runs in epochs, steps and examples: never compared with each other, each in its own words."""

import pandas as pd
import pytest
from simulated_studies import (
    NUM_TRAIN_EXAMPLES,
    simulated_curves,
    simulated_runs,
    with_settings,
    write_results,
)

import analysis
from analysis.cli import main
from analysis.figures import sheet
from analysis.papers.judge import judge_all
from analysis.report.page import report_data

BATCHES, STEPS = [256, 1024, 4096], 20_000
LENGTHS = [{"epochs": 90}, {"steps": STEPS}, {"examples": 90 * 1_277_952}]


@pytest.fixture
def of_three_lengths():
    """The same grid in 90 epochs, in steps and in examples, and its curves."""
    none = dict.fromkeys(("epochs", "steps", "examples"))
    parts = []
    for i, length in enumerate(LENGTHS):
        runs = simulated_runs(BATCHES, [0, 5], 3, accuracy=lambda b, w: 0.7 + w / 100, noise=0.01)
        runs["run_id"] = [f"{i}{run_id[1:]}" for run_id in runs["run_id"]]
        parts.append(with_settings(runs, **none | length))
    runs = pd.concat(parts, ignore_index=True)
    return runs, simulated_curves(runs, 10)


@pytest.fixture
def in_steps():
    """Warmups of 0, 100 and 200 steps at each batch, which are other parts of its epochs."""
    runs = simulated_runs(
        BATCHES, [0, 100, 200], 3, accuracy=lambda b, w: 0.7 + w / 1e4, noise=0.01
    )
    epochs = runs["warmup_epochs"] * runs["global_batch"] / NUM_TRAIN_EXAMPLES
    length = {"epochs": None, "steps": STEPS, "warmup_unit": "steps"}
    return with_settings(runs, **length).assign(warmup_epochs=epochs)


def test_lengths_of_three_kinds_are_three_groups_everywhere(
    of_three_lengths, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sheet, "FORMATS", ())  # only their tables
    runs, curves = of_three_lengths
    write_results(tmp_path / "results", runs, curves)
    titles = ["90 epochs", "20,000 steps", "115,015,680 examples"]

    groups = analysis.group_comparable(runs)
    page = report_data([str(tmp_path / "results")], "command")
    drawn = main(["figures", str(tmp_path / "results"), "--target", "0.6", "--out", str(tmp_path)])

    assert [group.title.rpartition("Simulated, ")[2] for group in groups] == titles
    assert [group["title"].rpartition("Simulated, ")[2] for group in page["groups"]] == titles
    assert drawn == 0
    for name in ("vs_batch", "steps_to_target", "best_rates"):
        frames = [pd.read_csv(path) for path in tmp_path.glob(f"accuracy_{name}*.csv")]
        assert [frame["num_finished"].max() for frame in frames] in ([3] * 3, [])
    assert len([*tmp_path.glob("accuracy_steps_to_target*.csv")]) == 3

    capsys.readouterr()
    assert main(["estimates", str(tmp_path / "results"), "--target", "0.6"]) == 0
    said = capsys.readouterr().out
    assert "This is from 18 of 54 runs: " in said
    assert "Left out: 18 runs (--where " in said


def test_only_runs_in_epochs_are_judged_by_papers(of_three_lengths):
    runs, curves = of_three_lengths
    grid = runs.assign(
        global_batch=runs["global_batch"].map(dict(zip(BATCHES, (3840, 7680, 30720), strict=True)))
    )

    judged = judge_all(grid, curves)
    others = judge_all(grid[~grid["config_json"].str.contains('"epochs": 90')], curves)

    assert {len(paper.compared.runs) for paper in judged} == {18}
    assert others == []


def test_a_warmup_in_steps_is_the_same_at_each_batch(in_steps):
    (group,) = analysis.group_comparable(in_steps)

    curves = simulated_curves(group.runs, 5)
    drawings = [
        analysis.draw_against_batch(group),
        analysis.draw_against_warmup(group),
        analysis.draw_heat_map(group),
        analysis.draw_best_warmups(group),
        analysis.draw_per_epoch(group, curves),
    ]

    assert sorted(drawings[0].frame["warmup_epochs"].unique()) == [0, 100, 200]
    assert len(drawings[0].frame) == 9
    for drawing in drawings:
        words = {
            text.get_text() for text in drawing.figure.findobj(lambda a: hasattr(a, "get_text"))
        }
        assert not any("[epochs]" in text for text in words)
    table = analysis.paper_table(group)
    assert "; warmup in steps; " in table.caption


def test_words_about_a_warmup_in_steps_are_in_steps(in_steps, tmp_path, capsys):
    write_results(tmp_path, in_steps, simulated_curves(in_steps, 5))

    assert main(["estimates", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    page = report_data([str(tmp_path)], "command")

    assert "(warmup 200 steps, the longest tried, base_lr 0.1)" in said
    assert "200 epochs" not in said
    names = [column["name"] for column in page["columns"]]
    assert "warmup_epochs" not in names
    warmups = {row[names.index("warmup")] for row, _, _ in page["runs"].values()}
    assert warmups == {0, 100, 200}
    assert "warmup [steps]: 0, 100, 200" in dict(page["summary"])["Grid"]
