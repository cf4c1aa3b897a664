"""Tables that fit the terminal."""

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from sweeper.console.fitted_table import Column, FittedTable
from sweeper.console.printing import text_console

NUMBERS = st.integers(0, 10**9).map("{:,}".format) | st.floats(0, 1e6).map("{:g}".format)
NAMES = st.sampled_from(["batch", "val_accuracy", "optimizer.weight_decay", "steps/epoch", "s"])


def printed(columns, width: int) -> list[str]:
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(FittedTable(columns))
    return console.file.getvalue().splitlines()


@given(
    columns=st.lists(
        st.builds(lambda head, cells: Column(head=head, cells=cells), NAMES, st.lists(
            NUMBERS, min_size=2, max_size=2)),
        min_size=1, max_size=12,
    ),
    width=st.integers(40, 200),
)  # fmt: skip
def test_no_number_is_cut_and_no_line_is_longer_than_the_terminal(columns, width):
    lines = printed(columns, width)

    assert max(map(cell_len, lines)) <= width
    shown = " ".join(lines).replace("=", " ").split()
    for column in columns:
        for cell in column.cells:
            assert cell in shown


def test_heads_are_wrapped_before_anything_is_left_out():
    columns = [Column(head="val_accuracy", cells=["0.9312"]), Column(head="s", cells=["3.1"])]

    assert printed(columns, 80) == ["val_accuracy    s", "      0.9312  3.1"]
    assert [line.rstrip() for line in printed(columns, 13)] == [
        "    val_",
        "accuracy    s",
        "  0.9312  3.1",
    ]


def test_what_can_be_spared_goes_first_and_is_named():
    columns = [
        Column(head="batch", cells=["3,840"]),
        Column(head="time", cells=["1h 02m"], spared=1),
        Column(head="layout", cells=["1x768x5"], spared=2),
    ]

    assert printed(columns, 14) == ["batch   layout", "3,840  1x768x5", "No room for ", "time."]
    assert printed(columns, 13)[:2] == ["batch", "3,840"]


def test_an_empty_column_takes_no_room():
    columns = [Column(head="batch", cells=["1", "2"]), Column(head="time", cells=["", ""])]

    assert printed(columns, 80) == ["batch", "    1", "    2"]


def test_words_are_folded_where_numbers_need_the_room():
    name = Column(head="model", cells=["a_very_long_name"])
    number = Column(head="n", cells=["12345"])

    assert printed([name, number], 17) == [
        "     model      n",
        "a_very_lon  12345",
        "    g_name       ",
    ]


CELLS = ["0.9312", "1,234", "1x768x5?", "3/30", "1h 02m", "1e-05", "x 2.5"]


@pytest.mark.parametrize("cell", CELLS)
def test_what_makes_sense_in_one_piece_is_never_folded(cell):
    columns = [Column(head=f"c{i}", cells=[cell]) for i in range(12)]

    lines = printed(columns, 24)

    assert " ".join(lines).count(cell) == len(columns)


def test_a_terminal_of_no_columns_is_shown_the_table(monkeypatch, capsys):
    """Some shells of editors say COLUMNS=0; nothing fits into that."""
    monkeypatch.setenv("COLUMNS", "0")

    text_console().print(FittedTable([Column(head="batch", cells=["3,840"])]))

    assert capsys.readouterr().out.split() == ["batch", "3,840"]
