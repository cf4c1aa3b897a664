"""The points that a question is about, and the runs that would be added to them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import pandas as pd

from analysis.decide.command import Config, complete_config, sweep_commands
from analysis.papers.claim import Point, point_masks
from analysis.papers.paper import Paper, user_point
from analysis.tables.validity import ALIKE, confounds
from analysis.tables.which_runs import ended_runs
from sweeper.spec.identity import MICRO
from sweeper.spec.run_spec import read_run_spec
from sweeper.store.run_columns import planned_columns


@dataclass(frozen=True)
class Arm:
    """A point, the runs that stand there, and the settings of further runs.

    Attributes:
        name: in words.
        runs: rows of the runs table, with or without a result.
        config: of its runs, with any of their seeds.
    """

    name: str
    runs: pd.DataFrame
    config: Config

    @classmethod
    def of_runs(cls, name: str, runs: pd.DataFrame) -> "Arm":
        """With the settings of its first run."""
        return cls(name, runs, config_from_row(runs.iloc[0]))

    @cached_property
    def ended(self) -> pd.DataFrame:
        """The runs that finished or diverged."""
        return ended_runs(self.runs)

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds of which a run finished or diverged."""
        return sorted(int(seed) for seed in self.ended["seed"].unique())


def config_from_row(row: pd.Series, **changes: Any) -> Config:
    """The config of a run, with defaults for keys added since, and some keys changed."""
    return {**complete_config(json.loads(row["config_json"])), **changes}


def write_commands(runs: pd.DataFrame, **changes: Sequence[Any]) -> str:
    """The commands that train these runs again with other values of some keys.

    The values of a key are all tried; `batch` alone is changed in the runs of the largest.
    """
    if "batch" in changes:
        runs = runs[runs["global_batch"] == runs["global_batch"].max()]
    configs = [
        config_from_row(row, **dict(zip(changes, values, strict=True)))
        for _, row in runs.drop_duplicates("config_json").iterrows()
        for values in product(*changes.values())
    ]
    folder = str(runs["results"].iloc[0]) if "results" in runs else "results"
    return "; ".join(sweep_commands(configs, folder))


def paper_arms(
    points: Sequence[Point], placed: pd.DataFrame, runs: pd.DataFrame, paper: Paper
) -> list[Arm]:
    """The arms of a claim, translated into the batches and warmups of these runs.

    A point that was not run takes its settings from a run of its rule, if possible of its batch.
    """
    arms: list[Arm] = []
    for point, mask in zip(points, point_masks(placed, points), strict=True):
        here = placed[mask]
        if len(here):
            arms.append(Arm.of_runs(str(point), here))
            continue
        same_batch = placed[placed["paper_batch"] == point.batch]
        choices = [frame[frame["lr_rule"] == point.rule] for frame in (same_batch, runs)]
        like = next(frame for frame in (*choices, same_batch, runs) if len(frame)).iloc[0]
        batch, warmup = user_point(point, paper, like)
        config = config_from_row(like, batch=batch, warmup=warmup)
        if like["lr_rule"] != point.rule:
            config["lr_rule"] = {"name": point.rule}
        if "micro" not in [config.get(key) for key in MICRO]:
            config["micro_batch"] = "auto"  # the number of a run may not divide another batch
        arms.append(Arm(str(point), here, config))
    return arms


def add_seeds(arms: Sequence[Arm], count: int) -> list[Config]:
    """The runs that bring every arm to `count` seeds, the same in all arms if possible."""
    used = Counter(seed for arm in arms for seed in arm.seeds)
    known = sorted(sorted(used), key=lambda seed: -used[seed])
    first = max(known, default=-1) + 1
    wanted = [*known, *range(first, first + count)]
    found: list[Config] = []
    for arm in arms:
        new = [seed for seed in wanted if seed not in arm.seeds]
        found += [{**arm.config, "seed": seed} for seed in new[: max(0, count - len(arm.seeds))]]
    return found


def compare_settings(
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
        row = dict(like) | _layout(config, like)
        if arm and len(arm.ended):
            row = arm.ended.iloc[0]
        name = arm.name if arm else "what is added"
        new.append({**{column: row[column] for column in ALIKE}, "git_commit": commit, "arm": name})
    frames = [frame for frame in [*rows, pd.DataFrame(new)] if len(frame)]
    return confounds(pd.concat([frame.astype("object") for frame in frames]), ["arm"])


def _point(config: Config) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "seed"}, sort_keys=True)


def repeat_alike(arms: Sequence[Arm], added: Sequence[Config]) -> list[Config]:
    """The added runs and all that they are compared with, at all seeds, on equally many ranks.

    Raises:
        ValueError: if BatchNorm would be over different numbers of examples.
    """
    configs = [arm.config for arm in arms] + list(added)
    seeds = {seed for arm in arms for seed in arm.seeds} | {int(c["seed"]) for c in added}
    counts = {key: Counter(config[key] for config in configs) for key in ("devices", "num_nodes")}
    common = {key: count.most_common(1)[0][0] for key, count in counts.items()}
    points = {_point(config): {**config, **common} for config in configs}
    layouts = [_layout(point) for point in points.values()]
    spans = {int(layout["bn_span"]) for layout in layouts if layout.get("bn_span")}
    if len(spans) > 1:
        msg = (
            "all that is compared must have one BatchNorm span, and run again with it; got bn_span "
            f"{', '.join(map(str, sorted(spans)))}. Choose a divisor of all batches"
        )
        raise ValueError(msg)
    return [{**point, "seed": seed} for point in points.values() for seed in sorted(seeds)]


def _layout(config: Config, like: Mapping[Any, Any] | None = None) -> dict[str, Any]:
    """The columns of its layout that a run would have, of those that a run like it recorded.

    Empty if the run is not possible.
    """
    try:
        row = planned_columns(read_run_spec(config))
    except ValueError:
        return {}
    names = ("bn_span", "world_size")
    return {name: row[name] for name in names if like is None or pd.notna(like[name])}
