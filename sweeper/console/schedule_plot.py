"""A plot of planned learning rates against epochs: one line per distinct schedule."""

from collections.abc import Sequence
from pathlib import Path

from cycler import cycler
from matplotlib.figure import Figure

from sweeper.spec.run_spec import RunSpec

Series = tuple[tuple[float, float], ...]

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_STYLES = cycler(linestyle=["-", "--", ":"]) * cycler(color=_COLORS)
_POINTS = 2000  # about as many per line; every step if there are fewer


def schedule_series(specs: Sequence[RunSpec]) -> dict[Series, str]:
    """Every distinct series of (epoch, learning rate), with the names of the runs that have it.

    Runs that differ only in seed or layout share a series; so do arms of a study whose rates were
    meant to differ but do not.
    """
    names: dict[Series, list[str]] = {}
    for spec in specs:
        schedule = spec.schedule  # with AdaScale, that of the base batch, before the gain
        stride = max(1, schedule.total_steps(spec.epochs) // _POINTS)
        steps = range(0, schedule.total_steps(spec.epochs), stride)
        series = tuple((schedule.position(step), schedule.lr(step)) for step in steps)
        config = spec.config
        rule, decay = config.lr_rule.name, config.schedule.name
        name = f"batch {config.batch:,}, warmup {config.warmup:g}, {rule}, {decay}"
        found = names.setdefault(series, [])
        if name not in found:
            found.append(name)
    return {series: "; ".join(found) for series, found in names.items()}


def draw_schedules(specs: Sequence[RunSpec], path: Path) -> None:
    """Draw the learning rate of every planned run by step.

    ValueError if matplotlib cannot write files of this type.
    """
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in kinds:
        msg = (
            f"--schedule-plot must end in a type of picture; got {path}. Its types: "
            f"{', '.join(kinds)}."
        )
        raise ValueError(msg)
    axes = figure.add_subplot()
    axes.set_prop_cycle(_STYLES)
    for series, name in schedule_series(specs).items():
        epochs, rates = zip(*series, strict=True)
        axes.plot(epochs, rates, drawstyle="steps-post", label=name)
    axes.set(xlabel="epochs since the start", ylabel="learning rate")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=150)
