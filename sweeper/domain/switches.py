"""Switches of a recipe, for any optimizer and any model, and what they rule out."""

from collections.abc import Mapping
from typing import Any

COMPRESSIONS = ("bf16", "fp16", "none", "powersgd")


def gradient_span(config: Mapping[str, Any]) -> Any:
    """Examples whose mean gradient an optimizer looks at on its own; None if it needs none.

    Like the BatchNorm span it is part of what is trained, not of the layout: it fixes the
    micro-batch, so that the same statistics come from every layout [examples].
    """
    return config["optimizer"].get("gradient_span")


def check_switches(config: Mapping[str, Any]) -> None:
    """Refuse switches that are wrong or that do not go together.

    Raises:
        ValueError: in the users' words.
    """
    _check_fraction("label_smoothing", config["label_smoothing"])
    if config["ema_decay"] is not None:
        _check_fraction("ema_decay", config["ema_decay"])
    clip = config["gradient_clip"]
    if clip is not None and not (_is_number(clip) and clip > 0):
        msg = f"gradient_clip must be a number above 0, or null; got gradient_clip={clip!r}."
        raise ValueError(msg)
    for name in ("no_decay_on_norm_and_bias", "zero_init_last_norm"):
        if not isinstance(config[name], bool):
            msg = f"{name} must be true or false; got {name}={config[name]!r}."
            raise ValueError(msg)
    _check_compression(config["gradient_compression"], config["powersgd_rank"])
    _check_gradient_span(config)


def _check_compression(compression: Any, rank: Any) -> None:
    if compression not in COMPRESSIONS:
        msg = (
            f"gradient_compression must be one of {', '.join(COMPRESSIONS)}; "
            f"got gradient_compression={compression!r}."
        )
        raise ValueError(msg)
    is_given = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1
    if (compression == "powersgd") != is_given or (rank is not None and not is_given):
        msg = (
            "powersgd_rank must be a whole number, 1 or more, with gradient_compression=powersgd, "
            f"and null without it; got gradient_compression={compression}, powersgd_rank={rank!r}."
        )
        raise ValueError(msg)


def _check_gradient_span(config: Mapping[str, Any]) -> None:
    span = gradient_span(config)
    if span is None:
        return
    if not isinstance(span, int) or isinstance(span, bool) or span < 1:
        msg = (
            "optimizer.gradient_span must be a whole number of examples, 1 or more; "
            f"got optimizer.gradient_span={span!r}."
        )
        raise ValueError(msg)
    if config["micro_batch"] not in {"auto", span}:
        msg = (
            "micro_batch must be the optimizer's gradient_span, whose gradients it compares; got "
            f"micro_batch={config['micro_batch']}, optimizer.gradient_span={span}. "
            f"Leave micro_batch=auto, or set optimizer.gradient_span={config['micro_batch']}, "
            "which makes another experiment."
        )
        raise ValueError(msg)
    if config["batch"] < 2 * span:
        msg = (
            "batch must hold at least two spans of optimizer.gradient_span examples, to compare "
            f"their gradients; got batch={config['batch']}, optimizer.gradient_span={span}. "
            f"Lower optimizer.gradient_span to {max(1, config['batch'] // 2)} or less."
        )
        raise ValueError(msg)
    if config["gradient_clip"] is not None:
        msg = (
            "gradient_clip must be null with an optimizer that compares the gradients of parts of "
            f"the batch; got gradient_clip={config['gradient_clip']}. Remove gradient_clip."
        )
        raise ValueError(msg)


def _check_fraction(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 <= value < 1:
        msg = f"{name} must be a number from 0 to below 1; got {name}={value!r}."
        raise ValueError(msg)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
