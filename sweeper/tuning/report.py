"""What a study found, in words."""

from optuna.trial import FrozenTrial, TrialState

from sweeper.tuning.space import edge, word
from sweeper.tuning.study import OUTCOME_KEY, PointStudy


def outlook(study: PointStudy) -> str:
    """The best trial of a study, how many led nowhere, and whether a range should be wider."""
    counts = _counts(study)
    complete = [t for t in study.trials(TrialState.COMPLETE) if _is_finished(t)]
    if not complete:
        return f"{study.name}: no trial finished ({counts})."
    if len(study.design.objectives) > 1:
        return f"{study.name}: {len(study.optuna.best_trials)} trials on the front ({counts})."
    feasible = [t for t in complete if _is_feasible(t)]
    if not feasible:
        return f"{study.name}: no trial keeps within the constraints ({counts})."
    objective = study.design.objectives[0]
    sign = -1 if objective.direction == "maximize" else 1
    best = min(feasible, key=lambda trial: sign * (trial.value or 0.0))
    tuned = " ".join(word(key, value) for key, value in best.params.items())
    line = (
        f"{study.name}: best {objective.column}={best.value:.5g} at {tuned} "
        f"(trial {best.number}; {counts})."
    )
    space = study.design.space
    advice = [edge(key, value, space[key]) for key, value in best.params.items()]
    return "\n".join([line, *(f"    {text}." for text in advice if text)])


def _is_finished(trial: FrozenTrial) -> bool:
    return trial.user_attrs.get(OUTCOME_KEY) == "finished"


def _is_feasible(trial: FrozenTrial) -> bool:
    return all(value <= 0 for value in trial.constraints.values())


def _counts(study: PointStudy) -> str:
    outcomes = [str(t.user_attrs.get(OUTCOME_KEY, "under way")) for t in study.trials()]
    return ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
