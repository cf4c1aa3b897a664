"""The numbers behind heat map, responses and steps to target."""

import numpy as np
import pandas as pd
import pytest
from simulated_responses import Grid
from simulated_studies import simulated_curves, simulated_runs, with_settings

import analysis
from analysis.figures import sheet, style
from analysis.figures.draw import draw_all
from analysis.report.table import write_tables
from analysis.tables.metric import Measured


def runs_of(batches, warmups, seeds=4, law=lambda b, w: 0.7, noise=0.01) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    return simulated_runs(batches, warmups, seeds, accuracy=law, noise=noise, rng=rng)


def falling(batch: int, _: float) -> float:
    """Two points per doubling from 256 on."""
    return 0.9 - 0.02 * np.log2(batch / 256)


def parabola(_: int, warmup: float) -> float:
    """Best at 7 epochs of warmup: log(7 + 1) is the vertex."""
    return 0.7 - 0.02 * (np.log1p(warmup) - np.log(8)) ** 2


def test_captions_promise_no_intervals_that_are_not_drawn():
    one = runs_of([256, 512, 1024], [0, 7, 30], seeds=1, law=parabola)
    alike = runs_of([256, 512, 1024], [0, 7, 30], law=parabola, noise=0)
    (of_alike,) = analysis.group_comparable(alike)

    warmups = analysis.draw_best_warmups(one[one["global_batch"] == 256]).caption
    of_three = analysis.draw_best_warmups(one).caption
    batches = analysis.draw_against_batch(of_alike).caption

    assert "thick bars: its 95 % interval" in of_three
    assert "95 % t intervals" not in warmups
    assert "rings: best warmup; it has no interval." in warmups
    assert "bars: 95 % t intervals, none where all seeds measured the same;" in batches


def test_a_heat_map_has_a_number_in_each_cell_and_frames_the_best():
    runs = runs_of([256, 512], [0, 7, 30], law=parabola, noise=1e-5)
    runs.loc[(runs["global_batch"] == 512) & (runs["seed"] == 0), "outcome"] = "diverged"
    gone = (runs["global_batch"] == 256) & (runs["warmup_epochs"] == 0)
    runs.loc[gone, "outcome"] = "diverged"

    (axes,) = analysis.draw_heat_map(runs).figure.axes

    written = {t.get_position(): t.get_text() for t in axes.texts}
    low = f"{100 * parabola(0, 30):.1f}"
    assert written[0.5, 0.5] == "div."
    assert written[0.5, 1.5] == "70.0"
    assert written[1.5, 1.5] == "70.0†"
    assert written[0.5, 2.5] == low
    assert sorted(round(patch.get_y()) for patch in axes.patches) == [1, 1]


@pytest.mark.parametrize("change", [{"noise": 0.1}, {"noise": 1e-5, "seeds": 1}])
def test_a_heat_map_frames_no_warmup_that_is_not_told_apart(change):
    runs = runs_of([256], [0, 7, 30], law=parabola, **change)

    (axes,) = analysis.draw_heat_map(runs).figure.axes

    assert not axes.patches


def test_marks_are_on_their_response():
    runs = runs_of([256, 512, 1024], [0, 3, 15], law=parabola)

    (axes,) = analysis.draw_best_warmups(runs).figure.axes

    marks = [line for line in axes.lines if line.get_marker() in "os^"]
    places = {tuple(np.round(line.get_xdata(), 9)) for line in marks if len(line.get_xdata()) > 1}
    assert places == {(0.0, 3.0, 15.0)}


def test_rules_are_lines_of_one_panel_where_there_is_a_single_warmup(tmp_path):
    rng = np.random.default_rng(2)
    runs = simulated_runs(
        [256, 512], [5], 3, accuracy=lambda b, w: 0.7, noise=0.01, rng=rng, rules=("linear", "sqrt")
    )

    drawing = analysis.draw_against_batch(runs)

    (axes,) = drawing.figure.axes
    labels = [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]
    assert labels == ["linear", "sqrt"]
    drawn = draw_all(Measured(runs, simulated_curves(runs, 3)), tmp_path)
    assert not [path for path in drawn if "vs_warmup" in path.name]


