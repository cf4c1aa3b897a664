"""Which runs can be the same to the last bit on any number of ranks."""

from collections.abc import Mapping
from typing import Any

from sweeper.spec.gradient_noise import noise_span


def check_reproducible(config: Mapping[str, Any]) -> None:
    """Refuse `reproducible=true` where it cannot be had.

    Raises:
        ValueError: in the users' words.
    """
    asked = config.get("reproducible")  # younger than some results folders
    if asked is not None and not isinstance(asked, bool):
        msg = f"reproducible must be true or false; got reproducible={asked!r}."
        raise ValueError(msg)
    if not asked:
        return
    if config["micro_batch"] == "auto":
        msg = (
            "micro_batch must be a number with reproducible=true, the same on every layout, as it "
            "changes the last bits; got micro_batch=auto. Set micro_batch."
        )
        raise ValueError(msg)
    beside = {
        f"comm_hook={config['comm_hook']['name']}": config["comm_hook"]["name"] != "all_reduce",
        "precision=16-mixed": config["precision"] == "16-mixed",
        f"optimizer={config['optimizer']['name']}": "gradient_span" in config["optimizer"],
        "a measured noise scale": noise_span(config) is not None,
    }
    if any(beside.values()):
        names = ", ".join(name for name, is_set in beside.items() if is_set)
        msg = (
            "reproducible=true must be without what ranks exchange in another order or rounding: "
            "a compressed or local communication hook, the loss scale of 16-mixed, methods that "
            f"compare micro-batches; got {names}. Remove it, or reproducible=true."
        )
        raise ValueError(msg)
