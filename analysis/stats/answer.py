"""A question about a study and what its runs say, in words and for programs."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.replicates import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question and what these runs say.

    Attributes:
        name: the question, for programs: `best_batch`, `critical_batch` and so on.
        question: in words.
        words: what the runs say, or why they do not, and what would.
        value: the number that is asked for; nan if it is not known.
        low: lower end of its 95 % interval; nan or infinite if it is not known or unbounded.
        high: upper end.
        unit: of all three.
        settings: what the answer holds for, and how its words are meant (`definition`).
        next: the command or step that would say more; empty if nothing is open.
        is_answered: whether there is a verdict; None if a bound is what makes an answer.
        table: rows behind the answer.
    """

    name: str
    question: str
    words: str
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    unit: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    next: str = ""
    is_answered: bool | None = None
    table: pd.DataFrame = field(default_factory=pd.DataFrame)

    @classmethod
    def of_estimate(
        cls, name: str, question: str, words: str, estimate: Estimate, **others: Any
    ) -> "Answer":
        """With the numbers of an estimate."""
        ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        return cls(name=name, question=question, words=words, **ends, **others)

    @property
    def has_answer(self) -> bool:
        """Whether there is a verdict, or a bound on one side or both."""
        if self.is_answered is not None:
            return self.is_answered
        return bool(np.isfinite([self.low, self.high]).any())

    def text(self) -> str:
        """The question, the words below it, and the rows behind them."""
        said = f"{self.words} Next: {self.next}" if self.next else self.words
        lines = f"{self.question}\n  {said}"
        if not len(self.table):
            return lines
        rows = self.table.to_string(index=False, na_rep="", float_format=_format_number)
        return f"{lines}\n{textwrap.indent(rows, '  ')}"


def capitalize(sentence: str) -> str:
    """Capitalise only the first letter: F, and names of metrics and rules, stay as they are."""
    return f"{sentence[0].upper()}{sentence[1:]}"


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def answers_json(answers: Sequence[Answer]) -> str:
    """Answers as a JSON list; numbers that are unknown or unbounded are null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        value = value.item() if isinstance(value, np.generic) else value
        return None if isinstance(value, float) and not np.isfinite(value) else value

    rows = [
        {
            "question": answer.name, "words": answer.words, "answered": answer.has_answer,
            "value": answer.value, "low": answer.low, "high": answer.high, "unit": answer.unit,
            "settings": answer.settings, "next": answer.next or None,
        }
        for answer in answers
    ]  # fmt: skip
    return json.dumps([plain(row) for row in rows], indent=1, allow_nan=False)
