"""Which batch to train with: the largest that loses little, and what the seeds cannot exclude."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.decide.claims import FEWEST_SEEDS
from analysis.decide.proposal import MOST_SEEDS
from analysis.figures.points import POINT, points
from analysis.stats.answer import Answer, capitalize
from analysis.stats.best_of import compare_with_best
from analysis.stats.best_setting import Ends
from analysis.stats.contrasts import Arms
from analysis.stats.outliers import drop_wild
from analysis.stats.replicates import NO_SPREAD, Replicates, validation_size
from analysis.stats.shared_variances import add_price, share_variances
from analysis.tables.comparable_runs import stored_configs, warmup_unit
from analysis.tables.metric import ACCURACY, Metric
from analysis.tables.settings import find_rate_key
from analysis.tables.which_runs import BREAKING, finished_runs, negligible_margin
from sweeper.spec.sentences import several

QUESTION = "Which batch should I train with?"

_FEW = "Not run: two or more batches whose runs all finished are needed."

#: Seeds beside which a wild one is named: fewer do not tell their spread.
_FEWEST_OTHERS = 5

#: An epoch that is faster by less than this is not said to be faster.
_FASTER = 1.05


def compare_batches(
    runs: pd.DataFrame, metric: Metric, price: Mapping[int, float] | None = None
) -> pd.DataFrame:
    """The best setting of each batch, and how much worse it is than the best of the other batches.

    The intervals hold together at 95 %, with variances shared between batches. Settings with a run
    that diverged count as the worst: where a batch has no other, its loss is infinite, and shown if
    all of two runs or more diverged. Settings of one seed are left out where any has more.

    Uses `outcome`, `global_batch`, `seed`, `warmup_epochs`, `lr_rule`, `base_lr`,
    `examples_per_s`, `device_kind` and the metric. The price is a variance to be added to a batch's
    mean, such as that of having chosen its setting from the same seeds.

    Returns:
        a row per batch, best first: its setting, `num_seeds`, `num_diverged`, `loss`, `at_least`,
        `at_most` (null without two seeds), `speed` [examples per second; null if the batches have
        no kind of devices in common].
    """
    setting = _setting(runs)
    frame = points(runs, metric.name, setting)
    frame["num_seeds"] = frame["values"].map(len)
    fewest = min(2, frame["num_seeds"].max()) if len(frame) else 0
    is_lost = frame["num_diverged"] > 0
    frame = frame[(is_lost | (frame["num_seeds"] >= fewest)) & (is_lost | frame["mean"].notna())]
    share = frame["num_diverged"] / (frame["num_diverged"] + frame["num_seeds"])
    frame = frame.assign(share=share, signed=-metric.sign * frame["mean"])
    best = frame.sort_values(["share", "signed"], kind="stable").drop_duplicates("global_batch")
    held, lost = best[best["num_diverged"] == 0], best[best["num_diverged"] > 0]
    shown = (lost["num_seeds"] == 0) & (lost["num_diverged"] > 1)
    ends = np.where(shown, np.inf, -np.inf)
    speed = _speeds(runs[runs["global_batch"].isin(best["global_batch"])])
    return pd.concat([
        held.assign(**_losses(runs, held, metric, price or {})),
        lost.assign(loss=np.inf, at_least=ends, at_most=np.inf),
    ])[[*setting, "num_seeds", "num_diverged", "loss", "at_least", "at_most"]].assign(
        speed=lambda table: table["global_batch"].map(speed)
    ).reset_index(drop=True)  # fmt: skip


def _losses(
    runs: pd.DataFrame, best: pd.DataFrame, metric: Metric, price: Mapping[int, float]
) -> dict[str, np.ndarray]:
    """Loss and interval of each of the batches, which are in the order of their means."""
    means = metric.sign * best["mean"].to_numpy(float)
    names, blank = ("loss", "at_least", "at_most"), np.full(len(best), np.nan)
    if len(best) < 2:
        return dict.fromkeys(names, blank)
    behind = np.r_[means[1], np.full(len(means) - 1, means[0])] - means
    setting = _setting(runs)
    chosen = runs.merge(best[setting], on=setting)
    cells = Replicates.from_runs(chosen, ["global_batch"], metric.name)
    arms, least = Arms.from_seeds(cells.values), 0.0
    if size := validation_size(runs[metric.name].to_numpy(float)) if metric.unit == "%" else None:
        floored = arms.floor_variances(size).variances
        least = np.where(arms.variances < floored, floored, 0.0)
    if cells.num_seeds < 2 or (cells.no_interval and not np.any(least)):
        return dict(zip(names, (behind, blank, blank), strict=True))
    extra = np.array([price.get(int(batch), 0.0) for batch in cells.points["global_batch"]])
    known = add_price(*share_variances(cells, least), extra)
    order = cells.points["global_batch"].searchsorted(best["global_batch"])
    found = compare_with_best(means, *(values[order] for values in known))
    return dict(zip(names, found, strict=True))


def _speeds(runs: pd.DataFrame) -> pd.Series:
    """Examples per second of each batch, on the kind of devices that most runs of all batches had.

    Null if the batches have no kind in common.
    """
    kinds = runs["device_kind"].map(str)  # not recorded is a kind too
    counts = pd.crosstab(runs["global_batch"], kinds)
    shared = counts.loc[:, (counts > 0).all()].sum()
    kind = shared.idxmax() if len(shared) else None
    return runs["examples_per_s"].where(kinds == kind).groupby(runs["global_batch"]).median()


def _setting(runs: pd.DataFrame) -> list[str]:
    """What the best of is taken at each batch: the rate too, where it is known."""
    return [*POINT, *(["base_lr"] if runs["base_lr"].notna().all() else [])]


def advise_batch(
    runs: pd.DataFrame, metric: Metric, price: Mapping[int, float] | None = None,
    ends: Ends | None = None,
) -> Answer:  # fmt: skip
    """The fastest batch whose mean is within a margin of the best; and all batches.

    Of batches that are equally fast, or whose speed is not known, the largest. The words say which
    batches are shown to lose more, and what the seeds cannot exclude. The ends of the answer's
    interval are the smallest and the largest batch that are not excluded as the best.

    `ends` are those of `BestSettings`.
    """
    every = compare_batches(runs, metric, price)
    table = every[every["num_diverged"] == 0]
    answer = Answer(name="best_batch", question=QUESTION, words=_FEW, unit="examples")
    if len(table) < 2:
        return replace(answer, next="Run two batches or more to the end.")
    values = finished_runs(runs, metric)[metric.name]
    margin, _ = negligible_margin(metric, BREAKING, values, values)
    within = table[table["loss"] <= margin]
    is_slow = within["speed"] * _FASTER < within["speed"].max()
    chosen = within[~is_slow].nlargest(1, "global_batch").iloc[0]
    batch = int(chosen["global_batch"])
    labeled = _label_columns(every, metric, runs)
    if guessed := _find_guessing(runs, metric, values.groupby(runs["global_batch"]).mean().max()):
        return replace(answer, words=guessed, next=_RATES, is_answered=False, table=labeled)
    needed = _count_seeds(chosen, margin)
    parts = [
        _name_setting(chosen, runs, (ends or {}).get(batch, {})),
        _describe_loss(chosen, table, metric) + _describe_speed(chosen, within, table),
        _describe_shown(chosen, every, margin, metric),
        f"More than {MOST_SEEDS} seeds of each batch would be needed to tell"
        * bool(needed > MOST_SEEDS),
        *_describe_lost(runs, every),
    ]
    words = f"{'. '.join(filter(None, parts))}."
    kept, wild = drop_wild(runs, _setting(runs), metric.name, _FEWEST_OTHERS)
    if wild:
        without = advise_batch(kept, metric, price, ends).words
        found = capitalize(wild)
        if without.startswith(words):
            words = f"{words} {found}; without, this is the same.{without.removeprefix(words)}"
        else:
            words = f"{words} {found}; without, {without[0].lower()}{without[1:]}"
    open_ones = table.loc[~(table["at_least"] > 0), "global_batch"]
    is_known = table["at_most"].notna().any()
    settings = {
        "warmup": chosen["warmup_epochs"], "warmup_unit": warmup_unit(runs),
        "lr_rule": chosen["lr_rule"], "base_lr": chosen.get("base_lr"), "margin": margin,
        "loss": chosen["loss"], "loss_low": chosen["at_least"], "loss_high": chosen["at_most"],
        "seeds_needed": needed,
    }  # fmt: skip
    step = f"Run {needed:g} seeds of each batch: sweeper analysis next has the commands."
    return replace(
        answer,
        words=words,
        value=batch,
        low=open_ones.min() if is_known else np.nan,
        high=open_ones.max() if is_known else np.nan,
        settings=settings,
        next=step if 0 < needed <= MOST_SEEDS else "",
        table=labeled,
    )


def _count_seeds(chosen: pd.Series, margin: float) -> float:
    """Seeds of each batch that would exclude that the chosen one loses more than the margin.

    If the means stay, and intervals shrink with the root of the seeds; 0 if that is excluded.
    """
    loss, most, seeds = chosen["loss"], chosen["at_most"], chosen["num_seeds"]
    if pd.isna(most):
        return FEWEST_SEEDS if seeds < FEWEST_SEEDS else 0
    if most <= margin:
        return 0
    return np.ceil(seeds * ((most - loss) / (margin - loss)) ** 2) if loss < margin else np.inf


_RATES = "Try learning rates 4 and 16 times lower and higher at each batch."


def _find_guessing(runs: pd.DataFrame, metric: Metric, best: float) -> str:
    """That the best accuracy is what guessing would have; empty if it is more, or not known."""
    known = stored_configs(runs)[0].settings
    classes, size = known.get("data.num_classes"), known.get("data.num_val_examples")
    if metric != ACCURACY or not classes or not size:
        return ""
    chance = 1 / classes
    most = chance + 1.96 * np.sqrt(chance * (1 - chance) / size)  # 95 % of guesses are within
    if best > most:
        return ""
    return (
        f"Nothing is shown to have been learned: the best mean is {100 * best:.2g} %, and guessing "
        f"among {classes} classes gets {100 * chance:.2g} %, up to {100 * most:.2g} % on {size:,} "
        "validation examples."
    )


def _name_setting(chosen: pd.Series, runs: pd.DataFrame, ends: Mapping[str, str]) -> str:
    length = chosen["warmup_epochs"]
    unit = warmup_unit(runs).removesuffix("s" * bool(length == 1))
    shown = {"warmup_epochs": f"warmup {length:g} {unit}"}
    if len({*runs["lr_rule"]}) > 1:
        shown["lr_rule"] = f"lr {chosen['lr_rule']}"
    if "base_lr" in chosen:
        shown["peak_lr"] = f"{find_rate_key(runs)} {chosen['base_lr']:.4g}"
    of_batch = runs[runs["global_batch"] == chosen["global_batch"]]
    for name in ends:
        shown.setdefault(name, f"{name} {of_batch[name].iloc[0]:.4g}")
    words = [f"{text}, the {ends[n]}" if n in ends else text for n, text in shown.items()]
    return f"Use {chosen['global_batch']:,} ({', '.join(words)})"


def _describe_loss(chosen: pd.Series, table: pd.DataFrame, metric: Metric) -> str:
    """How the chosen batch stands to the best of the others."""
    best, most = table["global_batch"].iloc[0], chosen["at_most"]
    seeds = several(int(table["num_seeds"].min()), "seed")
    bare = f"{seeds} {'cannot exclude any loss' if 'seeds' not in seeds else NO_SPREAD}"
    if chosen["global_batch"] != best:
        shown = chosen["at_least"] > 0
        how = (
            f"It is behind the best ({best:,})"
            if shown
            else f"It looks as good as the best ({best:,})"
        )
        amount = _format_amount(chosen["loss"], metric)
        if pd.isna(most):
            return f"Its mean is {amount} behind the best ({best:,}); {bare}"
        scale, _ = _scale(metric)
        return f"{how}: {amount} behind, at most {scale * most:.2g} with 95 % confidence"
    mean = f"It has the best mean of {several(len(table), 'batch')}"
    if pd.isna(most):
        return f"{mean}; {bare}"
    if most <= 0:
        return f"{mean}, {seeds} exclude that any other is better (95 %)"
    return f"{mean}, no other is better by more than {_format_amount(most, metric)} (95 %)"


def _describe_shown(chosen: pd.Series, every: pd.DataFrame, margin: float, metric: Metric) -> str:
    """Which batches are shown to lose more than the margin, and which not to."""
    if pd.isna(chosen["at_most"]):
        return ""
    amount = _format_amount(margin, metric)
    shown = _name_batches(every.loc[every["at_least"] > margin, "global_batch"])
    if shown:
        parts = [f"{shown} {'are' if ' and ' in shown else 'is'} shown to lose more than {amount}"]
    else:
        visible = (every["loss"] - every["at_least"])[np.isfinite(every["loss"])].iloc[1:].min()
        least = _format_amount(margin + visible, metric)
        parts = [
            f"No batch is shown to lose more than {amount}: a loss of {least} or more would show"
        ]
    sure = every.loc[every["at_most"] <= margin, "global_batch"]
    if len(sure) and not chosen["at_most"] <= margin:
        most = max(0.0, float(every["at_most"][every["global_batch"] == sure.max()].iloc[0]))
        parts.append(f"{sure.max():,} loses at most {_format_amount(most, metric)} (95 %)")
    return "; ".join(parts)


def _describe_lost(runs: pd.DataFrame, every: pd.DataFrame) -> Iterable[str]:
    """Batches whose runs diverged at every setting, and those that are left out."""
    for row in every[every["num_diverged"] > 0].to_dict("records"):
        lost, batch = row["num_diverged"], row["global_batch"]
        total = several(lost + row["num_seeds"], "run")
        yield f"At {batch:,} {lost} of {total} diverged, which counts as the worst"
    out = runs[~runs["global_batch"].isin(every["global_batch"])]
    if len(out):
        finished = (out["outcome"] == "finished").groupby(out["global_batch"]).agg(["sum", "size"])
        named = (f"{b:,} ({row['sum']} of {row['size']})" for b, row in finished.iterrows())
        yield f"Left out, as too few runs finished: {', '.join(named)}"


def _label_columns(table: pd.DataFrame, metric: Metric, runs: pd.DataFrame) -> pd.DataFrame:
    """The batches in order, with units in their heads; how much worse the mean of each is."""
    scale, unit = _scale(metric)
    names = ("loss", "at_least", "at_most")
    amounts = {name: (scale * table[name]).round(4) for name in names}
    heads = {
        "global_batch": "batch", "warmup_epochs": f"warmup [{warmup_unit(runs)}]",
        "base_lr": find_rate_key(runs),
        "num_seeds": "seeds", "num_diverged": "diverged",
        "loss": f"worse than the best other [{unit.removeprefix('in ')}]",
        "at_least": "at least (95 %)", "at_most": "at most (95 %)", "speed": "examples/s",
    }  # fmt: skip
    table = table.assign(**amounts, speed=table["speed"].round())
    return table.sort_values("global_batch").rename(columns=heads)


def _scale(metric: Metric) -> tuple[int, str]:
    return (100, "points") if metric.unit == "%" else (1, metric.unit or f"in {metric.name}")


def _name_batches(batches: Iterable[int]) -> str:
    *first, last = ["", *(f"{batch:,}" for batch in sorted(batches))]
    return " and ".join(filter(None, [", ".join(first[1:]), last]))


def _describe_speed(chosen: pd.Series, within: pd.DataFrame, table: pd.DataFrame) -> str:
    """How much faster an epoch is than at the smallest batch."""
    smallest = table.nsmallest(1, "global_batch").iloc[0]
    if table["speed"].isna().all():
        return "; how fast the batches are on the same devices is not known"
    found = ""
    if chosen["global_batch"] != smallest["global_batch"] and chosen["speed"] > 0:
        faster = chosen["speed"] / smallest["speed"]
        times = f"{faster:.2g} times faster" if faster > _FASTER else "no faster"
        verb = "is " * bool(chosen["global_batch"] == table["global_batch"].iloc[0])
        found = f", and {verb}{times} per epoch than {smallest['global_batch']:,}"
    larger = within[within["global_batch"] > chosen["global_batch"]]
    if len(larger):
        found += f"; {_name_batches(larger['global_batch'])} would do as well, but no faster"
    return found


def _format_amount(value: float, metric: Metric) -> str:
    scale, unit = _scale(metric)
    return f"{scale * value:.2g} {unit}"
