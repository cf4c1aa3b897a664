"""Switches of a recipe, for any optimizer and any model, and what they rule out."""

from collections.abc import Mapping
from typing import Any

from sweeper.spec.gradient_noise import noise_span

COMM_HOOKS = ("all_reduce", "bf16", "fp16", "hierarchical", "post_local_sgd", "powersgd")
NCCL_ALGORITHMS = ("ring", "tree")
PERTURBATIONS = ("none", "sam")


def gradient_span(config: Mapping[str, Any]) -> Any:
    """Examples whose mean gradient a method looks at on its own; None if none does.

    Like the BatchNorm span it is part of what is trained, not of the layout: it fixes the
    micro-batch, so that the same statistics come from every layout [examples].
    """
    return next(iter(_spans(config).values()), None)


def _spans(config: Mapping[str, Any]) -> dict[str, Any]:
    """What looks at gradients of parts of the batch, by config key, and at how many examples."""
    noise_key = "base_batch" if config.get("noise_span") is None else "noise_span"
    asked = {
        "optimizer.gradient_span": config["optimizer"].get("gradient_span"),
        "perturbation.gradient_span": config["perturbation"].get("gradient_span"),
        noise_key: noise_span(config),
    }
    return {key: span for key, span in asked.items() if span is not None}


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
    _check_choice("comm_hook", config["comm_hook"], COMM_HOOKS)
    _check_choice("perturbation", config["perturbation"], PERTURBATIONS)
    if spans := _spans(config):
        _check_spans(spans, config)
    _check_nccl(config)
    if config["comm_hook"]["name"] == "hierarchical":
        _check_hierarchy(config)
    if config["comm_hook"]["name"] == "post_local_sgd":
        _check_local_steps(config)


def _check_choice(group: str, chosen: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if chosen["name"] not in known:
        msg = f"{group} must be one of {', '.join(known)}; got {group}={chosen['name']!r}."
        raise ValueError(msg)
    for name, lowest in _LEAST:
        value = chosen.get(name, lowest)
        if not _is_count(value, lowest):
            msg = (
                f"{group}.{name} must be a whole number, {lowest} or more; "
                f"got {group}.{name}={value!r}."
            )
            raise ValueError(msg)
    rho = chosen.get("rho", 1)
    if not (_is_number(rho) and rho > 0):
        msg = f"{group}.rho must be a number above 0; got {group}.rho={rho!r}."
        raise ValueError(msg)


_LEAST = (
    ("rank", 1),
    ("start_step", 2),
    ("workers", 1),
    ("local_steps", 1),
    ("ranks_per_node", 1),
)


def _check_nccl(config: Mapping[str, Any]) -> None:
    algorithm = config["comm_hook"].get("nccl_algo")
    if algorithm is None:
        return
    if algorithm not in NCCL_ALGORITHMS:
        msg = (
            f"comm_hook.nccl_algo must be one of {', '.join(NCCL_ALGORITHMS)}, or null; "
            f"got comm_hook.nccl_algo={algorithm!r}."
        )
        raise ValueError(msg)
    if config["accelerator"] == "cpu":
        msg = (
            "comm_hook.nccl_algo must be null on CPUs, where gloo exchanges gradients by its own "
            f"ring; got comm_hook.nccl_algo={algorithm}, accelerator=cpu. Remove it."
        )
        raise ValueError(msg)


def _check_hierarchy(config: Mapping[str, Any]) -> None:
    ranks, on_node = config["devices"] * config["num_nodes"], config["comm_hook"]["ranks_per_node"]
    if ranks > on_node and ranks % on_node:
        msg = (
            "comm_hook.ranks_per_node must divide devices x num_nodes, so that all nodes are "
            f"alike; got comm_hook.ranks_per_node={on_node}, {ranks} ranks. Usually it is devices."
        )
        raise ValueError(msg)


def _check_local_steps(config: Mapping[str, Any]) -> None:
    hook = config["comm_hook"]
    ranks = config["devices"] * config["num_nodes"]
    if ranks != hook["workers"]:
        msg = (
            "devices x num_nodes must be comm_hook.workers, each of which trains on its own; got "
            f"devices={config['devices']}, num_nodes={config['num_nodes']}, "
            f"comm_hook.workers={hook['workers']}. Train on {hook['workers']} ranks."
        )
        raise ValueError(msg)
    if not _is_number(hook["start_epoch"]) or hook["start_epoch"] < 0:
        msg = (
            "comm_hook.start_epoch must be a number of epochs, 0 or more; "
            f"got comm_hook.start_epoch={hook['start_epoch']!r}."
        )
        raise ValueError(msg)
    beside = {
        "ema_decay": config["ema_decay"] is not None,
        "precision": config["precision"] == "16-mixed",
        "optimizer": "gradient_span" in config["optimizer"],
        "noise_span": noise_span(config) is not None,
    }
    if any(beside.values()):
        names = ", ".join(name for name, is_set in beside.items() if is_set)
        msg = (
            "comm_hook=post_local_sgd must be without what keeps one state for all ranks: "
            "ema_decay, precision=16-mixed, optimizers with a gradient_span, "
            "a measured noise (noise_span); "
            f"got a setting of {names}. Remove it, or use comm_hook=all_reduce."
        )
        raise ValueError(msg)


def _check_spans(spans: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    (key, span), *others = spans.items()
    for name, value in spans.items():
        if not _is_count(value, 1):
            msg = f"{name} must be a whole number of examples, 1 or more; got {name}={value!r}."
            raise ValueError(msg)
    for other, value in others:
        if value != span:
            msg = (
                f"{other} must be {key}, of which gradients are looked at already; got "
                f"{other}={value}, {key}={span}. Set both to one number."
            )
            raise ValueError(msg)
    if config["micro_batch"] not in {"auto", span}:
        msg = (
            f"micro_batch must be {key}, whose gradients are looked at one by one; got "
            f"micro_batch={config['micro_batch']}, {key}={span}. Leave micro_batch=auto, or set "
            f"{key}={config['micro_batch']}, which makes another experiment."
        )
        raise ValueError(msg)
    if compared := [name for name in spans if not name.startswith("perturbation")]:
        _check_comparable(compared[0], span, config)


def _check_comparable(key: str, span: int, config: Mapping[str, Any]) -> None:
    if config["batch"] < 2 * span:
        lower = "noise_span" if key == "base_batch" else key
        msg = (
            f"batch must hold at least two spans of {key} examples, to compare "
            f"their gradients; got batch={config['batch']}, {key}={span}. "
            f"Set {lower} to {max(1, config['batch'] // 2)} or less."
        )
        raise ValueError(msg)
    if config["gradient_clip"] is not None and key == "optimizer.gradient_span":
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


def _is_count(value: Any, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= lowest
