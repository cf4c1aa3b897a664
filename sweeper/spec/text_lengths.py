"""Lengths and intervals in tokens: resolved to examples before anything else reads them."""

import re
from collections.abc import Mapping
from typing import Any

from sweeper.spec.batch import whole_steps

#: The data whose examples are sequences of `data.length` tokens.
TEXT = "lightning_modules.data.text.TextTokens"


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
    data = given["data"] if isinstance(given.get("data"), Mapping) else {}
    length = data.get("length")
    if data.get("_target_") != TEXT or type(length) is not int or length < 1:
        words = [f"tokens={tokens}"] * (tokens > 0) + [f"{key}={given[key]}" for key in every]
        words += ["warmup_unit=tokens"] * are_milestones
        msg = (
            "what counts in tokens needs data=text or data=python_source, whose sequences have "
            f"data.length tokens each; got {', '.join(words)}, "
            f"data._target_={data.get('_target_')}. Give a number of examples."
        )
        raise ValueError(msg)
    found: dict[str, Any] = {key: -(-number // length) for key, number in every.items()}
    if are_milestones:
        found |= _count_in_examples(given, length)
    batch = given.get("batch")
    if tokens and type(batch) is int and batch > 0:
        steps = whole_steps(tokens, batch, tokens_per_example=length)
        found |= {"examples": steps * batch, "tokens": None}
    return {**given, **found}


def _count_in_examples(given: Mapping[str, Any], length: int) -> dict[str, Any]:
    """What `warmup_unit` counts, in examples of this many tokens instead of tokens."""

    def divide(number: Any) -> Any:
        return number / length if type(number) in (int, float) else number

    found: dict[str, Any] = {"warmup_unit": "examples", "warmup": divide(given.get("warmup"))}
    if isinstance(schedule := given.get("schedule"), Mapping):
        lists = {key: schedule.get(key) for key in ("milestones", "positions")}
        at = {
            key: [*map(divide, every)]
            for key, every in lists.items()
            if isinstance(every, list | tuple)
        }
        found["schedule"] = {**schedule, **at}
    return found
