"""``lr_rule.noise_scale=measured``: the noise scale that an earlier run in the folder measured."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from sweeper.store.ledger import Ledger


def measured_in(ledger: Ledger) -> Callable[[str], float]:
    """A function that gives the noise scale measured by a run, by id; each is looked up once.

    Raises:
        ValueError: by that function, if the run has measured none.
    """

    @cache
    def noise_scale(run_id: str) -> float:
        row = ledger.rows({run_id}, ["noise_scale"]).get(run_id) if run_id else None
        if row is None or row["noise_scale"] is None:
            msg = (
                "lr_rule.noise_scale=measured needs lr_rule.measured_in, a run in "
                f"{ledger.results} that has ended and measured its noise; got lr_rule.measured_in="
                f"{run_id or None}. Train one with noise_span=... and write "
                "+lr_rule.measured_in=RUN_ID."
            )
            raise ValueError(msg)
        return row["noise_scale"]

    return noise_scale


def with_measured_noise(
    config: Mapping[str, Any], noise_of: Callable[[str], float]
) -> Mapping[str, Any]:
    """The config with `measured` replaced by the number.

    The number is part of the run's identity; the run that measured it is not.
    """
    rule = config.get("lr_rule")
    if not isinstance(rule, dict) or rule.get("noise_scale") != "measured":
        return config
    measured = {**rule, "noise_scale": noise_of(str(rule.get("measured_in") or ""))}
    return {**config, "lr_rule": measured}
