"""The sheet that a figure is drawn on, and the figure saved with its numbers and words."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from analysis.figures import style
from analysis.figures.style import INCHES, LETTERS, SMALL, Width

FORMATS = ("png", "pdf", "svg")
_DPI = 200


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure; a notebook shows it.

    Attributes:
        figure: the ink.
        frame: every plotted number.
        caption: what is drawn, on what, and how to read it.
    """

    figure: Figure
    frame: pd.DataFrame
    caption: str

    @style.use_style()
    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", dpi=_DPI)
        return buffer.getvalue()


@style.use_style()
def save(drawing: Drawing, folder: Path | str, name: str) -> list[Path]:
    """Write a figure in every format, its frame as CSV and its caption as text.

    The folder is made if absent.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{ending}" for ending in FORMATS]
    engine = drawing.figure.get_layout_engine()
    for path in paths:
        drawing.figure.savefig(path, dpi=_DPI)
        drawing.figure.set_layout_engine("none")  # other formats keep the layout of the first
    drawing.figure.set_layout_engine(engine)
    table, caption = folder / f"{name}.csv", folder / f"{name}.txt"
    drawing.frame.to_csv(table, index=False)
    caption.write_text(drawing.caption + "\n", encoding="utf-8")
    return [*paths, table, caption]


#: Panels of a user's figure, as many as ours.
Given = Axes | Sequence[Axes] | None

#: Characters in a line of the title and of the note, on a screen.
_TITLE, _NOTE = 88, 128

#: Lines of title and note that a figure has room for, and the height of another line [inches].
_FEW_LINES, _LINE = 5, 0.14

#: Least gap between labels of an axis [pixels].
_APART = 4

#: A strip below a panel: its place and height, in heights of the panel.
_STRIP = (0.0, -0.36, 1.0, 0.28)


@dataclass(slots=True)
class Sheet:
    """Panels of a figure, row by row, with shared axes.

    Attributes:
        figure: holds the panels.
        panels: row by row.
        width: what the figure is for.
        across: panels in a row.
        is_given: whether the panels are a user's own.
        strips: below panels, by their number.
    """

    figure: Figure
    panels: list[Axes]
    width: Width
    across: int = 1
    is_given: bool = False
    strips: dict[int, Axes] = field(default_factory=dict[int, Axes])

    @classmethod
    def new(
        cls,
        width: Width,
        ax: Given = None,
        count: int = 1,
        *,
        across: int = 2,
        height: float | None = None,
        strips: Sequence[bool] = (),
    ) -> "Sheet":
        """Panels on a new figure, or those that are given.

        `ax` holds a user's panels; `across` is the most panels in a row, fewer by 1 in a column of
        a paper; `height` is that of a panel [inches]; `strips` says which panels need room below.

        Raises:
            ValueError: if another number of panels is given.
        """
        if ax is not None:
            panels = [ax] if isinstance(ax, Axes) else list(ax)
            if len(panels) != count:
                msg = f"ax must be one axes for each of {count} panels; got {len(panels)}."
                raise ValueError(msg)
            return cls(panels[0].figure.figure, panels, width, across=count, is_given=True)
        across = min(count, across - (width == "column") or 1)
        rows = math.ceil(count / across)
        high = {1: 1.4, 2: 1.2 if width == "column" else 1.8}.get(across, 1.3 if rows > 1 else 1.6)
        if rows == across == 1:
            high = {"screen": 3.0, "text": 2.6, "column": 2.0}[width]
        high = height or high
        room = 0.7 + (0.5 if width == "screen" else 0.0)
        below = sum(any(strips[i : i + across]) for i in range(0, len(strips), across))
        size = INCHES[width], high * (rows - _STRIP[1] * below) + room
        figure = Figure(figsize=size, layout="constrained")
        shared = figure.subplots(rows, across, sharex=True, sharey=True, squeeze=False)
        panels = list(shared.flat)
        for axes in panels[count:]:
            axes.remove()
        sheet = cls(figure, panels[:count], width, across)
        for axes in sheet.panels if count % across else sheet.lowest:
            axes.tick_params(labelbottom=True)
        return sheet

    @property
    def lowest(self) -> list[Axes]:
        """The panels without a panel below."""
        return self.panels if self.is_given else self.panels[-self.across :]

    def add_strip(self, number: int, label: str) -> None:
        """Add a strip of shares, 0 to 1, below a panel, on the same horizontal axis."""
        axes = self.panels[number]
        strip = axes.inset_axes(_STRIP, sharex=axes)
        strip.set_ylim(-0.1, 1.1)
        strip.set_yticks([0, 1], ["0", "100"])
        strip.grid(visible=True, axis="y")
        axes.tick_params(labelbottom=False)
        strip.tick_params(labelbottom=axes in self.lowest)
        strip.set_ylabel(label, fontsize=SMALL)
        self.strips[number] = strip

    def label(self, x: str, y: str) -> None:
        """Name the axes, once where panels share them."""
        if self.panels[0].get_xscale() == "function":  # of warmups
            x = f"{x}, on the scale log(warmup + 1)"
        for i, axes in enumerate(self.panels):
            if axes in self.lowest:
                self.strips.get(i, axes).set_xlabel(x)
        if self.is_given or len(self.panels) <= self.across:
            self.panels[0].set_ylabel(y, parse_math=False)
        else:
            self.figure.supylabel(y, fontsize=LETTERS, parse_math=False)

    def finish(
        self, frame: pd.DataFrame, title: str, words: Sequence[str], legend: str = ""
    ) -> Drawing:
        """Add the legend of all panels, and on a screen title and words; keep ticks apart."""
        caption = "\n".join([title, *filter(None, words)])
        if self.width == "screen" and not self.is_given:
            wrapped = textwrap.fill(title, _TITLE)
            heading = {"fontsize": 9, "fontweight": "bold", "x": 0.01, "ha": "left"}
            self.figure.suptitle(wrapped, **heading, parse_math=False)
            note = "\n".join(textwrap.fill(text, _NOTE) for text in words if text)
            small = {"fontsize": SMALL, "color": style.GREY, "x": 0.01, "ha": "left"}
            self.figure.supxlabel(note, **small, parse_math=False)
            beyond = wrapped.count("\n") + note.count("\n") + 2 - _FEW_LINES
            self.figure.set_figheight(self.figure.get_figheight() + max(0, beyond) * _LINE)
        self._add_legend(legend)
        self._separate_ticks()
        return Drawing(self.figure, frame, caption)

    def _add_legend(self, title: str) -> None:
        found = [axes.get_legend_handles_labels() for axes in self.panels]
        named = {
            label: handle
            for handles, labels in found
            for handle, label in zip(handles, labels, strict=True)
        }
        if len(named) < 2:
            return
        shown = {"handles": list(named.values()), "labels": list(named), "title": title or None}
        if self.is_given:
            disable_math(self.panels[-1].legend(**shown))
            return
        at_side = self.width == "screen"
        loc = "outside right center" if at_side else "outside upper center"
        counts = range(1, 5) if at_side else range(len(named), 0, -1)
        legend = None
        for columns in counts:
            if legend:
                legend.remove()
            legend = disable_math(
                self.figure.legend(**shown, loc=loc, ncols=columns, columnspacing=1.2)
            )
            size = legend.get_window_extent().transformed(self.figure.dpi_scale_trans.inverted())
            wide, high = self.figure.get_size_inches()
            if size.height < 0.8 * high if at_side else size.width < 0.97 * wide:
                return

    def _separate_ticks(self) -> None:
        """Rotate labels of horizontal axes that overlap, and hide those that still do."""
        engine = self.figure.get_layout_engine()
        if engine:
            engine.execute(self.figure)
        for axes in [*self.panels, *self.strips.values()]:
            labels = [t for t in axes.get_xticklabels() if t.get_visible() and t.get_text()]
            boxes = [label.get_window_extent() for label in labels]
            if not _find_overlaps([(box.x0, box.x1) for box in boxes], _APART):
                continue
            axes.tick_params(axis="x", labelrotation=90)
            middles = [((box.x0 + box.x1) / 2, box.height / 2) for box in boxes]
            for i in _find_overlaps([(x - half, x + half) for x, half in middles], 0):
                labels[i].set_visible(False)


def disable_math(legend: Legend) -> Legend:
    """A legend whose names are not read as mathematics."""
    for text in legend.get_texts():
        text.set_parse_math(False)
    return legend


def _find_overlaps(spans: Sequence[tuple[float, float]], apart: float) -> list[int]:
    """Which spans, left to right, come too close to the last span before them that is kept."""
    end, found = -math.inf, list[int]()
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        if spans[i][0] < end + apart:
            found.append(i)
        else:
            end = spans[i][1]
    return found
