"""Questions that are asked again after each seed: their words, the rule of answers, the looks."""

from analysis.sequential.looks import Looks
from analysis.sequential.question import LEAST_SEEDS, Question, parse_question
from analysis.sequential.question_text import (
    Asked,
    describe_end,
    describe_verdict,
    find_record,
    has_no_spread,
    record_question,
)
from analysis.sequential.rule import Course, Rule, take_looks
from analysis.tables.metric import find_metric

__all__ = [
    "LEAST_SEEDS",
    "Asked",
    "Course",
    "Looks",
    "Question",
    "Rule",
    "describe_end",
    "describe_verdict",
    "find_metric",
    "find_record",
    "has_no_spread",
    "parse_question",
    "record_question",
    "take_looks",
]  # fmt: skip
