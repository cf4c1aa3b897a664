"""What is kept of questions is read back, whoever wrote it."""

import json

from sweeper.store.questions import FOLDER, read_questions


def test_questions_are_read_with_what_is_known_of_them(tmp_path):
    (tmp_path / FOLDER).mkdir()
    for plan, found in {"a": {"answer": "warmup=5 is best.", "why": "Decided."}, "b": {}}.items():
        content = {"question": "best warmup", "seeds": [0], "looks_at": [3], **found}
        (tmp_path / FOLDER / f"of-{plan}.json").write_text(json.dumps(content))

    assert [(asked.text, asked.said) for asked in read_questions(tmp_path)] == [
        ("best warmup", "warmup=5 is best. Decided."),
        ("best warmup", "not answered yet."),
    ]


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
