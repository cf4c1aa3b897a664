"""The tasks of a launcher, and the events that it reports."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.spec.run_spec import RunSpec
from sweeper.store.attempt import Attempt, End


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to be made.

    `number` is that of the attempt to make, 1-based; `from_scratch` ignores an earlier
    attempt's checkpoint.
    """

    spec: RunSpec
    number: int
    from_scratch: bool = False


#: What a place to run is given: tasks in their order, taken one by one as room appears. None means
#: that there is no task just now: what has ended is reported first, then asked again.
Tasks = Iterable[Task | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened since the last event.

    `began` are attempts that started here, `elsewhere` those found running in another process;
    `ended` says by run id how attempts ended, here or there; `queued` are ids of runs that wait
    in a queue, `said` sentences for the user; `is_detached` if the runs continue without this
    process.
    """

    began: Sequence[Attempt] = ()
    elsewhere: Sequence[Attempt] = ()
    ended: Mapping[str, End] = field(default_factory=dict[str, End])
    queued: Sequence[str] = ()
    said: Sequence[str] = ()
    is_detached: bool = False
