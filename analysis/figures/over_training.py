"""The critical batch over training, beside the noise scale."""

import numpy as np
import pandas as pd

from analysis.figures import style
from analysis.figures.sheet import Drawing, Sheet
from analysis.figures.style import Width


@style.use_style()
def draw_over_training(
    found: pd.DataFrame, title: str, margin: float, width: Width = "screen"
) -> Drawing:
    """Intervals of the critical batch at each position, from `critical_branches`."""
    frame = found.assign(top=found["below"].replace(np.inf, np.nan))
    frame["top"] = frame["top"].fillna(2 * max(frame[["least", "top", "estimate"]].max()))
    sheet = Sheet.new(width)
    (axes,) = sheet.panels
    axes.vlines(frame["position"], frame["least"], frame["top"], color="black",
                label="critical batch, 95 %")  # fmt: skip
    is_open = np.isinf(frame["below"])
    axes.plot(frame["position"][is_open], frame["top"][is_open], "^", color="black")
    axes.plot(frame["position"], frame["estimate"], "o", color="black", label="by the means alone")
    axes.plot(frame["position"], frame["noise_scale"], "s:", color=style.GREY, label="noise scale")
    axes.set_yscale("log", base=2)
    axes.set_xticks(sorted(frame["position"].unique()))
    sheet.label("position [epochs]", "batch [examples]")
    note = (
        f"Lines: from the batch up to which branches are shown not to be worse (margin {margin:g}) "
        "to that from which they are shown to be worse; an arrow where no batch is. "
        f"{int(frame['num_seeds'].min())} or more seeds."
    )
    return sheet.finish(frame.drop(columns="top"), f"Critical batch over training: {title}", [note])
