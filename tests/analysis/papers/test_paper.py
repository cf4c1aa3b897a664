"""A paper's figures find their points among the runs, and name those that are missing."""

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, write_results

from analysis.cli import main
from analysis.figures import sheet
from analysis.papers import PAPERS
from analysis.papers.paper import median_of_last_epochs, missing_points, place_runs, user_point
from analysis.papers.paper_figures import draw_figure, draw_optimizers
from analysis.tables.comparable_runs import group_comparable

PAPER, GOYAL = PAPERS["mccord2021"], PAPERS["goyal2017"]
FIGURES = {figure.name: figure for figure in PAPER.figures}


def grid(batches, warmups, seeds=2, epochs=90, rules=("linear",)) -> pd.DataFrame:
    return simulated_runs(
        batches, warmups, seeds, accuracy=lambda b, w: 0.7, noise=0.01,
        rng=np.random.default_rng(0), rules=rules, epochs=epochs,
    )  # fmt: skip


def as_twin(runs: pd.DataFrame) -> pd.DataFrame:
    return runs.assign(twin_of="the paper", num_train_examples=50_000)


def draw(runs: pd.DataFrame, figure: str, epochs: int = 2, paper=PAPER):
    shown = next(shown for shown in paper.figures if shown.name == figure)
    return draw_figure(paper, shown, group_comparable(runs)[0], simulated_curves(runs, epochs))


def test_the_figures_are_those_of_the_paper():
    names = ["4", "5", "6a", "6b", "6c", "7a", "7b", "8", "9"]
    assert list(FIGURES) == [f"figure_{name}" for name in names]


def test_runs_stand_for_their_own_batch_and_warmup():
    placed = place_runs(grid([7680, 1000], [5]), PAPER)

    assert placed["paper_batch"].unique().tolist() == [7680]
    assert placed["paper_warmup"].unique().tolist() == [5]


def test_a_twin_stands_for_the_same_share_of_the_training_set_and_of_the_training():
    """150, 300, ... 1,200 of 50,000 images are 3,840, 7,680, ... 30,720 of 1,281,167."""
    twin = as_twin(grid([150, 300, 600, 900, 1200], [1, 2, 4], epochs=18))

    placed = place_runs(twin, PAPER)

    assert sorted(placed["paper_batch"].unique()) == [3840, 7680, 15360, 23040, 30720]
    assert sorted(placed["paper_warmup"].unique()) == [5, 10, 20]
    assert missing_points(placed, FIGURES["figure_5"]) == []


@pytest.mark.parametrize("examples", [12_500, 20_000, 50_000])
def test_the_batches_that_are_asked_of_a_twin_stand_for_the_papers(examples):
    twin = as_twin(grid([300], [0])).assign(num_train_examples=examples)
    points = FIGURES["figure_5"].points()

    own = [user_point(point, PAPER, twin.iloc[0])[0] for point in points]

    asked = pd.concat([twin.assign(global_batch=batch) for batch in own])
    placed = place_runs(asked, PAPER)
    assert set(placed["paper_batch"]) == {point.batch for point in points}


def test_a_point_whose_run_failed_is_missing():
    runs = grid([3840, 7680, 15360, 23040, 30720], [5])
    runs.loc[runs["global_batch"] == 30720, "outcome"] = "out_of_memory"

    gaps = missing_points(place_runs(runs, PAPER), FIGURES["figure_5"])

    assert [p.batch for p in gaps] == [30720]


def test_the_frame_of_figure_8_holds_both_rules():
    runs = grid([30720], [5], rules=("linear", "none"))

    frame = draw(runs, "figure_8", 3).frame

    assert sorted(frame["lr_rule"].unique()) == ["linear", "none"]
    assert len(frame) == 2 * 3


def test_the_zoom_starts_at_the_last_third():
    runs = grid([7680], [5])

    drawing = draw(runs, "figure_6b", 90)

    assert drawing.frame["epoch"].min() == 61


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

    assert PAPER.is_protocol_of(runs) is expected


def test_a_figure_on_other_data_says_so_and_has_no_reference_line():
    runs = grid([7680], [0, 5])

    drawing = draw(runs, "figure_6c")

    assert "here on Simulated, Simulated, 90 epochs" in drawing.caption
    assert "'s points" not in draw(grid([256, 8192], [5]), "figure_1", 90, GOYAL).caption
    assert drawing.figure.legends == []


