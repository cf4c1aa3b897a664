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
from sweeper.spec.sentences import checked
from sweeper.spec.tariff import Tariff, total_kwh
from sweeper.store.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Priced:
    """Runs and what they cost.

    Attributes:
        run_ids: of the runs.
        device_hours: None if the time of one is not known [hours].
        energy_kwh: None if it was never counted for such runs [kWh].
        cost: a currency and an amount; None without a price or a time.
    """

    run_ids: frozenset[str] = field(default=frozenset())
    device_hours: float | None = None
    energy_kwh: float | None = None
    cost: str | None = None


#: No runs.
NOTHING = Priced()


@dataclass(frozen=True)
class Prices:
    """What runs in a results folder cost.

    Attributes:
        results: the folder.
        runs: rows of its runs table.
        tariff: what things cost, as far as it is known.
    """

    results: str
    runs: pd.DataFrame
    tariff: Tariff = field(default_factory=Tariff)

    @classmethod
    def at(cls, runs: pd.DataFrame, price: str | None) -> "Prices":
        """For the folder that most of these runs are in, at the prices that they name.

        Args:
            runs: of the folder.
            price: of a device-hour, in place of theirs.

        Raises:
            ValueError: if the price is not a valid one.
        """
        given = ({k: c.settings.get(k) for k in Tariff.model_fields} for c in stored_configs(runs))
        named = next((prices for prices in given if any(prices.values())), {})
        tariff = checked(Tariff, {**named, **({} if price is None else {"price": price})})
        return cls(str(runs["results"].mode().iloc[0]), runs, tariff)

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
        energy_kwh = total_kwh(seconds and seconds.energy_kwh(ranks) for seconds, ranks in known)
        cost = self.tariff.cost(sum(hours), energy_kwh)
        return Priced(frozenset(specs), sum(hours), energy_kwh, cost)

    def have_failed(self, run_ids: frozenset[str]) -> bool:
        """Whether any of these runs has failed, and is not tried again unless asked."""
        failed = self.runs.loc[self.runs["outcome"] == Outcome.FAILED, "run_id"]
        return not run_ids.isdisjoint(failed)
