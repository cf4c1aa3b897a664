"""What the plan says of micro-batches, and its warnings."""

from io import StringIO

import pytest
from rich.console import Console

from sweeper.commands.plan import plan_grid, plan_lines, show
from sweeper.spec.memory import CPU
from sweeper.store.memory_cache import MemoryCache

WORDS = ["epochs=1", "warmup=0", "schedule=constant", "accelerator=cpu"]


@pytest.fixture
def planned(tmp_path):
    """The lines of a grid's plan, and what is printed of it."""

    def make(*words):
        plan, _ = plan_grid([*WORDS, *words, f"results={tmp_path}"], config_dir=None)
        lines = plan_lines(plan, {})
        console = Console(width=200, file=StringIO())
        show(plan, lines, console)
        return plan, lines, console.file.getvalue()

    return make


def test_a_micro_batch_is_to_be_probed_until_it_is_remembered(planned, tmp_path):
    plan, (line,), text = planned("memory_limit_gib=2")
    assert (line["micro_batch"], line["micro_batch_from"]) == (768, "to be probed")
    assert "1x768x5?" in text
    assert "?: at most, to be probed" in text

    probes = MemoryCache(tmp_path, CPU)
    probes.record_fit(plan.specs[0], 256, peak_gib=1.0)
    probes.record_over(plan.specs[0], 384, limit_gib=2.0)
    _, (line,), text = planned("memory_limit_gib=2")

    assert (line["micro_batch"], line["micro_batch_from"]) == (256, "probed")
    assert line["accumulation_steps"] == 15
    assert "1x256x15" in text
    assert "to be probed" not in text


@pytest.mark.parametrize(("word", "source"), [("auto", "limit"), ("384", "given")])
def test_without_a_limit_nothing_is_to_be_probed(planned, word, source):
    _, (line,), text = planned(f"micro_batch={word}")

    assert line["micro_batch_from"] == source
    assert "?" not in text


def test_warnings_are_in_the_text_and_with_the_runs_that_they_concern(planned):
    _, (well, badly), text = planned("batch=512,521", "bn_span=1", "micro_batch_limit=256")

    assert well["warnings"] == []
    (warning,) = badly["warnings"]
    assert warning.startswith("batch=521 is slow on 1 rank(s)")
    assert f"Warning: {warning}" in text


def test_a_batchnorm_that_varies_is_in_the_warnings_of_each_of_its_runs(planned):
    _, lines, text = planned("batch=1280,1536", "bn_span=micro")

    for line in lines:
        assert "640 at batch=1280; 768 at batch=1536." in line["warnings"][-1]
    assert text.count("640 at batch=1280") == 1
