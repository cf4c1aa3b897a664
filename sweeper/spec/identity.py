"""A run's identity: a hash of its scientific configuration, and that configuration as text.

`config.py` says which keys are scientific. Pure: no clock, no disk, no cluster.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeper.spec.config import Scientific, is_ours, target_name
from sweeper.spec.sentences import printable
from sweeper.spec.trainer_settings import INCIDENTAL_OF_TRAINER, changing_callbacks

#: Keys of a group that cannot change a result: where files are, how they are read. In other
#: groups, such as a user's own module, every argument counts, whatever its name.
INCIDENTAL: Mapping[str, frozenset[str]] = {
    "data": frozenset({"root", "download", "num_workers", "about"})
    | {"batch_size", "data_dir", "persistent_workers", "pin_memory", "prefetch_factor"},
    "lr_rule": frozenset({"measured_in", "measured_at"}),
    "schedule": frozenset({"measured_in", "margin"}),
    "comm_hook": frozenset({"nccl_algo"}),
    "trainer": INCIDENTAL_OF_TRAINER,
}

#: Integral floats below this are written as integers, larger floats in the form 1e+20.
_LARGEST_EXACT = 1e15
#: Keys whose value `micro` means that a micro-batch is processed together, so its size matters.
MICRO = ("bn_span", "loss_span")
_SCIENTIFIC = frozenset(Scientific.model_fields)

#: By dotted key: the value as text, and the choices of the config groups that contain the key.
Words = Mapping[str, tuple[str, tuple[str, ...]]]
_Leaf = tuple[str, tuple[str, tuple[str, ...]]]


def run_id(config: Mapping[str, Any]) -> str:
    """Hash of the scientific part of a resolved config: 12 hexadecimal digits.

    Stable across processes, key order and number formats (``0.1`` and ``1e-1``, ``5`` and ``5.0``).
    Arguments passed on to a user's class or to Lightning are hashed as given, since there ``1`` may
    mean a single batch and ``1.0`` all of them.

    Args:
        config: the resolved config, as returned by `with_spans`.
    """
    return _digest(scientific_part(config))


def with_spans(config: Mapping[str, Any], micro_batch: int, ranks: int) -> dict[str, Any]:
    """A resolved config with `micro` replaced by the number of examples processed together.

    `loss_span` includes the ranks, as in `2x32`: a loss that is not a mean may gather over ranks,
    and a running average over micro-batches sees only those of its own rank.
    """
    spans: dict[str, Any] = {key: micro_batch for key in MICRO if config.get(key) == "micro"}
    if ranks > 1 and "loss_span" in spans:
        spans["loss_span"] = f"{ranks}x{micro_batch}"
    return {**config, **spans}


#: Keys that affect training only through the rates and settings derived from them, unless the run
#: measures gradient noise.
_RATE_KEYS = (
    "lr_rule", "wd_rule", "ema_rule", "warmup", "warmup_start", "warmup_workers", "base_lr",
    "base_batch",
)  # fmt: skip


def lr_equivalence_id(config: Mapping[str, Any], rates: Any) -> str:
    """Hash of everything that training depends on, with its learning rates instead of their keys.

    Args:
        config: as for `run_id`.
        rates: a few values that determine the learning rate at every step.
    """
    kept = scientific_part(config)
    rest = {key: value for key, value in kept.items() if key not in _RATE_KEYS}
    return _digest([rest, _canonical(rates)])


def targets(node: Any) -> Iterator[str]:
    """The dotted paths in a resolved config: every `_target_`, and the function in `loss_items`."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            is_function = key == "loss_items" and "." in str(value)
            if (key == "_target_" or is_function) and isinstance(value, str):
                yield value
            elif isinstance(value, dict | list | tuple):
                yield from targets(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from targets(value)


def _digest(settings: Any) -> str:
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def scientific_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Only the scientific keys, without the incidental keys inside groups.

    These are known names, callbacks that only show or save, and those that the key `incidental`
    names.
    A key that is null, false or empty counts as absent, so that a switch added later, off by
    default, does not change the identity of earlier runs.
    """
    # The classifier's keys do not count with a user's module, and `module` not without it.
    is_classifier = "module" not in config or is_ours(config["module"]["_target_"])
    unread = {"module"} if is_classifier else {"model", "label_smoothing", "zero_init_last_norm"}
    kept = {
        key: _without_incidental(key, value) if isinstance(value, dict) else _canonical(value)
        for key, value in config.items()
        if key in _SCIENTIFIC and key not in unread
    }
    for path in config.get("incidental") or ():
        kept = _without_path(kept, path.split("."))
    return {
        key: value
        for key, value in kept.items()
        if value is not None and value is not False and value != {}
    }


def words(config: Mapping[str, Any]) -> Words:
    """The scientific settings by dotted key, as users would type them.

    Args:
        config: as for `run_id`.
    """
    kept = scientific_part(config)
    leaves = (leaf for key, value in kept.items() for leaf in _leaves(key, value, ()))
    off = {k: v for k, v in config.items() if k not in kept and k in _SCIENTIFIC}
    switched_off = {key: (_text(v), ()) for key, v in off.items() if v is None or v is False}
    return {**dict(leaves), **switched_off}


def _without_path(group: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    first, *rest = path
    inner = group.get(first)
    if rest and isinstance(inner, dict):
        return {**group, first: _without_path(inner, rest)}
    return {key: value for key, value in group.items() if rest or key != first}


def _without_incidental(name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    incidental = INCIDENTAL.get(name, frozenset())
    if name in ("lr_rule", "schedule") and "_target_" in group:  # the user's own arguments
        incidental = frozenset()
    if name == "trainer" and "callbacks" in group:
        group = {**group, "callbacks": changing_callbacks(group["callbacks"])}
        incidental = incidental | {"callbacks"} if not group["callbacks"] else incidental
    is_read = name == "optimizer" or (name != "trainer" and _is_read(group))
    spelled = {key: _canonical(value) if is_read else value for key, value in group.items()}
    kept = {key: value for key, value in spelled.items() if key not in incidental}
    # Our classes are identified by name, so that files may move; all others by import path.
    if is_ours(str(kept.get("_target_", ""))):
        kept["_target_"] = kept["_target_"].rpartition(".")[2]
    return kept


def _canonical(value: Any) -> Any:
    """A value with a single spelling per number, if we read it: whole floats become integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _LARGEST_EXACT else value
    if isinstance(value, dict):
        return {k: _canonical(item) for k, item in value.items()} if _is_read(value) else value
    return [_canonical(item) for item in value] if isinstance(value, list | tuple) else value


def _is_read(group: Mapping[str, Any]) -> bool:
    """Whether we read its settings, rather than passing them on to a user's class."""
    return is_ours(str(group.get("_target_", "sweeper.")))


def _leaves(path: str, value: Any, choices: tuple[str, ...]) -> Iterator[_Leaf]:
    if not isinstance(value, Mapping):
        yield path, (_text(value), choices)
        return
    target = str(value.get("_target_", ""))
    is_object = path in {"data", "model", "module"}
    name = value.get("name") or (target_name(target) if is_object else target.rpartition(".")[2])
    if name:
        yield path, (_text(name), choices)
        choices = (*choices, f"{path}={name}")
    for key, item in value.items():
        if key != "name":
            yield from _leaves(f"{path}.{key}", item, choices)


def _text(value: Any) -> str:
    """A value as users would type it."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return printable(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
