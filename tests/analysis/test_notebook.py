"""The example notebook runs, and what `analysis` exports is there."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import analysis

EXAMPLES = Path(__file__).parents[2] / "examples"


def shown(cell: str, names: dict[str, object]) -> object:
    """What a notebook would show below a cell: the value of its last expression."""
    tree = ast.parse(cell)
    assert isinstance(tree.body[-1], ast.Expr)
    last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(last, "cell", "eval"), names)


def test_every_cell_of_the_notebook_runs_and_shows_something(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    cells = json.loads((EXAMPLES / "analysis.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, object] = {}

    found = [shown(source, names) for source in sources]

    drawings = [one for one in found if isinstance(one, analysis.Drawing)]
    assert len(drawings) == 2
    assert all(drawing._repr_png_().startswith(b"\x89PNG") for drawing in drawings)
    assert all(len(one) for one in found if isinstance(one, pd.DataFrame))
    assert all(one is not None for one in found)


def test_the_notebook_has_no_outputs_that_could_be_stale():
    cells = json.loads((EXAMPLES / "analysis.ipynb").read_text())["cells"]

    assert [cell["source"] for cell in cells if cell.get("outputs")] == []


@pytest.mark.parametrize("name", analysis.__all__)
def test_what_analysis_exports_is_there(name):
    assert getattr(analysis, name) is not None


def test_analysis_loads_neither_scipy_nor_matplotlib_before_they_are_needed():
    code = "import analysis, sys; print({'scipy', 'matplotlib'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'analysis' has no attribute 'draw_nothing'"):
        analysis.draw_nothing  # noqa: B018


def test_columns_have_their_meanings():
    found = analysis.columns("curves")

    assert found.loc["examples_seen", "type"] == "int64"
    assert found["meaning"].str.len().min() > 3


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match=r"^table must be one of .*runs.*; got rums\.$"):
        analysis.columns("rums")
