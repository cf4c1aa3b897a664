"""The plan of a grid: every distinct run, its status in the ledger, and what is left to do."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from sweeper.planning.branches import ParentDiverged, specify_branch
from sweeper.planning.class_checks import check_names, check_settings
from sweeper.planning.code_changes import Changes, CodeChange, check_code, code_changes
from sweeper.planning.equivalent_runs import find_equivalent_runs
from sweeper.spec.config import Component, RunConfig
from sweeper.spec.exclusions import why_no_branch
from sweeper.spec.identity import targets
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import Device
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.spec.sentences import several
from sweeper.spec.warnings import find_warnings
from sweeper.store.attempt import Attempt, End, Open, attempt_state
from sweeper.store.damaged import sound_rows
from sweeper.store.file_names import RowFile
from sweeper.store.ledger import Ledger
from sweeper.store.memory_cache import Fit, MemoryCache
from sweeper.store.recovery import finish_abandoned, recover_attempt
from sweeper.store.trunks import plan_starts, waits_for_start

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a grid; its mappings are by run id."""

    specs: Sequence[RunSpec]  # all distinct runs of the grid
    ended: Mapping[str, RowFile]  # their current rows in the ledger
    repeats: int  # points that only differ from another in where they run
    near: Sequence[str]  # sentences on new runs that are almost finished ones
    warnings: Mapping[str, Sequence[str]]
    fits: Mapping[str, Fit]  # what is known of the micro-batches that fit; empty if not read
    changes: Changes = field(default_factory=dict[str, CodeChange])  # trained with other sources
    early: Set[str] = frozenset()  # runs that failed before their first step

    @property
    def without_result(self) -> Sequence[RunSpec]:
        """The runs that have neither finished nor diverged."""
        done = {run_id for run_id, row in self.ended.items() if row.outcome.is_result}
        return [spec for spec in self.specs if spec.run_id not in done]

    def find_discarded(self, *, rerun: str | None, code: str | None) -> Set[str]:
        """The ids of the runs whose results and checkpoints a command does not use."""
        ids = {spec.run_id for spec in self.specs}
        return ids if rerun else ids & self.changes.keys() if code == "rerun" else set()

    def to_do(self, *, retry: str | None, rerun: str | None, code: str | None) -> list[RunSpec]:
        """The runs that a command trains, or waits for if another process trains them.

        Finished and diverged runs are settled. Runs that failed after an optimizer step are tried
        again only on request; those that failed before it, were preempted, timed out or ran out of
        memory are always tried again.
        """
        again = self.find_discarded(rerun=rerun, code=code)
        settled = {i for i, row in self.ended.items() if is_settled(row.outcome, retry)}
        return [s for s in self.specs if s.run_id not in settled - self.early - again]

    @property
    def distinct_warnings(self) -> list[str]:
        """Each warning once."""
        return list(dict.fromkeys(text for texts in self.warnings.values() for text in texts))

    @property
    def notes(self) -> list[str]:
        """Sentences on points that are the same run as another or almost one, and on branches."""
        barren = dict.fromkeys(why_no_branch(spec.config) for spec in self.specs)
        others = [*self.near, *filter(None, [describe_trunks(self.without_result), *barren])]
        if not self.repeats:
            return others
        are = "point of the grid is" if self.repeats == 1 else "points of the grid are"
        return [
            f"{self.repeats} {are} the same run as another, except for where it runs. Each run is "
            "trained once, as its first point specifies.",
            *others,
        ]


