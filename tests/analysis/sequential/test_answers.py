"""What is said of a question that is not decided yet."""

import re

import numpy as np

from analysis.sequential.looks import Looks
from analysis.sequential.question import Arm, Question
from analysis.sequential.question_text import describe_verdict
from analysis.sequential.rule import Best
from analysis.tables.metric import ACCURACY


def test_the_leader_is_compared_with_the_others_the_nearest_first():
    names = ["warmup=0", "warmup=1", "warmup=2"]
    asked = Question(text="best warmup", arms=[Arm(name, {}) for name in names], metric=ACCURACY)
    rule = Best(3, Looks((3, 20), level=0.03))
    before = describe_verdict(asked, rule)

    rule.update(np.array([[0.1, 0.3, 0.2], [0.5, 0.51, 0.53], [0.5, 0.5, 0.51]]))

    said = describe_verdict(asked, rule)
    assert before == "which is best is not decided."
    assert re.findall(r"(warmup=\d) better than (warmup=\d) by (\S+) points", said) == [
        ("warmup=1", "warmup=2", "1"),
        ("warmup=1", "warmup=0", "31.3"),
    ]