def test_where_every_run_diverged_the_axis_says_so_and_the_caption_is_short():
    runs = runs_of([256, 512], [0, 7, 30], law=parabola).assign(outcome="diverged")

    drawing = analysis.draw_against_batch(runs)

    axes = drawing.figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["no run finished"]
    assert list(axes.get_yticks()) == []
    assert drawing.caption.count("warmup") == 3
    assert "3 more points in the table" in drawing.caption


def test_curves_have_markers_and_the_axis_of_warmups_says_its_scale():
    runs = runs_of([256], [0, 7, 30], law=parabola)

    curves = analysis.draw_per_epoch(runs, simulated_curves(runs, 30))
    against = analysis.draw_against_warmup(runs)

    assert [line.get_marker() for line in curves.figure.axes[0].lines] == ["o", "s", "^"]
    assert "on the scale log(warmup + 1)" in against.figure.axes[0].get_xlabel()


def test_numbers_in_a_heat_map_have_contrast():
    runs = runs_of(range(256, 266), [5], law=lambda b, w: 0.1 + (b - 256) * 0.08, noise=0)
    (axes,) = analysis.draw_heat_map(runs).figure.axes
    axes.figure.draw_without_rendering()

    papers = axes.collections[0].get_facecolors()
    inks = [text.get_color() for text in axes.texts]
    assert len(inks) == 10
    assert min(map(style.contrast, inks, papers)) >= 4.5


def test_the_drawn_response_is_highest_at_the_estimate():
    runs = runs_of([256, 512], [0, 5, 10, 20], law=parabola)

    drawing = analysis.draw_best_warmups(runs)

    drawn = [line.get_xydata() for line in drawing.figure.axes[0].lines]
    curves = [line for line in drawn if len(line) == 60]
    rows = drawing.frame.groupby("global_batch").first()
    tops = [curve[curve[:, 1].argmax()] for curve in curves]
    assert [top[0] for top in tops] == pytest.approx(rows["best"].tolist(), rel=0.05)
    assert [top[1] for top in tops] == pytest.approx(rows["height"].tolist(), abs=1e-4)
    assert drawing.frame["fitted"].tolist() == pytest.approx(
        drawing.frame["mean"].tolist(), abs=0.004
    )
    assert rows["best"].mean() == pytest.approx(7, abs=2)


def test_where_no_one_response_fits_lines_join_the_means():
    """The best rates follow no law of the batch, with next to no noise."""
    grid = Grid(loss=lambda u: 0.009 * u**2, off=0.4, noise=0.0005)
    runs = grid.runs(np.random.default_rng(0))
    (compared,) = analysis.group_comparable(runs, (*analysis.AXES, "base_lr"))

    drawing = analysis.draw_best_rates(compared)

    assert (
        "lines join the means, as no one response can be fitted to all batches." in drawing.caption
    )
    assert drawing.frame["fitted"].tolist() == pytest.approx(drawing.frame["mean"].tolist())


def test_each_batch_at_its_best_rate_comes_first(tmp_path, monkeypatch):
    """The best of three rates doubles with the batch; with one rate nothing is added."""
    monkeypatch.setattr(sheet, "FORMATS", ("svg",))
    parts: list[pd.DataFrame] = []
    for rate in (0.05, 0.1, 0.2):

        def law(batch: int, _: float, rate: float = rate) -> float:
            return 0.7 - 0.02 * np.log(rate / 0.1 / (batch / 256)) ** 2

        runs = runs_of([128, 256, 512], [0], seeds=3, law=law, noise=0.001)
        runs = runs.assign(peak_lr=rate, base_lr=rate, run_id=runs["run_id"] + f"{rate}")
        parts.append(with_settings(runs, base_lr=rate))
    runs = pd.concat(parts, ignore_index=True)
    curves = simulated_curves(runs, 3)

    first, *others = draw_all(Measured(runs, curves), tmp_path)
    (table, _), *_ = write_tables(Measured(runs, curves), tmp_path)

    assert first.name == "accuracy_vs_batch_best.svg"
    frame = pd.read_csv(tmp_path / "accuracy_vs_batch_best.csv")
    assert frame["peak_lr"].tolist() == table.frame["peak_lr"].tolist() == [0.05, 0.1, 0.2]
    of_best = runs[runs["peak_lr"] == 0.1].groupby("global_batch")["val_accuracy"].mean()
    assert frame["mean"][1] == pytest.approx(of_best[256])
    chosen = "Each batch at its best setting: 128: peak rate 0.05; 256: peak rate 0.1; 512: peak"
    at_ends = "The best is at an end of what was tried: peak rate at 128, 512."
    for caption in ((tmp_path / "accuracy_vs_batch_best.txt").read_text(), table.caption):
        assert chosen in caption
        assert at_ends in caption
    assert [*table.cells[0][:3]] == ["batch", "peak rate", "n"]
    names = {path.name for path in others}
    assert {"accuracy_vs_batch.svg", "accuracy_vs_batch-base_lr=0.2.svg"} <= names
    alone = [path.name for path in draw_all(Measured(parts[0], curves), tmp_path / "one")]
    assert alone[0] == "accuracy_vs_batch.svg"


