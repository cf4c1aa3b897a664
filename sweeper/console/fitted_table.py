"""A table that fits its terminal: columns are wrapped or left out, but no number is cut.

rich's own table cuts or folds every column alike, and takes ten times as long, which tells in a
plan of thousands of lines.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.text import Text

_GAPS = (2, 1)  # between columns: normally, and if space is short [cells]
_NARROWEST = 6  # of a column of words that is folded into lines [cells]
_NO_BREAK = "\u00a0"
_NUMBER = re.compile(r"[\d.,+\-e%x/?: hms]*|nan|-?inf|x [\d.e\-+]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of texts."""

    head: str
    cells: Sequence[str]
    styles: Sequence[str] = ()  # of each cell, or empty
    spared: int = 0  # the order in which columns are left out if space is short: 1 first, 0 never

    @property
    def width(self) -> int:
        """Width of the widest cell [cells]."""
        return max(map(cell_len, set(self.cells)), default=0)


@dataclass(frozen=True, slots=True)
class FittedTable:
    """Right-aligned columns under their heads; columns without any text are not shown.

    If lines are too long, heads are wrapped, then columns that can be spared are left out, then
    words are folded; if that is not enough, each row becomes a line of `head=cell`.
    """

    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines, as wide as the console allows."""
        del console
        shown = [column for column in self.columns if any(column.cells)]
        fits = ((gap, _fit(shown, options.max_width, gap)) for gap in _GAPS)
        gap, fitted = next((fit for fit in fits if fit[1]), (0, []))
        kept = {column.head for column, _ in fitted}
        left_out = [column.head for column in shown if column.head not in kept]
        yield from _lines(fitted, gap) if fitted else _sentences(shown, options.max_width)
        if fitted and left_out:
            yield Text(f"No room for {', '.join(left_out)}.", style="dim")


#: A column and the width at which it is drawn [cells].
_Sized = tuple[Column, int]


def _fit(columns: Sequence[Column], room: int, gap: int) -> list[_Sized]:
    """The columns to draw, with their widths; empty if they cannot fit."""
    room += gap  # each column is counted with a gap

    def total(sized: Sequence[_Sized]) -> int:
        return sum(width + gap for _, width in sized)

    plain = [(column, max(cell_len(column.head), column.width)) for column in columns]
    if total(plain) <= room:
        return plain
    wrapped = [(column, max(_head_width(column), column.width)) for column in columns]
    for spared in sorted({column.spared for column in columns if column.spared}):
        if total(wrapped) <= room:
            break
        wrapped = [sized for sized in wrapped if sized[0].spared != spared]
    while (excess := total(wrapped) - room) > 0:
        widths = [  # numbers must not be broken into lines
            0 if all(map(_NUMBER.fullmatch, set(column.cells))) else width
            for column, width in wrapped
        ]
        at = widths.index(max(widths))
        least = max(_NARROWEST, _head_width(wrapped[at][0]))
        if widths[at] <= least:
            return []
        wrapped[at] = (wrapped[at][0], max(least, widths[at] - excess))
    return wrapped


def _head_width(column: Column) -> int:
    return max(map(cell_len, _head_pieces(column.head)))


def _head_pieces(head: str) -> list[str]:
    """Where a head may be wrapped: after a dot, an underscore, a slash or a space."""
    return re.findall(r"[^ ._/]+[ ._/]*|[ ._/]+", head)


def _lines(sized: Sequence[_Sized], gap: int) -> Iterator[Text]:
    heads = [_wrap_head(column.head, width) for column, width in sized]
    deepest = max(map(len, heads))
    heads = [[""] * (deepest - len(head)) + head for head in heads]
    for texts in zip(*heads, strict=True):
        yield _line(sized, gap, texts, ["bold"] * len(sized))
    for i in range(len(sized[0][0].cells)):
        cells = [
            [column.cells[i]]
            if cell_len(column.cells[i]) <= width
            else chop_cells(column.cells[i], width)
            for column, width in sized
        ]
        styles = [column.styles[i] if column.styles else "" for column, _ in sized]
        for texts in zip_longest(*cells, fillvalue=""):
            yield _line(sized, gap, texts, styles)


def _wrap_head(head: str, width: int) -> list[str]:
    """A head, wrapped into lines of at most this width."""
    if cell_len(head) <= width:
        return [head]
    lines = [""]
    for piece in _head_pieces(head):
        if cell_len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return [line for line in lines if line]


def _line(sized: Sequence[_Sized], gap: int, texts: Iterable[str], styles: Sequence[str]) -> Text:
    line = Text(no_wrap=True)
    for i, ((_, width), text, style) in enumerate(zip(sized, texts, styles, strict=True)):
        line.append(" " * (gap * (i > 0) + width - cell_len(text)))
        line.append(text, style=style)
    return line


def _sentences(columns: Sequence[Column], room: int) -> Iterator[Text]:
    """Each row as `head=cell head=cell`, wrapped like prose."""
    for i in range(len(columns[0].cells) if columns else 0):
        cells = (f"{column.head}={column.cells[i]}" for column in columns if column.cells[i])
        row = " ".join(cell.replace(" ", _NO_BREAK) for cell in cells)
        for line in wrap(row, room, subsequent_indent="    ", break_on_hyphens=False):
            yield Text(line.replace(_NO_BREAK, " "))
