"""How far running runs are: in the table, in the lines of a file, and what is left."""

import json
import re
import signal
from io import StringIO
from zipfile import ZipFile

import pytest
from rich.console import Console

from sweeper.commands.status import main as status
from sweeper.console import live
from sweeper.console.live import LiveTable, live_table
from sweeper.console.printing import text_console
from sweeper.planning.plan import Event
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.lease import release
from sweeper.store.ledger import Ledger
from sweeper.store.step_progress import StepProgress, write_step_progress


@pytest.fixture
def specs(grid):
    return [run_spec(config) for config in grid("batch=3840,7680", "warmup=0")]


@pytest.fixture
def begin(ledger):
    """Begin a run, which reports how far it is."""

    def begun(spec, **changes):
        attempt = Attempt.begin(spec, ledger, 1)
        assert attempt is not None
        report(attempt, **changes)
        return attempt

    return begun


def report(attempt, **changes):
    usual = {"epoch": 1, "step": 4, "steps": 16, "resumed_at": 0.0}
    usual |= {"examples_per_s": 45_210.4, "left_s": 125.0}
    write_step_progress(StepProgress.model_validate({**usual, **changes}), attempt.folder)


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Every event is shown."""
    monkeypatch.setattr(live, "_REFRESH_S", -1.0)
    monkeypatch.setattr(live, "_LINE_EVERY_S", -1.0)
    monkeypatch.setattr(live, "_LINES_OF_ALL", float("inf"))


@pytest.fixture
def table(specs, ledger):
    """Of the runs, as lines in a file."""
    return LiveTable(specs, ledger, text_console(), keys=[])


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_shows_steps_rate_and_time_left_inside_the_first_epoch(
    specs, ledger, begin, width
):
    screen = StringIO()
    table = LiveTable(specs, ledger, Console(width=width, file=screen, highlight=False), keys=[])
    table.update(Event(began=[begin(specs[0])]))
    screen.truncate(0)
    table._console.print(table._table())

    heads = next(line for line in screen.getvalue().splitlines() if "state" in line)
    cells = next(line for line in screen.getvalue().splitlines() if "running" in line.split())
    assert heads.split()[2:] == ["state", "epoch", "step", "examples/s", "left"]
    assert cells.split()[2:] == ["running", "0/30", "4/16", "45,210", "2m", "05s"]
    assert "No room" not in screen.getvalue()


def test_a_file_has_a_line_when_a_step_was_taken_and_none_when_nothing_happened(
    table, specs, begin, capsys
):
    attempt = begin(specs[0])
    table.update(Event(began=[attempt]))
    for step in (8, 8, 8):
        report(attempt, step=step)
        table.update(Event())

    said = re.sub(r"about .* left", "about ... left", capsys.readouterr().out)
    assert said.splitlines() == [
        "start    batch=3840",
        "progress 0/60 epochs; 1 running, 1 waiting; about ... left",
        "         batch=3840  epoch=0/30 step=4/16 examples/s=45,210 left=2m 05s",
        "progress 0/60 epochs; 1 running, 1 waiting; about ... left",
        "         batch=3840  epoch=0/30 step=8/16 examples/s=45,210 left=2m 05s",
    ]


def test_a_first_step_that_compiles_says_how_long_it_took(table, specs, begin, capsys):
    begun = begin(specs[0], step=1, examples_per_s=None, left_s=None, first_step_s=42.0)
    table.update(Event(began=[begun]))

    assert "  epoch=0/30 step=1/16 (42s)\n" in capsys.readouterr().out


def test_lines_of_a_long_sweep_are_fewer(table, monkeypatch):
    monkeypatch.undo()

    every = [table._line_every_s(table._started + s) for s in (0, 60, 3600, 86400)]

    assert every == pytest.approx([5, 5, 180, 600])


def test_until_a_run_has_ended_the_pace_is_that_of_the_running_ones(table, specs, begin, capsys):
    """Half of the epochs of one run take 150 s; the other waits."""
    table.update(Event(began=[begin(specs[0], epoch=16, step=0, left_s=150.0)]))

    assert "1 running, 1 waiting; about 7m 30s left" in capsys.readouterr().out


def test_what_an_earlier_attempt_did_does_not_count_as_fast(
    table, specs, begin, capsys, monkeypatch
):
    """15 of 30 epochs were trained in 60 s, after those of an earlier attempt; 30 are left."""
    attempt = begin(specs[0], epoch=30, step=16, resumed_at=15.0)
    table.update(Event(began=[attempt]))
    monkeypatch.setattr(live.time, "monotonic", lambda: table._started + 60)
    finished = End(outcome=Outcome.FINISHED, reason="trained 30 epochs")
    table.update(Event(ended={specs[0].run_id: finished}))

    assert "1 finished, 1 waiting; about 2m 00s left" in capsys.readouterr().out


def test_without_runs_that_wait_the_longest_of_those_that_run_is_what_is_left(
    table, specs, begin, capsys
):
    attempts = [begin(specs[0]), begin(specs[1], left_s=3600.0)]
    table.update(Event(began=attempts))

    assert "2 running; about 1h 00m left" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", '{"epoch": 1', "\x00\x00"])
def test_a_damaged_report_leaves_what_was_known(table, specs, begin, capsys, content):
    attempt = begin(specs[0])
    table.update(Event(began=[attempt]))
    (attempt.folder / "step-progress.json").write_text(content)
    (attempt.folder / "progress.jsonl").write_text('{"epoch": 1, "val_acc')
    capsys.readouterr()
    table._last_line = ""
    table.update(Event())

    assert "step=4/16" in capsys.readouterr().out


def test_the_summary_of_a_stopped_sweep_has_no_run_that_is_running(specs, ledger, begin, capsys):
    attempt = begin(specs[0])
    row = {"epoch": 1, "step": 16, "elapsed_s": 2.0, "val_accuracy": 0.8125}
    (attempt.folder / "progress.jsonl").write_text(json.dumps(row) + "\n")
    with live_table(specs, ledger) as table:
        table.update(Event(began=[attempt]))
        stopped = End(outcome=Outcome.PREEMPTED, reason="stopped after 5 of 16 steps of epoch 1")
        table.update(Event(ended={specs[0].run_id: stopped}))
    summary = capsys.readouterr().out.split("Runs\n")[1]

    assert "running" not in summary
    assert "1/30" in summary
    assert "0.8125" not in summary  # what it had reached is no result
    assert "step" not in summary.splitlines()[1].split()
    assert summary.splitlines()[-1].startswith("1 preempted, 1 not started in ")


def test_ctrl_c_while_the_last_table_is_drawn_comes_after_it(specs, ledger, capsys, monkeypatch):
    monkeypatch.setattr(Ledger, "measured", lambda *_: signal.raise_signal(signal.SIGINT) or {})

    with pytest.raises(KeyboardInterrupt), live_table(specs, ledger):
        pass

    assert "2 not started in 0s. Results: " in capsys.readouterr().out


@pytest.mark.parametrize(("is_ours", "state"), [(True, "stopped"), (False, "running")])
def test_a_run_whose_end_could_not_be_written_is_stopped_if_this_command_had_it(
    specs, ledger, begin, capsys, is_ours, state
):
    """With a full disk the launcher ends before it can say so; jobs of SLURM go on."""
    attempt = begin(specs[0])
    if not is_ours:
        release(attempt.folder)
    with live_table(specs, ledger) as table:
        table.update(Event(began=[attempt]))

    assert f"1 {state}, 1 not started in 0s." in capsys.readouterr().out


def test_a_run_tried_again_that_waits_in_a_queue_counts_once(table, specs, ledger, begin, capsys):
    """It was preempted before this command, and its job goes back into the queue once more."""
    begin(specs[0]).end(End(outcome=Outcome.PREEMPTED, reason="SLURM took its nodes away"), ledger)
    queued = Event(queued=[specs[0].run_id])
    table.update(queued)
    again = Attempt.begin(specs[0], ledger, 2)
    for event in (Event(began=[again]), queued):
        table.update(event)

    lines = [line for line in capsys.readouterr().out.splitlines() if "progress" in line]
    assert lines == [
        "progress 0/60 epochs; 1 queued, 1 waiting",
        "progress 0/60 epochs; 1 running, 1 waiting",
        "progress 0/60 epochs; 1 queued, 1 waiting",
    ]


@pytest.mark.parametrize(
    ("epochs", "where"), [([3, 4], "after epoch 4"), ([], "from its checkpoint")]
)
def test_a_start_says_where_it_resumes(table, specs, ledger, begin, capsys, epochs, where):
    """The attempt before was killed, in the second case before it had resumed."""
    before = begin(specs[0])
    rows = [json.dumps({"epoch": epoch, "step": epoch, "elapsed_s": 1.0}) for epoch in epochs]
    (before.folder / "progress.jsonl").write_text("".join(f"{row}\n" for row in rows))
    with ZipFile(before.checkpoint, "w"):
        before.end(End(outcome=Outcome.PREEMPTED, reason="killed"), ledger)

    table.update(Event(began=[Attempt.begin(specs[0], ledger, 2)]))

    assert capsys.readouterr().out.splitlines()[0] == f"start    batch=3840  resumes {where}"


@pytest.mark.parametrize("length", ["steps=20", "examples=76800"])
def test_a_run_in_steps_or_examples_is_as_far_as_its_steps(grid, ledger, begin, capsys, length):
    """20 steps of 3,840 examples are an epoch of 16 and 4 more; resumed at step 8."""
    specs = [run_spec(config) for config in grid("batch=3840", length, "warmup=0", "seed=0,1")]
    table = LiveTable(specs, ledger, text_console(), keys=[])
    attempt = begin(specs[0], step=12, steps=16, resumed_at=0.5)
    table.update(Event(began=[attempt]))
    report(attempt, epoch=2, step=2, steps=4, resumed_at=0.5)
    table.update(Event())

    said = re.sub(r"about .* left", "about ... left", capsys.readouterr().out)
    assert said.splitlines() == [
        "start    seed=0",
        "progress 46,080/153,600 examples; 1 running, 1 waiting; about ... left",
        "         seed=0  step=12/20 examples/s=45,210 left=2m 05s",
        "progress 69,120/153,600 examples; 1 running, 1 waiting; about ... left",
        "         seed=0  step=18/20 examples/s=45,210 left=2m 05s",
    ]
    assert table._running[specs[0].run_id].resumed_at == 8 * 3840


def test_an_ended_run_in_steps_has_these_instead_of_epochs(grid, results, ledger, begin, capsys):
    specs = [run_spec(config) for config in grid("steps=20,40", "warmup=0")]
    for spec in specs:
        attempt = begin(spec)
        row = {"epoch": 1, "step": 20, "val_accuracy": 0.5, "elapsed_s": 2.0}
        (attempt.folder / "progress.jsonl").write_text(json.dumps(row) + "\n")
        attempt.end(End(outcome=Outcome.FINISHED, reason="trained 20 steps"), ledger)
    with live_table(specs, ledger):
        pass
    status(["--results", str(results)])

    tables = re.findall(r"(.* state .*)\n(.*)\n(.*)\n", capsys.readouterr().out)
    assert len(tables) == 2  # of the sweep and of the status
    for heads, *cells in tables:
        assert "epoch" not in heads.split()
        ends = [["finished", "20/20"], ["finished", "20/40"]]
        assert [line.split()[1:3] for line in cells] == ends
