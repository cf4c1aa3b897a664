"""A figure with its numbers and words, and all of them on disk."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures import style

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

    @style.look()
    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", dpi=_DPI)
        return buffer.getvalue()


@style.look()
def save(drawing: Drawing, folder: Path, name: str) -> list[Path]:
    """Write a figure in every format, its frame as CSV and its caption as text.

    The folder is made if absent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{ending}" for ending in FORMATS]
    engine = drawing.figure.get_layout_engine()
    for path in paths:
        drawing.figure.savefig(path, dpi=_DPI)
        drawing.figure.set_layout_engine("none")  # other formats keep the first one's layout
    drawing.figure.set_layout_engine(engine)
    table, caption = folder / f"{name}.csv", folder / f"{name}.txt"
    drawing.frame.to_csv(table, index=False)
    caption.write_text(drawing.caption + "\n", encoding="utf-8")
    return [*paths, table, caption]
