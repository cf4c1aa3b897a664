"""What the plan says of micro-batches, and its warnings."""

import json
from io import StringIO

import pytest
from rich.console import Console

from sweeper.commands.show_plan import main, plan_grid, plan_lines, show
from sweeper.spec.run_memory import CLASSES, CPU, MemoryTrace
from sweeper.store.memory_cache import MemoryCache

WORDS = [
    "epochs=1", "warmup=0", "schedule=constant", "micro_batch_limit=768", "accelerator=cpu"
]  # fmt: skip


@pytest.fixture
def planned(tmp_path):
    """The lines of a grid's plan, and what is printed of it."""

    def make(*words, by_class=False):
        plan, _ = plan_grid([*WORDS, *words, f"results={tmp_path}"], config_dir=None)
        lines = plan_lines(plan, {})
        console = Console(width=200, file=StringIO())
        show(plan, lines, console, by_class=by_class)
        return plan, lines, console.file.getvalue()

    return make


def test_a_micro_batch_waits_for_a_trace_and_memory_is_shown_by_class_if_asked(planned, tmp_path):
    plan, (line,), text = planned("memory_limit_gib=2")
    assert (line["micro_batch"], line["micro_batch_from"]) == (768, "to be traced")
    assert line["predicted_memory_gib"] is line["predicted_memory_classes_gib"] is None
    assert "1x768x5?" in text
    assert "? are upper bounds until memory is traced (`sweeper plan --memory`)" in text

    classes = {
        size: dict.fromkeys(CLASSES, 2**29)
        | {"parameters": 2**14, "gradients": 2**22, "activations": size * 2**20}
        | {"temporaries": 2**31 - 2**22 - 2**14}
        for size in (128, 256)
    }
    trace = MemoryTrace(classes=classes, held_gib=0.48)
    MemoryCache(tmp_path, CPU).record_trace(plan.specs[0], trace)
    _, (line,), text = planned("memory_limit_gib=3.5")

    assert (line["micro_batch"], line["micro_batch_from"]) == (256, "predicted")
    assert line["predicted_memory_gib"] == sum(line["predicted_memory_classes_gib"].values())
    assert "1x256x15" in text
    assert "micro-batch 256: 3.25 GiB.\n" in text
    text = planned("memory_limit_gib=3.5", by_class=True)[2]
    assert (
        "Memory of SmallCNN, sgd, 32-true, micro-batch 256: 3.25 GiB (parameters 16 KiB, "
        "gradients 4 MiB, optimizer state 0.5 GiB, activations 0.25 GiB, temporaries 2 GiB, "
        "device 0.5 GiB)."
    ) in " ".join(text.split())


KINDS = "optimizer=sgd,nesterov"


@pytest.fixture
def traced(monkeypatch):
    """Micro-batch and optimizer of the runs that were traced: to 128 and 256 examples at once."""
    found = []

    def trace(spec, cache, **__):
        found.append((spec.split.micro_batch, spec.config.optimizer.name))
        sizes = {size: dict.fromkeys(CLASSES, size * 2**20) for size in (128, 256)}
        cache.record_trace(spec, MemoryTrace(classes=sizes, held_gib=0.25))
        return ""

    monkeypatch.setattr("sweeper.commands.show_plan.trace_memory", trace)
    return found


def test_what_is_not_known_of_memory_is_traced_and_then_nothing_is_started(
    traced, tmp_path, capsys, monkeypatch
):
    words = [*WORDS, "seed=0,1", KINDS, f"results={tmp_path}", "--json"]

    assert main(words) == 0
    assert traced == [], "nothing limits a run on a CPU"
    words.insert(0, "memory_limit_gib=64")
    assert main([*words, "--no-memory"]) == 0
    assert traced == []
    assert main(words) == 0
    assert traced == [(768, "sgd"), (768, "nesterov")]
    said = capsys.readouterr()
    assert said.err == "Tracing the memory of 2 kinds of run (--no-memory skips this)...\n"
    lines = json.loads(said.out.splitlines()[-1])["runs"]
    assert all(line["predicted_memory_gib"] > 5 * 0.75 for line in lines)

    monkeypatch.setattr("sweeper.commands.show_plan.open_fork_server", None)
    assert main([*words[:-1], "--memory"]) == 0
    said = capsys.readouterr()
    assert (said.err, len(traced)) == ("", 2)
    assert "Memory of SmallCNN, nesterov, 32-true, micro-batch 768" in said.out


def test_traces_that_nobody_asked_for_end_after_a_while_and_are_not_repeated(
    traced, planned, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("sweeper.commands.show_plan._UNASKED_S", -1)
    words = [*WORDS, KINDS, "memory_limit_gib=2", f"results={tmp_path}"]

    assert main(words) == 0
    said = capsys.readouterr()
    assert said.err.endswith(
        "Not traced within half a minute: 2 kinds of run. --memory traces them all.\n"
    )
    assert "? are upper bounds until memory is traced" in said.out
    assert traced == []
    for spec in planned("memory_limit_gib=2", KINDS)[0].specs:
        MemoryCache(tmp_path, CPU).record_trace(spec, MemoryTrace(why_not="no space"))
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    assert main([*words, "--memory"]) == 0
    assert len(traced) == 2


def test_data_are_not_downloaded_for_a_trace_that_nobody_asked_for(traced, tmp_path):
    data = ["data=cifar10", f"data.root={tmp_path}/no", "data.download=true", "bn_span=64"]
    data.append("memory_limit_gib=64")

    assert main([*WORDS, *data, "model=resnet8", f"results={tmp_path}"]) == 0

    assert traced == []


@pytest.mark.usefixtures("traced")
def test_of_a_gpu_that_is_not_here_what_it_takes_itself_is_not_known(tmp_path, capsys):
    words = [*WORDS[:-1], "accelerator=gpu", f"results={tmp_path}"]

    assert main(words) == 0

    said = " ".join(capsys.readouterr().out.split())
    assert "3.75 GiB (device not known)." in said


def test_warnings_are_in_the_text_and_with_the_runs_that_they_concern(planned):
    _, (well, badly), text = planned("batch=512,521", "bn_span=1", "micro_batch_limit=256")

    assert well["warnings"] == []
    (warning,) = badly["warnings"]
    assert warning.startswith("batch=521 is slow on 1 rank")
    assert f"Warning: {warning}" in text


@pytest.mark.parametrize(("sweeper", "is_refused"), [("sequential", False), ("grid", True)])
def test_a_plan_says_that_nobody_would_answer_a_question(sweeper, is_refused, tmp_path, capsys):
    words = [*WORDS, "question='best warmup'", f"hydra/sweeper={sweeper}", f"results={tmp_path}"]
    assert main([*words, "--no-memory"]) == 0
    refusal = "A sweep would be refused: question must be null without hydra/sweeper=sequential"
    assert (refusal in capsys.readouterr().err) == is_refused


def test_of_a_range_that_is_tuned_both_ends_are_planned(tmp_path, capsys):
    words = [
        *WORDS,
        "hydra/sweeper=optuna",
        "lr_rule=none",
        "batch=1920,3840",
        "base_lr=tag(log, interval(0.1, 1))",
    ]

    assert main([*words, "n_trials=7", "--no-memory", f"results={tmp_path}", "--json"]) == 0

    said = capsys.readouterr()
    runs = json.loads(said.out)["runs"]
    ends = [(1920, 0.1), (1920, 1), (3840, 0.1), (3840, 1)]
    assert [(run["global_batch"], run["peak_lr"]) for run in runs] == ends
    assert "both ends of each tuned range; 7 trials a study" in said.err
