"""The state of attempts, and what to do about those whose launcher has died."""

import json
from enum import StrEnum

from sweeper.spec.outcomes import Outcome
from sweeper.store.attempt import Attempt, End, clean_up
from sweeper.store.lease import is_held
from sweeper.store.ledger import Ledger


class Open(StrEnum):
    """The state of an attempt without a recorded end."""

    HELD = "running"
    ABANDONED = "abandoned"


#: The state of an attempt: how it ended, or whether a live process holds it.
Standing = End | Open


def standing(ledger: Ledger, run_id: str, number: int) -> Standing:
    """The state of an attempt."""
    folder = ledger.attempt_folder(run_id, number)
    try:
        released = json.loads((folder / "released.json").read_text())
        return End(outcome=Outcome(released["outcome"]), reason=released["reason"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # not there, or damaged
        return Open.HELD if is_held(folder) else Open.ABANDONED


def recover(ledger: Ledger, run_id: str, number: int) -> End | None:
    """Give an abandoned attempt its row: the end that its worker recorded, or preempted.

    None if it has no valid config, as when its holder died before writing one.
    """
    attempt = Attempt.load(ledger, run_id, number)
    if attempt is None:
        ledger.mark_inactive(run_id, number)
        return None
    end = attempt.end_of_stopped(lambda: "its launcher was gone")
    attempt.end(end, ledger)
    return end


def tidy(ledger: Ledger) -> None:
    """Finish what killed launchers left undone: rows, releases, removals."""
    ended = ledger.ended()
    for run_id, number in ledger.active():
        stands = standing(ledger, run_id, number)
        row = ended.get(run_id)
        if isinstance(stands, End):
            clean_up(ledger, run_id, number)
        elif stands is Open.HELD:
            continue
        elif row and row.attempt == number and (left := Attempt.load(ledger, run_id, number)):
            published = ledger.rows({run_id}, ["reason"])[run_id]
            left.settle(End(outcome=row.outcome, reason=published["reason"]), ledger)
        else:
            recover(ledger, run_id, number)
