"""The points that a question is about, and the runs that would be added to them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.decide.command import Config, complete
from analysis.papers.claim import PointValues, values_of
from analysis.papers.grid import Point, runs_at
from analysis.papers.paper import Paper, own_point
from analysis.stats.contrasts import Arms
from analysis.tables.metric import Metric
from analysis.tables.validity import ALIKE, confounds
from analysis.tables.which_runs import ended
from sweeper.spec.identity import MICRO
from sweeper.spec.run_spec import stored_run_spec
from sweeper.store.row import planned_columns


@dataclass(frozen=True)
class Arm:
    """A point, the runs that stand there, and the settings of further ones.

    Attributes:
        name: in words.
        runs: rows of the runs table, with or without a result.
        config: of its runs, with any of their seeds.
    """

    name: str
    runs: pd.DataFrame
    config: Config

    @cached_property
    def ended(self) -> pd.DataFrame:
        """The runs that finished or diverged."""
        return ended(self.runs)

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds of which a run finished or diverged."""
        return sorted(int(seed) for seed in self.ended["seed"].unique())


def config_of(row: pd.Series, **changes: Any) -> Config:
    """The config of a run, with defaults for keys added since, and some keys changed."""
    return {**complete(json.loads(row["config_json"])), **changes}


def paper_arms(
    points: Sequence[Point], placed: pd.DataFrame, runs: pd.DataFrame, paper: Paper
) -> list[Arm]:
    """The arms of a claim, translated into the batches and warmups of these runs."""
    arms: list[Arm] = []
    for point, mask in zip(points, runs_at(placed, points), strict=True):
        here = placed[mask]
        if len(here):
            arms.append(Arm(str(point), here, config_of(here.iloc[0])))
            continue
        like = _nearest(point, placed, runs)
        batch, warmup = own_point(point, paper, like.to_frame().T)
        rule = config_of(like)["lr_rule"]
        rule = rule if like["lr_rule"] == point.rule else {"name": point.rule}
        config = config_of(like, batch=batch, warmup=warmup, lr_rule=rule)
        arms.append(Arm(str(point), here, _split(config)))
    return arms


def _split(config: Config) -> Config:
    """The config with a micro-batch that splits its batch, if that changes nothing else."""
    is_free = "micro" not in [config.get(key) for key in MICRO]
    chosen = {**config, "micro_batch": "auto"}
    return chosen if is_free and not _laid_out(config) and _laid_out(chosen) else config


def _nearest(point: Point, placed: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """The run whose settings a point takes that was not run: of its rule, if possible its batch."""
    of_batch = placed[placed["paper_batch"] == point.batch]
    choices = [frame[frame["lr_rule"] == point.rule] for frame in (of_batch, runs)]
    return next(frame for frame in (*choices, of_batch, runs) if len(frame)).iloc[0]


def values_at(arms: Sequence[Arm], metric: Metric) -> PointValues:
    """What the arms measured."""
    return values_of([arm.ended for arm in arms], [arm.name for arm in arms], metric)


def seen(values: PointValues) -> Arms:
    """Means, variances and counts of the arms' values, as verdicts use them."""
    with np.errstate(invalid="ignore"):
        arms = Arms.of(values.finished)
    return arms.floored(values.num_validation) if values.num_validation else arms


def with_seeds(arms: Sequence[Arm], count: int) -> list[Config]:
    """The runs that bring every arm to `count` seeds, the same ones in all arms if possible."""
    used = Counter(seed for arm in arms for seed in arm.seeds)
    known = sorted(sorted(used), key=lambda seed: -used[seed])
    first = max(known, default=-1) + 1
    wanted = [*known, *range(first, first + count)]
    found: list[Config] = []
    for arm in arms:
        new = [seed for seed in wanted if seed not in arm.seeds]
        found += [{**arm.config, "seed": seed} for seed in new[: max(0, count - len(arm.seeds))]]
    return found


def differences(
    arms: Sequence[Arm], added: Sequence[Config], commit: str | None = None
) -> list[str]:
    """What arms would differ in besides the question if runs were added, in words.

    Args:
        arms: that are compared.
        added: runs; those at a point of no arm are an arm of their own.
        commit: of the code that would train them.
    """
    rows = [arm.ended[[*ALIKE]].assign(arm=arm.name) for arm in arms]
    like = next((frame.iloc[0].to_dict() for frame in rows if len(frame)), None)
    if like is None:
        return []
    present = {_point(arm.config): arm for arm in arms}
    new: list[dict[str, Any]] = []
    for point, config in {_point(config): config for config in added}.items():
        arm = present.get(point)
        row = dict(like) | _laid_out(config, like)
        if arm and len(arm.ended):
            row = arm.ended.iloc[0]
        name = arm.name if arm else "what is added"
        new.append({**{column: row[column] for column in ALIKE}, "git_commit": commit, "arm": name})
    frames = [frame for frame in [*rows, pd.DataFrame(new)] if len(frame)]
    return confounds(pd.concat([frame.astype("object") for frame in frames]), ["arm"])


def _point(config: Config) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "seed"}, sort_keys=True)


def repeated(arms: Sequence[Arm], added: Sequence[Config]) -> list[Config]:
    """The added runs and all that they are compared with, at all seeds and alike in all else.

    Raises:
        ValueError: if no BatchNorm span of theirs is possible for all.
    """
    configs = [arm.config for arm in arms] + list(added)
    points = {_point(config): config for config in configs}
    seeds = {seed for arm in arms for seed in arm.seeds} | {int(one["seed"]) for one in added}
    common = {key: _most(configs, key) for key in ("devices", "num_nodes")}
    alike = [{**config, **common} for config in points.values()]
    spans = [span for arm in arms for span in arm.ended["bn_span"].dropna().unique()]
    alike = _of_one_span(alike, [int(span) for span in spans])
    return [{**point, "seed": seed} for point in alike for seed in sorted(seeds)]


def _of_one_span(configs: list[Config], spans: list[int]) -> list[Config]:
    """The runs with the most frequent of several BatchNorm spans that is possible for all."""
    laid_out = [_laid_out(config) for config in configs]
    spans = spans + [int(layout["bn_span"]) for layout in laid_out if layout.get("bn_span")]
    if len({*spans}) < 2 or not all(laid_out):  # impossible runs are refused elsewhere
        return configs
    for span, _ in Counter(spans).most_common():
        for micro_batch in ("auto", span):  # auto is refused where its limit is below the span
            own = {"bn_span": span, "micro_batch": micro_batch}
            alike = [{**config, **own} for config in configs]
            if all(map(_laid_out, alike)):
                return alike
    listed = ", ".join(map(str, sorted({*spans})))
    msg = (
        f"bn_span must be one number in all that is compared; got {listed}, and none of them is "
        "possible at every batch. Choose a divisor of all batches"
    )
    raise ValueError(msg)


def _laid_out(config: Config, like: Mapping[Any, Any] | None = None) -> dict[str, Any]:
    """The columns of its layout that a run would have, of those that a run like it recorded.

    Empty if the run is not possible.
    """
    try:
        row = planned_columns(stored_run_spec(config))
    except ValueError:
        return {}
    names = ("bn_span", "world_size")
    return {name: row[name] for name in names if like is None or pd.notna(like[name])}


def _most(configs: Sequence[Config], key: str) -> Any:
    return Counter(config[key] for config in configs).most_common(1)[0][0]
