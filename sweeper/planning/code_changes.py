"""Runs whose results or checkpoints were made with other user sources than today's."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sweeper.spec.sentences import several
from sweeper.spec.worker_args import CHECKPOINT
from sweeper.store.attempt import Open, attempt_state
from sweeper.store.file_names import RowFile
from sweeper.store.ledger import Ledger
from sweeper.store.user_code import code_hash, find_own_packages, read_code, read_hashes, user_code

_MOST_FILES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """How the user's sources have changed since a run was trained."""

    files: tuple[str, ...]  # that differ
    is_held: bool = False  # a process is training the run at this moment


Changes = Mapping[str, CodeChange]


def code_changes(
    named: Mapping[str, Sequence[str]], ended: Mapping[str, RowFile], ledger: Ledger
) -> dict[str, CodeChange]:
    """The runs that were trained with other sources than today's, by run id.

    The sources that count are those at the start of the last attempt. A run is left out if it has
    no result, no checkpoint to resume from, and no process that is training it. `named` has every
    `_target_` of a run's config, `ended` the current rows, both by run id.
    """
    tops = {run_id: found for run_id, names in named.items() if (found := find_own_packages(names))}
    if not tops:
        return {}
    code = {found: user_code(found) for found in set(tops.values())}
    return {
        run_id: CodeChange(
            files=_describe_differences(read_code(digest, ledger.results), code[tops[run_id]]),
            is_held=is_held,
        )
        for run_id, (digest, is_held) in _trained_codes(tops, ended, ledger).items()
        if digest != code_hash(code[tops[run_id]])
    }


def _trained_codes(
    run_ids: Collection[str], ended: Mapping[str, RowFile], ledger: Ledger
) -> dict[str, tuple[str | None, bool]]:
    """The code hash of each run to consider, and whether it is being trained."""
    results = {id for id in run_ids if id in ended and ended[id].outcome.is_result}
    rows = ledger.rows(results, ["code_hash"]) if results else {}
    codes = {run_id: (row["code_hash"], False) for run_id, row in rows.items()}
    for run_id in run_ids:
        last = ledger.last_attempt(run_id)
        if last == 0 or (run_id in codes and ended[run_id].attempt >= last):
            continue
        is_held = attempt_state(ledger, run_id, last) is Open.HELD
        digest, *_ = read_hashes(ledger.attempt_folder(run_id, last)) or [None]
        if is_held and digest is None:  # it has only just begun
            continue
        if is_held or (ledger.run_folder(run_id) / CHECKPOINT).exists():
            codes[run_id] = (digest, is_held)
    return codes


def _describe_differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    if not before:
        return ("unknown, as no sources were recorded",)
    changed = [path for path in now if path in before and before[path] != now[path]]
    new = [f"{path} (new)" for path in now if path not in before]
    return (*changed, *new, *(f"{path} (gone)" for path in before if path not in now))


def changed_files(changes: Changes) -> str:
    """The files of all changes, as part of a sentence."""
    files = list(dict.fromkeys(file for change in changes.values() for file in change.files))
    more = len(files) - _MOST_FILES
    return ", ".join(files[:_MOST_FILES]) + (f" and {more} more" if more > 0 else "")


def check_code(changes: Changes, code: str | None, *, num_runs: int) -> None:
    """Make the user decide about runs that were trained with other sources.

    ValueError if `code` does not say what to do, or says rerun while such a run is being trained.
    """
    if not changes or code == "keep":
        return
    held = [run_id for run_id, change in changes.items() if change.is_held]
    if code == "rerun" and held:
        msg = (
            "code=rerun needs the runs that it trains again to be stopped; got "
            f"{several(len(held), 'run')} still training with other sources, first {held[0]}. Stop "
            "the sweep that trains them."
        )
        raise ValueError(msg)
    if code is None:
        msg = (
            "all runs must be trained with the same sources of your project; got "
            f"{len(changes)} of {several(num_runs, 'run')} trained with other sources, first "
            f"{next(iter(changes))}. Changed: {changed_files(changes)}. Give code=keep to let them "
            "stand, or code=rerun to train them again."
        )
        raise ValueError(msg)


def describe_changes(changes: Changes, code: str | None) -> str | None:
    """A sentence on what happens to runs trained with other sources; None if there are none."""
    if not changes:
        return None
    what = {
        "keep": "code=keep lets them stand",
        "rerun": "code=rerun trains them again",
        None: "a sweep is refused until code=keep or code=rerun is given",
    }[code]
    runs = f"{len(changes)} runs were"
    if len(changes) == 1:
        runs, what = "1 run was", what.replace("them", "it")
    files = changed_files(changes)
    return f"{runs} trained with other sources of your project: {what}. Changed: {files}."
