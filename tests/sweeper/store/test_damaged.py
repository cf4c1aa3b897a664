"""Files that a power cut, a full disk or a hand has damaged: named, set aside, worked around."""

import os
import random
import shutil
import subprocess

import pandas as pd
import pyarrow.parquet as pq
import pytest

from sweeper.cli import COMMANDS
from sweeper.commands.compact import main as compact_command
from sweeper.commands.status import main as status
from sweeper.console.results_folder import spell_folder
from sweeper.store.compaction import compact
from sweeper.store.damaged import find_damaged, set_aside_damaged
from sweeper.store.ledger import Ledger
from sweeper.store.table_files import is_sound, write_rows

WORDS = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=2",
    "batch=256", "seed=0,1",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(sweep_here, tmp_path_factory):
    """The results of two runs."""
    results = tmp_path_factory.mktemp("made") / "results"
    assert sweep_here(results, *WORDS) == 0
    return results


@pytest.fixture
def damaged(made, results):
    """A copy of them that a test damages, and the runs table as it was."""
    shutil.copytree(made, results)
    return results


def of_runs(results):
    columns = ["run_id", "outcome", "epochs_completed", "val_loss"]
    return pd.read_parquet(results / "runs")[columns].sort_values("run_id", ignore_index=True)


def cut(path):
    path.write_bytes(path.read_bytes()[:300])


def empty(path):
    path.write_bytes(b"")


def zero(path):
    """What some file systems leave after a power cut."""
    path.write_bytes(bytes(path.stat().st_size))


def flip(path):
    """One bit of the first column's values, as a bad disk does; the file's ends stay."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content = bytearray(path.read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def edit(path):
    """A better result, by hand."""
    pd.read_parquet(path).assign(val_loss=0.0).to_parquet(path)


@pytest.mark.parametrize(
    ("table", "damage"),
    [
        ("runs", cut),
        ("runs", flip),
        ("runs", edit),
        ("curves", empty),
        ("curves", zero),
        ("curves", flip),
    ],
)
def test_a_damaged_file_is_set_aside_and_its_run_made_again(
    sweep_here, made, damaged, capsys, table, damage
):
    first, second = sorted((damaged / table).glob("*.parquet"))
    untouched = second.read_bytes()
    damage(first)

    code = sweep_here(damaged, *WORDS)

    said = capsys.readouterr()
    assert code == 0, said.out
    assert f"Warning: {first} is damaged: moved to {damaged / 'damaged'}." in said.err
    assert (damaged / "damaged" / table / first.name).exists()
    assert second.read_bytes() == untouched
    pd.testing.assert_frame_equal(of_runs(damaged), of_runs(made))
    assert sorted(pd.read_parquet(damaged / "runs").attempt) == [1, 2]
    assert find_damaged(damaged) == []


@pytest.mark.parametrize("words", [("warmup=5",), ("budget=0.000001",)])
def test_a_command_that_is_refused_leaves_damaged_files_where_they_are(sweep_here, damaged, words):
    first, _ = sorted((damaged / "runs").glob("*.parquet"))
    cut(first)

    with pytest.raises(ValueError, match=r"^(warmup|budget) must "):
        sweep_here(damaged, *WORDS, *words)

    assert find_damaged(damaged) == [first]


def test_compact_says_which_files_it_left_out(damaged, capsys):
    first, _ = sorted((damaged / "runs").glob("*.parquet"))
    cut(first)

    assert compact_command([str(damaged)]) == 0

    assert f"{first} is damaged and stays as it is; `sweeper status" in capsys.readouterr().err


@pytest.mark.parametrize("column", ["seed", "tokens_per_example"])
def test_a_file_that_lacks_a_column_is_merged_only_if_it_may_lack_it(damaged, column):
    first, _ = sorted((damaged / "runs").glob("*.parquet"))
    pq.write_table(pq.read_table(first).drop_columns([column]), first)

    assert compact(damaged) == (2 if column == "tokens_per_example" else 0)
    assert first.exists() == (column == "seed")


@pytest.mark.parametrize("table", ["runs", "curves"])
def test_a_flipped_bit_is_not_merged_under_a_new_checksum(damaged, table):
    first, second = sorted((damaged / table).glob("*.parquet"))
    flip(first)

    assert compact(damaged) == 0
    assert first.exists()
    assert second.exists()
    assert find_damaged(damaged) == [first]
    rows = Ledger(damaged).rows([first.name[:12]], ["seed"])
    assert len(rows) == (table == "curves")


@pytest.mark.parametrize(
    "rows",
    [
        {"run_id": ["0123456789ab"], "attempt": [1], "outcome": ["paused"]},
        {"run_id": [1], "attempt": ["first"], "outcome": ["finished"]},
        {"notes": ["mine"]},
    ],
)
def test_rows_of_a_merged_file_that_are_not_understood_are_left_alone(
    damaged, capsys, sweep_here, rows
):
    """Of a newer version, or another program's."""
    foreign = damaged / "runs/compact-0123456789ab.parquet"
    pd.DataFrame(rows).to_parquet(foreign)

    assert status(["--results", str(damaged)]) == 0
    assert "2 finished, 0 running" in capsys.readouterr().out
    assert sweep_here(damaged, *WORDS) == 0
    assert compact(damaged) == 2
    assert foreign.exists()


