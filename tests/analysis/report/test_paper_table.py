"""The table of a sweep for a paper: its numbers, its caption, and its two languages."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from simulated_studies import simulated_curves, simulated_runs, with_settings, write_results

from analysis.cli import main
from analysis.figures.points import points
from analysis.report.table import PaperTable, matrix_table, paper_table
from analysis.tables.comparable_runs import group_comparable
from analysis.tables.metric import Metric


@pytest.fixture
def runs() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return simulated_runs(
        [256, 1024], [0, 5], 4, accuracy=lambda b, w: 0.7 - b / 1e5, noise=0.01, rng=rng
    )


def table_of(runs: pd.DataFrame, **settings) -> PaperTable:
    (compared,) = group_comparable(runs)
    return paper_table(compared, **settings)


def test_a_point_is_its_mean_with_the_t_interval_and_the_number_of_seeds(runs):
    values = 100 * runs.query("global_batch == 1024 and warmup_epochs == 5")["val_accuracy"]
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))

    heads, *rows = table_of(runs).cells

    assert heads == ["batch", "warmup", "n", "validation accuracy [%]", "95 % interval"]
    assert [row[:3] for row in rows] == [
        ["256", "0", "4"], ["256", "5", "4"], ["1,024", "0", "4"], ["1,024", "5", "4"],
    ]  # fmt: skip
    assert rows[3][3:] == [f"{values.mean():.2f}", f"{low:.2f} to {high:.2f}"]


def test_batches_of_a_text_are_in_sequences_of_so_many_tokens(runs):
    of_text = runs.assign(tokens_per_example=128)
    two_lengths = of_text.assign(tokens_per_example=[128, 256] * (len(runs) // 2))

    assert "batch in sequences of 128 tokens per step" in table_of(of_text).caption
    assert "batch in examples per step" in table_of(two_lengths).caption


@pytest.mark.parametrize("key", ["bn_span", "loss_span"])
def test_micro_batches_that_are_taken_together_are_no_seeds_of_one_point(runs, key):
    """With a size that follows from the batch the batches are compared nevertheless."""
    follows = with_settings(runs, **{key: "micro"}).assign(micro_batch=runs["global_batch"] // 4)
    (compared,) = group_comparable(follows)
    assert len(compared.runs) == len(runs)

    is_odd = runs["seed"] % 2 == 1
    given = follows.assign(micro_batch=np.where(is_odd, 16, 64))
    found = {group.name: set(group.runs["seed"] % 2) for group in group_comparable(given)}
    assert found == {f"{key}=16": {1}, "": {0}}

    (compared,) = group_comparable(runs.assign(micro_batch=given["micro_batch"]))
    assert len(compared.runs) == len(runs)


def test_ranks_are_no_seeds_of_one_point_where_the_loss_is_no_mean(runs):
    def found(key):
        ranks = 1 + runs["seed"] % 2
        laid_out = with_settings(runs, **{key: "micro"}).assign(micro_batch=16, world_size=ranks)
        return {group.name for group in group_comparable(laid_out)}

    assert found("loss_span") == {"", "loss_span=2x16"}
    assert found("bn_span") == {""}


def test_what_diverged_or_has_no_result_is_counted_and_not_in_the_mean(runs):
    at = runs.index[(runs["global_batch"] == 256) & (runs["warmup_epochs"] == 0)]
    runs.loc[at[0], ["outcome", "val_accuracy"]] = ["diverged", 0.1]
    runs.loc[at[1], ["outcome", "val_accuracy"]] = ["failed", np.nan]

    table = table_of(runs)

    assert table.cells[0][-2:] == ["diverged", "no result"]
    assert table.cells[1][2] == "2"
    assert table.cells[1][3] == f"{100 * runs.loc[at[2:], 'val_accuracy'].mean():.2f}"
    assert table.cells[1][-2:] == ["1 of 3 (6 to 79 %)", "1"]
    assert table.cells[2][-2:] == ["0", "0"]
    assert "diverged: share of the runs that ended, with Wilson's 95 % interval" in table.caption


def test_what_was_held_fixed_stands_beside_a_short_caption_without_what_varied(runs):
    """A module's own batch_size is replaced by the run's, so it was not held fixed."""
    own = {"_target_": "my.Data", "batch_size": 128}
    table = table_of(with_settings(runs, data=own))
    assert "batch_size" not in table.latex()
    assert "data=Data" in table.settings
    assert "Held fixed" not in table.caption
    assert table.latex().startswith(f"% {table.settings}\n")

    fixed = re.search(r"Held fixed: (.*)\.$", table_of(runs).settings)

    assert fixed is not None
    said = dict(word.split("=", 1) for word in re.split(r", (?=[\w.]+=)", fixed[1]))
    assert said == {
        "base_lr": "0.1", "bn_span": "256", "lr_rule": "linear", "model": "Simulated",
    }  # fmt: skip
    runs["world_size"] = np.where(runs["global_batch"] == 256, 1, 2)
    doubt = "Not to be compared: Arms differ in more than the setting in question: ranks 1 at 256"
    assert doubt in table_of(runs).caption


def test_names_are_escaped_for_latex_and_for_markdown(runs):
    name = r"val/top_1 & $x$ #2 {a} 50% \b <c> |d|"
    table = table_of(runs.assign(**{name: runs["val_accuracy"]}), metric=Metric(name, "max"))

    escaped = r"val/top\_1 \& \$x\$ \#2 \{a\} 50\% \textbackslash{}b \textless{}c\textgreater{} "
    assert rf"{escaped}\textbar{{}}d\textbar{{}} (higher is better) &" in table.latex()
    assert not re.search(r"(?<!\\)[$#]", table.latex())
    row = table.markdown().splitlines()[2]
    assert r"val/top\_1 & $x$ #2 {a} 50% \\b \<c\> \|d\|" in row
    assert len(re.findall(r"(?<!\\)\|", row)) == len(table.cells[0]) + 1


@pytest.mark.parametrize(("batches", "kind"), [(2, "tabular"), (50, "longtable")])
def test_latex_has_a_line_for_each_point_and_breaks_a_long_table_over_pages(batches, kind):
    runs = simulated_runs(
        [256 * n for n in range(1, batches + 1)], [0], 2, accuracy=lambda b, w: 0.7, noise=0.01,
        rng=np.random.default_rng(2),
    )  # fmt: skip

    text = table_of(runs).latex()

    assert text.count(rf"\begin{{{kind}}}") == text.count(rf"\end{{{kind}}}") == 1
    body = text.partition("\\endfoot" if kind == "longtable" else "\\midrule")[2]
    assert len(re.findall(r"^[\d,]+ & .* \\\\$", body, re.MULTILINE)) == batches


def test_the_command_writes_three_files_and_shows_the_table(runs, tmp_path, capsys):
    write_results(tmp_path / "results", runs)

    assert main(["table", str(tmp_path / "results"), "--out", str(tmp_path / "out")]) == 0

    written = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    kinds = ("csv", "md", "tex")
    assert sorted(written) == [
        f"accuracy_{t}.{kind}" for t in ("matrix", "table") for kind in kinds
    ]
    assert written["accuracy_table.md"] in capsys.readouterr().out
    frame = pd.read_csv(tmp_path / "out" / "accuracy_table.csv")
    assert frame["num_finished"].tolist() == [4] * 4


def test_a_matrix_has_a_row_per_batch_and_half_intervals_with_two_digits(runs):
    runs.loc[(runs["global_batch"] == 256) & (runs["warmup_epochs"] == 0), "outcome"] = "diverged"
    (compared,) = group_comparable(runs)
    frame = points(compared.runs)

    table = matrix_table(compared)

    heads, *rows = table.cells
    assert heads == ["batch", "warmup 0", "warmup 5"]
    assert rows[0][:2] == ["256", "diverged"]
    last = frame.iloc[-1]
    half = 100 * (last["high"] - last["mean"])
    assert rows[-1][-1] == f"{100 * last['mean']:.2f} ± {half:.2f}"
    assert r"$\pm$" in table.latex()


def test_half_an_interval_is_not_cut_at_100_percent(runs):
    runs["val_accuracy"] += 0.295  # up to 99 %
    chosen = 100 * runs.query("global_batch == 256 and warmup_epochs == 5")["val_accuracy"]
    low, high = stats.t.interval(0.95, 3, chosen.mean(), stats.sem(chosen))
    assert high > 100
    (compared,) = group_comparable(runs)

    cell = matrix_table(compared).cells[1][-1]

    assert float(cell.partition("± ")[2]) == pytest.approx((high - low) / 2, abs=0.01)


def test_numbers_of_a_small_validation_set_have_the_digits_of_one_example():
    """One of 120 images is 0.8 %."""
    runs = simulated_runs(
        [256, 512], [0], 1, accuracy=lambda b, w: 100 / 120 if b < 500 else 97 / 120
    )

    assert [row[2] for row in table_of(runs).cells[1:]] == ["83.3", "80.8"]


def test_one_seed_and_equal_seeds_are_said_to_give_no_interval(runs):
    caption, single = table_of(runs.assign(val_accuracy=0.8)).caption, runs[runs["seed"] == 0]

    assert "95 % interval" not in table_of(single).cells[0]
    near_0 = runs.assign(val_accuracy=0.0001 * runs["seed"])  # the interval would begin below 0
    assert "95 % interval" in table_of(near_0).cells[0]
    assert "n: finished seeds; one seed has no interval" in table_of(single).caption

    assert "over which are mean and t interval; no interval where all seeds measured the" in caption
    assert "one seed" not in caption


def test_what_is_held_fixed_is_printed_once_and_saved_with_each(tmp_path, capsys):
    runs = simulated_runs([256, 512], [0, 5], 2, accuracy=lambda b, w: 0.7, noise=0.01)
    write_results(tmp_path / "results", runs, simulated_curves(runs, 2))

    assert main(["table", str(tmp_path / "results"), "--out", str(tmp_path)]) == 0

    saved = [path.read_text() for path in tmp_path.glob("*.md")]
    assert capsys.readouterr().out.count("Held fixed") == 1
    assert [text.count("Held fixed") for text in saved] == [1, 1]
