"""A budget: which grids it refuses, with what remedy, and what a running sweep leaves out."""

import math
import os
import re

import pytest

from sweeper.planning import budget
from sweeper.planning.budget import Account, check_budget, left_hours, spent_hours
from sweeper.planning.plan import Event, LazyTasks, Task, known_tasks
from sweeper.planning.seconds import Timing, store_timings, time_kind
from sweeper.spec.config import run_config
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import CPU
from sweeper.spec.run_spec import read_run_spec, run_spec
from sweeper.store.attempt import Attempt, End


@pytest.fixture
def specs(config):
    """Three seeds at two batches; the larger batch is called the cheaper one."""
    return [run_spec(config(seed=s, batch=b)) for s in (0, 1, 2) for b in (3840, 7680)]


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (15, "The largest part that fits: seed=0,1."),
        (8, "The largest part that fits: seed=0."),
        (7, "seed=0 alone needs 6: allow more, or give fewer values."),
    ],
)
def test_what_does_not_fit_is_refused_with_the_seeds_that_do(specs, config, given, remedy):
    hours = {spec.run_id: 4.0 if spec.config.batch == 3840 else 2.0 for spec in specs}

    check_budget(run_config(config(budget=20)), hours, specs, spent=2.0)  # fits exactly
    with pytest.raises(ValueError, match="budget") as refusal:
        check_budget(run_config(config(budget=given)), hours, specs, spent=2.0)

    assert str(refusal.value) == (
        f"budget must cover the grid; got budget={given} device-hours, with 2 spent by "
        f"earlier attempts and 18 to come for 6 runs. {remedy}"
    )


def test_runs_whose_time_is_not_known_are_refused(specs, config):
    hours = {spec.run_id: None if spec.config.seed else 1.0 for spec in specs}

    with pytest.raises(ValueError, match="it is not known for 4 of 6 runs, as no run of the same"):
        check_budget(run_config(config(budget=100)), hours, specs, spent=0.0)


@pytest.mark.parametrize("key", ["budget", "price"])
@pytest.mark.parametrize("value", [0, -1, "50", "EUR:2", math.inf])
def test_what_is_no_amount_is_refused_by_name(config, key, value):
    with pytest.raises(ValueError, match=f"{key} must be a .* above 0.*got {key}={value!r}"):
        run_config(config(**{key: value}))


def test_prices_in_currencies_of_earlier_rows_are_read(config):
    """They changed no result."""
    stored = {**config(), "price": "EUR:2", "energy_price": "EUR:0.3", "pue": 1.2}

    assert read_run_spec(stored).run_id == run_spec(config()).run_id


def test_attempts_count_from_their_beginning_to_their_last_sign_of_life(config, ledger):
    spec = run_spec(config(batch=3840, devices=2, micro_batch=640))
    for number, minutes in ((1, 30), (2, 15)):
        attempt = Attempt.begin(spec, ledger, number)
        began = (attempt.folder / "config.json").stat().st_mtime
        attempt.end(End(outcome=Outcome.PREEMPTED, reason=""), ledger)
        for path in attempt.folder.iterdir():
            is_late = path.name == "released.json"  # by a sweep that came days later
            os.utime(path, (began, began + is_late * 1e6))
        last = attempt.folder / "log.txt"
        last.touch()
        os.utime(last, (began, began + 60 * minutes))

    assert spent_hours([spec], ledger) == pytest.approx(2 * 0.75, rel=1e-3)


def test_a_run_that_another_process_trains_costs_what_it_has_left(config, ledger):
    """Without a checkpoint, too, as nothing interrupts it."""
    spec = run_spec(config(batch=3840, micro_batch=640, accelerator="cpu"))
    timing = Timing(accumulation_steps=6, step_s=1.0, start_s=0.0, between_s=0.0)
    store_timings(time_kind(spec.config.resolved, 640), "cpu", [timing], ledger.results)
    attempt = Attempt.begin(spec, ledger, 1)
    row = f'{{"epoch": 15, "step": {spec.total_steps // 2}}}\n'
    (attempt.folder / "progress.jsonl").write_text(row)

    (held,) = left_hours([spec], ledger, CPU).values()
    attempt.end(End(outcome=Outcome.PREEMPTED, reason=""), ledger)
    (lost,) = left_hours([spec], ledger, CPU).values()

    assert (held, lost) == pytest.approx((spec.total_steps / 7200, spec.total_steps / 3600))


def test_what_another_process_spends_on_a_run_counts(specs, ledger, monkeypatch):
    now = 0.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    account = Account(left=2.5, hours={spec.run_id: 1.0 for spec in specs})
    elsewhere, next_one = (Task(spec=spec, number=1) for spec in specs[:2])
    assert account.fits(elsewhere)
    account.handle(Event(elsewhere=[Attempt.begin(specs[0], ledger, 1)]))
    now = 2 * 3600
    account.handle(Event(ended={specs[0].run_id: End(outcome=Outcome.FINISHED, reason="")}))

    assert not account.fits(next_one)


def test_a_running_sweep_starts_nothing_that_would_pass_it(specs, ledger, monkeypatch):
    now = 0.0
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    account = Account(left=4.0, hours={spec.run_id: 1.0 for spec in specs})
    tasks = [Task(spec=spec, number=1) for spec in specs]
    affordable = LazyTasks(tasks, filter(account.fits, tasks))
    asked = iter(affordable)

    for task in (next(asked), next(asked)):
        account.handle(Event(began=[Attempt.begin(task.spec, ledger, 1)]))
    now = 1.4 * 3600  # both have taken longer than was predicted
    ends = {spec.run_id: End(outcome=Outcome.FINISHED, reason="") for spec in specs[:2]}
    account.handle(Event(ended=ends))

    assert [task.spec for task in asked] == [specs[2]]
    assert [task.spec for task in account.left_out] == specs[3:]
    assert known_tasks(affordable) == tasks
    words = r"3 runs are left out, first batch=7680 .* as budget=4 would be exceeded: this sweep "
    assert re.match(words + "has used 3.8 of 4 device-hours", account.describe_left_out(4))
