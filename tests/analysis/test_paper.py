"""A paper's figures find their points among the runs, and name those that are missing."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.cli import main
from analysis.paper import PAPERS
from analysis.paper.design import command, in_paper_numbers, missing, of_figure
from analysis.paper.draw import draw, is_same_protocol
from analysis.simulate import simulated_curves, simulated_runs, write_results
from analysis.studies import studies

PAPER = PAPERS["mccord2021"]
FIGURES = {figure.name: figure for figure in PAPER.figures}


def grid(batches, warmups, seeds=2, epochs=90, rules=("linear",)) -> pd.DataFrame:
    return simulated_runs(
        batches,
        warmups,
        seeds,
        accuracy=lambda b, w: 0.7,
        noise=0.01,
        rng=np.random.default_rng(0),
        rules=rules,
        epochs=epochs,
    )


def as_twin(runs: pd.DataFrame) -> pd.DataFrame:
    texts = [json.dumps(json.loads(t) | {"twin_of": "the paper"}) for t in runs["config_json"]]
    return runs.assign(config_json=texts, num_train_examples=50_000)


def test_the_figures_are_those_of_the_paper():
    names = ["4", "5", "6a", "6b", "6c", "7a", "7b", "8", "9"]
    assert list(FIGURES) == [f"figure_{name}" for name in names]


def test_runs_stand_for_their_own_batch_and_warmup():
    placed = in_paper_numbers(grid([7680, 1000], [5]), PAPER)

    assert placed["paper_batch"].unique().tolist() == [7680]
    assert placed["paper_warmup"].unique().tolist() == [5]


def test_a_twin_stands_for_the_same_share_of_the_training_set_and_of_the_training():
    """150, 300, ... 1,200 of 50,000 images are 3,840, 7,680, ... 30,720 of 1,281,167."""
    twin = as_twin(grid([150, 300, 600, 900, 1200], [1, 2, 4], epochs=18))

    placed = in_paper_numbers(twin, PAPER)

    assert sorted(placed["paper_batch"].unique()) == [3840, 7680, 15360, 23040, 30720]
    assert sorted(placed["paper_warmup"].unique()) == [5, 10, 20]
    assert missing(placed, FIGURES["figure_5"]) == []


def test_missing_points_are_named_with_a_grid_that_runs_them():
    placed = in_paper_numbers(grid([7680], [0, 5]), PAPER)

    gaps = missing(placed, FIGURES["figure_6c"])

    assert [(p.batch, p.warmup) for p in gaps] == [(7680, 10), (7680, 20)]
    assert command(gaps, PAPER, placed, "results") == (
        "python -m sweeper -m epochs=90 base_lr=0.1 batch=7680 warmup=10,20 lr_rule=linear"
    )


def test_the_command_for_a_twin_is_in_the_twins_numbers():
    placed = in_paper_numbers(as_twin(grid([300], [0], epochs=18)), PAPER)

    gaps = missing(placed, FIGURES["figure_7b"])

    assert command(gaps, PAPER, placed, "r") == (
        "python -m sweeper -m +experiment=mccord2021_warmup_small batch=1200 warmup=0,1,2,4 "
        "lr_rule=linear results=r"
    )


def test_a_point_whose_run_failed_is_missing():
    runs = grid([3840, 7680, 15360, 23040, 30720], [5])
    runs.loc[runs["global_batch"] == 30720, "outcome"] = "out_of_memory"

    gaps = missing(in_paper_numbers(runs, PAPER), FIGURES["figure_5"])

    assert [p.batch for p in gaps] == [30720]


def test_the_frame_of_figure_8_holds_both_rules():
    runs = grid([30720], [5], rules=("linear", "none"))
    study = studies(runs)[0]

    _, frame = draw(PAPER, FIGURES["figure_8"], study, simulated_curves(runs, 3))

    assert sorted(frame["lr_rule"].unique()) == ["linear", "none"]
    assert len(frame) == 2 * 3


def test_the_zoom_starts_at_the_last_third():
    runs = grid([7680], [5])

    _, frame = draw(PAPER, FIGURES["figure_6b"], studies(runs)[0], simulated_curves(runs, 90))

    assert frame["epoch"].min() == 61


@pytest.mark.parametrize(
    ("data", "model", "epochs", "expected"),
    [
        ("ImageNet", "ResNet50", 90, True),
        ("Digits", "ResNet50", 90, False),
        ("ImageNet", "SmallCNN", 90, False),
        ("ImageNet", "ResNet50", 30, False),
    ],
)
def test_reference_lines_need_the_same_protocol(data, model, epochs, expected):
    runs = grid([7680], [5]).assign(data=data, model=model, epochs=epochs)

    assert is_same_protocol(runs, 90) is expected


def test_a_figure_on_other_data_says_so_and_has_no_reference_line():
    runs = grid([7680], [0, 5])

    figure, _ = draw(PAPER, FIGURES["figure_6c"], studies(runs)[0], simulated_curves(runs, 2))

    assert "here on Simulated, Simulated, 90 epochs" in figure.get_suptitle()
    assert len(figure.axes[0].lines) == 1


def test_of_figure_leaves_out_other_points():
    placed = in_paper_numbers(grid([7680, 30720], [0, 3, 5]), PAPER)

    chosen = of_figure(placed, FIGURES["figure_6c"])

    assert set(zip(chosen["global_batch"], chosen["warmup_epochs"], strict=True)) == {
        (7680, 0),
        (7680, 5),
    }


@pytest.mark.parametrize("paper", ["mccord2021", "goyal2017", "limit2020"])
def test_the_command_draws_what_it_can(paper, tmp_path, capsys):
    runs = grid([7680, 8192, 30720], [0, 5]).assign(optimizer="SGD")
    write_results(tmp_path / "results", runs, simulated_curves(runs, 3))

    code = main(["paper", paper, str(tmp_path / "results"), "--out", str(tmp_path / "out")])

    assert code == 0
    assert len(list((tmp_path / "out" / paper).glob("*.png"))) >= 1
    printed = capsys.readouterr().out
    assert paper == "limit2020" or "python -m sweeper -m" in printed