def describe_trunks(specs: Sequence[RunSpec]) -> str:
    """How much less these runs train as they begin on trunks; empty if none does."""
    if not any(spec.facts.start for spec in specs):
        return ""
    ((unit, _),) = specs[0].config.lengths.items()
    each = specs[0].config.tokens_per_example if unit == "examples" else None
    lengths = [sum(spec.config.lengths.values()) * (each or 1) for spec in specs]
    left = sum(n * spec.share_to_train for n, spec in zip(lengths, specs, strict=True))
    said = f"{left:,.12g} {'tokens' if each else unit} to train in place of {sum(lengths):,}"
    return f"{said}: runs of one trunk share its steps."


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run to execute."""

    spec: RunSpec
    number: int  # of the attempt to make, from 1; to wait for if another process has it
    from_scratch: bool = False  # ignore an earlier attempt's checkpoint


#: What a launcher receives: tasks in order, taken singly as capacity appears. None means that
#: no task is available now: the launcher first reports what has ended, then asks again.
Tasks = Iterable[Task | None]


@dataclass(frozen=True, slots=True)
class LazyTasks:
    """Tasks that are chosen singly, when the launcher asks for the next."""

    known: Sequence[Task]  # can be inspected in advance
    taken: Iterable[Task]  # are executed

    def __iter__(self) -> Iterator[Task]:
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
    with_parents: bool = False,
) -> Plan:
    """Check every point of a grid and find its runs in the ledger; changes nothing.

    With a device, the micro-batches that are known to fit on it are looked up; otherwise the
    launcher does that. With parents, those of branches are runs too, if they have no result, and
    branches of those that diverged are left out.

    ValueError with a line per distinct mistake, if any point is impossible.
    """
    specs, repeats, near = _distinct_runs(configs, ledger, with_parents=with_parents)
    ended = sound_rows(ledger)
    if any(spec.config.has_own_classes for spec in specs.values()):
        known, others = find_equivalent_runs(specs, ended, ledger)
        near += others
        specs = {
            known.get(i, i): replace(spec, known_id=known[i]) if i in known else spec
            for i, spec in specs.items()
        }
    is_again = any(spec.config.rerun for spec in specs.values())
    done = {run_id for run_id, row in ended.items() if row.outcome.is_result and not is_again}
    specs = plan_starts(specs, done, ledger.results)
    new = (spec.config for run_id, spec in specs.items() if run_id not in ended)
    groups = list({repr(group): group for config in new for group in _groups(config)}.values())
    check_names((key, group.target, group.choice) for key, group in groups)
    check_settings(groups)
    named = {run_id: tuple(targets(spec.config.resolved)) for run_id, spec in specs.items()}
    failed = {id for id in specs if id in ended and ended[id].outcome == Outcome.FAILED}
    failed_rows = ledger.rows(failed, ["steps"]) if failed else {}
    fits = MemoryCache(ledger.results, device).fits(specs.values()) if device else {}
    return Plan(
        specs=[fits[run_id].spec if fits else spec for run_id, spec in specs.items()],
        ended={run_id: ended[run_id] for run_id in specs if run_id in ended},
        repeats=repeats,
        near=near,
        warnings=find_warnings([*specs.values()], {id: fit.fails for id, fit in fits.items()}),
        fits=fits,
        changes=code_changes(named, ended, ledger),
        early={run_id for run_id, row in failed_rows.items() if row["steps"] == 0},
    )


def _distinct_runs(
    configs: Iterable[Config], ledger: Ledger, *, with_parents: bool
) -> tuple[dict[str, RunSpec], int, list[str]]:
    """Runs by id, as their first points specify, after the parents that branches need.

    Also how many points repeat another, and sentences on branches that cannot be trained.
    """
    specs, parents, mistakes = dict[str, RunSpec](), dict[str, RunSpec](), Counter[str]()
    left_out = Counter[str]()
    repeats, noise_scales = 0, dict[str, float]()
    points = list[tuple[Any, ...]]()
    for config in configs:
        points.append(tuple(config.get(key) for key in _SPLIT_KEYS))
        try:
            known = _with_measured_noise(config, ledger, noise_scales)
            asked = known.get("branch")  # read before, if not a text
            if isinstance(asked, str):
                spec = specify_branch(asked, known, ledger, parents if with_parents else None)
            else:
                spec = run_spec(known)
            repeats += spec.run_id in specs
            first = specs.setdefault(spec.run_id, spec)
            if first is not spec:
                _check_repeat(first.config.resolved, config)
        except ParentDiverged as diverged:
            (left_out if with_parents else mistakes)[str(diverged)] += 1
        except ValueError as error:
            mistakes.update(str(error).splitlines())
    if mistakes:
        of_span = [text for text in mistakes if "of ranks x bn_span = " in text]
        if of_span and (text := _name_fitting_span(points, of_span)):
            mistakes = Counter([text, *(other for other in mistakes if other not in of_span)])
        times = [f"{text}{f' ({n} points of the grid)' * (n > 1)}" for text, n in mistakes.items()]
        raise ValueError("\n".join(times))
    lost = [f"{several(n, 'branch')} left out: {text}" for text, n in left_out.items()]
    if lost and not specs:
        raise ValueError("\n".join(lost))
    return {**parents, **specs, **parents}, repeats, lost


_SPLIT_KEYS = ("batch", "devices", "num_nodes", "bn_span")


def _name_fitting_span(points: Sequence[tuple[Any, ...]], mistakes: Sequence[str]) -> str:
    """A sentence with the largest span of BatchNorm that fits all points; empty if none does.

    It stands for the mistakes of points that the span does not fit.
    """
    if not all(isinstance(value, int) and value > 0 for point in points for value in point):
        return ""
    values = {*points}
    if any(batch % (devices * nodes) for batch, devices, nodes, _ in values):
        return ""
    common = math.gcd(*(batch // (devices * nodes) for batch, devices, nodes, _ in values))
    most = min(point[-1] for point in points)
    span = max((span for span in range(2, most) if common % span == 0), default=None)
    if span is None:
        return ""
    rule = mistakes[0].partition("; got batch=")[0]
    batches = [text.partition("; got batch=")[2].split(".")[0] for text in mistakes]
    return (
        f"{rule}; got batch={', '.join(batches)}. bn_span={span} fits every point of this grid: so "
        "many examples are normalised together by BatchNorm."
    )


def _check_repeat(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse two resolved configs with the same run id whose data folders or models differ.

    ValueError for two data folders, or for two models with a module that reads neither.
    """
    for key in ("root", "data_dir"):
        here, there = (config["data"].get(key) for config in (first, other))
        if here != there:
            msg = (
                f"data.{key} must be one folder in a grid, as it says where the files are and does "
                f"not distinguish runs; got {here} and {there}. If the data differ, set a key that "
                "says so, such as data.name, or use a results folder for each."
            )
            raise ValueError(msg)
    if first.get("model") != other.get("model"):
        msg = (
            "model can be swept with module=classifier only, which reads it; got two models with "
            f"module._target_={first['module']['_target_']}. Remove model, or make it a setting of "
            "your module: +module.KEY=A,B."
        )
        raise ValueError(msg)


