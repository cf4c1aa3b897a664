"""What the report page shows, as plain data: columns, curves, verdicts, answers."""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.answers import answers
from analysis.claims import in_words, judge_all, preflight
from analysis.load import read_curves, read_runs
from analysis.studies import flat
from sweeper.domain.identity import scientific_part
from sweeper.schema import RUNS

#: Curves that the page draws, those of them that the runs have.
MEASURES = ("val_accuracy", "val_loss", "train_loss", "train_accuracy", "distance_from_start", "lr")

#: Characters of the end of a log that the page carries, and of how many runs at most.
LOG_TAIL, MAX_LOGS = 1500, 400

#: Columns that the page shows in other ways, or that say nothing in a plot.
_APART = ("config_json", "versions", "log_path", "data_about")

#: Draws of the bootstraps on the page; fewer than elsewhere, so that it opens soon.
_DRAWS = 1000


def report_data(results: Sequence[str], command: str) -> dict[str, Any]:
    """Read results folders into what the page shows.

    Args:
        results: results folders.
        command: that makes the page, shown on it.

    Raises:
        ValueError: if a folder does not exist.
    """
    loaded = read_runs(results)
    runs = loaded.frame.reset_index(drop=True)
    curves = read_curves(results, runs, ["step", "examples_seen", *MEASURES])
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    data: dict[str, Any] = {
        "made": {"command": command, "at": now, "results": [str(r) for r in results]},
        "unread": [str(u) for u in [*loaded.unread, *curves.unread]],
        "columns": [],
        "num_runs": len(runs),
        "curves": _curves(runs, curves.frame),
        "config": {},
        "logs": {},
    }
    if not len(runs):
        return data
    common, own = _configs(runs)
    shown = pd.concat([runs.drop(columns=list(_APART)), own], axis=1)
    data["columns"] = [_column(name, shown[name]) for name in shown.columns]
    data["config"] = {name: str(value) for name, value in common.items()}
    data["logs"] = _logs(runs)
    data["summary"] = _summary(runs)
    return data | _conclusions(runs, curves.frame)


def _conclusions(runs: pd.DataFrame, curves: pd.DataFrame) -> dict[str, Any]:
    judged = judge_all(runs, curves)
    findings = {(f.is_refusal, f.text) for paper in judged for f in preflight(paper.study.runs)}
    return {
        "claims": [
            {"heading": j.heading, "verdicts": [[v.verdict, in_words(v)] for v in j.verdicts]}
            for j in judged
        ],
        "findings": [
            ["refusal" if is_refusal else "remark", text]
            for is_refusal, text in sorted(findings, key=lambda pair: (not pair[0], pair[1]))
        ],
        "answers": [[a.question, a.words] for a in answers(runs, curves, draws=_DRAWS)],
    }


def _summary(runs: pd.DataFrame) -> list[list[str]]:
    outcomes = runs["outcome"].value_counts()
    grid = [
        f"{name}: {', '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values[:12])}"
        for name in ("global_batch", "warmup_epochs", "lr_rule", "base_lr", "seed")
        for values in [sorted(runs[name].dropna().unique().tolist())]
        if values
    ]
    data = " / ".join(sorted({str(d) for d in runs["data"].dropna()}))
    about = " / ".join(sorted({str(d) for d in runs["data_about"].dropna()}))
    return [
        ["Data", f"{data}: {about}" if about else data],
        ["Model", " / ".join(sorted({str(m) for m in runs["model"].dropna()}))],
        ["Runs", f"{len(runs):,}: " + ", ".join(f"{n:,} {o}" for o, n in outcomes.items())],
        ["Grid", "; ".join(grid)],
        ["Cost", _cost(runs)],
    ]


def _cost(runs: pd.DataFrame) -> str:
    hours = float(runs["wall_s"].sum()) / 3600
    ranks = runs["world_size"].fillna(1)
    rank_hours = float((runs["wall_s"].fillna(0) * ranks).sum()) / 3600
    devices = ", ".join(sorted({str(d) for d in runs["device_kind"].dropna()}))
    return f"{hours:,.2f} hours of runs, {rank_hours:,.2f} rank-hours" + (
        f" on {devices}" if devices else ""
    )


def _column(name: str, values: pd.Series) -> dict[str, Any]:
    about = RUNS[name][1] if name in RUNS else "from the config"
    if pd.api.types.is_numeric_dtype(values) and not isinstance(values.dtype, pd.CategoricalDtype):
        numbers = values.astype(float).replace([np.inf, -np.inf], np.nan).tolist()
        return {"name": name, "about": about, "values": [_plain(v) for v in numbers]}
    codes, levels = pd.factorize(values.astype("object").where(values.notna(), ""), sort=False)
    return {
        "name": name,
        "about": about,
        "levels": [str(level) for level in levels],
        "codes": codes.tolist(),
    }


def _plain(value: float) -> float | int | None:
    if np.isnan(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def _configs(runs: pd.DataFrame) -> tuple[dict[str, Any], pd.DataFrame]:
    """What all configs share, and a column for each setting in which they differ."""
    configs = [json.loads(text) for text in runs["config_json"].fillna("{}")]
    leaves = [dict(flat(config)) for config in configs]
    names = list(dict.fromkeys(name for leaf in leaves for name in leaf))
    common = {n: leaves[0].get(n) for n in names if _is_shared(leaves, n)}
    known = {"batch", "warmup", "seed", "lr_rule.name", *RUNS}
    scientific = {name for config in configs for name, _ in flat(scientific_part(config))}
    own = [n for n in names if n in scientific and n not in common and n not in known]
    columns = {n: pd.Series([leaf.get(n) for leaf in leaves]) for n in own}
    texts = {n: c if pd.api.types.is_numeric_dtype(c) else c.map(str) for n, c in columns.items()}
    return common, pd.DataFrame(texts, index=runs.index)


def _logs(runs: pd.DataFrame) -> dict[str, str]:
    """Ends of logs, of the runs that did not finish first."""
    order = runs.assign(fine=runs["outcome"] == "finished").sort_values("fine", kind="stable")
    tails: dict[str, str] = {}
    for i, row in order.head(MAX_LOGS).iterrows():
        path = Path(str(row["results"])) / str(row["log_path"] or "")
        if row["log_path"] and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            tails[str(i)] = text[-LOG_TAIL:]
    return tails


def _curves(runs: pd.DataFrame, curves: pd.DataFrame) -> dict[str, Any]:
    """Curves as arrays, run after run; `start[i]` to `start[i + 1]` are run i's."""
    place = pd.Series(np.arange(len(runs)), index=runs["run_id"])
    order = curves.assign(place=curves["run_id"].map(place)).sort_values(["place", "epoch"])
    counts = order["place"].value_counts().reindex(range(len(runs)), fill_value=0).sort_index()
    start = np.concatenate([[0], counts.cumsum()]).astype(int).tolist()
    return {
        "start": start,
        "epoch": _packed(order["epoch"]),
        "measures": {name: _packed(order[name]) for name in MEASURES if order[name].notna().any()},
    }


def _packed(values: pd.Series) -> str:
    return base64.b64encode(values.to_numpy(dtype="<f4").tobytes()).decode()


def _is_shared(leaves: list[dict[str, Any]], name: str) -> bool:
    return len({repr(leaf.get(name)) for leaf in leaves}) == 1
