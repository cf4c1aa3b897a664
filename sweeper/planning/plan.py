"""The plan of a grid: every run with its status, and the tasks left."""

import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sweeper.planning.code_changes import Changes, CodeChange, check_code, code_changes
from sweeper.planning.measured_noise import measured_in, with_measured_noise
from sweeper.planning.names import check_names
from sweeper.planning.repeats import check_repeat
from sweeper.planning.same_training import SamePoint, StoredTrainings, same_points, without_same
from sweeper.planning.signatures import check_settings
from sweeper.spec.config import Component, RunConfig, run_config
from sweeper.spec.memory import Device
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.values import LARGEST
from sweeper.spec.warnings import find_warnings
from sweeper.store.damaged import sound_rows
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.row_file import RowFile
from sweeper.store.same_runs import note_same
from sweeper.store.standing import Open, recover, standing, tidy

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a grid.

    `points` are all of the grid, `specs` the runs trained for them, `ended` their current rows in
    the ledger; `repeats` points that are the same run as another and differ only in where they run;
    `same` those whose training is that of one of the specs; `warnings`, by run id, what is allowed
    but probably not meant; `fits`, by run id, what is known of the micro-batches, empty if not
    read; `changes` the runs that other sources made; `early` those that failed before a step.
    """

    specs: Sequence[RunSpec]
    points: Sequence[RunSpec]
    ended: Mapping[str, RowFile]
    repeats: int
    same: Sequence[SamePoint]
    warnings: Mapping[str, Sequence[str]]
    fits: Mapping[str, Fit]
    changes: Changes = field(default_factory=dict[str, CodeChange])
    early: Set[str] = frozenset()

    @property
    def without_result(self) -> Sequence[RunSpec]:
        """Those of the runs that neither finished nor diverged."""
        done = {run_id for run_id, row in self.ended.items() if row.outcome.is_result}
        return [spec for spec in self.specs if spec.run_id not in done]

    @property
    def distinct_warnings(self) -> list[str]:
        """Each warning once."""
        return list(dict.fromkeys(text for texts in self.warnings.values() for text in texts))

    @property
    def of_repeats(self) -> list[str]:
        """What becomes of points that are the run of another; empty if there are none."""
        if not self.repeats:
            return []
        are = "point of the grid is" if self.repeats == 1 else "points of the grid are"
        return [
            f"{self.repeats} {are} the run of another, with a difference only in where it runs. "
            "Each run is trained once, as its first point specifies."
        ]


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


@dataclass(frozen=True, slots=True)
class LazyTasks:
    """Tasks that are decided on when each is asked for.

    `known` can be looked at before; `taken` are made, in `hours` in all if any [device-hours].
    """

    known: Sequence[Task]
    taken: Iterable[Task]
    hours: float | None = None

    def __iter__(self) -> Iterator[Task]:
        """Those that are made."""
        return iter(self.taken)


def known_tasks(tasks: Tasks) -> list[Task]:
    """Those that can be looked at before the first is taken."""
    listed = tasks.known if isinstance(tasks, LazyTasks) else tasks
    return [task for task in listed if task] if isinstance(listed, list | tuple) else []


def plan(
    configs: Iterable[Config],
    ledger: Ledger,
    *,
    device: Device | None = None,
    stored: StoredTrainings | None = None,
    running_now: Sequence[RunSpec] = (),
) -> Plan:
    """Check every point of a grid and find its runs in the ledger; changes nothing.

    Args:
        configs: of the points.
        ledger: where their runs are.
        device: what they will train on, to find the micro-batches known to fit; None leaves that
            to the launcher.
        stored: what is known of the runs in the ledger, for one who plans again and again.
        running_now: runs that this command has begun.

    Raises:
        ValueError: with a line per distinct mistake, if any point is impossible.
    """
    specs, repeats = _runs_of(configs, ledger)
    ended = sound_rows(ledger)
    new = {spec.kin: spec.config for run_id, spec in specs.items() if run_id not in ended}.values()
    shared = {id(group[1]): group for config in new for group in _groups(config)}
    groups = list({repr(group): group for group in shared.values()}.values())
    check_names((key, group.target, group.choice) for key, group in groups)
    check_settings(groups)
    points, same = list(specs.values()), list[SamePoint]()
    if len(specs) > 1 or ended or running_now:  # else there is nothing that a run could be like
        same = same_points(specs, ended, stored or StoredTrainings(ledger), running_now)
        specs = without_same(specs, same)
    named = {run_id: spec.kin.targets for run_id, spec in specs.items()}
    fits = MemoryCache(ledger.results, device).fits(specs.values()) if device else {}
    return Plan(
        specs=[fits[run_id].spec if fits else spec for run_id, spec in specs.items()],
        points=points,
        ended={run_id: ended[run_id] for run_id in specs if run_id in ended},
        repeats=repeats,
        same=same,
        warnings=find_warnings([*specs.values()], {id: fit.fails for id, fit in fits.items()}),
        fits=fits,
        changes=code_changes(named, ended, ledger),
        early=_failed_early(specs, ended, ledger),
    )


def _runs_of(configs: Iterable[Config], ledger: Ledger) -> tuple[dict[str, RunSpec], int]:
    """The runs of a grid by id, as their first points have them; how many points repeat one."""
    specs, mistakes = dict[str, RunSpec](), Counter[str]()
    repeats, points = 0, _Points(ledger)
    for config in configs:
        try:
            spec = points.read(config)
            repeats += spec.run_id in specs
            first = specs.setdefault(spec.run_id, spec)
            if first is not spec:
                check_repeat(first.config.resolved, config)
        except ValueError as error:
            mistakes.update(str(error).splitlines())
    if mistakes:
        times = {text: f" ({n} points of the grid)" * (n > 1) for text, n in mistakes.items()}
        raise ValueError("\n".join(f"{text}{said}" for text, said in times.items()))
    if not specs:
        msg = (
            "the grid must have a point; an override has no value, such as range(0,0) or a glob "
            "that matches nothing. Give each key a value."
        )
        raise ValueError(msg)
    return specs, repeats


class _Points:
    """Reads points; those that differ from an earlier one in the seed alone share its numbers.

    Those that have its keys and groups share these.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._noise_of = measured_in(ledger)
        self._first: dict[bytes, RunSpec] = {}
        self._like: dict[bytes, RunConfig] = {}

    def read(self, config: Config) -> RunSpec:
        seed = config.get("seed")
        if type(seed) is not int or not 0 <= seed <= LARGEST:
            return self._read(config)  # which refuses it
        rest = pickle.dumps({**config, "seed": None})  # in a third of the time of `repr`
        first = self._first.get(rest) or self._first.setdefault(rest, self._read(config))
        return first.with_seed(seed)

    def _read(self, config: Config) -> RunSpec:
        groups = [value for value in config.values() if isinstance(value, dict | list)]
        key = pickle.dumps((list(config), groups))
        like = self._like.get(key)
        read = like.with_values(config) if like else run_config(config)
        self._like.setdefault(key, read)
        is_measured = getattr(read.lr_rule, "noise_scale", None) == "measured"
        return run_spec(with_measured_noise(read, self._noise_of) if is_measured else read)