def claim_tasks(
    planned: Plan, ledger: Ledger, *, retry: str | None, rerun: str | None, code: str | None = None
) -> list[Task]:
    """The attempts to make now, after writing rows for abandoned attempts.

    ValueError if runs were trained with other sources and `code` does not say what to do.
    """
    if not rerun:
        check_code(planned.changes, code, num_runs=len(planned.specs))
    finish_abandoned(ledger)
    again = planned.find_discarded(rerun=rerun, code=code)
    if again:
        ledger.supersede(again)
    tasks, since = list[Task](), set[str]()
    for spec in planned.to_do(retry=retry, rerun=rerun, code=code):
        task, end = _task(spec, planned, ledger, is_again=spec.run_id in again)
        tasks.append(task)
        if end and is_settled(end.outcome, retry) and spec.run_id not in again:
            since.add(spec.run_id)  # it has ended since the plan was made
    published = since & ledger.ended().keys() if since else since  # the others lost their rows
    return [task for task in tasks if task.spec.run_id not in published]


def _task(
    spec: RunSpec, planned: Plan, ledger: Ledger, *, is_again: bool
) -> tuple[Task, End | None]:
    """The attempt to make, and the end of one whose row the plan does not have."""
    ended = planned.ended.get(spec.run_id)
    last, row = ledger.last_attempt(spec.run_id), ended.attempt if ended else 0
    if row >= last:
        return Task(spec=spec, number=row + 1, from_scratch=is_again), None
    end = attempt_state(ledger, spec.run_id, last)
    if end is Open.ABANDONED:
        end = recover_attempt(ledger, spec.run_id, last)
    if end is None or end is Open.HELD:  # running in another process, which may have taken it over
        return Task(spec=spec, number=last), None
    return Task(spec=spec, number=last + 1, from_scratch=is_again), end


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened since the last event."""

    began: Sequence[Attempt] = ()  # started here
    elsewhere: Sequence[Attempt] = ()  # found running in another process
    ended: Mapping[str, End] = field(default_factory=dict[str, End])  # by run id, here or there
    queued: Sequence[str] = ()  # ids of runs that wait in a queue
    said: Sequence[str] = ()  # sentences for the user
    is_detached: bool = False  # the runs continue without this process
    is_stopping: bool = False  # runs are ending because the user stops the command


def _with_measured_noise(
    config: Mapping[str, Any], ledger: Ledger, known: dict[str, float]
) -> Mapping[str, Any]:
    """The config with `lr_rule.noise_scale=measured` replaced by what an earlier run measured.

    The number is part of the run's identity; the run that measured it is not. `known` has noise
    scales by run id, each looked up once. ValueError if that run has measured none.
    """
    rule = config.get("lr_rule")
    if not isinstance(rule, dict) or rule.get("noise_scale") != "measured":
        return config
    if rule.get("name") == "surge":  # refuses it
        return config
    run_id = str(rule.get("measured_in") or "")
    if run_id not in known:
        row = ledger.rows({run_id}, ["noise_scale"]).get(run_id) if run_id else None
        if row is None or row["noise_scale"] is None:
            msg = (
                "lr_rule.noise_scale=measured needs lr_rule.measured_in, a run in "
                f"{ledger.results} that has ended and measured its noise; got lr_rule.measured_in="
                f"{run_id or 'null'}. Train one with noise_span=... and write "
                "+lr_rule.measured_in=RUN_ID."
            )
            raise ValueError(msg)
        known[run_id] = row["noise_scale"]
    return {**config, "lr_rule": {**rule, "noise_scale": known[run_id]}}


def wait_for_starts(tasks: Tasks, ledger: Ledger) -> Iterator[Task | None]:
    """The tasks, each once the runs from which it may begin have ended or left a checkpoint."""
    seen, waiting = dict[str, int](), list[Task]()

    def is_to_come(run_id: str) -> bool:
        number = max(seen.get(run_id, 0), ledger.last_attempt(run_id))
        return run_id in seen and not isinstance(attempt_state(ledger, run_id, number), End)

    def take_ready() -> Iterator[Task]:
        for task in [*waiting]:
            if not waits_for_start(task.spec, ledger.results, is_to_come):
                waiting.remove(task)
                yield task

    for task in tasks:
        if task:
            seen[task.spec.run_id] = task.number
            waiting.append(task)
        yield from take_ready()
        if task is None:
            yield None
    while waiting:
        yield from take_ready()
        yield None


def order_by_information(tasks: Sequence[Task]) -> list[Task]:
    """The tasks in the order in which they say most about the whole grid.

    By seed; within a seed the corners of the grid first, then points that halve the gaps, but after
    their parents and shorter runs of their trunks. A curve over all batches is complete as soon as
    the first seed is, and has its ends before that.
    """
    ranks = information_ranks([task.spec for task in tasks])

    def turn(task: Task) -> tuple[float, ...]:
        spec, (seed, halvings) = task.spec, ranks[task.spec.run_id]
        steps = float(spec.trunk_steps) if spec.trunk_id else 0
        return seed, bool(spec.config.branch), steps, halvings

    return sorted(tasks, key=turn)


def information_ranks(specs: Sequence[RunSpec]) -> dict[str, tuple[int, int]]:
    """By run id: the position of its seed, and after how many halvings of gaps it is reached."""
    texts = {spec.run_id: {k: text for k, (text, _) in spec.words.items()} for spec in specs}
    keys = dict.fromkeys(key for run in texts.values() for key in run if key != "seed")
    depths = {key: _halvings([run.get(key) for run in texts.values()]) for key in keys}
    seeds = list(dict.fromkeys(run["seed"] for run in texts.values()))
    return {
        run_id: (seeds.index(run["seed"]), sum(depths[key].get(run.get(key), 0) for key in keys))
        for run_id, run in texts.items()
    }


def _halvings(values: Sequence[str | None]) -> dict[str | None, int]:
    """By value, after how many halvings of gaps it is reached; empty if a value is not a number."""
    try:
        number_of = {value: float(value or "") for value in dict.fromkeys(values)}
    except ValueError:
        return {}
    numbers = sorted(set(number_of.values()))
    depths = {numbers[0]: 0, numbers[-1]: 0}
    gaps = [(0, len(numbers) - 1, 1)]
    for first, last, depth in gaps:
        if last - first > 1:
            middle = (first + last) // 2
            depths[numbers[middle]] = depth
            gaps += [(first, middle, depth + 1), (middle, last, depth + 1)]
    return {value: depths[number] for value, number in number_of.items()}
