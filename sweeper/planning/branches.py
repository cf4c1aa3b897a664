"""Runs that begin from a kept checkpoint of another run, their parent."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from sweeper.spec.config import run_config
from sweeper.spec.exclusions import check_exclusions
from sweeper.spec.identity import scientific_part
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.sentences import printable
from sweeper.spec.worker_args import CHECKPOINT, kept_checkpoint
from sweeper.store.attempt import Attempt
from sweeper.store.checkpoint_checksum import is_sound
from sweeper.store.ledger import Ledger

#: What a branch may have otherwise than its parent.
_FREE = (
    "branch", "batch", "epochs", "examples", "lr_rule", "wd_rule", "ema_rule", "warmup",
    "warmup_start", "warmup_workers", "base_lr", "base_batch", "evaluate_every", "noise_span",
)  # fmt: skip


class ParentDiverged(ValueError):
    """A run diverged, and kept no checkpoint where a branch is to begin."""


def specify_branch(
    asked: str, config: Mapping[str, Any], ledger: Ledger, parents: dict[str, RunSpec] | None
) -> RunSpec:
    """The run of a config that begins where `branch` asks: at a run, its epochs and batch.

    Without an id the parent is the run of the same words with `branch=null batch=<base_batch>`. The
    epochs may be a fraction, as `@0.5`, or a number of examples instead, as `@184320ex`.

    Args:
        asked: `RUN_ID@EPOCHS`, or the position alone.
        config: of the branch.
        ledger: of its results folder.
        parents: by id, those to train first; that of the same words is added if it has no result.
            None if none may be.

    Raises:
        ParentDiverged: if the parent diverged, and kept no checkpoint there.
        ValueError: if the parent has no checkpoint there, or differs in more than a branch may.
    """
    found = re.fullmatch(r"([0-9a-f]{12})?@(\d{1,18}(?:\.\d{1,17})?)(ex)?", asked)
    if not found or not float(found[2]):
        msg = (
            "branch must be a run's id and the epochs that it had trained, or only these; got "
            f"branch={printable(asked)}. Write branch=RUN_ID@2, branch=@0.5 or branch=null."
        )
        raise ValueError(msg)
    run_id, position, is_in_examples = found[1], float(found[2]), found[3]
    position = int(position) if position.is_integer() else position
    branch = {"run": run_id or "", "epochs": position, "batch": config["base_batch"]}
    check_exclusions(run_config({**config, "branch": branch}))  # before a parent is trained for it
    planned = {**config, "branch": None, "batch": config["base_batch"]}
    run_id = run_id or run_spec(planned).run_id
    row = ledger.rows({run_id}, ["outcome", "epochs_completed"]).get(run_id, {})
    outcome = row.get("outcome")
    last = ledger.last_attempt(run_id)
    attempt = Attempt.load(ledger, run_id, last) if last else None
    if attempt and is_in_examples:
        position = _find_epochs(attempt.spec, position)
    kept = kept_checkpoint(ledger.run_folder(run_id), position)
    is_there = kept.exists() and is_sound(kept)
    if is_there and kept.name == CHECKPOINT:
        is_there = outcome == Outcome.FINISHED and row.get("epochs_completed") == position
    is_planned = not found[1] and not is_in_examples and outcome != Outcome.FINISHED
    if attempt and is_there:
        parent = attempt.spec
    elif outcome == Outcome.DIVERGED:
        msg = f"{run_id}, from which branch={asked} begins, diverged and kept no checkpoint there."
        raise ParentDiverged(msg)
    elif is_planned and parents is not None:
        before = parents.get(run_id)
        keep = before.config.keep_checkpoint if before else config["keep_checkpoint"]
        if keep != "all" or position % 1:
            keep = sorted({*(keep if isinstance(keep, list | tuple) else ()), position})
        parent = parents[run_id] = run_spec({**planned, "keep_checkpoint": keep})
    elif attempt is None:
        train = f"Train it first: the same words with branch=null batch={config['base_batch']}."
        msg = (
            f"branch must name a run in {ledger.results}; got branch={asked}, {run_id}. "
            f"{train if is_planned else 'Take an id from sweeper status, or give epochs.'}"
        )
        raise ValueError(msg)
    else:
        where = f"keep_checkpoint=[{position or 'EPOCHS'}]"
        msg = (
            f"branch must be where its parent kept a checkpoint; got branch={asked}, which "
            f"{run_id} has not. Train that run with {where} (rerun=all if it has a result)."
        )
        raise ValueError(msg)
    branch = {"run": run_id, "epochs": position, "batch": parent.config.batch}
    made = run_spec({**config, "branch": branch})
    own, its = (scientific_part(s.identified) for s in (made, parent))
    differing = [k for k in {**own, **its} if k not in _FREE and own.get(k) != its.get(k)]
    if differing or parent.config.branch:
        what = ", ".join(differing) or "branch, as the parent is one itself"
        msg = (
            "a branch must have the settings of its parent but for batch, length, rate and warmup; "
            f"got branch={asked} with another {what}. Give it the parent's, or branch from another "
            "run."
        )
        raise ValueError(msg)
    return made


def _find_epochs(parent: RunSpec, examples: float) -> float:
    """The position after so many examples at which a parent keeps a checkpoint; 0 for none."""
    plan, kept = parent.batch_plan, parent.config.keep_checkpoint
    positions = *(kept if isinstance(kept, tuple) else ()), *range(1, parent.epochs + 1)
    places = ((at, plan.find_step(Fraction(str(at)), "epochs")) for at in positions)
    return next((at for at, place in places if plan.examples_before(*place) == examples), 0)