def test_the_axis_of_a_twins_figure_names_the_twins_batches_and_the_papers():
    runs = as_twin(grid([150, 300, 600, 900, 1200], [1], epochs=18))

    drawing = draw(runs, "figure_5")

    (axes,) = drawing.figure.axes
    assert axes.get_xticks().tolist() == [150, 300, 600, 900, 1200]
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels[:2] == ["150 [3,840]", "300 [7,680]"]


def test_lines_and_title_of_a_twins_figure_have_the_papers_numbers_in_brackets():
    runs = as_twin(grid([300], [0, 1, 2], epochs=18))

    drawing = draw(runs, "figure_6a")

    (legend,) = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["0", "1 [5]", "2 [10]"]
    assert "Warmups at batch 300 [7,680]" in drawing.caption


def test_rules_are_places_that_the_figure_names_also_if_one_was_not_run():
    runs = grid([8192], [5], rules=("linear", "none"))

    drawing = draw(runs, "rules_final", 5, GOYAL)

    (axes,) = drawing.figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["linear", "sqrt", "none"]
    (means,) = [line for line in axes.lines if line.get_label() == "these runs"]
    assert np.isnan(means.get_ydata()).tolist() == [False, True, False]


def test_optimizers_have_colors_of_their_own():
    runs = optimizers([64_000, 128_000], ["nesterov", "lars", "lamb"])

    (axes,) = draw_optimizers(runs).figure.axes

    named = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert list(named) == ["lamb", "lars", "nesterov"]
    assert len({line.get_color() for line in named.values()}) == 3


def on_imagenet(runs: pd.DataFrame, bn_span: int) -> pd.DataFrame:
    return runs.assign(
        data="imagenet", model="resnet50", bn_span=bn_span, base_lr=0.1, base_batch=256
    )


def heights_of_published(figure) -> list[float]:
    """Of the points with error bars."""
    (axes,) = figure.axes
    return [float(y) for bars in axes.containers for y in bars.lines[0].get_ydata()]


def test_published_points_stand_beside_runs_of_the_same_protocol():
    """23.60 to 33.96 % error from 256 to 65,536 (Goyal et al. 2017)."""
    runs = on_imagenet(grid([256, 8192], [5]), bn_span=32)

    drawing = draw(runs, "figure_1", 90, GOYAL)

    errors = [23.60, 23.48, 23.53, 23.49, 23.56, 23.74, 24.79, 27.55, 33.96]
    assert heights_of_published(drawing.figure) == pytest.approx([1 - e / 100 for e in errors])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bn_span": 64}, "not drawn here: bn_span is 64, there 32."),
        ({"bn_span": [32, 32, 32, 64]}, "not drawn here: bn_span is 32 and 64, there 32."),
        ({"base_lr": 0.2}, "not drawn here: rate_per_example is 0.00078"),
    ],
)
def test_published_points_of_another_protocol_are_left_out_and_it_is_said_why(change, words):
    runs = on_imagenet(grid([256, 8192], [5]), bn_span=32).assign(**change)

    drawing = draw(runs, "figure_1", 90, GOYAL)

    assert heights_of_published(drawing.figure) == []
    assert words in drawing.caption


def test_goyals_accuracy_is_the_median_of_the_last_five_epochs():
    """Of 1, 2, 3, 4, 90 it is 3; earlier epochs do not count."""
    runs = grid([256], [5], seeds=1)
    curves = simulated_curves(runs, 7).assign(val_accuracy=[50, 60, 1, 2, 3, 4, 90])

    found = median_of_last_epochs(runs, curves, "val_accuracy", 5)

    assert found["val_accuracy"].tolist() == [3]
    kept = median_of_last_epochs(runs, curves.iloc[:0], "val_accuracy", 5)  # without a curve
    assert kept["val_accuracy"].tolist() == runs["val_accuracy"].tolist()


def optimizers(batches, names, **columns) -> pd.DataFrame:
    runs = grid(batches, [0], seeds=len(names))
    return runs.assign(optimizer=np.array(names)[runs["seed"]], seed=0, **columns)


@pytest.mark.parametrize(
    "paper",
    ["mccord2021", *(pytest.param(p, marks=pytest.mark.slow) for p in ("goyal2017", "limit2020"))],
)
def test_the_command_draws_what_it_can(paper, tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "FORMATS", ("svg",))  # the others take most of the time
    runs = grid([7680, 8192, 30720], [0, 5]).assign(optimizer="SGD")
    write_results(tmp_path / "results", runs, simulated_curves(runs, 3))

    code = main(["paper", paper, str(tmp_path / "results"), "--out", str(tmp_path / "out")])

    assert code == 0
    assert len(list((tmp_path / "out" / paper).glob("*.svg"))) >= 1
