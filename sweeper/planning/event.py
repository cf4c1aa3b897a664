"""Events, by which a launcher reports what happens to its tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sweeper.store.attempt import Attempt, End


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened since the last event.

    `began` are attempts that started here, `elsewhere` those found running in another process;
    `ended` holds, by run id, how attempts ended, here or there; `queued` are ids of runs waiting
    in a queue, `said` sentences for the user; `is_detached`: the runs continue without this
    process; `is_stopping`: runs are ending because the user stops the command.
    """

    began: Sequence[Attempt] = ()
    elsewhere: Sequence[Attempt] = ()
    ended: Mapping[str, End] = field(default_factory=dict[str, End])
    queued: Sequence[str] = ()
    said: Sequence[str] = ()
    is_detached: bool = False
    is_stopping: bool = False
