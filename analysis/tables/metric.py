"""The metric that runs are compared by: its direction, its wording, and each run's values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, nan
from typing import Literal

import pandas as pd

from analysis.tables.comparable_runs import example_unit, stored_configs
from analysis.tables.load import KEYS, Folders, Unread, read_metrics
from sweeper.store.schema import CURVES, RUNS

Mode = Literal["max", "min"]


@dataclass(frozen=True, slots=True)
class Metric:
    """What runs are compared by: a column of the frames of runs and of curves.

    Attributes:
        name: the column, as the module logs it.
        mode: whether max or min is better.
        label: on axes; the name if empty.
        unit: on axes; % for fractions, which are written in percent.
    """

    name: str
    mode: Mode
    label: str = ""
    unit: str = ""

    @property
    def word(self) -> str:
        """In sentences: accuracy, loss, or the name."""
        return self.label.rpartition(" ")[2] or self.name

    @property
    def sign(self) -> float:
        """What a value is multiplied by so that more is better."""
        return 1.0 if self.mode == "max" else -1.0

    def shown(self, value: float) -> str:
        """A value in words."""
        return f"{100 * value:.4g} %" if self.unit == "%" else f"{value:.4g}"


ACCURACY = Metric("val_accuracy", "max", "validation accuracy", "%")
LOSS = Metric("val_loss", "min", "validation loss", "nats")

#: Columns of both tables, which every classifier of ours has.
_OURS = {
    metric.name: metric
    for metric in (
        ACCURACY,
        LOSS,
        Metric("train_accuracy", "max", "training accuracy", "%"),
        Metric("train_loss", "min", "training loss", "nats"),
    )
}


def find_metric(name: str, mode: str | None) -> Metric:
    """The metric of a command's config.

    Raises:
        ValueError: if it is not known whether more or less of it is better.
    """
    if name in _OURS:
        return _OURS[name]
    known: dict[str | None, Mode] = {"max": "max", "min": "min"}
    if mode in known or name.endswith("loss"):
        return Metric(name, known.get(mode, "min"))
    msg = (
        f"metric_mode must say whether a higher {name} is better; got metric_mode="
        f"{mode or 'null'}. Write metric_mode=max or min."
    )
    raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class AskedMetric:
    """What a command asks for: a name, and a mode if the results do not say it."""

    name: str | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Runs and curves with the column of their metric.

    Attributes:
        runs: a row per run, with the metric after the last epoch.
        curves: a row per run and evaluation.
        metric: what the runs are compared by.
        unread: files that were left out, by `with_metric` those of the metrics table.
    """

    runs: pd.DataFrame
    curves: pd.DataFrame
    metric: Metric = ACCURACY
    unread: Sequence[Unread] = field(default=())

    @property
    def runs_with_metric(self) -> pd.DataFrame:
        """The runs; if they name several metrics, those that name this metric or have it.

        Without branches, where there are other runs: they differ from each other in their parents.
        """
        named, name = self.runs["metric_name"], self.metric.name
        runs = self.runs
        if named.nunique() >= 2:
            runs = runs[(named == name) | runs[name].notna()]
        is_whole = runs["branch"].isna()
        return runs[is_whole] if is_whole.any() else runs


def clock_of(curves: pd.DataFrame) -> str:
    """What curves are drawn against: epochs, or examples if a run was evaluated within an epoch."""
    if "examples_seen" not in curves:
        return "epoch"
    keys = ["run_id", "epoch"]
    is_within = "epoch" not in curves or curves["epoch"].eq(0).any()
    is_within = is_within or ("run_id" in curves and curves.duplicated(keys).any())
    return "examples_seen" if is_within else "epoch"


def clock_label(curves: pd.DataFrame, runs: pd.DataFrame) -> str:
    """What the axis of these runs' curves counts."""
    return "epoch" if clock_of(curves) == "epoch" else example_unit(runs)


def curve_columns(runs: pd.DataFrame, asked: AskedMetric, *others: str) -> list[str]:
    """The columns of the curves that `with_metric` needs, and others."""
    names = [_choose_name(runs, asked), ACCURACY.name, LOSS.name]
    return list(dict.fromkeys([*others, *(name for name in names if name in _OURS)]))


