"""Studies into frames: trials, the best of each study, steps to a target."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import FloatDistribution, IntDistribution, json_to_distribution
from optuna.storages import InMemoryStorage
from optuna.study import Study

from analysis.stats.to_target import first_reached, mark_falls
from analysis.tables.load import load_runs
from analysis.tables.metric import Metric
from analysis.tables.validity import ALIKE, confounds
from sweeper.tuning.point_study import OUTCOME_KEY, REASON_KEY, RUNS_KEY, SETTINGS_KEY, SPACE_KEY
from sweeper.tuning.space import Space, edge_advice
from sweeper.tuning.storage import JOURNAL, name_journal, open_storage
from sweeper.tuning.study_settings import OBJECTIVES, parse_objective

#: The last parts of the keys that modules use for their learning rate.
_OWN_RATES = ("lr", "learning_rate")
_FROM_RUNS = ["global_batch", "base_batch", "peak_lr", "base_lr", "lr_rule", "seed", *ALIKE]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Studies that differ only in batch and seed.

    Attributes:
        trials: a row per trial: `study`, `trial`, `outcome`, `reason`, `value`, `loss` (lower is
            better; inf if it diverged), the tuned keys, and of its run `run_id`, `global_batch`,
            `base_batch`, `peak_lr`, `base_lr`, `seed`.
        space: what was tuned.
        objective: what was optimised, as the study records it.
        studies: Optuna's own, by name.
    """

    trials: pd.DataFrame
    space: Space
    objective: str
    studies: dict[str, Study]

    def numbers(self) -> dict[str, FloatDistribution | IntDistribution]:
        """The tuned keys that are numbers, with their ranges."""
        return {
            key: found
            for key, found in self.space.items()
            if isinstance(found, FloatDistribution | IntDistribution)
        }

    @property
    def rate(self) -> str | None:
        """The tuned key that is the learning rate: ours, or the only such key of a module."""
        own = [key for key in self.numbers() if key.rpartition(".")[2] in _OWN_RATES]
        return "base_lr" if "base_lr" in self.numbers() else own[0] if len(own) == 1 else None

    @property
    def metric(self) -> Metric:
        """The objective, labelled with its direction unless it is a column of ours."""
        found = parse_objective(self.objective)
        own = f"{found.column} ({'higher' if found.mode == 'max' else 'lower'} is better)"
        label = found.column if found.column in OBJECTIVES else own
        return Metric(found.column, found.mode, label)

    def advice(self, trial: pd.Series) -> str:
        """Which ranges to widen because a trial lies at their ends; empty if none."""
        texts = [edge_advice(key, trial[key], space) for key, space in self.space.items()]
        return "; ".join(text for text in texts if text)

    def is_log(self, key: str) -> bool:
        """Whether a number (peak_lr for the rate) was tuned on a log scale."""
        return self.numbers()[(self.rate or key) if key == "peak_lr" else key].log


def load_tuned(results: str | Path = "results") -> list[Tuned]:
    """The studies of a results folder, those of the same space and objective together.

    Args:
        results: the folder that the studies wrote.

    Returns:
        The largest set first. Studies of Optuna itself are left out.

    Raises:
        ValueError: if there is no study.
    """
    folder = Path(results)
    is_there = (folder / JOURNAL).exists()
    kept = open_storage(folder, read_only=True) if is_there else InMemoryStorage()
    runs = load_runs(results, _FROM_RUNS).set_index("run_id")
    sets: dict[str, dict[str, Study]] = {}
    tuned: list[Tuned] = []
    with name_journal(folder):
        for name in optuna.get_all_study_names(kept):
            study = optuna.load_study(study_name=name, storage=kept)
            settings = study.user_attrs.get(SETTINGS_KEY)
            if settings and study.trials:
                objectives = settings["hydra.sweeper.objectives"]
                key = json.dumps([study.user_attrs[SPACE_KEY], objectives])
                sets.setdefault(key, {})[name] = study
        for key, studies in sets.items():
            space, objectives = json.loads(key)
            space = {name: json_to_distribution(text) for name, text in space.items()}
            frame = pd.DataFrame(row for study in studies.values() for row in _list_trials(study))
            of_runs = runs.reindex(frame["run_id"]).reset_index(drop=True)
            trials = frame.join(of_runs[[name for name in _FROM_RUNS if name not in frame]])
            tuned.append(Tuned(trials, space, json.loads(objectives)[0], studies))
    if not tuned:
        msg = (
            f"results must hold studies of hydra/sweeper=optuna; got {results}, which has none "
            "with a trial. Tune first, or name another folder."
        )
        raise ValueError(msg)
    return sorted(tuned, key=lambda found: -len(found.trials))