def test_the_response_of_rates_is_over_the_peak_rate():
    runs = runs_of([256], [5], seeds=12)
    rates = 0.1 * 2.0 ** (runs["seed"] // 3)
    best = 0.7 - 0.02 * np.log(rates / 0.25) ** 2 + 0.001 * (runs["seed"] % 3)
    runs = runs.assign(peak_lr=rates, val_accuracy=best, seed=runs["seed"] % 3)

    frame = analysis.draw_best_rates(runs).frame

    assert frame["best"].tolist() == pytest.approx([0.25] * 4)


def reached_by(steps, batches) -> pd.DataFrame:
    """Two seeds of each batch that reach the target in so many steps."""
    rows = [
        {"global_batch": b, "seed": s, "steps_to_target": steps(b, s),
         "examples_to_target": steps(b, s) * b}
        for b in batches for s in (0, 1)
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(reached_target=True)


def test_steps_to_target_come_with_the_hyperbola_where_it_fits():
    batches = [256, 512, 1024, 2048]
    reached = reached_by(lambda b, s: 100 + 51200 / b + s, batches)

    drawing = analysis.draw_steps_to_target(reached, "accuracy 90 %")

    (axes,) = drawing.figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    at, height = lines["fitted hyperbola"].get_data()
    assert height == pytest.approx(100.5 + 51200 / at, rel=0.01)
    assert lines["E_min / S_min"].get_xdata()[0] == pytest.approx(512, rel=0.02)
    assert drawing.frame["perfect_scaling"].tolist() == pytest.approx(
        [(100.5 + 200) * 256 / b for b in batches]
    )


def test_steps_of_one_seed_have_no_intervals_and_a_bend_that_nothing_shows_is_anything():
    """Two seeds that scatter by a factor of three show no bend."""
    batches = [256, 512, 1024, 2048]
    two = reached_by(lambda b, s: (1 + batches.index(b)) * 51200 / b * 3**s, batches)

    of_one = analysis.draw_steps_to_target(two[two["seed"] == 0], "accuracy 90 %")
    of_two = analysis.draw_steps_to_target(two, "accuracy 90 %")

    assert "Marks: means; small dots: replicates." in of_one.caption
    assert "Marks: means, with 95 % t intervals; small dots: replicates." in of_two.caption
    assert "(95 %: anything; these runs do not determine it)" in of_two.caption


def test_steps_that_all_seeds_share_have_the_width_of_the_evaluations():
    """95 % of a value anywhere between two evaluations that are 40 steps apart."""
    reached = reached_by(lambda b, _: 51200 / b, [256, 512, 1024])
    spaced = reached.assign(steps_to_target_spacing=40.0)

    drawing = analysis.draw_steps_to_target(spaced, "accuracy 90 %")

    assert (drawing.frame["high"] - drawing.frame["low"]).tolist() == pytest.approx([0.95 * 40] * 3)
    assert "95 % t intervals, no narrower than between two evaluations;" in drawing.caption


def test_batches_that_miss_the_target_are_named():
    runs = runs_of([256, 512, 1024], [0], seeds=2, law=falling, noise=0)
    reached = analysis.to_target(runs, simulated_curves(runs, 90), 0.87)

    drawing = analysis.draw_steps_to_target(analysis.best_reached(reached), "accuracy 87 %")

    assert "2 replicates never reached it (batch 1,024)." in drawing.caption
    assert "Examples to target do not double up to 512 (95 %)" in drawing.caption
    assert "counted as later than their ends, not every run reached the target: batch 1,024" in (
        drawing.caption
    )
    assert "No E_min / S_min: three or more batches must reach the target" in drawing.caption


def test_what_has_nothing_to_show_has_no_figure():
    """A single batch, two warmups, and a target that no run reached."""
    runs = runs_of([256], [0, 5])
    reached = analysis.to_target(runs, simulated_curves(runs, 9), 0.99)

    assert analysis.draw_best_warmups(runs) is None
    assert analysis.draw_steps_to_target(reached, "accuracy 99 %") is None


def test_intervals_of_accuracies_end_at_100_percent_and_saturated_ones_have_none():
    runs = runs_of([256, 512], [0], seeds=3)
    runs["val_accuracy"] = [1.0, 0.99, 0.96, *[0.97] * 3]

    frame = analysis.points(runs)

    assert frame["high"].tolist() == pytest.approx([1.0, np.nan], nan_ok=True)
    assert frame["low"].iloc[0] < 0.96
    assert frame["sd"].iloc[1] == 0


def test_a_fitted_accuracy_stays_within_the_axis():
    """Two batches of which one is perfect at its best rate: a parabola would go beyond."""
    parts = []
    for rate, loss in ((0.05, 0.3), (0.1, 0.0), (0.2, 0.3)):
        runs = runs_of([128, 256], [0], law=lambda b, w, loss=loss: 1.0 - loss + 0.001 * (b > 200))
        runs = runs.assign(peak_lr=rate, base_lr=rate, run_id=runs["run_id"] + f"{rate}")
        parts.append(with_settings(runs, base_lr=rate))
    runs = pd.concat(parts, ignore_index=True)
    runs.loc[(runs["peak_lr"] == 0.2) & (runs["global_batch"] == 128), "val_accuracy"] = 0.99
    (compared,) = analysis.group_comparable(runs, (*analysis.AXES, "base_lr"))

    drawing = analysis.draw_best_rates(compared)

    axes = drawing.figure.axes[0]
    tops = [line.get_ydata().max() for line in axes.lines if len(line.get_ydata()) == 60]
    assert max(tops) == drawing.frame["height"].max() == 1.0
    assert axes.get_ylim()[1] > 1.0
    assert "shifted, cut at 100 %" in drawing.caption


def test_the_curves_of_the_best_rate_are_drawn_with_rate_and_steps(tmp_path, monkeypatch):
    """The first rate that was run is the worse."""
    monkeypatch.setattr(sheet, "FORMATS", ())
    parts = [
        with_settings(runs, base_lr=rate).assign(
            base_lr=rate, peak_lr=rate, run_id=runs["run_id"] + f"{rate}"
        )
        for rate, runs in (
            (rate, runs_of([256, 512, 1024, 2048], [0], law=lambda b, w, top=top: top))
            for rate, top in ((0.002, 0.5), (0.008, 0.8))
        )
    ]
    runs = pd.concat(parts, ignore_index=True)

    [*draw_all(Measured(runs, simulated_curves(runs, 3)), tmp_path, most=2)]

    frame = pd.read_csv(tmp_path / "accuracy_per_epoch_best.csv")
    caption = (tmp_path / "accuracy_per_epoch_best.txt").read_text()
    assert frame.groupby("epoch")["mean"].mean().iloc[-1] == pytest.approx(0.8, abs=0.02)
    assert "base_lr 0.008, lr_rule=linear, 450,360 steps at batch 256, 56,250 steps" in caption


def test_every_panel_says_its_ticks_where_the_last_row_is_not_full():
    runs = runs_of([256, 512, 1024, 2048], [0])

    figure = analysis.draw_per_epoch(runs, simulated_curves(runs, 4)).figure
    figure.canvas.draw()

    shown = [any(t.get_visible() for t in axes.get_xticklabels()) for axes in figure.axes]
    assert shown == [True] * 4


def test_other_data_are_named_by_a_word_in_a_file_name():
    first = with_settings(runs_of([256], [0]), data={"name": "digits", "fold": 0})
    other = with_settings(runs_of([256], [0]), data={"name": "shapes", "classes": 3}, epochs=9)
    both = pd.concat([first, other.assign(data="shapes")], ignore_index=True)

    assert [g.name for g in analysis.group_comparable(both)] == ["", "data=shapes-epochs=9"]
