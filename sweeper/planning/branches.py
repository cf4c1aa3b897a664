"""Runs that begin from a kept checkpoint of another run, their parent."""

import re
from collections.abc import Mapping
from typing import Any

from sweeper.spec.config import run_config
from sweeper.spec.exclusions import check_exclusions
from sweeper.spec.identity import scientific_part
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.sentences import printable
from sweeper.spec.worker_args import KEPT, kept_checkpoint
from sweeper.store.attempt import Attempt
from sweeper.store.checkpoint_checksum import is_sound
from sweeper.store.ledger import Ledger

#: What a branch may have otherwise than its parent.
_FREE = (
    "branch", "batch", "epochs", "lr_rule", "wd_rule", "ema_rule", "warmup", "warmup_start",
    "warmup_workers", "base_lr", "base_batch", "evaluate_every", "noise_span",
)  # fmt: skip


def specify_branch(asked: str, config: Mapping[str, Any], ledger: Ledger) -> RunSpec:
    """The run of a config that begins where `branch` asks: at a run, its epochs and batch.

    Without an id the parent is the run of the same words with `branch=null batch=<base_batch>`. A
    position may be a number of examples instead, as `@184320ex`, at which an epoch ends.

    Raises:
        ValueError: if the parent has no checkpoint there, or differs in more than a branch may.
    """
    if not (found := re.fullmatch(r"([0-9a-f]{12})?@([1-9]\d{0,17})(ex)?", asked)):
        msg = (
            "branch must be a run's id and the epochs that it had trained, or only these; got "
            f"branch={printable(asked)}. Write branch=RUN_ID@2, branch=@2 or branch=null."
        )
        raise ValueError(msg)
    run_id, position, is_in_examples = found[1], int(found[2]), found[3]
    branch = {"run": run_id or "", "epochs": position, "batch": config["base_batch"]}
    check_exclusions(run_config({**config, "branch": branch}))  # before a parent is trained for it
    if not run_id:
        run_id = run_spec({**config, "branch": None, "batch": config["base_batch"]}).run_id
    last = ledger.last_attempt(run_id)
    parent = Attempt.load(ledger, run_id, last) if last else None
    if parent is None:
        train = f"Train it first: the same words with branch=null batch={config['base_batch']}"
        msg = (
            f"branch must name a run in {ledger.results}; got branch={asked}, {run_id}. "
            f"{'Take an id from sweeper status' if found[1] else train}."
        )
        raise ValueError(msg)
    plan, rest = parent.spec.batch_plan, 0
    if is_in_examples:
        position, rest = divmod(position, max(1, plan.examples_before(1)))
    kept = kept_checkpoint(ledger.run_folder(run_id), position)
    is_there = kept.exists() and not rest
    if is_there and kept.name != KEPT.format(position):
        row = ledger.rows({run_id}, ["outcome", "epochs_completed"]).get(run_id, {})
        is_there = row.get("epochs_completed") == position
        is_there &= row.get("outcome") == Outcome.FINISHED
    if not is_there or not is_sound(kept):
        where = f"keep_checkpoint=[{position}]" if position and not rest else "keep_checkpoint=all"
        msg = (
            "branch must be at the end of an epoch whose checkpoint is kept; got "
            f"branch={asked}, which {run_id} has not. Train that run with {where} (rerun=all if it "
            "has a result)."
        )
        raise ValueError(msg)
    branch = {"run": run_id, "epochs": position, "batch": parent.spec.config.batch}
    made = run_spec({**config, "branch": branch})
    own, its = (scientific_part(s.identified) for s in (made, parent.spec))
    differing = [k for k in {**own, **its} if k not in _FREE and own.get(k) != its.get(k)]
    if differing or plan.first:
        what = ", ".join(differing) or "branch, as the parent is one itself"
        msg = (
            "a branch must have the settings of its parent but for batch, length, rate and warmup; "
            f"got branch={asked} with another {what}. Give it the parent's, or branch from another "
            "run."
        )
        raise ValueError(msg)
    return made
