"""What proposed runs cost, from what runs of their kind took in the same results folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.decide.command import Config
from analysis.tables.configs import stored_configs
from sweeper.planning.seconds import Speeds
from sweeper.spec.memory import Device
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import RunSpec, stored_run_spec
from sweeper.spec.sentences import checked
from sweeper.spec.values import Money, Settings
from sweeper.store.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Priced:
    """Runs and what they cost.

    Attributes:
        run_ids: of the runs.
        device_hours: None if the time of one is not known [hours].
        cost: a currency and an amount; None without a price or a time.
    """

    run_ids: frozenset[str] = field(default=frozenset())
    device_hours: float | None = None
    cost: str | None = None


class _Given(Settings):
    price: Money


#: No runs.
NOTHING = Priced()


@dataclass(frozen=True)
class Prices:
    """What runs in a results folder cost.

    Attributes:
        results: the folder.
        runs: rows of its runs table.
        price: of a device-hour, such as EUR:2.50; None if it is not known.
    """

    results: str
    runs: pd.DataFrame
    price: str | None = None

    @classmethod
    def at(cls, runs: pd.DataFrame, price: str | None) -> "Prices":
        """Of the folder that most of these runs are in, at a price or at the one that they name.

        Raises:
            ValueError: if the price is none.
        """
        if price is None:
            named = (config.settings.get("price") for config in stored_configs(runs))
            return cls(str(runs["results"].mode().iloc[0]), runs, next(filter(None, named), None))
        checked(_Given, {"price": price})
        return cls(str(runs["results"].mode().iloc[0]), runs, price)

    @cached_property
    def _speeds(self) -> Speeds:
        kinds = self.runs["device_kind"].dropna()
        kind = str(kinds.mode().iloc[0]) if len(kinds) else "cpu"
        return Speeds(Ledger(Path(self.results)), Device(kind=kind))

    def of(self, configs: Sequence[Config]) -> Priced:
        """What these runs cost."""
        specs = {spec.run_id: spec for spec in map(stored_run_spec, configs)}
        hours = [self._hours(spec) for spec in specs.values()]
        if None in hours:
            return Priced(frozenset(specs))
        total = sum(one for one in hours if one is not None)
        return Priced(frozenset(specs), total, self._money(total))

    def have_failed(self, run_ids: frozenset[str]) -> bool:
        """Whether any of these runs has failed, and is not tried again unless asked."""
        failed = self.runs.loc[self.runs["outcome"] == Outcome.FAILED, "run_id"]
        return not run_ids.isdisjoint(failed)

    def _hours(self, spec: RunSpec) -> float | None:
        seconds = self._speeds.of(spec)
        return seconds and seconds.total * spec.split.world_size / 3600

    def _money(self, hours: float) -> str | None:
        if self.price is None:
            return None
        currency, of_an_hour = self.price.split(":")
        return f"{currency}:{hours * float(of_an_hour):.2f}"
