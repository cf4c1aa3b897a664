"""What proposed runs cost, from what runs of their kind took in the same results folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.decide.command import Config
from analysis.tables.configs import stored_configs
from sweeper.planning.seconds import Speeds
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_memory import Device
from sweeper.spec.run_spec import stored_run_spec
from sweeper.store.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Priced:
    """Runs and what they cost.

    Attributes:
        run_ids: of the runs.
        device_hours: None if the time of one is not known [hours].
        cost: device-hours times the price of one; None without a price or a time.
    """

    run_ids: frozenset[str] = field(default=frozenset())
    device_hours: float | None = None
    cost: float | None = None


#: No runs.
NOTHING = Priced()


@dataclass(frozen=True)
class Prices:
    """What runs in a results folder cost.

    Attributes:
        results: the folder.
        runs: rows of its runs table.
        price: of a device-hour; None if not known.
    """

    results: str
    runs: pd.DataFrame
    price: float | None = None

    @classmethod
    def at(cls, runs: pd.DataFrame, price: float | None) -> "Prices":
        """For the folder that most of these runs are in, at the prices that they name.

        Args:
            runs: of the folder.
            price: of a device-hour, in place of theirs.
        """
        if price is None:
            given = (config.settings.get("price") for config in stored_configs(runs))
            price = next((found for found in given if isinstance(found, int | float)), None)
        return cls(str(runs["results"].mode().iloc[0]), runs, price)

    @cached_property
    def _speeds(self) -> Speeds:
        kinds = self.runs["device_kind"].dropna()
        kind = str(kinds.mode().iloc[0]) if len(kinds) else "cpu"
        return Speeds(Ledger(Path(self.results)), Device(kind=kind))

    def of(self, configs: Sequence[Config]) -> Priced:
        """What these runs cost."""
        specs = {spec.run_id: spec for spec in map(stored_run_spec, configs)}
        known = [(self._speeds.of(spec), spec.split.world_size) for spec in specs.values()]
        hours = [seconds.total * ranks / 3600 for seconds, ranks in known if seconds]
        if len(hours) < len(known):
            return Priced(frozenset(specs))
        cost = sum(hours) * self.price if self.price else None
        return Priced(frozenset(specs), sum(hours), cost)

    def have_failed(self, run_ids: frozenset[str]) -> bool:
        """Whether any of these runs has failed, and is not tried again unless asked."""
        failed = self.runs.loc[self.runs["outcome"] == Outcome.FAILED, "run_id"]
        return not run_ids.isdisjoint(failed)
