"""What anyone's table of runs says about the batch: the questions that its columns answer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from analysis.report.estimates import estimate_finals
from analysis.report.scaling import judge_scaling
from analysis.stats.answer import Answer
from analysis.stats.critical_batch import critical_batch, doubling_batch
from analysis.stats.failure_risk import fit_risk
from analysis.stats.powers import batch_power
from analysis.stats.replicates import Array, Estimate, format_interval
from analysis.stats.size_laws import (
    FEWEST,
    NAMES,
    SHARE,
    Laws,
    find_bests,
    fit_laws,
    regress,
    settings_matter,
)
from analysis.tables.any_table import SETTINGS, AnyTable, read_table
from analysis.tables.metric import Measured, Metric
from analysis.tables.settings import runs_of_lengths
from sweeper.spec.sentences import several
from sweeper.store.schema import RUNS

#: How near the best runs must be that tell a best to be put beside others.
_BESIDE = 0.01
#: Lengths of which fewer tell no power.
_FEWEST_LENGTHS = 3
#: Values of a setting at a batch that may be a grid.
_MOST_VALUES = 40
#: Batch and share of the definition of Zhang et al. 2024.
_ZHANG_BATCH, _ZHANG_SHARE = 256, 0.2


def judge_table(source: Path | pd.DataFrame, columns: str = "", units: str = "") -> list[Answer]:
    """Every question that a table's columns answer; the arguments are those of `read_table`."""
    said = describe_table(read_table(source, columns, units))
    return [answer for answer in said if isinstance(answer, Answer)]


def describe_table(table: AnyTable) -> Iterator[Answer | str]:
    """What a table is, what was left out of it, and the answers."""
    runs, batches = table.runs, table.runs["global_batch"]
    cells = len(runs[table.cell].drop_duplicates()) if table.cell else 1
    of = f", {several(cells, 'value')} of {table.cell_words}" if cells > 1 else ""
    yield (
        f"{table.name}: {several(len(runs), 'run')} at {several(batches.nunique(), 'batch')} from "
        f"{batches.min():,.10g} to {batches.max():,.10g} {table.units.get('batch', 'examples')}{of}"
    )
    yield from table.said
    if table.metric is None:
        yield from judge_scaling(table.reached) if cells == 1 else _judge_sizes(table)
    elif cells == 1:
        yield from _judge_single(table, table.metric)
    else:
        yield from _judge_laws(table, table.metric)
    if (runs["outcome"] == "diverged").any() and "peak_lr" in runs:
        yield _judge_risk(table)


def judge_lengths(measured: Measured) -> Iterator[Answer]:
    """How the best batch and rate of a folder's runs grow with their length; of one, nothing."""
    runs, varied = runs_of_lengths(measured.runs_with_metric)
    if len(runs["data_seen"].unique()) < _FEWEST_LENGTHS:
        return
    runs = runs if "peak_lr" in varied else runs.drop(columns="peak_lr")
    units = {"batch": "examples", "data": "examples"}
    yield from _judge_laws(
        AnyTable("these runs", runs, measured.metric, [], units, []), measured.metric
    )


def _judge_single(table: AnyTable, metric: Metric) -> Iterator[Answer]:
    """What runs of one size of model and data say, by the estimators of results folders."""
    runs = table.runs.reset_index(drop=True)
    names = [c for c in ("peak_lr", "warmup_epochs", *table.further) if c in runs]
    most = runs.groupby("global_batch")[names].nunique().max()
    if (most > _MOST_VALUES).any():
        words = f"Not answered: a batch has {most.max()} values of a setting, which are no grid."
        yield Answer(name="best_batch", question="Which batch should I train with?", words=words)
        return
    own = {"config_json": "{}", "lr_rule": "none", "base_lr": runs.get("peak_lr", np.nan),
           "warmup_epochs": runs.get("warmup_epochs", 0.0)}  # fmt: skip
    runs = runs.assign(**(dict.fromkeys(c for c in RUNS if c not in runs) | own))
    found = [*estimate_finals(runs, [*most.index[most > 1]], metric)]
    told = [answer for answer in found if not answer.words.startswith("Not run:")]
    yield from (replace(answer, next="") for answer in told or found[:1])


