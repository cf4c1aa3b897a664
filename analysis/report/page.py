"""The report page: a file that works offline and never executes text from configs."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.decide.proposal import proposal_pairs
from analysis.decide.proposals import propose_next
from analysis.figures.points import points, reading_note
from analysis.papers.claim import NOT_RUN
from analysis.papers.judge import Judged, judge_all, verdict_lines
from analysis.report.estimates import estimate_all
from analysis.stats.answer import capitalize
from analysis.tables.comparable_runs import (
    distinct_configs,
    group_comparable,
    select_runs_where,
    warmup_unit,
)
from analysis.tables.load import read_curves, read_runs
from analysis.tables.metric import AskedMetric, Measured, Metric, clock_label, clock_of, with_metric
from analysis.tables.validity import check_validity, doubts
from sweeper.spec.sentences import several
from sweeper.store.schema import CURVES, RUNS

#: Curves that the page draws if the runs have them, and how many numbers at most: with many runs,
#: only the first measures are drawn, so that the page stays small.
MEASURES = ("val_accuracy", "val_loss", "train_loss", "train_accuracy", "distance_from_start", "lr")
MAX_NUMBERS = 1_500_000

#: Significant digits of a run's numbers, and of its curves'.
_DIGITS, _CURVE_DIGITS = 7, 5

#: Characters of the end of a log that the page contains, and for how many runs at most.
LOG_TAIL, MAX_LOGS = 1500, 400

#: Columns that the page shows in other ways, or that say nothing in a plot.
_APART = ("config_json", "versions", "log_path", "data_about")

#: Columns that no file has.
_ABOUT = {
    "compared": "number of its group: runs that differ only in batch, warmup, lr rule and seed",
    "results": "the results folder",
    "warmup": "length of the linear warmup [epochs, or warmup_unit]",
}

#: Parts of columns' names, and what axes have instead.
_WORDS = (
    (r"\blr rule$", "learning-rate rule"), (r"\blr$", "learning rate"),
    (r"^(best )?val ", r"\1validation "), (r"^train (?=loss|acc)", "training "),
    (r"^num ", "number of "), (r"^bn ", "BatchNorm "), (r"^compared$", "group of comparable runs"),
    (r"\bper s$", "per second"), (r" s$", " time [s]"), (r" gib$", " [GiB]"),
    (r"(?<=warmup) epochs$", " [epochs]"), (r"batch$", "batch [examples]"),
    (r"accuracy$", "accuracy [%]"), (r"loss$", "loss [nats]"),
)  # fmt: skip

#: Upper 97.5 % points of Student's t with 1, 2, ... degrees of freedom.
_STUDENT = [round(float(t), 4) for t in stdtrit(np.arange(1, 201), 0.975)]


def read_tables(
    results: Sequence[str], asked: AskedMetric | None = None, where: Sequence[str] = ()
) -> Measured:
    """Read results folders; unread are the files of all their tables that were left out."""
    loaded = read_runs(results)
    runs = select_runs_where(loaded.frame, where)
    curves = read_curves(results, runs, ["step", "examples_seen", *MEASURES])
    found = with_metric(results, runs, curves.frame, asked)
    return replace(found, unread=[*loaded.unread, *curves.unread, *found.unread])


def report_data(
    results: Sequence[str],
    command: str,
    asked: AskedMetric | None = None,
    where: Sequence[str] = (),
) -> dict[str, Any]:
    """Read results folders into what the page shows.

    Raises:
        ValueError: if a folder does not exist, or the runs do not have the metric.
    """
    tables = read_tables(results, asked, where)
    return page_data(tables, results, command) | conclusions(tables)


def page_data(tables: Measured, results: Sequence[str], command: str) -> dict[str, Any]:
    """The runs and curves as the page takes them, without conclusions.

    `runs` has for each run its values in the order of `columns`; its epochs, and their values in
    the order of `measures`; and the end of its log.
    """
    metric = tables.metric
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    folders = ", ".join(Path(folder).resolve().name for folder in results)
    data: dict[str, Any] = {
        "made": {"command": command, "at": now, "results": [str(r) for r in results]},
        "title": f"{folders}: {metric.label or metric.name}",
        "unread": [str(u) for u in tables.unread],
        "metric": {"name": metric.name, "mode": metric.mode},
        "student": _STUDENT,
        "clock": "epoch",
        "columns": [], "measures": [], "groups": [], "summary": [], "config": {}, "runs": {},
    }  # fmt: skip
    if not len(tables.runs):
        return data
    groups = group_comparable(tables.runs)
    numbered = [group.runs.assign(compared=i) for i, group in enumerate(groups, 1)]
    runs = pd.concat(numbered).sort_index()
    common, own = _configs(runs)
    shown = pd.concat([runs.drop(columns=[*_APART]), own], axis=1)
    if "warmup_unit" in runs:  # then the column has no epochs
        shown = shown.rename(columns={"warmup_epochs": "warmup"})
    empty = [name for name in shown if shown[name].isna().all() and name != metric.name]
    shown = shown.drop(columns=empty)
    data["columns"] = [
        {
            "name": name,
            "label": label_column(name, warmup_unit(runs)),
            "about": RUNS[name][1] if name in RUNS else _ABOUT.get(name, "from the config"),
            "unit": "%" if name.endswith("accuracy") else "",
            "number": _is_number(shown[name]),
        }
        for name in map(str, shown)
    ]
    for group in groups:
        note = f"{reading_note(points(group.runs, metric.name))} {doubts(group.runs)}".strip()
        data["groups"].append({"title": group.title, "about": group.about, "note": note})
    data["config"] = {name: str(value) for name, value in common.items()}
    data["summary"] = _summary(runs)
    data["measures"], curves = _curves(tables.curves, metric)
    data["labels"] = {name: label_column(name) for name in data["measures"]}
    data["clock"] = clock_label(tables.curves, runs)
    logs = _logs(runs)
    rows = zip(*(_values(shown[name]) for name in shown), strict=True)
    data["runs"] = {
        run_id: [row, curves.get(run_id, []), logs.get(run_id, "")]
        for run_id, row in zip(runs["run_id"], rows, strict=True)
    }
    return data


def conclusions(tables: Measured) -> dict[str, Any]:
    """Claims, doubts and estimates; empty without a run that has ended."""
    runs, curves = tables.runs, tables.curves
    if not len(runs):
        return {"claims": [], "findings": [], "estimates": [], "next": []}
    judged, metric = judge_all(runs, curves), tables.metric
    compared = [paper.compared for paper in judged] or group_comparable(runs)[:1]
    found = {text for group in compared for text in check_validity(group.runs, metric)}
    first, *others = estimate_all(tables)
    others = sorted(others, key=lambda answer: not answer.has_answer)
    return {
        "claims": [{"heading": j.heading, "verdicts": _verdicts(j)} for j in judged],
        "findings": sorted(found),  # refusals before remarks
        "estimates": [[e.question, e.words] for e in (first, *others)],
        "next": proposal_pairs(propose_next(tables, judged, first)),
    }


def _verdicts(judged: Judged) -> list[list[str]]:
    """What the runs say of a paper's claims; of those whose points were not run, how many."""
    lines = [list(line) for line in verdict_lines(judged) if line[0] != NOT_RUN]
    if left := sum(verdict.verdict == NOT_RUN for verdict in judged.verdicts):
        claims = several(left, "more claim")
        lines.append([NOT_RUN, f"{claims}: sweeper analysis claims says which points they need."])
    return lines


