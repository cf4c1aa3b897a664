"""Studies are read while a sweep is at work on them: nothing is made, cut off or written."""

import optuna
import pytest

from analysis.tuning.studies import load_tuned
from sweeper.tuning.storage import JOURNAL, open_storage


def files_of(folder) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_studies_that_are_not_there_leave_no_file_or_folder(tmp_path):
    with pytest.raises(ValueError, match=r"results must be a folder"):
        load_tuned(tmp_path / "deeper" / "results")

    assert files_of(tmp_path) == {}


def test_a_line_that_is_still_being_written_is_left_to_its_writer(tmp_path):
    open_storage(tmp_path).create_new_study([optuna.study.StudyDirection.MINIMIZE], "first")
    journal = tmp_path / JOURNAL
    with journal.open("ab") as file:
        file.write(b'{"op_code": 0, "worker')
    journal.chmod(0o444)
    before = files_of(tmp_path)

    names = optuna.get_all_study_names(open_storage(tmp_path, read_only=True))

    assert names == ["first"]
    assert files_of(tmp_path) == before


def test_a_journal_that_is_read_cannot_be_written(tmp_path):
    (tmp_path / JOURNAL).touch()

    with pytest.raises(AssertionError, match="must not be written"):
        optuna.create_study(storage=open_storage(tmp_path, read_only=True))
