"""Results folders into frames, also when files are torn, foreign, old, empty or twice there."""

import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from simulated_studies import simulated_curves, simulated_runs, write_compacted, write_results

import analysis
from analysis.tables.load import UnreadFile, read_curves, read_runs
from sweeper.commands.sweep import warn_of_other_rates
from sweeper.store.compaction import compact
from sweeper.store.ledger import Ledger
from sweeper.store.schema import LATER, RUNS, SCHEMA_VERSION, TABLES


@pytest.fixture
def runs():
    return simulated_runs(
        [256, 512], [0, 5], 1, accuracy=lambda b, w: 0.5, rng=np.random.default_rng(1)
    )


@pytest.fixture
def results(tmp_path: Path, runs: pd.DataFrame):
    write_results(tmp_path, runs, simulated_curves(runs, 3))
    return tmp_path


def one_file(results: Path) -> Path:
    return sorted((results / "runs").iterdir())[0]


def rewrite(path: Path, **columns: object) -> None:
    table = pq.read_table(path)
    for name, value in columns.items():
        place = table.column_names.index(name)
        values = value if isinstance(value, list) else [value]
        table = table.set_column(place, name, pa.array(values))
    pq.write_table(table, path)


def with_version(path: Path, version: str) -> None:
    pq.write_table(pq.read_table(path).replace_schema_metadata({"schema_version": version}), path)


def test_every_run_is_a_row_with_every_column_and_a_curve_for_each_epoch(results, runs):
    frame, curves = analysis.load_runs(results), analysis.load_curves(results)

    assert set(frame.columns) == {*RUNS, "results"}
    assert sorted(frame["run_id"]) == sorted(runs["run_id"])
    assert frame["val_accuracy"].tolist() == [0.5] * 4
    assert curves.groupby("run_id")["epoch"].apply(list).tolist() == [[1, 2, 3]] * 4


def test_a_compacted_folder_reads_as_the_small_files_do(results, runs, tmp_path):
    write_compacted(tmp_path / "compacted", runs, simulated_curves(runs, 3))

    small, large = analysis.load_runs(results), analysis.load_runs(tmp_path / "compacted")

    pd.testing.assert_frame_equal(small.drop(columns="results"), large.drop(columns="results"))


def test_a_run_that_is_also_in_a_compacted_file_counts_once(results, runs):
    write_compacted(results, runs, simulated_curves(runs, 3))

    assert len(analysis.load_runs(results)) == 4
    assert len(analysis.load_curves(results)) == 12


def test_the_last_attempt_counts_and_brings_its_own_curve(results, runs):
    again = runs.iloc[[0]].assign(attempt=2, val_accuracy=0.75)
    write_results(results, again, simulated_curves(again, 2))

    frame, curves = analysis.load_runs(results), analysis.load_curves(results)

    kept = frame[frame["run_id"] == again["run_id"].iloc[0]]
    assert kept[["attempt", "val_accuracy"]].to_numpy().tolist() == [[2, 0.75]]
    assert curves.loc[curves["run_id"] == kept["run_id"].iloc[0], "epoch"].tolist() == [1, 2]


def test_of_two_folders_the_one_where_the_run_finished_counts(results, runs, tmp_path):
    failed = runs.assign(attempt=3, outcome="failed", val_accuracy=np.nan)
    write_results(tmp_path / "other", failed)

    frame = analysis.load_runs([tmp_path / "other", results])

    assert frame["outcome"].tolist() == ["finished"] * 4


@pytest.mark.parametrize(("rule", "is_told"), [("linear", True), ("adascale", False)])
def test_a_run_with_other_rates_in_another_folder_is_named(runs, tmp_path, rule, is_told):
    """Its layouts are not one run, whatever its run id says; also where a run is trained again."""
    for folder, rates in ((tmp_path, "a"), (tmp_path / "superseded", "b")):
        write_results(folder, runs.assign(lr_rule=rule, lr_series_hash=rates))
    first = runs["run_id"].iloc[0]

    unread = read_runs([tmp_path, tmp_path / "superseded"], ["seed"]).unread
    said = [*warn_of_other_rates(Ledger(tmp_path), [first])]

    assert len(unread) == (4 if is_told else 0)
    assert any(first in u.why and "other learning rates" in u.why for u in unread) == is_told
    assert [f"run {first} had other learning rates" in text for text in said] == [True] * is_told


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def drop(path: Path, *names: str) -> None:
    pq.write_table(pq.read_table(path).drop_columns([*names]), path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(b""), "the file is empty (0 bytes)"),
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "it cannot be read (Parquet"),
        (make_dangling, "it cannot be read ("),
        (
            lambda path: pq.write_table(pa.table({"loss": [1.0]}), path),
            "not a table of this program: no column run_id, attempt",
        ),
        (
            lambda path: drop(path, "bn_span", "reason"),
            "not a table of this program: no column reason, bn_span",
        ),
        (
            lambda path: rewrite(path, val_accuracy=75.3),
            "val_accuracy must be a fraction from 0 to 1; the file has other values",
        ),
        (
            lambda path: rewrite(path, lr_rule=None, seed=None, config_json=None),
            "it has rows without lr_rule, seed, config_json",
        ),
        (
            lambda path: pd.read_parquet(path).to_parquet(path),
            "not a table of this program: its metadata has no schema_version",
        ),
        (lambda path: rewrite(path, val_accuracy="good"), "it cannot be read"),
        *(
            (
                lambda path, version=version: with_version(path, version),
                f"schema_version must be {SCHEMA_VERSION}; got {version}. "
                "Read the file with the version of sweeper that wrote it.",
            )
            for version in ("999", "2", "0", "new")
        ),
    ],
)
def test_a_file_that_is_no_table_of_ours_is_named_with_the_reason(results, spoil, why):
    spoil(one_file(results))

    loaded = read_runs(results)

    (unread,) = loaded.unread
    assert unread.why.startswith(why)
    assert len(loaded.frame) == 3
    with pytest.warns(analysis.UnreadFile, match="skipped "):
        analysis.load_runs(results)