def label_column(name: str, unit: str = "epochs") -> str:
    """A column of ours in the words of an axis; the user's own names keep their spelling."""
    if name == "warmup":
        return f"Warmup [{unit}]"
    if name not in {**RUNS, **CURVES, **_ABOUT}:
        return name
    words = name.replace("_", " ")
    for short, said in _WORDS:
        words = re.sub(short, said, words)
    return capitalize(words)


def _summary(runs: pd.DataFrame) -> list[list[str]]:
    outcomes = runs["outcome"].value_counts()
    grid: list[str] = []
    for name in ("global_batch", "warmup_epochs", "lr_rule", "base_lr", "seed"):
        if values := sorted(runs[name].dropna().unique().tolist()):
            shown = ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values[:12])
            more = f" and {len(values) - 12:,} more" if len(values) > 12 else ""
            unit = f" [{warmup_unit(runs)}]" * (name == "warmup_epochs" and "warmup_unit" in runs)
            grid.append(f"{name.removesuffix('_epochs') if unit else name}{unit}: {shown}{more}")
    names = ("data", "data_about", "model", "device_kind")
    kinds = {name: sorted({str(value) for value in runs[name].dropna()}) for name in names}
    data, about, model = (" / ".join(kinds[name]) for name in names[:3])
    ranks = runs["world_size"].fillna(1)
    cost = f"{float(runs['wall_s'].sum()) / 3600:,.2f} hours of runs, "
    cost += f"{float((runs['wall_s'].fillna(0) * ranks).sum()) / 3600:,.2f} rank-hours"
    cost += f" on {', '.join(kinds['device_kind'])}" if kinds["device_kind"] else ""
    return [
        ["Data", f"{data}: {about}" if about else data],
        ["Model", model],
        ["Runs", f"{len(runs):,}: " + ", ".join(f"{n:,} {o}" for o, n in outcomes.items())],
        ["Grid", "; ".join(grid)],
        ["Cost", cost],
    ]


