"""What a sweep does around the place where its runs are made."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sweeper.commands import sweep
from sweeper.planning.plan import Event, Task
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import End
from sweeper.store.ledger import Ledger

FILES = 4


def test_a_sweep_merges_its_small_files_while_it_runs(
    grid: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no time are there more small files than the limit, and no row is lost."""
    monkeypatch.setattr(sweep, "_COMPACT_FROM", FILES)
    configs, most = grid("batch=3840", "seed=range(10)", f"results={tmp_path}"), 0

    def place(tasks: Sequence[Task], ledger: Ledger) -> Generator[Event]:
        nonlocal most
        for task in tasks:
            row = {"run_id": task.spec.run_id, "attempt": 1, "outcome": "finished"}
            ledger.publish(row, [{"run_id": task.spec.run_id, "attempt": 1, "epoch": 1}])
            most = max(most, ledger.num_small_files())
            end = End(outcome=Outcome.FINISHED, reason="trained")
            yield Event(ended={task.spec.run_id: end})

    assert sweep.run_sweep(configs, place) == 0
    assert most == FILES
    assert Ledger(tmp_path).num_small_files() == 10 % FILES
    runs, curves = (pd.read_parquet(tmp_path / table) for table in ("runs", "curves"))
    assert set(runs["run_id"]) == {run_spec(config).run_id for config in configs}
    assert len(runs) == len(curves) == 10


@pytest.mark.parametrize(
    "words", [["-m", "seed=0,1"], [], ["-m", "hydra/sweeper=optuna", "base_lr=interval(0.1,1)"]]
)
def test_a_question_is_not_left_unanswered(command, tmp_path, words):
    """Whoever asks one and gets the whole grid has paid for what a few seeds would have shown."""
    said = command(*words, "question=best batch", f"results={tmp_path / 'results'}")

    assert said.returncode == 2
    assert (
        "question must be null without hydra/sweeper=sequential; got question='best" in said.stderr
    )
    assert not (tmp_path / "results").exists()


def test_what_the_environment_tells_lightning_is_said_to_be_ignored(
    grid, tmp_path, capsys, monkeypatch
):
    """Else a row would hold an accuracy over one batch, and its config would not say so."""
    monkeypatch.setenv("PL_TRAINER_LIMIT_VAL_BATCHES", "1")

    sweep.run_sweep(grid("batch=3840", f"results={tmp_path}"), lambda *_: (e for e in ()))

    assert (
        "Warning: runs ignore the environment's PL_TRAINER_LIMIT_VAL_BATCHES. Use "
        "trainer.KEY=VALUE."
    ) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("is_there", "remedy"),
    [(True, "Existing results are kept; "), (False, "was moved or removed while the sweep ran: ")],
)
def test_results_that_were_removed_are_not_said_to_be_kept(grid, results, capsys, is_there, remedy):
    def place(_: Sequence[Task], ledger: Ledger) -> Generator[Event]:
        yield Event()
        if not is_there:
            ledger.results.rename(results.with_name("moved"))
            (ledger.results / "attempts").mkdir(parents=True)  # by a program that makes all folders
        raise FileNotFoundError(2, "No such file or directory", str(ledger.results / "runs/a"))

    assert sweep.run_sweep(grid("batch=3840", f"results={results}"), place) == 1
    assert remedy in capsys.readouterr().out
