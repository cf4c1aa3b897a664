"""Trunks: what runs of several lengths train alike before their cooldowns, trained once.

results/trunks/<trunk_id>/<steps>-<run_id>.ckpt   after so many steps, as this run trained them
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sweeper.spec.config import Start
from sweeper.spec.run_spec import RunSpec
from sweeper.spec.worker_args import trunk_checkpoint


def find_start(spec: RunSpec, results: Path) -> Start | None:
    """The furthest checkpoint of its trunk from which a run can begin; None without one."""
    if spec.trunk_id is None:
        return None
    folder = trunk_checkpoint(results, spec.trunk_id, 0, spec.run_id).parent
    names = (path.stem.partition("-") for path in folder.glob("*-*.ckpt"))
    found = ((int(steps), run_id) for steps, _, run_id in names if steps.isdecimal())
    steps, run_id = max((at for at in found if at[0] <= spec.trunk_steps), default=(0, ""))
    return Start(run=run_id, steps=steps) if steps else None


def start_file(spec: RunSpec, start: Start, results: Path) -> Path:
    """The checkpoint of its trunk with which a run begins."""
    assert spec.trunk_id, "it begins on a trunk"
    return trunk_checkpoint(results, spec.trunk_id, start.steps, start.run)


def waits_for_shorter(spec: RunSpec, results: Path, is_to_come: Callable[[str], bool]) -> bool:
    """Whether a shorter run of its command is to leave a later checkpoint on its trunk.

    Args:
        spec: the run.
        results: the results folder.
        is_to_come: whether a run, given by id, is waiting or running.
    """
    if spec.config.trunk is None:
        return False
    start = find_start(spec, results)
    begins = start.steps if start else 0
    return any(steps > begins and is_to_come(run_id) for steps, run_id in spec.shorter.items())


def plan_starts(
    specs: Mapping[str, RunSpec], done: Collection[str], results: Path
) -> dict[str, RunSpec]:
    """The runs by id, each that is not done with where it is to begin on its trunk.

    That is the furthest of the checkpoints that there are and those that other runs are to leave.
    """
    trunks = defaultdict[str, list[RunSpec]](list)
    for run_id, spec in specs.items():
        if spec.trunk_id and run_id not in done:
            trunks[spec.trunk_id].append(spec)
    found = {**specs}
    for own in trunks.values():
        for spec in own:
            others = [other for other in own if 0 < other.trunk_steps < spec.trunk_steps]
            starts = [Start(run=other.run_id, steps=int(other.trunk_steps)) for other in others]
            if not spec.config.rerun and (left := find_start(spec, results)):
                starts.append(left)
            if starts:
                start = max(starts, key=lambda start: start.steps)
                found[spec.run_id] = spec.with_facts(start=start)
    return found