def _is_number(values: pd.Series) -> bool:
    kind = values.dtype
    return pd.api.types.is_numeric_dtype(kind) and not isinstance(kind, pd.CategoricalDtype)


def _values(values: pd.Series, digits: int = _DIGITS) -> list[Any]:
    """Values for JSON: numbers to `digits` significant digits, else text; null if not known."""
    if not _is_number(values):
        return [None if pd.isna(value) else str(value) for value in values]
    return [
        None
        if not np.isfinite(value)
        else int(value)
        if value == int(value) and abs(value) < 2**53
        else float(f"{value:.{digits}g}")
        for value in values.astype(float).tolist()
    ]


def _configs(runs: pd.DataFrame) -> tuple[dict[str, Any], pd.DataFrame]:
    """What all configs share, and a column for each setting in which they differ."""
    places, configs = distinct_configs(runs)
    leaves = [config.settings for config in configs]
    names = list(dict.fromkeys(name for leaf in leaves for name in leaf))
    common = {
        n: leaves[0].get(n) for n in names if len({repr(leaf.get(n)) for leaf in leaves}) == 1
    }
    known = {"batch", "warmup", "seed", "lr_rule.name", *runs, *RUNS}
    scientific = {name for config in configs for name in config.scientific}
    own = [n for n in names if n in scientific and n not in common and n not in known]
    columns = {n: pd.Series([leaf.get(n) for leaf in leaves]) for n in own}
    texts = {n: c if pd.api.types.is_numeric_dtype(c) else c.map(str) for n, c in columns.items()}
    return common, pd.DataFrame(texts).reindex(places).set_axis(runs.index)


def _logs(runs: pd.DataFrame) -> dict[str, str]:
    """Ends of logs; runs that did not finish come first."""
    order = runs.assign(fine=runs["outcome"] == "finished").sort_values("fine", kind="stable")
    tails: dict[str, str] = {}
    for _, row in order.head(MAX_LOGS).iterrows():
        folder = Path(str(row["results"])).resolve()
        path, text = folder / str(row["log_path"] or ""), ""
        try:
            path = path.resolve()
            if path.is_relative_to(folder) and path.is_file():  # a row may name any file
                text = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, RuntimeError) as error:  # such as a loop of links
            text = f"{path} could not be read: {getattr(error, 'strerror', None) or error}"
        if text:
            tails[row["run_id"]] = text[-LOG_TAIL:]
    return tails


def _curves(curves: pd.DataFrame, metric: Metric) -> tuple[list[str], dict[str, list[Any]]]:
    """The measures that are drawn, and for each run the places of its evaluations and values."""
    names = dict.fromkeys([metric.name, *MEASURES])
    there = [name for name in names if name in curves and curves[name].notna().any()]
    measures = there[: max(1, MAX_NUMBERS // max(1, len(curves)))]
    if not len(curves):
        return measures, {}
    drawn = curves.sort_values(["run_id", "step"])
    numbers = [_values(drawn[name], _CURVE_DIGITS) for name in (clock_of(curves), *measures)]
    ids, starts = np.unique(drawn["run_id"].to_numpy(dtype=str), return_index=True)
    ends = [*starts[1:], len(drawn)]
    return measures, {
        str(run_id): [column[start:end] for column in numbers]
        for run_id, start, end in zip(ids, starts, ends, strict=True)
    }


#: In the order in which they run; those in vendor/ are third-party (vendor/LICENSES.txt).
_SCRIPTS = ("vendor/d3.min.js", "vendor/plot.min.js", "runs.js", "figures.js", "page.js")


def page(data: dict[str, Any]) -> str:
    """The page as HTML.

    Scripts run only by their hashes, and nothing may be fetched. All data is compressed, so none of
    its text is in the page's source, and it is shown as text only.

    The data is as `report_data` returns it.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # as every browser reads it
    scripts = [_read(name) for name in _SCRIPTS]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'",
        "style": _read("page.css"),
        "data": base64.b64encode(zlib.compress(text.encode())).decode(),
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts),
    }
    return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], _read("page.html"))


def _read(name: str) -> str:
    return resources.files("analysis.report").joinpath(name).read_text(encoding="utf-8")
