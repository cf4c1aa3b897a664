"""Plain values read into a model, and its errors as sentences of rule, value and remedy."""

import difflib
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from sweeper.spec.values import LARGEST, NAMED, OWN, Rule

_Model = TypeVar("_Model", bound=BaseModel)


def read_model(model: type[_Model], given: Mapping[str, Any], prefix: str = "") -> _Model:
    """Read plain values into a model; `prefix` is put before the key in error messages.

    ValueError with a line for each value that is wrong, unknown or missing.
    """
    try:
        return model.model_validate(given)
    except ValidationError as refused:
        lines = [prefix + sentence for sentence in _sentences(refused, given, model)]
        raise ValueError("\n".join(lines)) from None


def check_complete(config: Any) -> None:
    """Refuse a composed config in which a value is still missing: `???`.

    ValueError naming all of them.
    """
    if missing := list(missing_keys(config)):
        words = " ".join(f"{key}=VALUE" for key in missing)
        msg = f"{', '.join(missing)} must be given. Write {words}."
        raise ValueError(msg)


def missing_keys(config: Any, path: str = "") -> Iterator[str]:
    """The keys of a plain config without a value."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from missing_keys(value, f"{path}{key}.")
        elif value == "???":
            yield f"{path}{key}"


def printable(text: str) -> str:
    """A line of text without the characters that a terminal would interpret."""
    return "".join(c if c.isprintable() else "?" for c in text)


def several(number: int, noun: str) -> str:
    """A count and its noun: `1 run`, `3,000 runs`, `2 studies`, `4 batches`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number:,} {noun.removesuffix('y')}ies"
    return f"{number:,} {noun}{'e' * noun.endswith(('tch', 'nch'))}s"


def is_same_value(text: str, other: str) -> bool:
    """Whether two texts mean the same value."""
    try:
        return float(text) == float(other)
    except ValueError:
        return text == other


def _sentences(
    refused: ValidationError, given: Mapping[str, Any], model: type[BaseModel]
) -> list[str]:
    """A sentence for each key that was refused, in the order of the model."""
    found: dict[str, str] = {}
    errors = refused.errors(include_url=False, include_context=False)
    of_places = {tuple(p for p in e["loc"] if isinstance(p, str)): e for e in reversed(errors)}
    for error in reversed(
        of_places.values()
    ):  # an error per key: a long list has an error per item
        key, holder, annotation = _place(error["loc"], given, model)
        if error["type"] == "extra_forbidden":
            sentence = _unknown(key, given, holder)
        elif error["type"] == "invalid_key":
            key, name = key.rsplit(".", 1) if "." in key else ("a config", key)
            sentence = _wrong_name(key, name)
        elif error["type"] == "missing":
            sentence = f"{key} must be given. Write {key}=VALUE."
            group = given.get(key.removesuffix("._target_"))
            if isinstance(group, Mapping) and "class_path" in group:
                path = group["class_path"]
                sentence = (
                    f"{key} must be given. Rename LightningCLI's class_path: {path} to _target_: "
                    f"{path}, and move its init_args next to it, at every level."
                )
        else:
            sentence = _wrong(key, _value(given, key), annotation)
        found.setdefault(key, sentence)
    return list(found.values())


def _wrong(key: str, value: Any, annotation: Any) -> str:
    if len(models := union_models(annotation)) > 1:
        value = value["name"] if isinstance(value, Mapping) and "name" in value else value
        text, choices = f"one of {', '.join(sorted(set(models) - {OWN}))}", list(models)
        remedy = f" Name a function of your own with {key}.{OWN}." if OWN in models else ""
    else:
        rule, choices = _rule(annotation), _choices(annotation)
        text, remedy = rule.text, f" {rule.remedy}" if rule.remedy else ""
    if isinstance(value, str) and "a string" in text:
        text += ", at most 4096 characters of Unicode"
    if text.startswith(("a number", "a whole number")) and (values := grid_values(value)):
        remedy += f" Write {key}={values} for a run at each."
    if isinstance(value, int) and "number" in text and value > (most := _rule(annotation).most):
        text += f", and at most {most}"
        text += ", the largest that a table holds" * (most == LARGEST)
    hint = "" if value in choices else did_you_mean(str(value), choices, f"{key}=")
    return f"{key} must be {text}; got {key}={format_value(value)}.{hint and f' {hint}'}{remedy}"


def _unknown(key: str, given: Mapping[str, Any], holder: type[BaseModel]) -> str:
    group, dot, name = key.rpartition(".")
    if group not in given:  # the name has a dot
        group, dot, name = "", "", key
    known = [field.alias or name for name, field in holder.model_fields.items()]
    known = [name for name in known if name != "name"]
    what = f"a setting of {group}={given[group].get('name')}" if group else "a config key"
    settings = f"Its settings: {', '.join(known)}." if known else "It has no settings."
    hint = did_you_mean(name, known, f"{group}{dot}") or settings
    return f"{key} must be {what}; got {key}={format_value(_value(given, key))}. {hint}"


