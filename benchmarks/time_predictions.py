"""How long the runs of a folder took beside what the others say of them.

    python benchmarks/time_predictions.py docs/results/digits docs/results/cifar10_twin

Each run that finished in one attempt is predicted from all others, and those that started in the
second half of them from those of the first, as `sweeper plan` would have done.
"""

import argparse
import contextlib
import json
import statistics
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from sweeper.commands.show_plan import configs_of
from sweeper.planning.seconds import Seconds, Speeds
from sweeper.spec.config import run_config
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import Device
from sweeper.spec.run_spec import RunSpec, run_spec
from sweeper.store.file_names import RowFile
from sweeper.store.ledger import Ledger

READ = ("config_json", "micro_batch", "wall_s", "started_at", "device_kind")
DEFAULTS = next(configs_of(["batch=3840"], config_dir=None))
HEADS = "folder|predicted from|runs|median error|with its sign|of the sum|within the bounds"


class _Part(Ledger):
    """Some of the runs of a folder; keys that are younger than a run have their defaults."""

    def __init__(self, results: Path, kept: Collection[str]) -> None:
        super().__init__(results)
        self._kept = kept

    def rows(self, run_ids: Collection[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        found = super().rows(run_ids, columns)
        for row in found.values():
            row["config_json"] = json.dumps({**DEFAULTS, **json.loads(row["config_json"])})
        return found

    def ended(self) -> dict[str, RowFile]:
        return {run_id: row for run_id, row in super().ended().items() if run_id in self._kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    print(f"| {HEADS.replace('|', ' | ')} |\n{'| --- ' * (HEADS.count('|') + 1)}|")
    for folder in parser.parse_args().folders:
        _compare(folder)


def _compare(folder: Path) -> None:
    ended = Ledger(folder).ended().items()
    ids = {id for id, row in ended if row.outcome == Outcome.FINISHED and row.attempt == 1}
    rows = _Part(folder, ids).rows(ids, READ)
    in_order = sorted(rows, key=lambda run_id: rows[run_id]["started_at"])
    device = Device(kind=rows[in_order[0]]["device_kind"])

    def specs(run_ids: Iterable[str]) -> dict[str, RunSpec]:
        found: dict[str, RunSpec] = {}
        for run_id in run_ids:
            config = json.loads(rows[run_id]["config_json"])
            config["micro_batch"] = rows[run_id]["micro_batch"]
            with contextlib.suppress(ValueError):  # a config that is refused by now
                found[run_id] = run_spec(run_config(config))
        return found

    def took(run_id: str) -> float:
        return rows[run_id]["wall_s"]

    others: list[tuple[float, Seconds | None]] = []
    for run_id, spec in specs(in_order).items():
        speeds = Speeds(_Part(folder, set(in_order) - {run_id}), device)
        others.append((took(run_id), speeds.predict(spec)))
    _print(folder.name, "the others", others)
    half = len(in_order) // 2
    speeds = Speeds(_Part(folder, set(in_order[:half])), device)
    later = [
        (took(run_id), speeds.predict(spec)) for run_id, spec in specs(in_order[half:]).items()
    ]
    _print(folder.name, "the first half", later)


def _print(folder: str, source: str, found: list[tuple[float, Seconds | None]]) -> None:
    known = [(took, seconds) for took, seconds in found if seconds]
    if not known:
        print(f"| {folder} | {source} | 0 of {len(found)} known |")
        return
    errors = [took / seconds.total - 1 for took, seconds in known]
    total = sum(took for took, _ in known) / sum(seconds.total for _, seconds in known) - 1
    is_within = [s.predicted.least_s <= took <= s.predicted.most_s for took, s in known]
    print(
        f"| {folder} | {source} | {len(known)} of {len(found)} | "
        f"{statistics.median(map(abs, errors)):.1%} | {statistics.median(errors):+.1%} | "
        f"{total:+.1%} | {statistics.mean(is_within):.0%} |"
    )


if __name__ == "__main__":
    main()