def _judge_laws(table: AnyTable, metric: Metric) -> Iterator[Answer]:
    """How the best batch and rate grow with size and data."""
    cell, (runs, settings) = table.cell, _take_settings(table, metric)
    pairs = [(s, c) for s in settings or SETTINGS[:1] for c in cell]
    laws, why = None, ""
    if not settings or runs.groupby(cell).size().max() < FEWEST:
        why = (
            f"each {table.cell_words} must have {FEWEST} runs or more, with three batches or rates"
        )
    elif not settings_matter(runs, cell, settings):
        why = "in these runs the metric depends on neither batch nor rate more than noise does"
    elif not (laws := fit_laws(runs, cell, settings)):
        why = f"at too few values of {table.cell_words} the best is inside what was run"
    shown = laws.bests.rename(columns=NAMES) if laws else pd.DataFrame()
    for setting, by in [*pairs, *([("peak_lr", "global_batch")] * (len(settings) > 1))]:
        name = f"best_{NAMES[setting]}_{NAMES[by]}"
        question = f"How does the best {NAMES[setting]} grow with the {NAMES[by]}?"
        if laws and name in laws.powers:
            yield replace(_describe_law(name, question, laws, table), table=shown)
            shown = pd.DataFrame()  # once
        else:
            reason = why or (laws and laws.note) or f"the {NAMES[by]} has one value"
            words = f"Not answered: {reason}."
            yield Answer(name=f"{name}_exponent", question=question, words=words)
    if laws and "largest" in laws.bests:
        given = [c for c in cell if f"best_batch_{NAMES[c]}" in laws.powers]
        logs = np.log(laws.bests[[*given, "largest"]].to_numpy(float))
        first = f"largest batch that loses {100 * SHARE:g} % of the best"
        for c, power in zip(given, regress(logs[:, :-1], logs[:, -1]), strict=True):
            by_definition = {first: power, "best batch": laws.powers[f"best_batch_{NAMES[c]}"]}
            yield _compare_definitions(NAMES[c], by_definition)


def _take_settings(table: AnyTable, metric: Metric) -> tuple[pd.DataFrame, list[str]]:
    """The finished runs with what they are `behind` the best of their cell; settings that vary."""
    runs = table.runs[table.runs["outcome"] == "finished"]
    value = metric.sign * runs[metric.name]
    best = value.groupby([runs[c] for c in table.cell]).transform("max")
    runs = runs.assign(behind=(best - value) / best.abs())
    varied = runs.groupby(table.cell)[[c for c in SETTINGS if c in runs]].nunique().median()
    return runs, [*varied.index[varied >= 3]]


def find_own_bests(table: AnyTable) -> pd.DataFrame:
    """A table's best batches in tokens, a row per size and data.

    Raises:
        ValueError: if it has no loss and data, or counts batches in anything but tokens, or none of
            its sizes has its best batch inside what was run.
    """
    if not table.metric or "data_seen" not in table.cell or table.units.get("batch") != "tokens":
        msg = (
            f"{table.name} must have a loss, and batches and data in tokens, to be put beside "
            "others. Add data=COLUMN to --columns, and --units 'batch=2048tokens'."
        )
        raise ValueError(msg)
    runs, settings = _take_settings(table, table.metric)
    bests, left_out = pd.DataFrame(), ["three batches or more are needed at a size"]
    if "global_batch" in settings:
        bests, left_out, _ = find_bests(runs, table.cell, settings, _BESIDE)
    if not len(bests):
        msg = f"{table.name} must have sizes whose best batch is known; {'; '.join(left_out)}."
        raise ValueError(msg)
    return bests.rename(columns=NAMES)


def _describe_law(name: str, question: str, laws: Laws, table: AnyTable) -> Answer:
    """A power, what it is by other windows, and along the best batch."""
    found, along = laws.powers[name], laws.powers.get(f"{name} along")
    rows = laws.by_window[laws.by_window["law"] == name].set_index("window")
    others = ", ".join(f"{value:.2g} at {window}" for window, value in rows["value"].items())
    parts = [
        f"As {name.rpartition('_')[2]} to the power {format_interval(found)}"
        f"{' at a given batch' if along else ''}, from {several(len(laws.bests), 'value')} of "
        f"{table.cell_words}",
        f"along the best batch {format_interval(along)}" if along else "",
        f"by the runs so near the best: {others}",
        laws.note,
        f"left out: {'; '.join(laws.left_out)}" if laws.left_out else "",
    ]
    settings = {
        "definition": f"top of a parabola through runs within {100 * laws.window:g} % of the best",
        "by_window": {w: [*ends] for w, *ends in rows[["value", "low", "high"]].itertuples()},
        "units": dict(table.units),
    } | ({"along_best_batch": [along.value, along.low, along.high]} if along else {})
    words = f"{'; '.join(filter(None, parts))}."
    return Answer.of_estimate(f"{name}_exponent", question, words, found, settings=settings)


