"""What is kept of questions is read back, whoever wrote it."""

import json

from sweeper.store.questions import question_file, read_plans, read_questions, store_question


def test_questions_are_read_with_what_is_known_of_them(tmp_path):
    for plan, found in {"a": {"answer": "warmup=5 is best.", "why": "Decided."}, "b": {}}.items():
        path = question_file(tmp_path, "of", plan)
        store_question(path, {"question": "best warmup", "seeds": [0], "answer": None, **found})

    assert [(one.text, one.said) for one in read_questions(tmp_path)] == [
        ("best warmup", "warmup=5 is best. Decided."),
        ("best warmup", "not answered yet."),
    ]
    assert [path.stem for path in read_plans(tmp_path, "of")] == ["of-a", "of-b"]
    assert read_plans(tmp_path, "other") == {}


def test_what_is_no_question_of_ours_is_left_out(tmp_path):
    for name, content in {
        "cut": '{"que',
        "list": "[]",
        "number": json.dumps({"question": 1}),
    }.items():
        (tmp_path / "questions").mkdir(exist_ok=True)
        (tmp_path / f"questions/{name}.json").write_text(content)

    assert read_questions(tmp_path) == []
    assert read_questions(tmp_path / "none") == []
