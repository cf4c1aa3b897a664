"""The questions that sequential sweeps asked of a results folder, and what is known of each.

    results/questions/<hash>.json    the question, its arms, seeds and looks; its answer, once there

A question that is asked again with new seeds gets a file of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.spec.sentences import printable
from sweeper.store.publish import publish_json

_FOLDER = "questions"


@dataclass(frozen=True, slots=True)
class Question:
    """A question that was asked.

    Attributes:
        text: as typed.
        said: the answer according to the looks so far, and why they ended.
    """

    text: str
    said: str


def question_file(results: Path, about: str, plan: str) -> Path:
    """The file of a question, from the digests of its subject and of its seeds and looks."""
    return results / _FOLDER / f"{about}-{plan}.json"


def read_plans(results: Path, about: str) -> dict[Path, dict[str, Any]]:
    """By file, what is stored of a question for each set of seeds and looks it was asked with."""
    paths = sorted((results / _FOLDER).glob(f"{about}-*.json"))
    return {path: json.loads(path.read_text()) for path in paths}


def store_question(path: Path, content: Mapping[str, Any]) -> None:
    """Store a question's plan and what is known of its answer."""
    path.parent.mkdir(exist_ok=True)
    publish_json(path, content)


def read_questions(results: Path) -> list[Question]:
    """The questions stored in a results folder; unreadable files are left out."""
    found: list[Question] = []
    for path in sorted((results / _FOLDER).glob("[!.]*.json")):
        try:
            content = json.loads(path.read_text())
            parts = [content.get("answer") or "not answered yet.", content.get("why") or ""]
            text, said = content["question"], " ".join(parts).rstrip()
            found.append(Question(printable(text), printable(said)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # damaged, or not ours
            continue
    return found
