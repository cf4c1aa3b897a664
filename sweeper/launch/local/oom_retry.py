"""Retries after out of memory: with half the micro-batch, or alone on the GPU."""

from sweeper.planning.plan import Task
from sweeper.spec.batch import smaller_micro_batch
from sweeper.spec.method_checks import takes_micro_batches_whole
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt


class OomRetry:
    """Makes tasks that resume a run with half its micro-batch, or alone on its GPU."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}

    def note(self, run_id: str) -> str:
        """A remark for the reason of a run's end; empty if it was not retried."""
        return self._notes.get(run_id, "")

    def retry(self, attempt: Attempt) -> Task | None:
        """The next attempt at a run that ran out of memory; None if its micro-batch is fixed."""
        spec = attempt.spec
        smaller = smaller_micro_batch(spec.split, spec.bn_span)
        is_fixed = spec.config.reproducible or takes_micro_batches_whole(spec.config)
        if smaller is None or is_fixed:
            return None
        self._notes[spec.run_id] = (
            f"; micro_batch={smaller} since attempt {attempt.number} ran out of memory with "
            f"micro_batch={spec.split.micro_batch}"
        )
        again = run_spec(spec.config.replaced(micro_batch=smaller))
        return Task(spec=again, number=attempt.number + 1)

    def retry_alone(self, attempt: Attempt) -> Task:
        """The next attempt at a run that ran out of memory while it shared its GPU."""
        alone = f"alone on its GPU since attempt {attempt.number} ran out of memory next to others"
        self._notes[attempt.spec.run_id] = f"; {alone}"
        return Task(spec=attempt.spec, number=attempt.number + 1)
