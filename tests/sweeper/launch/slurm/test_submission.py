"""What the submitting command does where SLURM does not take its jobs, or not at once."""

import json
from dataclasses import asdict, replace
from itertools import count, islice

import pytest

from sweeper.launch.slurm import commands, launcher
from sweeper.launch.slurm.commands import Queued
from sweeper.launch.slurm.launcher import run_on_slurm
from sweeper.launch.slurm.submissions import list_layouts
from sweeper.launch.slurm.submit import Refused, explain_refusal, read_request
from sweeper.planning.plan import Task
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End
from sweeper.store.lease import LEASE, this_process
from sweeper.store.ledger import Ledger

SILENT = "sbatch: error: Batch job submission failed: Unable to contact slurm controller"


@pytest.fixture
def request_(settings):
    """What the preset requests, looked after without a pause."""
    return read_request(settings(poll_s=0.2))


@pytest.fixture
def busy(monkeypatch):
    """A cluster whose programs fail as often as is said; the queue that they tell."""
    fails = {"sbatch": [], "squeue": []}
    jobs, numbers = [], count()

    def submit(*_, **__):
        if fails["sbatch"] and fails["sbatch"].pop(0):
            raise Refused(explain_refusal(SILENT))
        job = str(next(numbers))
        jobs.append(Queued(job=job, index=0, state="R", reason="", comment=""))
        return job

    def queue(_users):
        return None if fails["squeue"] and fails["squeue"].pop(0) else [*jobs]

    monkeypatch.setattr(launcher, "submit", submit)
    monkeypatch.setattr(commands, "check_submit_host", lambda: None)
    monkeypatch.setattr(commands, "max_array_size", lambda: 10)
    monkeypatch.setattr(commands, "query_queue", queue)
    return fails, jobs


@pytest.fixture
def tasks(short):
    """Two runs; the second is there later, as that of a trial that waited for a result."""
    specs = (run_spec(short(seed=seed)) for seed in range(2))
    return [Task(spec=spec, number=1) for spec in specs]


@pytest.mark.parametrize("program", ["sbatch", "squeue"])
def test_a_later_submission_is_tried_again_until_slurm_takes_it(
    request_, busy, tasks, ledger, program
):
    """As in a study of days, while the controller is restarted."""
    fails, jobs = busy
    fails[program] += [False, *[False] * (program == "squeue"), True, True]
    source = iter([tasks[0], None, tasks[1], *[None] * 50])
    said = []

    for event in islice(run_on_slurm(source, ledger, request_), 50):
        said += event.said
        if len(jobs) == 2:
            break

    (sentence,) = (text for text in said if "not submitted" in text)
    assert sentence.startswith("1 run not submitted. ")
    assert sentence.endswith(" Meanwhile this command tries again every 0.2 s.")
    (layout,) = list_layouts(ledger)
    runs = {task.spec.run_id for task in tasks}
    assert layout.queue.list_runs() == runs
    folders = {path.name for path in layout.folder.iterdir()}
    assert folders == {"queued", *(layout.queue.find(run).submission for run in runs)}


def test_a_controller_that_does_not_answer_is_said_to_and_nothing_is_left(
    request_, busy, tasks, ledger
):
    fails, _ = busy
    fails["sbatch"] += [True]

    with pytest.raises(ValueError, match=r"repeat the command later if its queue is full"):
        list(run_on_slurm(tasks, ledger, request_))

    assert [path.name for path in ledger.results.glob("slurm/*/*")] == ["queued"]
    assert not list(ledger.results.glob("slurm/*/queued/*"))


def test_a_run_queued_while_the_last_job_is_about_to_end_gets_a_job_of_its_own(
    request_, busy, tasks, ledger
):
    """SLURM still lists the job, which takes no more runs."""
    _, jobs = busy
    following = run_on_slurm(iter([tasks[0], None, tasks[1], *[None] * 50]), ledger, request_)
    assert any(event.said for event in islice(following, 5))
    (layout,) = list_layouts(ledger)
    layout.queue.remove(tasks[0].spec.run_id)  # as its job has trained it

    said, ended = [], {}
    for event in islice(following, 60):
        said += event.said
        ended |= event.ended
        if layout.queue.list_runs() == {tasks[1].spec.run_id}:
            jobs[:] = [job for job in jobs if job.job != "0"]
        if "1" in {job.job for job in jobs}:
            break

    assert [job.job for job in jobs] == ["1"], said
    assert tasks[1].spec.run_id not in ended


@pytest.mark.parametrize("name", ["50%", "of %a", "back\\slash"])
@pytest.mark.usefixtures("busy")
def test_a_path_that_sbatch_would_change_is_refused(request_, tasks, tmp_path, name):
    folder = tmp_path / name

    with pytest.raises(ValueError, match="a path without % and"):
        next(run_on_slurm(tasks, Ledger(folder), request_))

    assert not folder.exists()


@pytest.mark.parametrize(("state", "is_said"), [("PD", True), ("R", False)])
def test_why_jobs_wait_is_said_once_unless_they_run(request_, busy, tasks, ledger, state, is_said):
    """Which nodes are down differs from one look to the next."""
    _, jobs = busy
    said = []

    for look, event in enumerate(islice(run_on_slurm(tasks, ledger, request_), 6)):
        said += event.said
        reason = f"ReqNodeNotAvail, UnavailableNodes:n[1-{look + 2}]"
        jobs[:] = [replace(job, state=state, reason=reason) for job in jobs]

    told = [text for text in said if "wait because" in text]
    words = "Jobs wait because of ReqNodeNotAvail (`man squeue`): "
    assert [text.startswith(words) for text in told] == [True] * is_said


@pytest.mark.parametrize("was_cut_off", [False, True])
@pytest.mark.usefixtures("busy")
def test_a_run_whose_job_is_back_in_the_queue_is_said_to_be_queued(
    request_, tasks, ledger, was_cut_off
):
    """After a preemption, and after the loss of a node."""
    task, queued = tasks[0], []
    following = run_on_slurm([task], ledger, request_)
    next(following)
    attempt = Attempt.begin(task.spec, ledger, 1)
    assert any(event.began for event in islice(following, 4))
    if was_cut_off:
        (attempt.folder / LEASE).write_text(json.dumps(asdict(replace(this_process(), born="0"))))
    else:
        attempt.end(End(outcome=Outcome.PREEMPTED, reason="SLURM took its nodes away"), ledger)
    for event in islice(following, 4):
        queued += event.queued

    assert {*queued} == {task.spec.run_id}


def test_a_refusal_is_what_sbatch_says_and_where_to_correct_it():
    printed = "sbatch: error: No such partition\nsbatch: error: Batch submission failed: Invalid."

    said = explain_refusal(printed)

    assert said.startswith(
        "SLURM must accept the jobs; sbatch says: No such partition. Batch submission failed: "
        "Invalid. Request what the cluster has, under hydra.launcher"
    )