def keep_trials(tuned: Tuned, run_ids: pd.Series) -> Tuned:
    """The trials whose runs are among these, and their studies; ValueError if none is."""
    trials = tuned.trials[tuned.trials["run_id"].isin(run_ids)].reset_index(drop=True)
    if not len(trials):
        msg = "--where must leave trials; got conditions that no run of these studies meets."
        raise ValueError(msg)
    studies = {name: tuned.studies[name] for name in trials["study"].unique()}
    return replace(tuned, trials=trials, studies=studies)


def _list_trials(study: Study) -> list[dict[str, object]]:
    sign = -1.0 if study.direction.name == "MAXIMIZE" else 1.0
    return [
        {
            "study": study.study_name,
            "trial": trial.number,
            "outcome": trial.user_attrs.get(OUTCOME_KEY, "running"),
            "reason": trial.user_attrs.get(REASON_KEY, ""),
            "value": trial.value if trial.value is not None else np.nan,
            "loss": sign * trial.value if trial.value is not None else np.nan,
            "run_id": (trial.user_attrs.get(RUNS_KEY) or [None])[0],
            **trial.params,
        }
        for trial in study.trials
    ]


def finished_trials(tuned: Tuned) -> pd.DataFrame:
    """The trials whose runs all finished."""
    return tuned.trials[tuned.trials["outcome"] == "finished"]


def best_trials(tuned: Tuned) -> pd.DataFrame:
    """The best trial of each study, and whether it is inside its ranges.

    Returns:
        The rows of `trials`, with `num_finished` and `num_diverged` of the study, and `advice`
        (which range to widen; empty if none).
    """
    done = finished_trials(tuned).sort_values("loss", kind="stable")
    best = done.drop_duplicates("study").sort_index()
    counts = pd.crosstab(tuned.trials["study"], tuned.trials["outcome"])
    counts = counts.reindex(best["study"], columns=["finished", "diverged"], fill_value=0)
    return best.assign(
        num_finished=counts["finished"].to_numpy(),
        num_diverged=counts["diverged"].to_numpy(),
        advice=[tuned.advice(trial) for _, trial in best.iterrows()],
    ).reset_index(drop=True)


def tuned_confounds(tuned: Tuned) -> list[str]:
    """What the trials differ in besides the batch and what was tuned, as sentences."""
    compared = tuned.trials.reindex(columns=tuned.trials.columns.union([*ALIKE]))
    return confounds(compared[compared["global_batch"].notna()], ["global_batch"])


def steps_to_target(tuned: Tuned, curves: pd.DataFrame, target: float) -> pd.DataFrame:
    """The fewest steps in which any trial of a study reached a target.

    The objective says whether the target is reached from below or from above.

    Returns:
        a row per study: `study`, `global_batch`, the columns of `first_reached` (null if no trial
        reached it), `trial`, `reached_target`, `advice` (which range of that trial's to widen),
        `outcome`.

    Source:
        Shallue et al. 2019, arXiv:1811.03600: the minimum over trials, inside the search space.
    """
    first = first_reached(curves, target, tuned.metric)
    trials = tuned.trials[tuned.trials["global_batch"].notna()]
    trials = trials.merge(first, on="run_id", how="left")
    trials = trials.sort_values("steps_to_target", kind="stable")
    best = trials.drop_duplicates("study").sort_index()
    best = mark_falls(best, curves)
    reached = best["steps_to_target"].notna()
    return pd.DataFrame(
        {
            **best[["study", "missed_until", "rate_fell", *first.columns.drop("run_id")]],
            "global_batch": best["global_batch"].astype(int),
            "trial": best["trial"].where(reached),
            "reached_target": reached,
            "outcome": "finished",
            "advice": [
                tuned.advice(trial) if trial["steps_to_target"] > 0 else ""
                for _, trial in best.iterrows()
            ],
        }
    ).reset_index(drop=True)
