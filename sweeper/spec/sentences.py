"""Errors in a config, as sentences of rule, value and remedy."""

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Tag, ValidationError

from sweeper.spec.values import LARGEST, OWN, Rule

_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], given: Mapping[str, Any], prefix: str = "") -> _Model:
    """Read plain values.

    Args:
        model: what they are to become.
        given: the values by key.
        prefix: goes before the key in a refusal.

    Raises:
        ValueError: with a line for each value that is wrong, unknown or missing.
    """
    try:
        return model.model_validate(given)
    except ValidationError as refused:
        lines = [prefix + sentence for sentence in _sentences(refused, given, model)]
        raise ValueError("\n".join(lines)) from None


def _sentences(
    refused: ValidationError, given: Mapping[str, Any], model: type[BaseModel]
) -> list[str]:
    """A sentence for each key that was refused, in the order of the model."""
    found: dict[str, str] = {}
    for error in refused.errors(include_url=False, include_context=False):
        key, annotation = _field(error["loc"], model)
        if error["type"] == "extra_forbidden":
            sentence = _unknown(error["loc"], given, model)
        elif error["type"] == "missing":
            sentence = f"{key} must be given; write {key}=VALUE."
        else:
            sentence = _wrong(key, _value(given, key), annotation)
        found.setdefault(key, sentence)
    return list(found.values())


def _wrong(key: str, value: Any, annotation: Any) -> str:
    if variants := _variants(annotation):
        value = value.get("name") if isinstance(value, Mapping) else value
        text, choices = _one_of(sorted(set(variants) - {OWN})), list(variants)
        remedy = f" Name a function of your own with {key}.{OWN}." if OWN in variants else ""
    else:
        rule, choices = _rule(annotation), _choices(annotation)
        text, remedy = rule.text, f" {rule.remedy}" if rule.remedy else ""
    if isinstance(value, int) and abs(value) > LARGEST:
        text += f", and at most {LARGEST}, the largest that a table holds"
    close = _close(str(value), choices)
    hint = f" Did you mean {key}={close}?" if close and value not in choices else ""
    return f"{key} must be {text}; got {key}={_as_typed(value)}.{hint}{remedy}"


def _unknown(loc: Sequence[int | str], given: Mapping[str, Any], model: type[BaseModel]) -> str:
    *outer, name = loc
    group, inside = (model, "") if not outer else (_model(outer, model), f"{outer[0]}.")
    known = [field.alias or name for name, field in group.model_fields.items()]
    known = [name for name in known if name != "name"]
    choice = f" of {outer[0]}={_value(given, str(outer[0])).get('name')}" if outer else ""
    if close := _close(str(name), known):
        hint = f"Did you mean {inside}{close}?"
    else:
        hint = f"Its settings: {', '.join(known)}." if known else "It has no settings."
    key = f"{inside}{name}"
    what = f"a setting{choice}" if outer else "a config key"
    return f"{key} must be {what}; got {key}={_as_typed(_value(given, key))}. {hint}"


def _field(loc: Sequence[int | str], model: type[BaseModel]) -> tuple[str, Any]:
    """The key as users write it, and the annotation of its field, if it has one."""
    hints = get_type_hints(model, include_extras=True)
    annotation = hints.get(str(loc[0]))
    inside = [part for part in loc[1:] if part not in _variants(annotation)]
    if not inside or not (group := _model(loc, model)):
        return str(loc[0]), annotation
    aliases = {field.alias or name: name for name, field in group.model_fields.items()}
    name = aliases.get(str(inside[0]), "")
    return f"{loc[0]}.{inside[0]}", get_type_hints(group, include_extras=True).get(name)


def _model(loc: Sequence[int | str], model: type[BaseModel]) -> Any:
    """The model of the group that a location leads into."""
    annotation = get_type_hints(model, include_extras=True).get(str(loc[0]))
    if variants := _variants(annotation):
        return variants.get(str(loc[1])) if len(loc) > 1 else None
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    )


def _variants(annotation: Any) -> dict[str, Any]:
    """The models of a tagged union by their tags."""
    return {
        part.tag: get_args(member)[0]
        for member in _members(annotation)
        for part in get_args(member)[1:]
        if isinstance(part, Tag)
    }


def _rule(annotation: Any) -> Rule:
    """What a value of a type must be: its rule, then its words, then null."""
    rules = [part for part in _leaves(annotation) if isinstance(part, Rule)]
    words, texts = _choices(annotation), [rule.text for rule in rules]
    if words:
        texts.append(_one_of(words) if not rules else " or ".join(words))
    if type(None) in _leaves(annotation):
        texts.append("null")
    return Rule(", or ".join(texts) or "a group", "".join(rule.remedy for rule in rules))


def _choices(annotation: Any) -> list[str]:
    return [part for part in _leaves(annotation) if isinstance(part, str)]


def _leaves(annotation: Any) -> list[Any]:
    """The rules, words and plain types that an annotation is made of."""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return [part for part in metadata if isinstance(part, Rule)] or list(_leaves(inner))
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    members = _members(annotation)
    return [leaf for part in members for leaf in _leaves(part)] if members else [annotation]


def _members(annotation: Any) -> Iterable[Any]:
    """The members of a union; none if it is not one."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()


def _close(word: str, known: Sequence[str]) -> str | None:
    """The known word that was perhaps meant: one that begins so, or looks like it."""
    begin_so = [other for other in known if other.startswith(word)]
    return next(iter(begin_so or difflib.get_close_matches(word, known, n=1)), None)


def _one_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def _value(given: Any, key: str) -> Any:
    for name in key.split("."):
        given = given.get(name) if isinstance(given, Mapping) else None
    return given


def _as_typed(value: Any) -> str:
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else repr(value)
