"""Checks settings against the signatures that receive them, read from sources: no import."""

import ast
import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sweeper.spec.config import Component, is_ours
from sweeper.spec.sentences import as_typed, did_you_mean

#: Arguments that a run passes in addition to the settings: how many by position, which by name.
_GIVEN = {"data": (0, ()), "model": (2, ()), "optimizer": (1, ("lr",))}
#: Annotations of our own classes' settings, as rules.
_RULES = {
    "int": "a whole number, 0 or more",
    "Count": "a whole number, 1 or more",
    "float": "a number",
    "NotNegative": "a number, 0 or more",
    "Positive": "a number above 0",
    "str": "a string",
    "bool": "true or false",
    "Sequence[Count]": "a list of whole numbers, 1 or more",
    "Sequence[float]": "a list of numbers",
    "Mapping[str, Any]": "a group",
}
_WHOLE = ("int", "Count")
_LEAST = {"int": 0, "Count": 1, "float": -math.inf, "NotNegative": 0, "Positive": math.ulp(0.0)}
_MOST_HOPS = 3


def check_settings(groups: Iterable[tuple[str, Component]]) -> None:
    """Refuse settings that a class or function does not take, and for ours, values of a wrong type.

    Args:
        groups: key and component of data, models and optimizers.

    Raises:
        ValueError: with a line of key, value and remedy for each.
    """
    mistakes = dict.fromkeys(text for key, group in groups for text in _mistakes(key, group))
    if mistakes:
        raise ValueError("\n".join(mistakes))


def _mistakes(key: str, group: Component) -> list[str]:
    settings = _parameters(group.target)
    if settings is None or (key == "data" and not is_ours(group.target)):
        return []
    positional, by_name = _GIVEN[key]
    names = dict(list(settings.annotations.items())[positional:])
    known = [name for name in names if name not in by_name]
    path, _, what = group.target.rpartition(".")
    what = what if is_ours(group.target) else f"{key}._target_={path}.{what}"
    found = [
        f"{key}.{name} must be given to {what}. Write {key}.{name}=VALUE."
        for name in known
        if name in settings.required and name not in group.settings
    ]
    for name, value in group.settings.items():
        hint = did_you_mean(name, known, f"{key}.") or f"Its settings: {', '.join(known)}."
        got = f"got {key}.{name}={as_typed(value)}"
        if name not in names and not settings.takes_more:
            found.append(f"{key}.{name} must be a setting of {what}; {got}. {hint}")
        elif is_ours(group.target) and not _fits(value, rule := names.get(name, "")):
            rules = ", or ".join(map(_rule, rule.split(" | ")))
            found.append(f"{key}.{name} must be {rules}; {got}.".replace("None", "null"))
    return found


def _rule(annotation: str) -> str:
    """What a value of an annotation must be, in words."""
    if choices := _choices(annotation):
        return f"one of {', '.join(choices)}"
    return _RULES.get(annotation, annotation)


def _choices(annotation: str) -> tuple[str, ...]:
    """The values of a `Literal`; none of another annotation."""
    is_literal = annotation.startswith("Literal[")
    return ast.literal_eval(f"({annotation[8:-1]},)") if is_literal else ()


class _Parameters:
    """The parameters of a function: their annotations, and which have no default."""

    def __init__(self, of: ast.arguments, *, is_method: bool) -> None:
        positional = [*of.posonlyargs, *of.args]
        num_required = len(positional) - len(of.defaults)
        required = [argument.arg for argument in positional[:num_required]]
        pairs = zip(of.kwonlyargs, of.kw_defaults, strict=True)
        self.required = {*required, *(name.arg for name, default in pairs if default is None)}
        listed = [*positional, *of.kwonlyargs][is_method:]
        self.annotations = {one.arg: _text(one.annotation) for one in listed}
        self.takes_more = of.kwarg is not None


def _text(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation else ""


@cache
def _parameters(dotted: str) -> _Parameters | None:
    """The parameters of a class or function; None if its source does not show them."""
    found = _definition(dotted, hops=_MOST_HOPS)
    if isinstance(found, ast.ClassDef):
        inits = (node for node in found.body if getattr(node, "name", "") == "__init__")
        found = None if found.decorator_list else next(inits, None)
        is_method = True
    else:
        is_method = False
    if not isinstance(found, ast.FunctionDef) or found.decorator_list or found.args.vararg:
        return None
    return _Parameters(found.args, is_method=is_method)


def _definition(dotted: str, *, hops: int) -> ast.stmt | None:
    """The statement in a source that defines a name; imports of it are followed."""
    module, _, name = dotted.rpartition(".")
    for node in _statements(module) if hops else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _definition(f"{node.module}.{alias.name}", hops=hops - 1)
    return None


def _statements(module: str) -> list[ast.stmt]:
    top, *rest = module.split(".")
    try:
        found = find_spec(top)
        places = list((found and found.submodule_search_locations) or ())
        path = Path(places[0], *rest) if places else Path((found and found.origin) or "/dev/null")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return ast.parse(file.read_text()).body
    except (ImportError, OSError, ValueError, SyntaxError):
        return []


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value fits an annotation, as far as the annotation can be interpreted."""
    return any(_is(value, part) for part in annotation.split(" | "))


def _is(value: Any, kind: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in _LEAST:
        is_kind = isinstance(value, int) or kind not in _WHOLE
        return is_number and is_kind and value >= _LEAST[kind]
    if kind.startswith("Sequence["):
        of = kind.removeprefix("Sequence[").removesuffix("]")
        return isinstance(value, list) and bool(value) and all(_is(item, of) for item in value)
    plain = {"str": str, "bool": bool, "None": type(None), "Mapping[str, Any]": Mapping}
    choices = _choices(kind)
    return value in choices if choices else isinstance(value, plain.get(kind, object))