def _place(
    loc: Sequence[int | str], given: Mapping[str, Any], model: type[BaseModel]
) -> tuple[str, type[BaseModel], Any]:
    """The key as users write it, the model that it is in, and the annotation of its field."""
    key, *inside = [str(part) for part in loc if part != NAMED]
    hints = get_type_hints(model, include_extras=True)
    models = union_models(hints.get(key))
    if len(models) > 1:
        inside = inside[1:]  # the choice
    if not inside or not models:
        return key, model, hints.get(key)
    group = given[key]
    is_own = OWN in models and (OWN in group or len(models) == 1)
    holder = models[OWN if is_own else group["name"]]
    names = {field.alias or name: name for name, field in holder.model_fields.items()}
    hints = get_type_hints(holder, include_extras=True)
    return f"{key}.{inside[0]}", holder, hints.get(names.get(inside[0], ""))


def union_models(annotation: Any) -> dict[str, type[BaseModel]]:
    """The models that a group may be, by name; a model without a name is for users' functions."""
    models = [part for part in _leaves(annotation) if isinstance(part, type)]
    return {
        next(iter(_choices(model.__annotations__.get("name"))), OWN): model
        for model in models
        if issubclass(model, BaseModel)
    }


def _rule(annotation: Any) -> Rule:
    """What a value of a type must be: its rules, then its literal choices, then null."""
    rules = [part for part in _leaves(annotation) if isinstance(part, Rule)]
    words, texts = _choices(annotation), [rule.text for rule in rules]
    if words:
        is_choice = len(words) > 1 and not rules
        texts.append(f"one of {', '.join(words)}" if is_choice else " or ".join(words))
    if not texts and union_models(annotation):
        texts.append("a group")
    if type(None) in _leaves(annotation):
        texts.append("null")
    remedy, most = "".join(rule.remedy for rule in rules), [rule.most for rule in rules]
    return Rule(", or ".join(texts) or "a group", remedy, min(most, default=LARGEST))


def _choices(annotation: Any) -> list[str]:
    return [part for part in _leaves(annotation) if isinstance(part, str)]


def _leaves(annotation: Any) -> list[Any]:
    """The rules, literal choices and plain types that an annotation consists of."""
    parts, origin = get_args(annotation), get_origin(annotation)
    if origin is Annotated:
        return [part for part in parts if isinstance(part, Rule)] or _leaves(parts[0])
    if origin is Literal:
        return list(parts)
    if origin in (Union, types.UnionType):
        return [leaf for part in parts for leaf in _leaves(part)]
    return [annotation]


def did_you_mean(word: str, known: Sequence[str], before: str = "") -> str:
    """A question naming a known word that starts with this word or resembles it; empty if none."""
    words, low = {other.lower(): other for other in known}, word.lower()
    begin_so = [other for other in words if low and other.startswith(low)]
    meant = begin_so or difflib.get_close_matches(low, words, n=1)
    return f"Did you mean {before}{words[meant[0]]}?" if meant else ""


def grid_values(value: Any) -> str:
    """The numbers of a list, or of a text meant as a list, in the syntax of a grid; else empty."""
    parts = value if isinstance(value, list) else re.split(r"[\s,;|]+", str(value).strip("()[]{}"))
    texts = [str(part) for part in parts]
    are_numbers = all(re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) for text in texts)
    return ",".join(texts) if len(texts) > 1 and are_numbers else ""


def _value(given: Any, key: str) -> Any:
    for name in key.split("."):
        given = given.get(name) if isinstance(given, Mapping) else None
    return given


def format_value(value: Any) -> str:
    """A value as users would write it in a config."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def find_unstorable(node: Any, key: str = "") -> Iterator[str]:
    """A sentence for each value, at any depth, that no table or file can hold."""
    if isinstance(node, int | float):
        if not abs(node) <= (LARGEST if isinstance(node, int) else sys.float_info.max):
            yield f"{key} must be a finite number, at most {LARGEST} if whole; got {key}={node}."
    elif isinstance(node, Mapping):
        for name, value in node.items():
            if not isinstance(name, str):
                yield _wrong_name(key, name)
            elif value is not None and not isinstance(value, str):
                yield from find_unstorable(value, f"{key}.{name}" if key else name)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from find_unstorable(value, key)


def _wrong_name(key: str, name: Any) -> str:
    return f"{key} must have names as keys; got {name}. Quote it."
