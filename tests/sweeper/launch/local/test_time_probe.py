"""Time probes: which runs are begun, and what is made of one that was stopped."""

import pytest

from sweeper.launch.local.slots import Machine
from sweeper.launch.local.time_probe import _choose_probes, _timing_so_far
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt
from sweeper.store.step_progress import StepProgress, write_step_progress

WORDS = ("accelerator=cpu", "epochs=4", "warmup=0", "schedule=constant")


def test_each_kind_is_begun_with_the_fewest_and_the_most_micro_batches(grid):
    specs = [run_spec(c) for c in grid(*WORDS, "batch=3840,7680,30720", "model.hidden=32,64")]

    chosen = _choose_probes(specs, Machine(cores=1))
    filled = _choose_probes(specs, Machine(cores=5))

    assert [spec.split.accumulation_steps for spec in chosen] == [1, 8, 1, 8]
    assert len(filled) == 5
    assert len({spec.run_id for spec in filled}) == 5
    assert len(_choose_probes(specs[:1], Machine(cores=64))) == 1


def test_what_was_stopped_has_the_speed_that_it_had_reached(grid, ledger):
    spec = run_spec(grid(*WORDS, "batch=3840")[0])
    attempt = Attempt.begin(spec, ledger, 1)
    # Half of the second of four epochs of 16 steps: 40 steps are left, and 3 epochs' ends.
    progress = StepProgress(
        epoch=2, step=8, steps=16, resumed_at=0, examples_per_s=7680.0, left_s=40 * 0.5 + 3 * 2.0
    )
    assert _timing_so_far(attempt, 1.5) is None
    write_step_progress(progress, attempt.folder)

    timing = _timing_so_far(attempt, 1.5)

    assert timing.step_s == pytest.approx(0.5)
    assert timing.between_s == pytest.approx(2.0)
    assert timing.start_s == 1.5
