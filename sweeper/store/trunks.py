"""Trunks: what runs of several lengths train alike before their cooldowns, trained once.

    results/trunks/<trunk_id>/<steps>-<run_id>.ckpt   after so many steps, trained by this run

A file has one writer, and appears by a rename; which of two equal ones is begun from is no matter.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sweeper.spec.config import Start
from sweeper.spec.run_spec import RunSpec


def trunk_file(spec: RunSpec, start: Start, results: Path) -> Path:
    """The checkpoint of a run's trunk after these steps of this run."""
    return results / "trunks" / f"{spec.trunk_id}" / f"{start.steps}-{start.run}.ckpt"


def find_start(spec: RunSpec, results: Path) -> Start | None:
    """The furthest checkpoint of its trunk from which a run can begin; None without one."""
    paths = results.glob(f"trunks/{spec.trunk_id}/[1-9]*-*.ckpt") if spec.trunk_id else ()
    names = (path.stem.split("-", 1) for path in paths)
    starts = (Start(run=run_id, steps=int(n)) for n, run_id in names if n.isdecimal())
    fitting = (start for start in starts if start.steps <= spec.trunk_steps)
    return max(fitting, key=lambda start: start.steps, default=None)


def waits_for_start(spec: RunSpec, results: Path, is_to_come: Callable[[str], bool]) -> bool:
    """Whether its parent, or a shorter run, is to leave the checkpoint from which it begins.

    Args:
        spec: the run.
        results: the results folder.
        is_to_come: whether a run, given by id, is waiting or running.
    """
    if branch := spec.config.branch:
        return is_to_come(branch.run)
    start = find_start(spec, results)
    begins = start.steps if start else 0
    return any(steps > begins and is_to_come(run_id) for steps, run_id in spec.shorter.items())


def plan_starts(
    specs: Mapping[str, RunSpec], done: Collection[str], results: Path
) -> dict[str, RunSpec]:
    """The runs by id, each that is not done with where it is to begin on its trunk.

    That is the furthest of the checkpoints that there are and those that other runs are to leave.
    """
    found = {**specs}
    for run_id, spec in specs.items():
        if spec.trunk_id and run_id not in done:
            left = None if spec.config.rerun else find_start(spec, results)
            others = [at for at in spec.shorter.items() if at[1] in specs and at[1] not in done]
            starts = [Start(run=other, steps=steps) for steps, other in others if steps]
            starts += [left] if left else []
            start = max(starts, key=lambda start: start.steps, default=None)
            found[run_id] = spec.with_facts(start=start)
    return found
