"""The plan of a grid: every distinct run, its status in the ledger, and what is left to do."""

import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sweeper.planning.code_changes import Changes, CodeChange, check_code, code_changes
from sweeper.planning.component_settings import check_settings
from sweeper.planning.measured_noise import measured_in, with_measured_noise
from sweeper.planning.names import check_names
from sweeper.planning.repeats import check_repeat
from sweeper.planning.same_training import SamePoint, StoredTrainings, same_points, without_same
from sweeper.spec.config import Component, RunConfig, run_config
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import Device
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.values import LARGEST
from sweeper.spec.warnings import find_warnings
from sweeper.store.attempt import Open, attempt_state, finish_abandoned, recover_attempt
from sweeper.store.damaged import sound_rows
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.row_file import RowFile
from sweeper.store.same_runs import note_same

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a grid.

    `points` are all distinct runs of the grid, `specs` the runs trained for them, `ended` their
    current rows in the ledger; `repeats` counts points that only differ from another in where they
    run; `same` are points whose training is that of one of the specs; `warnings` are by run id;
    `fits`, by run id, is what is known about which micro-batches fit, empty if not read; `changes`
    are runs trained with other sources; `early` those that failed before their first step.
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
        """The runs that have neither finished nor diverged."""
        done = {run_id for run_id, row in self.ended.items() if row.outcome.is_result}
        return [spec for spec in self.specs if spec.run_id not in done]

    @property
    def distinct_warnings(self) -> list[str]:
        """Each warning once."""
        return list(dict.fromkeys(text for texts in self.warnings.values() for text in texts))

    @property
    def of_repeats(self) -> list[str]:
        """A sentence on points that are the same run as another; empty if there are none."""
        if not self.repeats:
            return []
        are = "point of the grid is" if self.repeats == 1 else "points of the grid are"
        return [
            f"{self.repeats} {are} the same run as another, except for where it runs. Each run is "
            "trained once, as its first point specifies."
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to execute.

    `number` is the 1-based number of the attempt to make, or to wait for if another process has
    it; `from_scratch` ignores an earlier attempt's checkpoint.
    """

    spec: RunSpec
    number: int
    from_scratch: bool = False


#: What a launcher receives: tasks in order, taken one by one as capacity appears. None means that
#: no task is available now: the launcher first reports what has ended, then asks again.
Tasks = Iterable[Task | None]


@dataclass(frozen=True, slots=True)
class LazyTasks:
    """Tasks that are chosen one at a time, when the launcher asks for the next.

    `known` can be inspected in advance; `taken` are executed; `hours` is their joint budget, None
    for no limit [device-hours].
    """

    known: Sequence[Task]
    taken: Iterable[Task]
    hours: float | None = None

    def __iter__(self) -> Iterator[Task]:
        """The tasks that are actually executed."""
        return iter(self.taken)


def known_tasks(tasks: Tasks) -> list[Task]:
    """The tasks that can be inspected before the first is taken."""
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
        ledger: the ledger of their runs.
        device: what they will train on, to look up the micro-batches known to fit; None leaves that
            to the launcher.
        stored: what was read of the ledger's runs, to be shared by callers that plan repeatedly.
        running_now: runs that this command has started.

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
    if len(specs) > 1 or ended or running_now:  # otherwise there is nothing to compare with
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
    """The runs of a grid by id, as their first points specify, and how many points repeat one."""
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
    """Reads points; one that differs from an earlier one only in its seed reuses its spec.

    One that has the same keys and groups as an earlier one reuses its groups.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._noise_of = measured_in(ledger)
        self._first: dict[bytes, RunSpec] = {}
        self._like: dict[bytes, RunConfig] = {}

    def read(self, config: Config) -> RunSpec:
        seed = config.get("seed")
        if type(seed) is not int or not 0 <= seed <= LARGEST:
            return self._read(config)  # raises
        rest = pickle.dumps({**config, "seed": None})  # a third of the time of `repr`
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
    """The attempts to make now, after writing rows for abandoned attempts.

    Finished and diverged runs are settled. Runs that failed after an optimizer step are tried again
    only on request; those that failed before one, were preempted, timed out or ran out of memory
    are always tried again.

    Raises:
        ValueError: if runs were trained with other sources and `code` does not say what to do.
    """
    if not rerun:
        check_code(planned.changes, code, num_runs=len(planned.specs))
    finish_abandoned(ledger)
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
    published = since & ledger.ended().keys() if since else since  # the others lost their rows
    return [task for task in found if task and task.spec.run_id not in published]


def _task(
    spec: RunSpec, planned: Plan, ledger: Ledger, retry: str | None, since: set[str], *, rerun: bool
) -> Task | None:
    """The attempt to make; adds the run to `since` if it has ended since the plan was made."""
    ended = planned.ended.get(spec.run_id)
    is_early = spec.run_id in planned.early
    if ended and not rerun and not is_early and is_settled(ended.outcome, retry):
        return None
    last = ledger.last_attempt(spec.run_id)
    if last == 0 or (ended and ended.attempt >= last):
        return Task(spec=spec, number=last + 1, from_scratch=rerun)
    end = attempt_state(ledger, spec.run_id, last)
    if end is Open.HELD:  # running in another process: that attempt is what to wait for
        return Task(spec=spec, number=last)
    if end is Open.ABANDONED:
        end = recover_attempt(ledger, spec.run_id, last)
    if end is not None and is_settled(end.outcome, retry) and not rerun:
        since.add(spec.run_id)
    return Task(spec=spec, number=last + 1, from_scratch=rerun)


def is_settled(outcome: Outcome, retry: str | None) -> bool:
    """Whether a run with this outcome is not tried again, except with `rerun`."""
    return outcome.is_result or (outcome == Outcome.FAILED and retry != "failed")


def _groups(config: RunConfig) -> Iterator[tuple[str, Component]]:
    """The components to check, by key; a user's module and its model are checked elsewhere."""
    yield "data", config.data
    if config.model and not config.has_own_module:
        yield "model", config.model
    if not config.keeps_own_optimizer:
        yield "optimizer", config.optimizer


def _failed_early(
    run_ids: Collection[str], ended: Mapping[str, RowFile], ledger: Ledger
) -> Set[str]:
    """The runs that failed before their first optimizer step: their rows have 0 steps."""
    failed = {id for id in run_ids if id in ended and ended[id].outcome == Outcome.FAILED}
    rows = ledger.rows(failed, ["steps"]) if failed else {}
    return {run_id for run_id, row in rows.items() if row["steps"] == 0}
