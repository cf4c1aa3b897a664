"""docs/analysis.md names every question that `--json` may answer."""

import ast
from collections.abc import Iterator
from pathlib import Path

from analysis.report.estimates import _ASKED

ROOT = Path(__file__).parents[2]

#: Calls that make an answer, and which of their arguments is its name.
MAKERS = {"Answer": "name", "of_estimate": 0, "_estimate_growth": 0}


def names_in(source: str) -> Iterator[str]:
    """Names of questions that are written out where an answer is made."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        maker = getattr(node.func, "id", getattr(node.func, "attr", ""))
        place = MAKERS.get(maker)
        given = [k.value for k in node.keywords if k.arg == "name"] if maker in MAKERS else []
        given += node.args[:1] if place == 0 else []
        yield from (str(v.value) for v in given if isinstance(v, ast.Constant))


def test_every_question_is_on_the_page():
    page = (ROOT / "docs/analysis.md").read_text(encoding="utf-8")
    sources = [p.read_text(encoding="utf-8") for p in (ROOT / "analysis").rglob("*.py")]
    names = {name for source in sources for name in names_in(source)}

    assert {"best_batch", "claim", "breaking_batch", "doubling_batch"} <= names
    names |= {f"best_{word}_exponent" for word in _ASKED.values()}
    assert not [name for name in sorted(names) if f"`{name}`" not in page]
