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


FAILED = End(outcome="failed", reason="data.root must be a folder; got 3.")


@pytest.fixture
def ends(short, results):
    """Why to stop after attempts ended so: `(end, took a step)` for each."""

    def why(*ended, **changes):
        Ledger(results).prepare()
        first = FirstEnds()
        for seed, (end, took_step) in enumerate(ended):
            spec = run_spec(short(**{"seed": seed, **changes}))
            attempt = Attempt.begin(spec, Ledger(results), 1 if "seed" not in changes else seed + 1)
            if took_step:
                (attempt.folder / FIRST_STEP).touch()
            first.add(spec.run_id, end.reason, is_early=attempt.is_early_failure(end))
        return first.why_stop

    return why


def test_reasons_that_differ_in_numbers_are_alike(ends):
    others = [End(outcome="failed", reason=f"data.root must be a folder; got {n}.") for n in (4, 5)]

    assert ends((FAILED, False), *((end, False) for end in others))


def test_one_run_that_fails_again_and_again_is_one(ends):
    assert ends(*[(FAILED, False)] * 3)
    assert ends(*[(FAILED, False)] * 3, seed=7) is None


@pytest.mark.parametrize(
    ("third", "took_step"),
    [
        pytest.param(End(outcome="failed", reason="no such device."), False, id="other reason"),
        pytest.param(FAILED, True, id="after a step"),
        pytest.param(End(outcome="preempted", reason=FAILED.reason), False, id="other outcome"),
        pytest.param(End(outcome="finished", reason="trained"), True, id="a result"),
    ],
)
def test_other_ends_among_the_first_keep_a_sweep_going(ends, third, took_step):
    alike = [(FAILED, False)] * 2

    assert ends(*alike, (third, took_step)) is None


def test_a_metric_that_the_first_run_does_not_log_is_reason_enough(ends):
    wrong = End(outcome="failed", reason="ValueError: metric must be a name that the module logs.")

    assert ends((wrong, False)).startswith(
        "No further runs are started, as they name the same metric"
    )
    assert ends((FAILED, False), (wrong, False), epochs=2) is None
