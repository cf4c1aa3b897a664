"""The points that a question is about, and the runs that would be added to them."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.decide.command import Config, complete
from analysis.papers.claim import PointValues, values_of
from analysis.papers.grid import Point, ended, runs_at
from analysis.papers.paper import Paper, own_point
from analysis.papers.validity import ALIKE, confounds
from analysis.stats.contrasts import Arms
from analysis.tables.metric import Metric


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
        alike = runs[runs["lr_rule"] == point.rule]
        like = (alike if len(alike) else runs).iloc[0]
        batch, warmup = own_point(point, paper, like.to_frame().T)
        rule = config_of(like)["lr_rule"]
        rule = rule if like["lr_rule"] == point.rule else {"name": point.rule}
        config = config_of(like, batch=batch, warmup=warmup, lr_rule=rule)
        arms.append(Arm(str(point), here, config))
    return arms


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
    names = {_point(arm.config): arm.name for arm in arms}
    like = next((frame for frame in rows if len(frame)), None)
    if like is None:
        return []
    now = {**{name: like.iloc[0][name] for name in ALIKE}, "git_commit": commit}
    places = [names.get(_point(config), "what is added") for config in added]
    new = pd.DataFrame([{**now, "arm": place} for place in dict.fromkeys(places)])
    both = pd.concat([frame.astype("object") for frame in [*rows, new] if len(frame)])
    return confounds(both, ["arm"])


def _point(config: Config) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "seed"}, sort_keys=True)


def repeated(arms: Sequence[Arm], added: Sequence[Config]) -> list[Config]:
    """The added runs and all that they are compared with, at all seeds and alike in all else."""
    configs = [arm.config for arm in arms] + list(added)
    points = {_point(config): config for config in configs}
    seeds = {seed for arm in arms for seed in arm.seeds} | {int(one["seed"]) for one in added}
    common = {key: _most(configs, key) for key in ("devices", "num_nodes")}
    return [{**p, **common, "seed": s} for p in points.values() for s in sorted(seeds)]


def _most(configs: Sequence[Config], key: str) -> Any:
    return Counter(config[key] for config in configs).most_common(1)[0][0]