def test_a_file_of_another_schema_version_is_not_merged(results):
    path = one_file(results)
    with_version(path, "999")

    assert compact(results) == 3
    assert path.exists()


def test_a_column_that_came_later_is_null_in_earlier_files(results):
    def rows() -> pd.DataFrame:
        return analysis.load_runs(results).sort_values("run_id", ignore_index=True)

    whole = rows()
    path = one_file(results)
    pq.write_table(pq.read_table(path).drop_columns([*LATER & {*RUNS}]), path)

    assert not read_runs(results).unread
    pd.testing.assert_frame_equal(rows(), whole)
    assert compact(results) == 4
    pd.testing.assert_frame_equal(rows(), whole)


@pytest.mark.filterwarnings("ignore:The 'future.infer_string' option")
def test_a_text_that_is_null_is_null_in_pandas_2_too(results):
    with pd.option_context("future.infer_string", False):
        runs = analysis.load_runs(results)

    assert runs["resumed_code"].isna().all()
    assert runs["outcome"].notna().all()


def test_integers_where_reals_belong_are_read_as_reals(results):
    rewrite(one_file(results), val_accuracy=1, warmup_epochs=5)

    frame = analysis.load_runs(results)

    assert frame["val_accuracy"].dtype == np.float64
    assert frame["val_accuracy"].max() == 1.0


@pytest.mark.parametrize("text", ["{oops", "[1]", '{"lr_rule": {}}', '{"model": 1}'])
def test_a_row_whose_config_is_none_is_left_out_and_its_file_named(results, runs, text):
    rewrite(one_file(results), config_json=text)

    with pytest.warns(UnreadFile, match=f"{one_file(results).name}: config_json of a row must be"):
        assert len(analysis.load_runs(results)) == len(runs) - 1


def test_a_curve_without_accuracies_is_read(results, runs):
    """The noisy quadratic's loss has no right and wrong: its accuracy is not a number."""
    lone = runs.iloc[[0]].assign(run_id="f" * 12, val_accuracy=np.nan, val_loss=0.25)
    curves = simulated_curves(lone, 3).assign(val_loss=[0.75, 0.5, 0.25])
    write_results(results, lone, curves)
    path = next((results / "curves").glob("ffff*"))
    rewrite(path, val_accuracy=[np.nan] * 3, train_accuracy=[np.nan] * 3)

    loaded = read_curves(results, read_runs(results).frame)

    assert loaded.unread == []
    mine = loaded.frame[loaded.frame["run_id"] == "f" * 12]
    assert mine["val_loss"].tolist() == [0.75, 0.5, 0.25]
    assert mine["val_accuracy"].isna().all()


def test_a_file_being_written_is_not_looked_at(results):
    (results / "runs" / ".half.parquet.12.tmp").write_bytes(b"half")
    (results / "runs" / ".half.parquet").write_bytes(b"half")

    assert read_runs(results).unread == []


def test_a_curve_of_a_superseded_attempt_is_left_out(results, runs):
    old = runs.iloc[[0]].assign(attempt=7)
    write_results(results / "old", old, simulated_curves(old, 3))
    (next((results / "old" / "curves").iterdir())).rename(results / "curves" / "x-007.parquet")

    assert len(analysis.load_curves(results)) == 12


def test_an_empty_folder_is_a_frame_without_rows(tmp_path):
    frame = analysis.load_runs(tmp_path)

    assert len(frame) == 0
    assert set(RUNS) <= set(frame.columns)
    assert len(read_curves(tmp_path, frame).frame) == 0


@pytest.mark.parametrize(
    ("folder", "columns", "sentence"),
    [
        ("nothing", None, r"results must be a folder .* does not exist"),
        (".", ["accuracy"], r"columns must be among .*val_accuracy.*; got accuracy\."),
    ],
)
def test_a_missing_folder_and_an_unknown_column_are_refused(tmp_path, folder, columns, sentence):
    with pytest.raises(ValueError, match=sentence):
        analysis.load_runs(tmp_path / folder, columns)


def test_no_run_is_missing_while_files_are_merged(tmp_path):
    """The merger publishes its file and then removes the small ones; readers list before that."""
    runs = simulated_runs([256], [0], 60, accuracy=lambda b, w: 0.5, rng=np.random.default_rng(1))
    counts = []
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        write_results(folder, runs, simulated_curves(runs, 1))
        merger = threading.Thread(target=compact, args=(folder,))
        merger.start()
        while merger.is_alive():
            counts.append(len(read_runs(folder, ["seed"]).frame))
        counts.append(len(read_runs(folder, ["seed"]).frame))

    assert set(counts) == {60}


@pytest.mark.parametrize("kind", ["runs", "curves"])
def test_the_tables_in_the_docs_have_every_column(kind):
    """Else the commands that the docs show refuse them: add a new column to them, as null."""
    paths = sorted((Path(__file__).parents[3] / "docs/results").glob(f"*/{kind}/*.parquet"))

    assert paths
    assert {path: {*TABLES[kind]} - LATER - {*pq.read_schema(path).names} for path in paths} == {
        path: set() for path in paths
    }
