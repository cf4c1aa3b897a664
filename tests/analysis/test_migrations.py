"""Files of older schemas are brought to the present one when they are read.

`version_1/` holds the row and the curve of a run as the first published version of this program
wrote them: 47 and 11 columns, no `twin_of`, no `distance_from_start`.
"""

import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import analysis
from analysis.tables.load import read_curves, read_runs
from sweeper.store.compaction import compact
from sweeper.store.migrations import STEPS, file_version, to_present
from sweeper.store.schema import CURVES, RUNS, SCHEMA_VERSION, TABLES, arrow_schema

VERSION_1 = Path(__file__).parent / "version_1"
NEXT = str(int(SCHEMA_VERSION) + 1)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(VERSION_1, tmp_path / "old"))


def old_file(old: Path, kind: str) -> Path:
    return next((old / kind).iterdir())


def test_the_stored_files_are_of_version_1_and_lack_what_came_later():
    runs, curves = (pq.read_schema(old_file(VERSION_1, kind)) for kind in ("runs", "curves"))

    assert file_version(runs.metadata) == file_version(curves.metadata) == 1
    assert set(RUNS) - set(runs.names) == {"twin_of", "noise_scale"}
    later = {"distance_from_start", "realised_batch", "noise_scale"}
    assert set(CURVES) - set(curves.names) == later


def test_an_old_row_is_read_with_its_values_and_the_new_columns():
    """0.9166... is 330 of 360 images; two epochs of 16 steps of 3,840."""
    frame = analysis.load_runs(VERSION_1)

    assert set(frame.columns) == {*RUNS, "results"}
    row = frame.iloc[0]
    assert row["val_accuracy"] == 330 / 360
    assert (row["global_batch"], row["steps"], row["epochs"]) == (3840, 32, 2)
    assert pd.isna(row["twin_of"])


def test_an_old_curve_is_read_without_a_distance():
    curves = analysis.load_curves(VERSION_1)

    assert curves["step"].tolist() == [16, 32]
    assert curves["distance_from_start"].isna().all()


def test_an_old_file_may_be_read_by_some_columns():
    frame = analysis.load_runs(VERSION_1, ["model", "twin_of"])

    assert frame["model"].tolist() == ["SmallCNN"]
    assert frame["twin_of"].isna().all()


def test_a_choice_that_the_config_names_is_called_so():
    """Version 1 wrote the class at first; one class serves resnet18 and resnet50."""
    config = '{"model": {"_target_": "x.torchvision_model", "name": "resnet50"}, "twin_of": "T"}'
    old = pa.table({"model": ["torchvision_model"], "config_json": [config]})

    (row,) = to_present(old, "runs", 1).to_pylist()

    assert (row["model"], row["twin_of"]) == ("resnet50", "T")


def test_a_table_has_a_step_from_every_older_version():
    for kind in TABLES:
        assert sorted(STEPS[kind]) == list(range(1, int(SCHEMA_VERSION)))


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_the_present_version_is_left_as_it_is(kind):
    table = arrow_schema(TABLES[kind]).empty_table()

    assert to_present(table, kind, int(SCHEMA_VERSION)).equals(table, check_metadata=True)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({b"schema_version": b"999"}, f"must be from 1 to {SCHEMA_VERSION}; got 999"),
        ({b"schema_version": b"0"}, f"must be from 1 to {SCHEMA_VERSION}; got 0"),
        ({b"schema_version": b"new"}, f"must be from 1 to {SCHEMA_VERSION}; got new"),
        (None, "its metadata has no schema_version"),
    ],
)
def test_a_version_that_is_not_known_is_refused_in_words(metadata, words):
    with pytest.raises(ValueError, match=words):
        file_version(metadata)


def with_version(path: Path, version: str) -> None:
    pq.write_table(pq.read_table(path).replace_schema_metadata({"schema_version": version}), path)


def test_a_newer_file_is_named_beside_an_older_one_that_is_read(old):
    newer = old / "runs" / "ffffffffffff-001-finished.parquet"
    shutil.copy(old_file(old, "runs"), newer)
    with_version(newer, NEXT)

    loaded = read_runs(old)

    assert len(loaded.frame) == 1
    assert [unread.path for unread in loaded.unread] == [newer]
    assert f"got {NEXT}. Read it with the program that wrote it" in loaded.unread[0].why


def test_old_files_are_of_the_present_version_once_they_are_merged(old):
    for kind in ("runs", "curves"):
        table = pq.read_table(old_file(old, kind))
        place = table.column_names.index("run_id")
        other = table.set_column(place, "run_id", pa.array(["f" * 12] * len(table)))
        name = old_file(old, kind).name.replace("7800e5ad7401", "f" * 12)
        pq.write_table(other, old / kind / name)

    assert compact(old) == 2

    (merged,) = (old / "runs").iterdir()
    assert file_version(pq.read_schema(merged).metadata) == int(SCHEMA_VERSION)
    loaded = read_runs(old)
    assert (len(loaded.frame), loaded.unread) == (2, [])
    assert len(read_curves(old, loaded.frame).frame) == 4


def test_a_newer_file_is_not_merged(old):
    for number in range(3):
        for kind, ending in (("runs", "-finished"), ("curves", "")):
            path = old / kind / f"{number:012d}-001{ending}.parquet"
            shutil.copy(old_file(VERSION_1, kind), path)
    newer = old / "runs" / "000000000000-001-finished.parquet"
    with_version(newer, NEXT)

    assert compact(old) == 3
    assert newer.exists()
