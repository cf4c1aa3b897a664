"""Estimates for the open questions about batch, warmup and learning rate, as text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.decide.arms import write_commands
from analysis.decide.command import group_settings as group_settings_of
from analysis.figures.target import best_reached, whole_seed_runs
from analysis.report.which_batch import advise_batch
from analysis.stats.answer import Answer, capitalize
from analysis.stats.best_setting import BestSettings, choose_settings
from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.doubling import FELL, STEADY, describe_doubling, unanswered
from analysis.stats.laws import compare_rules, constant_rate, diffusion
from analysis.stats.optimum import FEWEST_SETTINGS, Optima, best_settings, exponent
from analysis.stats.pairs import rule_pairs
from analysis.stats.replicates import DRAWS, Estimate, format_estimate, make_rng
from analysis.stats.to_target import at_their_ends, steady_part, steady_targets, to_target
from analysis.tables.comparable_runs import group_comparable
from analysis.tables.metric import Measured, Metric, check_target
from analysis.tables.settings import comparable_settings, describe_choice, group_settings
from analysis.tables.validity import ARM, describe_confounds
from analysis.tables.which_runs import (
    BREAKING,
    LENGTHS,
    ended_runs,
    finished_runs,
    most_frequent_rule,
    negligible_margin,
)
from sweeper.spec.sentences import several


def estimate_all(
    measured: Measured, target: float | None = None, draws: int = DRAWS
) -> list[Answer]:
    """Estimate what the largest group of comparable runs can tell.

    The target is in the unit of the metric (accuracies: 0 to 1); if None, 2 % short of what every
    batch reaches with half of its seeds, or as many as can be.

    Raises:
        ValueError: for an accuracy that is not from 0 to 1.
    """
    rng = make_rng()
    runs, curves, metric = measured.runs_with_metric, measured.curves, measured.metric
    check_target(target, metric.unit)
    compared = group_comparable(runs)[0].runs
    group, columns = group_settings(runs)
    tuned = group.runs
    best = choose_settings(tuned, columns, metric)
    chosen = describe_choice(measured, group)
    lengths = best.keep_chosen(comparable_settings(runs, LENGTHS)[0])
    targets = _estimate_critical(Measured(lengths, curves, metric), target)
    along = [_estimate_breaking(best, rng, draws, metric), *targets]
    return [
        _choose_batch(best, metric, chosen),
        *([_describe_chosen(best, chosen)] if columns or chosen else []),
        *_estimate_exponents(tuned, columns, rng, draws, metric),
        *(best.describe(_refuse_confounded(answer, best.runs)) for answer in along),
        _refuse_confounded(_compare_rules(compared, curves, metric), compared),
        _estimate_distance(most_frequent_rule(runs), curves, rng, draws),
    ]


def estimate_finals(
    runs: pd.DataFrame, columns: Sequence[str], metric: Metric, draws: int = DRAWS
) -> Iterator[Answer]:
    """Estimate what final metrics tell alone: `runs` has all columns of ours, maybe null."""
    rng, best = make_rng(), choose_settings(runs, columns, metric)
    yield _choose_batch(best, metric, best.words)
    yield from _estimate_exponents(runs, columns, rng, draws, metric)
    yield best.describe(_estimate_breaking(best, rng, draws, metric))


def choose_batch(measured: Measured) -> Answer:
    """Which batch to train with, each at its best setting, by the largest comparable group."""
    group, columns = group_settings(measured.runs_with_metric)
    best = choose_settings(group.runs, columns, measured.metric)
    return _choose_batch(best, measured.metric, describe_choice(measured, group))


def _choose_batch(best: BestSettings, metric: Metric, chosen: str) -> Answer:
    answer = advise_batch(best.runs, metric, best.price, best.ends)
    answer = best.describe(_refuse_confounded(answer, best.runs))
    return replace(answer, words=f"{answer.words} {chosen}".strip())


def _describe_chosen(best: BestSettings, chosen: str) -> Answer:
    """Which runs the answers use."""
    question, words = "Which runs do these estimates use?", f"{chosen} {best.words}".strip()
    return Answer(name="runs", question=question, words=words, is_answered=True)


def _refuse_confounded(estimated: Answer, runs: pd.DataFrame) -> Answer:
    """An estimate, refused if the arms that it compares differ in more than the question."""
    if why := describe_confounds(ended_runs(runs), ARM):
        spans = runs["bn_span"].dropna().astype(int)
        common = int(np.gcd.reduce(spans)) if len({*spans}) > 1 else 1  # divides every batch
        step = f"Run all batches again with bn_span={common}." if common > 1 else ""
        words = f"Refused: {why}."
        return Answer(name=estimated.name, question=estimated.question, words=words, next=step)
    return estimated


#: Settings whose growth with the batch is always asked for, and what they are called.
_ASKED = {"warmup_epochs": "warmup", "peak_lr": "rate"}


def _estimate_exponents(
    tuned: pd.DataFrame,
    columns: Sequence[str],
    rng: np.random.Generator,
    draws: int,
    metric: Metric,
) -> Iterator[Answer]:
    """How the best of each setting that was tried grows with the batch."""
    for column in dict.fromkeys([*_ASKED, *columns]):
        word = _ASKED.get(column, column.rpartition(".")[2])
        name, question = f"best_{word}_exponent", f"How does the best {word} grow with the batch?"
        others = [other for other in columns if other != column]
        known = tuned.dropna(subset=[column, *others])
        counts = known.groupby("global_batch")[column].nunique()
        if (counts >= FEWEST_SETTINGS).sum() < 2:
            words = f"Not run: two or more batches with three or more {word}s each are needed."
            step = f"Run a grid over the {word} at each batch."
            yield Answer(name=name, question=question, words=words, next=step)
            continue
        optima = best_settings(known, column, rng, draws, metric, others)
        answer = _describe_growth(name, question, optima)
        answer = _add_rules(answer, optima) if column == "peak_lr" else answer
        yield _refuse_confounded(answer, known)


def _describe_growth(name: str, question: str, optima: Optima) -> Answer:
    table, found = optima.table(), exponent(optima)
    if found.has_interval and not np.isfinite([found.low, found.high]).any():
        note = f"; {found.note}" if found.note else ""
        seeds = several(found.num_seeds, "seed")
        words = f"These runs do not determine it ({found.value:.2g} by the fit, {seeds}){note}."
    else:
        start = "" if np.isnan(found.value) else "As batch to the power "
        words = capitalize(f"{start}{format_estimate(found)}.")
    settings = {
        f"{row['global_batch']:.0f}": [row["best"], row["low"], row["high"]]
        for row in table.to_dict("records")
    }
    step = "" if found.has_interval and np.isfinite([found.low, found.high]).all() else (
        "Run more seeds, or more settings around the best of each batch."
    )  # fmt: skip
    is_beyond = ~table["is_interior"] & (table["best"] > 0)  # a best warmup of 0 is no end
    if (ends := table.loc[is_beyond, "global_batch"]).any():
        step = f"Extend the grid at batch {', '.join(f'{b:,}' for b in ends)}."
    return Answer.of_estimate(
        name, question, words, found, settings={"best": settings}, table=table, next=step
    )


def _add_rules(answer: Answer, optima: Optima) -> Answer:
    """With which learning-rate rules these runs do not exclude, and which fits best."""
    comparison = compare_rules(optima)
    if not len(comparison.table):
        return answer
    left = comparison.not_excluded
    shown = f"not excluded: {', '.join(left)}" if left else "all are excluded"
    best = comparison.table["rule"].iloc[0]
    words = f"Of the rules none, sqrt and linear {shown}. Lowest AICc: {best}. {comparison.note}"
    settings = {**answer.settings, "rules_not_excluded": left}
    return replace(answer, words=f"{answer.words} {words}".strip(), settings=settings)


def _estimate_breaking(
    best: BestSettings, rng: np.random.Generator, draws: int, metric: Metric
) -> Answer:
    worse = "below" if metric.unit == "%" else "worse than at"
    question = f"At which batch does {metric.word} break?"
    finished = finished_runs(best.runs, metric)
    if finished["global_batch"].nunique() < 2:
        words = "Not run: two or more batches with a run that finished are needed."
        return Answer(name="breaking_batch", question=question, words=words)
    smallest = finished[finished["global_batch"] == finished["global_batch"].min()][metric.name]
    margin, words = negligible_margin(metric, BREAKING, smallest, finished[metric.name])
    if margin == 0:
        words = f"Refused: there is no margin, as {words}."
        return Answer(name="breaking_batch", question=question, words=words)
    question = f"At which batch does {metric.word} break ({words} {worse} the smallest batch)?"
    estimate = breaking_batch(best.runs, rng, margin, draws, metric, best.price)
    return Answer.of_estimate(
        "breaking_batch",
        question,
        f"{_describe_breaking(estimate, best.runs['global_batch'])}.",
        estimate,
        unit="examples",
        settings={"margin": margin},
        next="" if estimate.high < np.inf else "Run more seeds, or batches above the largest.",
    )


def _describe_breaking(estimate: Estimate, batches: pd.Series) -> str:
    """Where the metric breaks in words: two digits, or batches that were run; one bound or both."""
    run, seeds = {*batches}, several(estimate.num_seeds, "seed")
    value, low, high = (
        f"{end if end in run or not np.isfinite(end) else float(f'{end:.2g}'):,.0f}"
        for end in (estimate.value, estimate.low, estimate.high)
    )
    note = f"; {estimate.note}" if estimate.note else ""
    starts_open = estimate.low <= batches.min()
    if not estimate.has_interval:
        by_means = "It did not break" if np.isinf(estimate.value) else f"At {value} by the means"
        return f"{by_means}{note}"
    if np.isinf(estimate.high) and starts_open:
        return (
            f"The runs do not tell: {seeds} exclude neither a break just above {low} nor none{note}"
        )
    if np.isinf(estimate.high):
        by_means = "it did not break" if np.isinf(estimate.value) else f"it broke at {value}"
        return f"It holds up to at least {low} (95 %, {seeds}); by the means {by_means}{note}"
    if starts_open:
        return f"It broke at the latest at {high} (95 %, {seeds}); by the means at {value}{note}"
    return f"At {value} examples (95 %: {low} to {high}), {seeds} per point{note}"


def _estimate_critical(measured: Measured, target: float | None) -> list[Answer]:
    """Where examples to a target double, and the critical batch.

    Without a target: of those that half of the seeds reach at all batches, at all but one, and so
    on, the first that is answered. Runs whose rate falls count to where it does, or at their ends,
    if a batch has several lengths.
    """
    runs, curves, metric = ended_runs(measured.runs), measured.curves, measured.metric
    if not (runs[metric.name].notna().any() and curves["run_id"].isin(runs["run_id"]).any()):
        return unanswered(f"Not measured: these runs have no curves of {metric.word}.", "", {})
    is_steady = steady_part(runs, curves)
    counts = is_steady[curves["run_id"].isin(runs["run_id"])]
    if not counts.all() and runs.groupby("global_batch")["epochs"].nunique().max() > 1:
        runs, curves = at_their_ends(runs, curves, metric)
        is_steady = steady_part(runs, curves)
    runs = whole_seed_runs(runs)
    settings: dict[str, Any] = {"setting": "best setting of each batch"}
    answers = unanswered(f"Not answered: {FELL}.", STEADY, settings)
    reachable = steady_targets(runs, curves, is_steady, metric)

    def answer_at(tried: float) -> tuple[Estimate | None, list[Answer]]:
        reached = best_reached(to_target(runs, curves, tried, metric))
        doubling, _, found = describe_doubling(reached, {**settings, "target": tried})
        chosen = f"Target {metric.shown(tried)}, best setting of each batch."
        return doubling, [replace(each, words=f"{each.words} {chosen}") for each in found]

    for tried in reachable if target is None else [target]:
        doubling, answers = answer_at(tried)
        if doubling:
            break
    if any(answer.next.startswith(_CHOOSE) for answer in answers):
        hardest = steady_targets(runs, curves, is_steady, metric, fewest=2)
        others = np.linspace(hardest[0], hardest[-1], _OTHERS) if hardest else ()
        found = {float(f"{other:.4g}"): answer_at(float(f"{other:.4g}"))[1] for other in others}
        for i in [i for i, answer in enumerate(answers) if answer.next.startswith(_CHOOSE)]:
            fits = [t for t, of in found.items() if of[i].has_answer or np.isfinite(of[i].value)]
            step = f"Choose another target: --target {fits[0]:.4g}" if fits else _NO_TARGET
            answers[i] = replace(answers[i], next=step)
    return [replace(answer, next=_complete_step(answer.next, runs)) for answer in answers]


#: How a remedy begins that is about the target, and what it is where no target would do.
_CHOOSE = "Choose a target"
_NO_TARGET = "Evaluate more often (evaluate_every=) or train longer: no target fits these runs."
#: Targets that are tried for one that fits.
_OTHERS = 9


def _complete_step(step: str, runs: pd.DataFrame) -> str:
    """A step that is a command, with the words of these runs."""
    known = "config_json" in runs
    if step == STEADY and known and (runs["schedule"] != "constant").all():
        constant = [group_settings_of("schedule", "constant")]
        return f"{step} The first is: {write_commands(runs, schedule=constant)}"
    start, is_command, changed = step.partition("python -m sweeper -m ")
    if not is_command or not known:
        return step
    key, _, values = changed.partition("=")
    return start + write_commands(runs, **{key: [*map(int, values.split(","))]})


def _compare_rules(runs: pd.DataFrame, curves: pd.DataFrame, metric: Metric) -> Answer:
    table, margin, words = rule_pairs(runs, curves, metric)
    shown = f"margin {words}" if margin != 0 else f"no margin, as {words}"
    question = f"Does the learning-rate rule make a difference ({shown})?"
    if not len(table):
        words = "Not run: two rules at one batch and warmup, with two seeds each, are needed."
        return Answer(name="rule_difference", question=question, words=words)
    counts = table["verdict"].value_counts()
    words = ", ".join(f"{verdict} in {count}" for verdict, count in counts.items())
    together = ", judged together" if len(table) > 1 else ""
    words = f"Of {several(len(table), 'pair')} of arms{together}: {words}."
    if set(counts.index) == {"inconclusive"}:
        words = f"The runs do not distinguish the rules. {words}"
    if len(table) > 1:
        words += " An interval is that of its pair alone, not corrected for the others."
    return Answer(
        name="rule_difference", question=question, words=words, table=table, is_answered=True
    )


def _estimate_distance(
    runs: pd.DataFrame, curves: pd.DataFrame, rng: np.random.Generator, draws: int
) -> Answer:
    question = "Is the distance from the start ultra-slow (logarithmic) or a power of the step?"
    rows: list[dict[str, Any]] = []
    parts: list[str] = []
    point = ["global_batch", "warmup_epochs"]
    of_points = dict([*curves.merge(runs[["run_id", *point]]).groupby(point)])
    for batch, at_batch in runs.groupby("global_batch"):
        series = {
            w: constant_rate(g, of_points.get((batch, w), curves.iloc[:0]))
            for w, g in at_batch.groupby("warmup_epochs")
        }
        warmup = max(series, key=lambda w: len(series[w]))
        if not len(series[warmup]):
            continue
        fit = diffusion(series[warmup], rng, draws)
        p, aicc = fit.power, fit.table.set_index("law")["aicc"]
        first, last = fit.local_exponent
        power = np.array([p.value, p.low, p.high])
        known = f", exponent {p.value:.3g} (95 %: {p.low:.3g} to {p.high:.3g})"
        if fit.verdict != "power law":  # of another law there is none
            power, known = np.full(3, np.nan), ""
        if np.isnan(p.low):
            known = " (one seed)" if p.num_seeds < 2 else " (every seed moved equally far)"
        known += f" ({p.note})" if p.without else ""
        parts.append(f"batch {batch:,}: {fit.verdict}{known}")
        rows.append(
            {
                "global_batch": batch, "warmup_epochs": warmup, "exponent": power[0],
                "low": power[1], "high": power[2], "local_first": first, "local_last": last,
                "aicc_power_minus_log": float(aicc["power"] - aicc["logarithm"]),
                "num_seeds": p.num_seeds, "verdict": fit.verdict,
            }
        )  # fmt: skip
    if not rows:
        words = (
            "Not run: runs with distance_from_start at six or more epochs of one learning "
            "rate are needed."
        )
        return Answer(name="distance_law", question=question, words=words)
    words, is_answered = capitalize(f"{'; '.join(parts)}."), True
    table = pd.DataFrame(rows)
    return Answer(
        name="distance_law", question=question, words=words, table=table, is_answered=is_answered
    )
