"""Failures before the first step: no result, and reason to stop when the first runs fail alike."""

import pytest

from sweeper.launch.early_failures import FirstEnds
from sweeper.planning.plan import claim_tasks, plan
from sweeper.spec.run_spec import run_spec
from sweeper.spec.worker_args import FIRST_STEP
from sweeper.store.attempt import Attempt, End
from sweeper.store.ledger import Ledger

# In the third micro-batch of a step.
CURSED = {"model": {"_target_": "provoked.Raising"}, "micro_batch_limit": 768}


def test_a_sweep_stops_when_its_first_runs_fail_alike_and_tries_them_again(
    sweep_here, results, capsys
):
    words = ("+model._target_=provoked.Raising", "batch=7680,3840", "seed=0,1", "epochs=1")
    words += ("warmup=0", "bn_span=null")

    code = sweep_here(results, *words)

    said = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert (
        "No further runs are started: the first 3 runs to end all failed before their first step: "
        "RuntimeError: the third micro-batch is cursed. Once the cause is removed"
    ) in said
    assert said.count("No further runs") == 1
    assert said.count("cursed") == 3 + 1
    assert "3 failed, 1 not started" in said

    assert sweep_here(results, *words, "keep_going=true") == 1

    said = " ".join(capsys.readouterr().out.split())
    assert "Retrying 3 runs that failed before the first step." in said
    assert "4 failed in" in said
    assert "No further runs" not in said


def test_a_run_that_failed_before_its_first_step_is_tried_again(launch, short, results):
    row = launch(CURSED).iloc[0]
    planned = plan([short(**CURSED)], Ledger(results))
    (again,) = claim_tasks(planned, Ledger(results), retry=None, rerun=None)

    assert (row.outcome, row.steps, again.number) == ("failed", 0, 2)


FAILED = "data.root must be a folder; got 3."


@pytest.fixture(params=["in one process", "in a folder of several"])
def why_stop(request, tmp_path):
    """Why to stop after runs that ended so: id, reason, and whether before the first step."""

    def why(*ended):
        first = FirstEnds(tmp_path if "folder" in request.param else None)
        for run_id, reason, is_early in ended:
            first.add(run_id, reason, is_early=is_early)
        return first.why_stop

    return why


@pytest.mark.parametrize(
    ("third", "is_reason"),
    [
        pytest.param(("c", FAILED.replace("3", "12"), True), True, id="differs in a number"),
        pytest.param(("b", FAILED, True), False, id="one run again"),
        pytest.param(("c", "no such device.", True), False, id="other reason"),
        pytest.param(("c", FAILED, False), False, id="after a step"),
    ],
)
def test_three_first_runs_that_fail_alike_before_a_step_are_reason_to_stop(
    why_stop, third, is_reason
):
    assert bool(why_stop(("a", FAILED, True), ("b", FAILED, True), third)) == is_reason


def test_what_comes_after_the_first_three_changes_nothing(why_stop):
    assert why_stop(*((i, FAILED, True) for i in "abc"), ("d", "trained", False))


def test_a_metric_that_the_first_run_does_not_log_is_reason_enough(why_stop):
    wrong = "ValueError: metric must be a name that the module logs."

    assert why_stop(("a", wrong, True)).startswith(
        "No further runs are started, as they name the same metric"
    )
    assert why_stop(("a", FAILED, True), ("b", wrong, True)) is None


@pytest.mark.parametrize(
    ("outcome", "took_step", "is_early"),
    [("failed", False, True), ("failed", True, False), ("preempted", False, False)],
)
def test_a_failure_before_the_first_step_is_early(short, ledger, outcome, took_step, is_early):
    attempt = Attempt.begin(run_spec(short()), ledger, 1)
    if took_step:
        (attempt.folder / FIRST_STEP).touch()

    assert attempt.is_early_failure(End(outcome=outcome, reason=FAILED)) == is_early
