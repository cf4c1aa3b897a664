"""Figures can be printed: letters, fonts, contrast, nothing over anything else, nothing hidden."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from simulated_studies import simulated_curves, simulated_runs, with_settings

import analysis
from analysis.figures import style
from analysis.tables.metric import LOSS

BATCHES = [2**k for k in range(8, 18)]
WARMUPS = [0, 1, 2, 3, 5, 7, 10, 15, 20, 30]
RULES = ("linear", "none", "power", "sqrt")


def law(batch: int, warmup: float) -> float:
    best = np.log1p(2 * (batch / 4096) ** 0.5)
    return (
        0.76 - 0.004 * max(0, np.log2(batch / 2048)) ** 2 - 0.006 * (np.log1p(warmup) - best) ** 2
    )


def compared(batches=BATCHES, warmups=WARMUPS, rules=RULES, seeds=2) -> analysis.ComparableRuns:
    """The full grid, of which some runs at the largest batch diverged."""
    rng = np.random.default_rng(1)
    parts = []
    for rule in rules:
        runs = simulated_runs(batches, warmups, seeds, accuracy=law, noise=0.004, rng=rng)
        runs = runs.assign(lr_rule=rule, run_id=rule + runs["run_id"])
        parts.append(with_settings(runs, lr_rule={"name": rule}))
    runs = pd.concat(parts, ignore_index=True)
    lost = (runs["global_batch"] == batches[-1]) & (runs["warmup_epochs"] < 2) & (runs["seed"] == 0)
    runs.loc[lost, ["outcome", "val_accuracy"]] = ["diverged", 0.001]
    return analysis.group_comparable(runs)[0]


@pytest.fixture(scope="module")
def big():
    return compared()


def most_frequent_rule(big, width):
    one = next(analysis.split_by_rule(big))
    return analysis.draw_per_epoch(one, simulated_curves(one.runs, 6), width=width)


DRAWN = {
    "batch": lambda big, width: analysis.draw_against_batch(big, width=width),
    "warmup": lambda big, width: analysis.draw_against_warmup(big, width=width),
    "epoch": most_frequent_rule,
    "heat map": lambda big, width: analysis.draw_heat_map(big, width=width),
    "responses": lambda big, width: analysis.draw_best_warmups(big, width=width),
}


PRINTED = [*((drawn, "column") for drawn in DRAWN), ("batch", "text"), ("heat map", "text")]


@pytest.fixture(scope="module", params=PRINTED, ids=" ".join)
def printed(request, big):
    """A figure of ten batches by ten warmups by four rules, for a paper."""
    drawn, width = request.param
    drawing = DRAWN[drawn](big, width)
    drawing.figure.draw_without_rendering()
    return drawing.figure, width


def letters(figure: Figure) -> list[Text]:
    """What can be read."""
    found = [text for text in figure.findobj(Text) if text.get_text().strip()]
    shown = [text for text in found if text.get_visible() and text.get_window_extent().width]
    ticks = [label for axes in figure.findobj(lambda a: hasattr(a, "get_xticklabels"))
             for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_major_ticks()
             for label in (tick.label1, tick.label2)]  # fmt: skip
    drawn = [label for axes in figure.findobj(lambda a: hasattr(a, "get_xticklabels"))
             for axis in (axes.xaxis, axes.yaxis) for label in drawn_ticks(axis)]  # fmt: skip
    return [text for text in shown if text not in ticks or text in drawn]


def drawn_ticks(axis) -> list[Text]:
    """The labels of ticks within the limits of their axis."""
    low, high = sorted(axis.get_view_interval())
    return [
        tick.label1
        for tick in axis.get_major_ticks()
        if low <= tick.get_loc() <= high and tick.label1.get_visible()
    ]


def test_a_figure_has_the_width_of_the_page_and_letters_of_seven_or_eight_points(printed):
    figure, width = printed

    assert figure.get_size_inches()[0] == style.INCHES[width]
    assert figure.get_size_inches()[1] <= 9.0
    assert {text.get_fontsize() for text in letters(figure)} <= {7.0, 8.0}
    assert figure.get_suptitle() == ""


def test_no_letters_are_over_others_or_outside_of_the_figure(printed):
    figure, _ = printed
    found = letters(figure)
    boxes = np.array([text.get_window_extent().extents for text in found])

    assert len(found) > 10
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    overlap = np.minimum(high, boxes[None, :, 2:]) - np.maximum(low, boxes[None, :, :2])
    over = np.argwhere(np.triu((overlap > 0.5).all(axis=2), k=1))
    assert [(found[i].get_text(), found[j].get_text()) for i, j in over] == []
    width, height = figure.bbox.size
    assert boxes[:, 0].min() >= 0
    assert boxes[:, 1].min() >= 0
    assert boxes[:, 2].max() <= width
    assert boxes[:, 3].max() <= height


@pytest.mark.parametrize("width", style.INCHES)
def test_the_legend_names_every_line_inside_the_figure(width):
    one = compared([256, 512], WARMUPS, ["linear"])

    figure = analysis.draw_against_batch(one, width=width).figure

    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{w}" for w in WARMUPS]
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.width
    assert 0 <= extent.y0 < extent.y1 <= figure.bbox.height


def test_the_legend_names_lines_of_any_panel():
    """The first batch has one warmup, the last has two."""
    some = compared([256, 512], [0, 5], ["linear"])
    lacking = some.runs[(some.runs["global_batch"] == 512) | (some.runs["warmup_epochs"] == 5)]
    one = analysis.group_comparable(lacking)[0]

    figure = analysis.draw_per_epoch(one, simulated_curves(lacking, 4)).figure

    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["0", "5"]


def test_pdf_has_truetype_fonts_and_svg_has_text(tmp_path):
    drawing = analysis.draw_against_batch(compared([256, 512], [0, 5], ["linear"]), width="column")

    analysis.save(drawing, tmp_path, "a")

    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert ">global batch [examples]</text>" in (tmp_path / "a.svg").read_text()
    caption = (tmp_path / "a.txt").read_text()
    assert caption == drawing.caption + "\n"
    assert "95 % t intervals" in caption


def test_colors_stand_out_from_paper_and_from_each_other():
    named = style.named_marks([f"optimizer {i}" for i in range(13)])
    ordered = [style.ordered_marks(count) for count in range(1, 11)]

    assert style.contrast("black") == pytest.approx(21)  # as in the guideline
    assert style.contrast("#767676") == pytest.approx(4.54, abs=0.01)
    for marks in (*ordered, list(named.values())):
        assert min(style.contrast(mark.color) for mark in marks) >= style.CONTRAST
    for marks in ordered:
        lightness = [style.contrast(mark.color) for mark in marks]
        assert lightness == sorted(lightness, reverse=True)
        assert all(a.marker != b.marker for a, b in pairwise(marks))
    assert len({(mark.color, mark.marker) for mark in named.values()}) == 13


@pytest.mark.parametrize("draw", [analysis.draw_against_batch, analysis.draw_against_warmup])
def test_every_finished_run_is_a_dot(draw):
    some = compared([256, 512], [0, 2, 5], ["linear", "sqrt"], seeds=3)

    figure = draw(some).figure

    dots = figure.findobj(lambda artist: artist.get_gid() == "seeds")
    heights = np.concatenate([line.get_ydata() for line in dots])
    finished = some.runs.loc[some.runs["outcome"] == "finished", "val_accuracy"]
    assert sorted(heights) == sorted(finished)


def test_points_at_the_same_place_stand_side_by_side():
    some = compared([256, 512], [2, 5, 20], ["linear"])

    (axes,) = analysis.draw_against_batch(some).figure.axes

    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert len({float(line.get_xdata()[0]) for line in lines}) == 3
    assert np.median([line.get_xdata()[0] for line in lines]) == pytest.approx(256)


def test_no_line_bridges_a_batch_that_was_not_run():
    some = compared([256, 512, 1024], [2, 5], ["linear"])
    hole = (some.runs["global_batch"] == 512) & (some.runs["warmup_epochs"] == 2)
    one = analysis.group_comparable(some.runs[~hole])[0]

    (axes,) = analysis.draw_against_batch(one).figure.axes

    heights = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert np.isnan(heights["2"]).tolist() == [False, True, False]
    assert not np.isnan(heights["5"]).any()


def test_an_isolated_point_shows_its_interval():
    some = compared([256], [5], ["linear"], seeds=3)

    drawing = analysis.draw_against_batch(some)

    bars = [c for axes in drawing.figure.axes for c in axes.collections if len(c.get_segments())]
    (bar,) = bars[0].get_segments()
    assert bar[:, 1].tolist() == drawing.frame.loc[0, ["low", "high"]].tolist()


def test_a_strip_shows_of_which_line_what_share_diverged():
    some = compared([256, 512], [0, 5], ["linear"], seeds=4)

    drawing = analysis.draw_against_batch(some)

    (axes,) = drawing.figure.axes
    (strip,) = axes.child_axes
    shares = [line for line in strip.lines if len(line.get_ydata())]
    assert [line.get_ydata().tolist() for line in shares] == [[0.25]]
    zero = next(line for line in axes.lines if line.get_label() == "0")
    assert shares[0].get_color() == zero.get_color()
    assert "batch 512, warmup 0, lr linear: 1 of 4" in drawing.caption
    without = compared([256, 512], [2, 5], ["linear"])
    assert analysis.draw_against_batch(without).figure.axes[0].child_axes == []


def test_figures_are_drawn_into_axes_of_ones_own(big):
    figure = Figure()
    panels = figure.subplots(2, 2).ravel()

    drawing = analysis.draw_heat_map(big, ax=panels)

    assert drawing.figure is figure
    assert [axes.get_title() for axes in panels] == [f"lr {rule}" for rule in RULES]
    assert all(len(axes.texts) == 100 for axes in panels)
    with pytest.raises(ValueError, match=r"^ax must be one axes for each of 4 panels; got 1\.$"):
        analysis.draw_against_batch(big, ax=panels[0])


def test_names_with_dollars_are_drawn():
    some = compared([256, 512], [0, 5], ["linear"])
    runs = some.runs.assign(model="a$b", data="$c", data_about="$_^{ \u6570\u636e")

    drawing = analysis.draw_against_batch(analysis.group_comparable(runs)[0])

    assert drawing._repr_png_()


def test_a_screen_has_the_caption_on_it():
    some = compared([256, 512], [0, 5], ["linear"])

    drawing = analysis.draw_against_batch(some)

    title, *note = drawing.caption.splitlines()
    assert drawing.figure.get_suptitle().replace("\n", " ") == title
    assert drawing.figure.get_supxlabel().split() == " ".join(note).split()


def test_a_metric_that_is_to_fall_says_so():
    some = compared([256, 512], [0, 5], ["linear"])
    metric = analysis.Metric("val/mae", "min")
    runs = some.runs.assign(**{"val/mae": some.runs["val_loss"]})

    one = analysis.group_comparable(runs)[0]

    label = analysis.draw_against_batch(one, metric).figure.axes[0].get_ylabel()
    assert label == "val/mae (lower is better)"
    assert analysis.draw_against_batch(one, LOSS).figure.axes[0].get_ylabel().endswith("[nats]")