def _compare_definitions(by: str, powers: Mapping[str, Estimate]) -> Answer:
    """The exponent of the critical batch by several definitions; the first is the answer."""
    name, question = (
        f"critical_batch_{by}_exponent",
        f"How does the critical batch grow with the {by}?",
    )
    if not powers:
        words = "Not answered: too few sizes have a critical batch."
        return Answer(name=name, question=question, words=words)
    (first, found), *others = powers.items()
    off = [d for d, e in others if not (found.low <= e.value <= found.high)]
    shown = "; ".join(f"{d}: {format_interval(e)}" for d, e in powers.items())
    verdict = f"disagree: {', '.join(off)} beside {first}" if off else "agree within the interval"
    return Answer.of_estimate(
        name, question,
        f"As {by} to the power, by definition: {shown}. The definitions {verdict}.", found,
        settings={"definition": first,
                  "by_definition": {d: [e.value, e.low, e.high] for d, e in powers.items()}},
    )  # fmt: skip


def _judge_sizes(table: AnyTable) -> Iterator[Answer]:
    """Critical batches of several sizes by several definitions, and how they grow."""
    cell, rows, notes = table.cell, list[dict[str, float]](), list[str]()
    for _, own in table.reached.groupby(cell):
        row = {c: float(own[c].iloc[0]) for c in cell}
        here = ", ".join(f"{NAMES[c]} {v:.4g}" for c, v in row.items())
        for name, estimate in _DEFINITIONS.items():
            try:
                found = estimate(own)
                row[name] = found.value if np.isfinite(found.value) else np.nan
                notes += [f"{here}: no {name}: {found.note}"] if np.isnan(row[name]) else []
            except ValueError as error:
                notes.append(f"{here}: no {name}: {str(error).rstrip('.')}")
        rows.append(row)
    frame = pd.DataFrame(rows)
    said = f" {'; '.join(notes)}." if notes else ""
    for i, c in enumerate(cell):
        powers = dict[str, Estimate]()
        for name in [name for name in _DEFINITIONS if name in frame]:
            known = frame[[*cell, name]].dropna().to_numpy(float)
            if len(known) > len(cell) + 1:
                one = [batch_power(known[:, 0], known[:, -1])] if len(cell) == 1 else None
                powers[name] = (one or regress(np.log(known[:, :-1]), np.log(known[:, -1])))[i]
        answer = _compare_definitions(NAMES[c], powers)
        shown = frame.rename(columns=NAMES) if i == 0 else answer.table
        yield replace(answer, words=answer.words + said, table=shown)


def _twenty_percent(reached: pd.DataFrame) -> Estimate:
    """Where steps are 20 % above those in proportion to the batch from 256 on.

    ``b / (5 a) + 1.2 * 256`` for steps ``a + b / batch``, fitted to their logarithms.

    Source:
        Zhang et al. 2024, arXiv:2410.21676.
    """
    critical_batch(reached)  # raises where no hyperbola is right
    known = reached.dropna(subset=["examples_to_target"]).groupby("global_batch").mean()
    batches, value = known.index.to_numpy(float), np.nan
    if batches.min() <= _ZHANG_BATCH <= batches.max():
        steps = known["examples_to_target"].to_numpy(float) / batches

        def off(logs: Array) -> Array:
            return np.logaddexp(logs[0], logs[1] - np.log(batches)) - np.log(steps)

        a, b = least_squares(off, np.log([steps.min(), steps[0] * batches[0]])).x
        value = _ZHANG_SHARE * float(np.exp(b - a)) + (1 + _ZHANG_SHARE) * _ZHANG_BATCH
    return Estimate(value, np.nan, np.nan, 1, "", f"batch {_ZHANG_BATCH} was not run")


#: By the name of a definition, the critical batch of one size.
_DEFINITIONS: dict[str, Callable[[pd.DataFrame], Estimate]] = {
    "E_min/S_min": lambda reached: critical_batch(reached).critical_batch,
    "doubling": doubling_batch,
    "20 % over batch 256": _twenty_percent,
}


def _judge_risk(table: AnyTable) -> Answer:
    """How the rate of equal risk of divergence grows with the batch, and what else matters."""
    name, question = "diverging_rate_exponent", "How does the rate at which runs diverge grow?"
    names = [*SETTINGS, "warmup_epochs", *table.cell, *table.further]
    settings = [c for c in names if c in table.runs and len(table.runs[c].unique()) > 1]
    lost = several(int((table.runs["outcome"] == "diverged").sum()), "run")
    try:
        odds, power = fit_risk(table.runs.dropna(subset=settings), settings)
    except ValueError as error:
        return Answer(name=name, question=question, words=f"Not answered: {error}")
    at = f" at the same {', '.join(NAMES.get(c, c) for c in settings[2:])}" if settings[2:] else ""
    words = (
        f"At equal risk the rate grows as batch to the power {format_interval(power)}{at}"
        f"; {lost} of {len(table.runs):,} diverged. Log-odds of diverging, by the logarithm of a "
        "setting (by the warmup itself):"
    )
    return Answer.of_estimate(name, question, words, power, table=odds)
