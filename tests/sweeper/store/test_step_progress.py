"""What a run reports inside its epochs is one small file, which nothing depends on."""

import pytest

from sweeper.store.step_progress import StepProgress, read_step_progress, write_step_progress

THIRD = StepProgress(epoch=3, step=4, steps=16, resumed_at=1.5, examples_per_s=1234.5, left_s=60.0)
FILE = "step-progress.json"


def test_what_was_reported_last_is_read_and_nothing_else_is_left(tmp_path):
    for step in range(20):
        write_step_progress(THIRD.model_copy(update={"step": step}), tmp_path)

    assert read_step_progress(tmp_path) == THIRD.model_copy(update={"step": 19})
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_epochs_are_counted_with_their_parts():
    assert THIRD.epochs_done == 2.25


@pytest.mark.parametrize(
    "content",
    [
        b"",
        THIRD.model_dump_json().encode()[:-9],
        b"\x00" * 90,
        b"\xff\xfe",
        b"[]",
        b"{}",
        THIRD.model_dump_json().replace("1234.5", "NaN").encode(),
        THIRD.model_dump_json().replace("1234.5", "-1.0").encode(),
        THIRD.model_dump_json().replace("16", '"many"').encode(),
        THIRD.model_dump_json().replace("16", '16,"more":1').encode(),
    ],
)
def test_what_is_damaged_is_as_if_nothing_was_reported(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)

    assert read_step_progress(tmp_path) is None


def test_a_report_that_cannot_be_written_fails_no_run(tmp_path):
    write_step_progress(THIRD, tmp_path / "gone")

    assert read_step_progress(tmp_path / "gone") is None
