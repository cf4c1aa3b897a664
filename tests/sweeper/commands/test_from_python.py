"""`sweeper.plan` and `sweeper.run` do what the command line does, and return frames."""

import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import users
from nbclient import NotebookClient

import sweeper

EXAMPLES = Path(__file__).parents[3] / "examples"
INTERRUPTED = """
import os, signal, threading, time
from pathlib import Path
import sweeper

def stop():
    while not [*Path("results/attempts").glob("*/*/progress.jsonl")]:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=stop, daemon=True).start()
sweeper.run(batch=256, warmup=0, epochs=400)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_plan_is_a_frame_with_a_row_for_each_run():
    planned = sweeper.plan(
        "optimizer.momentum=0.8", "--no-memory", batch=[256, 1024], seed=range(2)
    )

    assert [*zip(planned.global_batch, planned.seed, strict=True)] == [
        (256, 0), (256, 1), (1024, 0), (1024, 1),
    ]  # fmt: skip
    assert set(planned.ledger) == {"new"}


def test_keys_go_together_and_points_are_left_out_as_on_the_command_line():
    pairs = [{"batch": 256, "base_lr": 0.1}, {"batch": 1024, "base_lr": 0.2}]
    planned = sweeper.plan("--no-memory", together=pairs, seed=range(2), where="batch*seed<1000")

    assert [*zip(planned.global_batch, planned.seed, planned.base_lr, strict=True)] == [
        (256, 0, 0.1), (256, 1, 0.1), (1024, 0, 0.2),
    ]  # fmt: skip


@pytest.mark.parametrize("call", [sweeper.plan, sweeper.run])
def test_what_the_command_line_refuses_is_an_error_with_its_sentence(call):
    command = [sys.executable, "-m", "sweeper", "plan", "batch=100.5"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr

    with pytest.raises(ValueError, match="batch must be a whole number") as refused:
        call(batch=100.5)

    assert str(refused.value) == said.strip()


def test_a_list_is_written_in_brackets_and_nothing_as_null():
    planned = sweeper.plan(
        "--no-memory",
        "+recipe=goyal2017",
        batch=256,
        gradient_clip=None,
        incidental=[["data.root", "data.num_workers"]],
        results=Path("it's, here"),
    )

    assert len(planned) == 1


def test_a_key_without_values_is_refused():
    with pytest.raises(ValueError, match=r"^batch must have a value; got an empty list\."):
        sweeper.plan(batch=[])


def test_a_class_goes_in_as_it_is_and_one_of_the_notebook_is_refused(monkeypatch):
    planned = sweeper.plan(
        "--no-memory", "trial=false", module=users.Module, data=users.DataModule, batch=32,
        metric="val/mse/dataloader_idx_0", metric_mode="min", warmup=0,
    )  # fmt: skip

    assert len(planned) == 1
    monkeypatch.setattr(users.Module, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"other processes can import; got Module of __main__"):
        sweeper.plan(module=users.Module)


def test_the_surface_is_listed_and_the_analysis_is_ours_whatever_the_folder_holds(monkeypatch):
    Path("analysis.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "analysis", raising=False)

    assert dir(sweeper) == sorted(sweeper.__all__)
    assert len(dir(sweeper)) <= 40
    assert all(getattr(sweeper, name) is not None for name in dir(sweeper))
    assert Path(sweeper.analysis.__file__).parent.parent == Path(sweeper.__file__).parents[1]


def test_rules_are_functions_of_the_batch():
    at = sweeper.Scaling(base_lr=0.1, base_batch=256, global_batch=1024, trained_examples=1e6)

    found = [rule().peak_lr(at) for rule in (sweeper.Linear, sweeper.Sqrt, sweeper.NoScaling)]

    assert found == pytest.approx([0.4, 0.2, 0.1])


@pytest.mark.slow
def test_an_interrupt_saves_a_checkpoint():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )

    assert done.returncode == -signal.SIGINT, done.stdout + done.stderr
    assert "preempted" in done.stdout
    assert [*Path("results/attempts").glob("*/checkpoint.ckpt")]


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel_and_prints_its_progress():
    notebook = nbformat.read(EXAMPLES / "sweep.ipynb", as_version=4)

    NotebookClient(
        notebook,
        timeout=600,
        resources={"metadata": {"path": str(Path.cwd())}},
        allow_errors=True,
    ).execute()

    _, plan, run, refusal, rules = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert plan.outputs[-1].data["text/html"].count("<td>new</td>") == 4
    printed = "".join(output.get("text", "") for output in run.outputs)
    assert printed.count("finished ") >= 4
    assert rules.outputs[-1].data["text/plain"] == "(0.4, 0.2)"
    assert run.outputs[-1].data["text/html"].count("finished") == 4
    assert "batch must be a whole number" in refusal.outputs[0].evalue
