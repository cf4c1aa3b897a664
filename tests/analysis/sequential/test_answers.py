"""What is said of a question that is not decided yet."""

import re

import numpy as np

from analysis.sequential.looks import Looks
from analysis.sequential.question import Question, QuestionArm
from analysis.sequential.question_text import describe_verdict
from analysis.sequential.rule import Best
from analysis.tables.metric import ACCURACY


def test_the_leader_is_compared_with_the_others_the_nearest_first():
    names = ["warmup=0", "warmup=1", "warmup=2"]
    asked = Question(
        text="best warmup", arms=[QuestionArm(name, {}) for name in names], metric=ACCURACY
    )
    rule = Best(3, Looks((3, 20), level=0.03))
    before = describe_verdict(asked, rule)

    rule.update(np.array([[0.1, 0.3, 0.2], [0.5, 0.51, 0.53], [0.5, 0.5, 0.51]]))

    said = describe_verdict(asked, rule)
    assert before == "which is best is not decided."
    assert re.findall(r"(warmup=\d) better than (warmup=\d) by (\S+) points", said) == [
        ("warmup=1", "warmup=2", "1"),
        ("warmup=1", "warmup=0", "31.3"),
    ]


def test_an_answer_within_a_margin_may_be_worse_and_does_not_say_better_by_less_than_nothing():
    arms = [QuestionArm(name, {}) for name in ("warmup=0", "warmup=1")]
    asked = Question(text="best warmup", arms=arms, metric=ACCURACY, margin=0.05)
    rule = Best(2, Looks((3, 20), level=0.03), margin=0.05)

    rule.update(np.array([[0.5, 0.5, 0.5], [0.51, 0.511, 0.512]]))
    rule.best = 0

    assert "worse than warmup=1, the nearest, by 1.1 points (95 %" in describe_verdict(asked, rule)
    assert " -" not in describe_verdict(asked, rule).partition("(95 %")[0]
