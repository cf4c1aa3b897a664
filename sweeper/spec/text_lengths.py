"""Batches, lengths and intervals in tokens: read as examples before anything else sees them."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from sweeper.spec.batch import whole_steps

#: The data whose examples are sequences of `data.length` tokens.
TEXT = "lightning_modules.data.text.TextTokens"


#: What `batch_unit` counts where the words of a command give it; in files all are in examples.
_WHOLE = ("batch", "base_batch", "schedule.max_batch", "schedule.mean_batch")
_ANY = ("schedule.critical_batch", "lr_rule.noise_scale")


def batches_to_examples(given: Mapping[str, Any], typed: Collection[str]) -> dict[str, Any]:
    """A composed config whose batches that were typed with `batch_unit=tokens` are in examples.

    So both words name one run.

    Args:
        given: the config.
        typed: keys that the words of the command set.

    Raises:
        ValueError: for data whose examples have no common length, for tokens that are no whole
            examples, and if the unit and the batch are not typed together.
    """
    if given.get("batch_unit") != "tokens":
        return {**given}
    if not {"batch", "batch_unit"} <= {*typed}:
        msg = (
            "batch must be typed together with batch_unit=tokens, as batches in files are in "
            f"examples; got only {'batch_unit' if 'batch_unit' in typed else 'batch'}. Write "
            "both, or neither."
        )
        raise ValueError(msg)
    if (length := _find_length(given)) is None:
        _check_ragged(given, typed)
        return {**given}
    found: dict[str, Any] = {**given, "batch_unit": None}
    for key in (*_WHOLE, *_ANY):
        group, _, name = key.rpartition(".")
        holder = found[group] if group else found
        if key not in typed or not isinstance(holder, Mapping) or name not in holder:
            continue
        if key in _WHOLE:
            _check_whole(key, holder[name], length)
        value = _divide(holder[name], length)
        found |= {group: {**holder, name: value}} if group else {name: value}
    return found


def _check_ragged(given: Mapping[str, Any], typed: Collection[str]) -> None:
    """Refuse what is not in tokens where batches are, and examples have different lengths.

    ValueError for data whose tokens cannot be counted, too.
    """
    target = str(_find_target(given))
    rule, got, remedy = "", "", ""
    if given.get("loss_items") is None or target.startswith("lightning_modules."):
        rule = (
            "needs examples of one length, as data=text and data=python_source have by "
            "data.length, or a DataModule of your own whose tokens loss_items counts"
        )
        got, remedy = f"data._target_={target}", "Give batches in examples."
    elif "base_batch" not in typed:
        rule, got = "needs base_batch in the same command, as it is in tokens too", "none"
        remedy = "Write base_batch=TOKENS."
    else:
        others = ("evaluate_every", "checkpoint_every")
        counted = [key for key in others if type(given.get(key)) is int]
        counted += ["examples"] * (given.get("examples") is not None)
        counted += ["warmup_unit"] * (given.get("warmup_unit") == "examples")
        if counted:
            rule = "needs intervals and lengths in tokens, as its steps differ in their examples"
            got = ", ".join(f"{key}={given[key]}" for key in counted)
            remedy = "Write 50000tokens, tokens=N or warmup_unit=tokens."
    if rule:
        msg = f"batch_unit=tokens {rule}; got {got}. {remedy}"
        raise ValueError(msg)


def _check_whole(key: str, tokens: Any, length: int) -> None:
    if type(tokens) is int and tokens > 0 and tokens % length:
        below = tokens // length * length
        nearest = ", ".join(f"{key}={n}" for n in (below, below + length) if n)
        msg = (
            f"{key} must be whole examples of data.length={length} tokens with batch_unit=tokens; "
            f"got {key}={tokens}. Nearest that work: {nearest}."
        )
        raise ValueError(msg)


def _divide(tokens: Any, length: int) -> Any:
    """A number of tokens, or a list of them, in examples; anything else as it is."""
    if isinstance(tokens, list | tuple):
        return [_divide(each, length) for each in tokens]
    if type(tokens) is int and tokens % length == 0:
        return tokens // length
    return tokens / length if type(tokens) in (int, float) else tokens


def _find_target(given: Mapping[str, Any]) -> Any:
    return data.get("_target_") if isinstance(data := given.get("data"), Mapping) else None


def _find_length(given: Mapping[str, Any]) -> int | None:
    """Tokens of each example; None if that is not known."""
    length = given["data"].get("length") if _find_target(given) == TEXT else None
    return length if type(length) is int and length > 0 else None


def to_examples(given: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config with what it gives in tokens in examples, so both words name one run.

    `tokens` must be whole steps; intervals such as `50000tokens` are rounded up to a sequence.
    With `warmup_unit=tokens`, the warmup and a schedule's milestones and positions are read too.
    What is no number of tokens stays as it is, for the model of the config to refuse.

    Raises:
        ValueError: for data whose examples have no known length, or tokens that are no whole steps.
    """
    every = {
        key: int(text.removesuffix("tokens"))
        for key in ("evaluate_every", "checkpoint_every")
        if isinstance(text := given.get(key), str) and re.fullmatch(r"[1-9]\d{0,17}tokens", text)
    }
    asked = given.get("tokens")
    tokens = asked if type(asked) is int and asked > 0 and given.get("examples") is None else 0
    are_milestones = given.get("warmup_unit") == "tokens"
    if not (every or tokens or are_milestones):
        return {**given}
    length = 1 if given.get("batch_unit") == "tokens" else _find_length(given)
    if length is None:
        words = [f"tokens={tokens}"] * (tokens > 0) + [f"{key}={given[key]}" for key in every]
        words += ["warmup_unit=tokens"] * are_milestones
        msg = (
            "what counts in tokens needs data=text or data=python_source, whose sequences have "
            f"data.length tokens each; got {', '.join(words)}, "
            f"data._target_={_find_target(given)}. Give a number of examples."
        )
        raise ValueError(msg)
    found: dict[str, Any] = {key: -(-number // length) for key, number in every.items()}
    if are_milestones:
        found |= _count_in_examples(given, length)
    batch = given.get("batch")
    if tokens and type(batch) is int and batch > 0:
        steps = whole_steps(tokens, batch, tokens_per_example=length)
        found |= {"examples": steps * batch, "tokens": None}
        if lengths := given.get("trunk"):
            found["trunk"] = [each // length for each in lengths]
    return {**given, **found}


def _count_in_examples(given: Mapping[str, Any], length: int) -> dict[str, Any]:
    """What `warmup_unit` counts, in examples of this many tokens instead of tokens."""
    warmup = _divide(given.get("warmup"), length)
    found: dict[str, Any] = {"warmup_unit": "examples", "warmup": warmup}
    if isinstance(schedule := given.get("schedule"), Mapping):
        keys = [key for key in ("milestones", "positions") if key in schedule]
        found["schedule"] = {**schedule, **{k: _divide(schedule[k], length) for k in keys}}
    return found
