"""The parts of a live page, of which only those that changed are sent again."""

import json
import time
from typing import Any

from analysis.report.page import as_json


class Changes:
    """The page's data as it was last taken, with the turn at which each part last changed.

    Parts are the keys of the data, and each run.
    """

    def __init__(self) -> None:
        self._name, self._turn = f"{time.time_ns():x}", 0
        self._parts: dict[str, tuple[int, str]] = {}
        self._runs: dict[str, tuple[int, str]] = {}
        self._gone: dict[str, int] = {}

    def take(self, data: dict[str, Any]) -> None:
        """Take new data, and note which parts changed."""
        self._turn += 1
        runs: dict[str, Any] = data["runs"]
        for run_id in self._runs.keys() - runs.keys():
            self._gone[run_id] = self._turn
        self._runs = self._noted(self._runs, runs)
        others = {name: value for name, value in data.items() if name != "runs"}
        self._parts = self._noted(self._parts, others)

    def since(self, mark: str) -> str:
        """JSON of what changed since the answer with this mark; of all if the mark is not ours."""
        name, _, turn = mark.partition(".")
        is_ours = name == self._name and turn.isdecimal()
        last = int(turn) if is_ours else 0
        gone = [run_id for run_id, at in self._gone.items() if at > last and is_ours]
        answer = {"mark": f"{self._name}.{self._turn}", "whole": not is_ours, "gone": gone}
        parts, runs = (_after(last, known) for known in (self._parts, self._runs))
        data = ",".join([*parts, f'"runs":{{{",".join(runs)}}}'])
        return f'{as_json(answer)[:-1]},"data":{{{data}}}}}'

    def _noted(
        self, before: dict[str, tuple[int, str]], now: dict[str, Any]
    ) -> dict[str, tuple[int, str]]:
        texts = {name: as_json(value) for name, value in now.items()}
        changed = (self._turn, "")
        return {
            name: (self._turn, text) if before.get(name, changed)[1] != text else before[name]
            for name, text in texts.items()
        }


def _after(turn: int, known: dict[str, tuple[int, str]]) -> list[str]:
    return [f"{json.dumps(name)}:{text}" for name, (at, text) in known.items() if at > turn]
