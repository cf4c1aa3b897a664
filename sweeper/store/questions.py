"""The questions that sequential sweeps asked of a results folder, and what is known of each.

    results/questions/<hash>.json    the question, its arms, seeds and looks; its answer, once there

A question that is asked again with new seeds gets a file of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.spec.sentences import printable
from sweeper.store.publish import Text, read_as

FOLDER = "questions"


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """A question that was asked.

    Attributes:
        text: as typed.
        said: the answer according to the looks so far, why they ended, and its place among the
            questions of the folder.
    """

    text: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is stored of a question, and read again; `why` its looks ended, once they have.

    `planned` are the runs of its plan, `runs` those that its looks have used; `number` says which
    question of the folder it is, `num_before` how many of its runs had a result before it, and
    `place` both in words.
    """

    question: Text
    seeds: Sequence[int]
    looks_at: Sequence[int]
    metric: Text | None = None
    planned: Sequence[str] = ()
    runs: Sequence[str] = ()
    number: int = 1
    num_before: int = 0
    place: Text = ""
    answer: Text | None = None
    why: Text | None = None


def read_questions(results: Path) -> list[StoredQuestion]:
    """The questions stored in a results folder; unreadable files are left out."""
    found: list[StoredQuestion] = []
    for path in sorted((results / FOLDER).glob("[!.]*.json")):
        if record := read_as(Record, path):
            said = f"{record.answer or 'not answered yet.'} {record.why or ''}".rstrip()
            said = f"{said} {record.place}".rstrip()
            found.append(StoredQuestion(printable(record.question), printable(said)))
    return found
