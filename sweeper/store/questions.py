"""The questions that sequential sweeps asked of a results folder, and what is known of each.

    results/questions/<hash>.json    the question, its arms, seeds and looks; its answer, once there

A question that is asked again with new seeds gets a file of its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from sweeper.spec.sentences import printable

FOLDER = "questions"


@dataclass(frozen=True, slots=True)
class Question:
    """A question that was asked.

    Attributes:
        text: as typed.
        said: the answer according to the looks so far, and why they ended.
    """

    text: str
    said: str


def read_questions(results: Path) -> list[Question]:
    """The questions stored in a results folder; unreadable files are left out."""
    found: list[Question] = []
    for path in sorted((results / FOLDER).glob("[!.]*.json")):
        try:
            content = json.loads(path.read_text())
            parts = [content.get("answer") or "not answered yet.", content.get("why") or ""]
            text, said = content["question"], " ".join(parts).rstrip()
            found.append(Question(printable(text), printable(said)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # damaged, or not ours
            continue
    return found
