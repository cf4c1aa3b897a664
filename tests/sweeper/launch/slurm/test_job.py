"""A job on its node, where SLURM itself is not needed."""

import json
import signal
from types import SimpleNamespace

import pandas as pd
import pytest

from sweeper.launch.queue.queue import Queue
from sweeper.launch.queue.queue_worker import FirstSignal
from sweeper.launch.ranks import Running, collect_end
from sweeper.launch.slurm import commands
from sweeper.launch.slurm.job import Job, JobPolicy, JobRanks, _explain_failure
from sweeper.planning.plan import Task
from sweeper.spec.outcomes import CUT_SHORT, Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store import lease
from sweeper.store.attempt import Attempt, End

POLICY = JobPolicy(
    warning_s=60, grace_s=0, term_grace_s=0, attempts_without_step=3, runs_at_a_time=1,
    runs_per_gpu=1, pulling_jobs=None,
)  # fmt: skip


@pytest.fixture
def queued(short, ledger, monkeypatch):
    """Queue so many runs for the jobs of a layout; the queue, and the runs in it."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def add(number, **changes):
        queue = Queue(ledger, "slurm/1x1")
        specs = [run_spec(short(seed=seed, **changes)) for seed in range(number)]
        queue.add([Task(spec=spec, number=1) for spec in specs], "0123")
        return queue, specs

    return add


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_job_starts_nothing_when_the_first_jobs_failed_alike_before_their_first_step(
    queued, ledger, keep_going
):
    model = {"_target_": "provoked.Raising"}  # in the third micro-batch of a step
    queue, specs = queued(4, model=model, micro_batch_limit=768, keep_going=keep_going)

    codes = [Job(ledger, queue, POLICY, FirstSignal()).run(1) for _ in specs]

    rows = pd.read_parquet(ledger.results / "runs").sort_values("seed")
    assert codes == [1, 1, 1, 1]
    assert list(rows.outcome) == ["failed"] * 3 + ["failed" if keep_going else "preempted"]
    assert rows.reason.iloc[-1].startswith("No further runs are started") != keep_going
    assert not queue.list_runs()


def test_a_pulling_job_takes_what_no_other_has_and_ends_by_what_it_took(queued, ledger):
    queue, specs = queued(3)
    ids = [spec.run_id for spec in specs]
    assert Attempt.begin(specs[0], ledger, 1)  # another job has it
    lease._held.clear()

    code = Job(ledger, queue, POLICY, FirstSignal()).run(None)

    assert code == 0
    assert {row.outcome for row in ledger.ended().values()} == {"finished"}
    assert ledger.ended().keys() == set(ids[1:])
    assert queue.list_runs() == {ids[0]}


def test_jobs_that_start_at_once_take_a_run_each(queued, ledger, monkeypatch):
    """Another job was faster with the first run: this one trains the second, and waits for none."""
    (queue, _), real, others = queued(3), Attempt.begin, []

    def begin(spec, *arguments, **named):
        if not others:
            others.append(real(spec, *arguments, **named).spec.run_id)
            lease._held.clear()
        return real(spec, *arguments, **named)

    monkeypatch.setattr(Attempt, "begin", begin)

    assert Job(ledger, queue, POLICY, FirstSignal()).run(1) == 0
    assert len(ledger.ended()) == 1
    assert others[0] not in ledger.ended()
    assert len(queue.list_runs()) == 2


def test_a_job_whose_only_run_waits_for_a_shorter_one_stays_until_that_has_ended(
    queued, short, ledger, monkeypatch
):
    queue, _ = queued(0)
    lengths = {"schedule": {"name": "wsd", "cooldown": 0.2}, "trunk": [5, 10], "warmup": 0}
    specs = [run_spec(short(epochs=epochs, **lengths)) for epochs in (5, 10)]
    queue.add([Task(spec=spec, number=1) for spec in specs], "0123")
    other, waits = Attempt.begin(specs[0], ledger, 1), []
    held = {*lease._held}
    lease._held.clear()

    def wait(_, seconds):
        waits.append(seconds)
        if len(waits) == 2:
            lease._held.update(held)
            other.end(End(outcome=Outcome.DIVERGED, reason="it was nan"), ledger)
            queue.remove(other.spec.run_id)

    monkeypatch.setattr(Job, "_wait", wait)

    assert Job(ledger, queue, POLICY, FirstSignal()).run(1) == 0
    assert len(waits) >= 2
    ended = ledger.ended()
    assert [ended[spec.run_id].outcome for spec in specs] == ["diverged", "finished"]


def test_a_job_that_waits_until_its_time_is_over_goes_back_into_the_queue(
    queued, short, ledger, monkeypatch
):
    queue, _ = queued(0)
    lengths = {"schedule": {"name": "wsd", "cooldown": 0.2}, "trunk": [5, 10], "warmup": 0}
    specs = [run_spec(short(epochs=epochs, **lengths)) for epochs in (5, 10)]
    queue.add([Task(spec=spec, number=1) for spec in specs], "0123")
    assert Attempt.begin(specs[0], ledger, 1)  # another job has it
    lease._held.clear()
    signals, requeued = FirstSignal(), []
    monkeypatch.setattr(Job, "_wait", lambda *_: signals.record(signal.SIGUSR1, None))
    monkeypatch.setattr(commands, "requeue_job", lambda job: not requeued.append(job))

    assert Job(ledger, queue, POLICY, signals).run(1) == CUT_SHORT
    assert requeued == ["7"]


def test_a_run_of_several_nodes_has_ended_once_it_is_saved_though_srun_has_not(
    short, ledger, tmp_path, monkeypatch
):
    """srun was seen to end 7 s after rank 0 had saved, and SLURM may kill the job before that."""
    ledger.prepare()
    (tmp_path / "srun").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    attempt = Attempt.begin(run_spec(short(num_nodes=2)), ledger, 1)
    run = JobRanks().start(attempt, {})
    attempt.request_graceful_stop()
    assert collect_end(run, lambda: "cancelled with scancel: stopped") is None

    record = {"outcome": "preempted", "reason": "after epoch 2"}
    (attempt.folder / "record-0.json").write_text(json.dumps(record))
    end = collect_end(run, lambda: "cancelled with scancel: stopped")

    assert end.reason == "cancelled with scancel: stopped after epoch 2"
    run.processes[0]._process.kill()
    run.processes[0].join()


@pytest.mark.parametrize(
    ("code", "outcome"), [(128 + 40, "preempted"), (128 + 15, "preempted"), (128 + 11, "failed")]
)
def test_srun_that_ends_with_a_cancelled_job_leaves_a_run_that_may_go_on(
    short, ledger, code, outcome
):
    """168 was seen with scancel in a job's first second; 139 is a rank's own crash."""
    ledger.prepare()
    attempt = Attempt.begin(run_spec(short()), ledger, 1)
    (attempt.folder / "srun.txt").touch()
    srun = SimpleNamespace(exitcode=code)

    end = _explain_failure(Running(attempt=attempt, processes=[srun], failure=None), str)

    assert end.outcome == outcome
