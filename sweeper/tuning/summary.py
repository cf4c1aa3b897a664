"""The result of a study in a few lines."""

from optuna.trial import FrozenTrial, TrialState

from sweeper.tuning.space import edge, override
from sweeper.tuning.study import OUTCOME_KEY, PointStudy


def summarize(study: PointStudy) -> str:
    """The best trial of a study, how its trials ended, and whether a range should be wider."""
    counts = _counts(study)
    finished = [t for t in study.trials(TrialState.COMPLETE) if _outcome(t) == "finished"]
    if not finished:
        return f"{study.name}: no trial finished ({counts})."
    if len(study.settings.objectives) > 1:
        return f"{study.name}: {len(study.optuna.best_trials)} trials on the front ({counts})."
    feasible = [t for t in finished if all(value <= 0 for value in t.constraints.values())]
    if not feasible:
        return f"{study.name}: no trial satisfies the constraints ({counts})."
    objective = study.settings.objectives[0]
    sign = -1 if objective.direction == "maximize" else 1
    best = min(feasible, key=lambda trial: sign * (trial.value or 0.0))
    tuned = " ".join(override(key, value) for key, value in best.params.items())
    line = (
        f"{study.name}: best {objective.column}={best.value:.5g} at {tuned} "
        f"(trial {best.number}; {counts})."
    )
    space = study.settings.space
    advice = [edge(key, value, space[key]) for key, value in best.params.items()]
    return "\n".join([line, *(f"    {text}." for text in advice if text)])


def _outcome(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get(OUTCOME_KEY, "running"))


def _counts(study: PointStudy) -> str:
    outcomes = [_outcome(trial) for trial in study.trials()]
    return ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