def with_metric(
    results: Folders, runs: pd.DataFrame, curves: pd.DataFrame, asked: AskedMetric | None = None
) -> Measured:
    """Runs and curves with the metric that is asked for, or that the results name.

    Runs that name val_accuracy and have none are compared by their loss. A run that finished with
    an infinite metric, or logged NaN as its last value, counts as diverged.

    Uses `metric_name`, `config_json` and our own measures of the runs.

    Raises:
        ValueError: if the results name several metrics, none logged this metric, or its direction
            is not known.
    """
    asked = asked or AskedMetric()
    name = _choose_name(runs, asked)
    if name in _OURS and asked.mode not in (None, _OURS[name].mode):
        mode = _OURS[name].mode
        msg = (
            f"--metric-mode must be {mode} for {name}; got --metric-mode {asked.mode}. Leave it "
            "out."
        )
        raise ValueError(msg)
    if name in _OURS and (not len(runs) or runs[name].notna().all()):
        return _mark_diverged(Measured(runs, curves, _OURS[name]))
    loaded = read_metrics(results, runs)
    logged = loaded.frame[loaded.frame["name"] == name]
    logged = logged.assign(value=logged["value"].fillna(inf))  # NaN was logged
    if not len(logged):
        metric = _find_unlogged(runs, asked, name, sorted(set(loaded.frame["name"])))
        if metric.name not in runs:  # all of them failed before they logged it
            nothing = {metric.name: nan}
            runs, curves = runs.assign(**nothing), curves.assign(**nothing)
        return _mark_diverged(Measured(runs, curves, metric, loaded.unread))
    last = logged.sort_values("step").drop_duplicates(_RUN, keep="last")
    return _mark_diverged(
        Measured(
            _add_column(runs, last, _RUN, name),
            _add_column(curves, logged, [*_RUN, "step"], name),
            Metric(name, _mode(runs, asked, name)),
            loaded.unread,
        )
    )


def _mark_diverged(measured: Measured) -> Measured:
    """Replace infinite values, which have no mean or interval, by null; such runs diverged."""
    name, runs, curves = measured.metric.name, measured.runs, measured.curves
    if name in curves:
        curves = curves.assign(**{name: curves[name].replace([inf, -inf], nan)})
    if name in runs:
        is_lost = runs[name].isin([inf, -inf])
        lost = is_lost & (runs["outcome"] == "finished")
        outcome = runs["outcome"].mask(lost, "diverged")
        runs = runs.assign(outcome=outcome, **{name: runs[name].mask(is_lost)})
    return replace(measured, runs=runs, curves=curves)


_RUN = ["results", *KEYS]


def _choose_name(runs: pd.DataFrame, asked: AskedMetric) -> str:
    if asked.name is not None:
        return asked.name
    names = sorted(set(runs["metric_name"].dropna())) if len(runs) else []
    if len(names) > 1:  # what no run has a value of is a word that was mistyped
        names = sorted({*runs["metric_name"][runs["metric"].notna()].dropna()}) or names
    if len(names) > 1:
        msg = (
            "results must be compared by one metric; the runs of these name "
            f"{', '.join(names)}. Choose one with --metric NAME."
        )
        raise ValueError(msg)
    return names[0] if names else ACCURACY.name


def _find_unlogged(
    runs: pd.DataFrame, asked: AskedMetric, name: str, logged: Sequence[str]
) -> Metric:
    """An own measure, or a metric that runs name but that none of them got to log."""
    ours = [known for known in _OURS if known in runs and runs[known].notna().any()]
    if name == ACCURACY.name and asked.name is None:
        return LOSS if LOSS.name in ours and name not in ours else ACCURACY
    if name in ours:
        return _OURS[name]
    if name in set(runs["metric_name"].dropna()) and name not in {*RUNS, *CURVES}:
        return Metric(name, _mode(runs, asked, name))
    msg = (
        f"--metric must be a name that these runs logged; got {name}, they logged "
        f"{', '.join([*ours, *logged]) or 'nothing'}. Choose one of them."
    )
    raise ValueError(msg)


def _mode(runs: pd.DataFrame, asked: AskedMetric, name: str) -> Mode:
    """The mode asked for, that of the runs' configs, or that of our measure of this name."""
    if asked.mode is not None:
        return asked.mode
    configs = runs.loc[runs["metric_name"] == name].drop_duplicates("config_json")
    modes = {str(config.settings.get("metric_mode")) for config in stored_configs(configs)}
    match sorted(modes - {"None"}) or ([_OURS[name].mode] if name in _OURS else []):
        case ["max"]:
            return "max"
        case ["min"]:
            return "min"
        case found:
            modes_found = " and ".join(found) or "nothing about it"
            msg = (
                f"--metric-mode must say whether a higher {name} is better; the runs say "
                f"{modes_found}. "
                "Add --metric-mode max or min."
            )
            raise ValueError(msg)


def _add_column(
    frame: pd.DataFrame, logged: pd.DataFrame, keys: list[str], name: str
) -> pd.DataFrame:
    """Fill what was logged under a name into a frame, where it has no value of ours."""
    values = logged.astype({"results": "str"}).set_index(keys)["value"]
    values = values[~values.index.duplicated()]
    rows = pd.MultiIndex.from_frame(frame[keys].astype({"results": "str"}))
    found = values.reindex(rows).to_numpy(dtype=float)
    column = pd.Series(found, index=frame.index)
    return frame.assign(**{name: frame[name].fillna(column) if name in frame else column})


def check_target(target: float | None, unit: str) -> None:
    """ValueError for a target that no run could reach."""
    if target is None or (isfinite(target) and (unit != "%" or 0 < target <= 1)):
        return
    rule = "an accuracy above 0 and up to 1" if unit == "%" else "a number"
    msg = f"--target must be {rule}; got --target {target:g}. For 90 % write 0.9."
    raise ValueError(msg)