def test_of_many_files_only_the_ends_are_looked_at(damaged, monkeypatch):
    """Reading them would take minutes; they are read when they are merged."""
    first, second = sorted((damaged / "runs").glob("*.parquet"))
    flip(first)
    monkeypatch.setattr("sweeper.store.damaged._FEW", 3)

    for damage in (cut, edit):
        content = second.read_bytes()
        damage(second)
        assert find_damaged(damaged) == [second]
        second.write_bytes(content)


def test_a_damaged_merged_file_stays_until_the_user_moves_it(sweep_here, made, damaged, capsys):
    """A flipped bit must not cost the training of hundreds of runs."""
    assert compact(damaged) == 2
    (merged,) = (damaged / "curves").glob("compact-*.parquet")
    cut(merged)

    assert status(["--results", str(damaged)]) == 0
    assert f"{merged} is damaged: the next sweep says what to do" in capsys.readouterr().out
    with pytest.raises(ValueError, match=rf"^A merged file must be .*; {merged} is") as found:
        set_aside_damaged(Ledger(damaged))
    assert not (damaged / "damaged").exists()

    subprocess.run(str(found.value).partition("again: ")[2], shell=True, check=True)
    assert len([*damaged.glob("damaged/*-compact-*")]) == 2
    assert sweep_here(damaged, *WORDS) == 0
    pd.testing.assert_frame_equal(of_runs(damaged), of_runs(made))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("released.json", ""),
        ("record-0.json", '{"outcome": '),
        ("progress.jsonl", "\x00\x00\x00\n"),
        ("config.json", ""),
    ],
)
def test_what_an_attempt_left_may_be_damaged(sweep_here, made, damaged, name, content):
    """Its launcher died before the release, and a power cut took more."""
    row = next((damaged / "runs").iterdir())
    run_id = row.name.partition("-")[0]
    folder = damaged / "attempts" / run_id / "001"
    row.unlink()
    (folder / "released.json").unlink()
    (folder / name).write_text(content)
    os.utime(folder, (0, 0))  # without a lease, it is held for as long as it is young
    (damaged / "active" / f"{run_id}-001").touch()

    assert sweep_here(damaged, *WORDS) == 0

    pd.testing.assert_frame_equal(of_runs(damaged), of_runs(made))


@pytest.mark.parametrize("damage", [cut, edit])
@pytest.mark.parametrize("command", ["status", "plan", "compact"])
def test_commands_that_only_read_work_around_it(damaged, capsys, command, damage):
    damage(min((damaged / "runs").iterdir()))
    module, _ = COMMANDS[command]
    words = [*WORDS, "--no-memory"] if command == "plan" else []
    main = __import__(module, fromlist=["main"]).main

    assert main(spell_folder(command, [*words, str(damaged)])) == 0

    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if command == "status":
        assert "is damaged: the next sweep trains its runs again" in said.out
        assert "1 finished, 0 running" in said.out
        assert "more" not in said.out
    if command == "plan":
        assert "is damaged: the next sweep trains its runs again" in said.err
        assert "7 runs will take" in said.out  # of 8, as one is left that has its row


def test_a_file_that_may_not_be_read_is_not_taken_for_damaged(damaged, monkeypatch):
    def refuse(path, mode):
        del mode
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.open", refuse)

    with pytest.raises(PermissionError):
        set_aside_damaged(Ledger(damaged))
    assert not (damaged / "damaged").exists()


@pytest.mark.parametrize("where", [0.1, 0.999])
def test_a_checkpoint_with_a_flipped_bit_is_set_aside(sweep_here, made, results, capsys, where):
    """torch loads such a file without a word, with other weights, or refuses it: at its end."""
    words = [*WORDS[:-1], "seed=0", "keep_checkpoint=true"]
    assert sweep_here(results, *words) == 0
    (checkpoint,) = results.glob("attempts/*/checkpoint.ckpt")
    content = bytearray(checkpoint.read_bytes())
    content[int(where * len(content))] ^= 1
    checkpoint.write_bytes(content)
    next((results / "runs").iterdir()).unlink()

    code = sweep_here(results, *words)

    said = capsys.readouterr().out
    assert code == 0
    assert f"{checkpoint} is damaged: moved to" in said
    assert len(list(results.glob("attempts/*/002/damaged.ckpt"))) == 1
    assert of_runs(results).val_loss[0] in set(of_runs(made).val_loss)


def test_no_bit_of_a_footer_can_flip_unseen(tmp_path):
    """Checksums of pages do not cover names, types and offsets of columns, which are behind them.

    A column with another name would be lost, and one with another's offset would have its numbers.
    """
    path = tmp_path / "runs" / "abc-001-finished.parquet"
    write_rows([{"run_id": "abc", "outcome": "finished", "val_loss": 0.5}], path)
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    bits = range(8 * begin, 8 * len(content))
    for number, bit in enumerate(random.Random(2).sample(bits, 3000)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)

        assert not is_sound(path, number), f"bit {bit - 8 * begin}"

    path.write_bytes(content)
    assert is_sound(path, -1)
    assert pd.read_parquet(path)["val_loss"].tolist() == [0.5]  # readers that do not know of it
