"""What killed launchers left: each abandoned attempt is taken over once, and gets its row."""

from contextlib import suppress
from dataclasses import asdict

from sweeper.spec.outcomes import Outcome
from sweeper.store.attempt import (
    RELEASED,
    Attempt,
    End,
    Open,
    attempt_state,
    remove_leftovers,
)
from sweeper.store.lease import holds, release, take_over
from sweeper.store.ledger import Ledger
from sweeper.store.publish import TakenOver, publish_json, read_as

_GONE = "its launcher was gone"


def recover_attempt(
    ledger: Ledger, run_id: str, number: int, *, is_dead: bool = False
) -> End | None:
    """Take an abandoned attempt over, and give it its row: as its worker recorded, or preempted.

    None if another process has it; `is_dead` if its holder is known to be gone. Without a valid
    config, as when its holder died before writing it, it gets no row.
    """
    folder = ledger.attempt_folder(run_id, number)
    if not (holds(folder) or take_over(folder, is_dead=is_dead)):
        return None
    remove_leftovers(folder)  # first: what is half written has no name to be published under
    if end := read_as(End, folder / RELEASED):  # by another process, meanwhile
        release(folder)
        return end
    if (attempt := Attempt.load(ledger, run_id, number)) is None:
        end = End(outcome=Outcome.PREEMPTED, reason=f"{_GONE} before it began")
        publish_json(folder / RELEASED, asdict(end))
        release(folder)
        ledger.mark_inactive(run_id, number)
        return end
    row = ledger.find_row(run_id, number)  # its holder may have come so far
    stated = ledger.read_row(row, ["reason"]) if row else []
    if row and stated:
        end = End(outcome=row.outcome, reason=stated[0]["reason"])
        with suppress(TakenOver):
            attempt.settle(end, ledger)
            return end
        return None
    end = attempt.end_of_stopped(lambda: _GONE)
    return end if attempt.end(end, ledger) else None


def finish_abandoned(ledger: Ledger) -> None:
    """Finish what killed launchers left undone: rows, releases, removals."""
    ledger.mend()
    for run_id, number in ledger.active():
        state = attempt_state(ledger, run_id, number)
        if isinstance(state, End):
            folder = ledger.attempt_folder(run_id, number)
            remove_leftovers(folder)
            release(folder)
            ledger.mark_inactive(run_id, number)
        elif state is Open.ABANDONED:
            recover_attempt(ledger, run_id, number)