def tasks(
    planned: Plan,
    ledger: Ledger,
    *,
    retry: str | None,
    rerun: str | None,
    code: str | None = None,
) -> list[Task]:
    """The attempts to make now; abandoned ones get their rows first.

    Finished and diverged runs are settled; those that failed after a step are tried again only on
    request; those that failed before it, were cut off, timed out or out of memory are tried again.

    Raises:
        ValueError: if other sources made some of the runs, and `code` does not say what now.
    """
    if not rerun:
        check_code(planned.changes, code, num_runs=len(planned.specs))
    tidy(ledger)
    note_same([(pair.point, pair.trained) for pair in planned.same], ledger.results)
    again = {spec.run_id for spec in planned.specs} if rerun else set[str]()
    if code == "rerun":
        again |= {*planned.changes}
    if again:
        ledger.supersede(again)
    since = set[str]()
    found = [
        _task(s, planned, ledger, retry, since, rerun=s.run_id in again) for s in planned.specs
    ]
    published = since & ledger.ended().keys() if since else since  # of the others the row was lost
    return [task for task in found if task and task.spec.run_id not in published]


def _task(
    spec: RunSpec, planned: Plan, ledger: Ledger, retry: str | None, since: set[str], *, rerun: bool
) -> Task | None:
    """The attempt to make; `since` takes in the runs that have ended since the plan was made."""
    ended = planned.ended.get(spec.run_id)
    is_early = spec.run_id in planned.early
    if ended and not rerun and not is_early and is_settled(ended.outcome, retry):
        return None
    last = ledger.last_attempt(spec.run_id)
    if last == 0 or (ended and ended.attempt >= last):
        return Task(spec=spec, number=last + 1, from_scratch=rerun)
    end = standing(ledger, spec.run_id, last)
    if end is Open.HELD:  # running in another process: that attempt is what to wait for
        return Task(spec=spec, number=last)
    if end is Open.ABANDONED:
        end = recover(ledger, spec.run_id, last)
    if end is not None and is_settled(end.outcome, retry) and not rerun:
        since.add(spec.run_id)
    return Task(spec=spec, number=last + 1, from_scratch=rerun)


def is_settled(outcome: Outcome, retry: str | None) -> bool:
    """Whether a run that ended so is not tried again, unless all are."""
    return outcome.is_result or (outcome == Outcome.FAILED and retry != "failed")


def _groups(config: RunConfig) -> Iterator[tuple[str, Component]]:
    """What a run is made of, by key; of a user's module facts are known."""
    yield "data", config.data
    if config.model and not config.has_own_module:
        yield "model", config.model
    if not config.keeps_own_optimizer:
        yield "optimizer", config.optimizer


def _failed_early(
    run_ids: Collection[str], ended: Mapping[str, RowFile], ledger: Ledger
) -> Set[str]:
    """Those of these runs that failed before any optimizer step: their rows have 0 steps."""
    failed = {id for id in run_ids if id in ended and ended[id].outcome == Outcome.FAILED}
    rows = ledger.rows(failed, ["steps"]) if failed else {}
    return {run_id for run_id, row in rows.items() if row["steps"] == 0}
