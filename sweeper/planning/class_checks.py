"""Refuses classes, models and settings that certainly fail; reads sources, imports nothing."""

import ast
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from sweeper import CONFIG_FOLDER
from sweeper.spec.config import Component, is_ours
from sweeper.spec.method_checks import check_heads
from sweeper.spec.sentences import did_you_mean, format_value, read_model
from sweeper.spec.values import (
    Count,
    Fraction,
    Index,
    NotNegative,
    Number,
    Positive,
    Rule,
    Settings,
    Switch,
    Text,
)

_Counts = Annotated[
    tuple[Count, ...],
    Field(strict=False, min_length=1),  # so that a list is accepted as a tuple
    Rule("a list of whole numbers, 1 or more"),
]
_Numbers = Annotated[
    tuple[Number, ...], Field(strict=False, min_length=1), Rule("a list of numbers")
]


_OPTIONAL = {  # not in conf/
    "lightning_modules.data.small_images.SmallImages": ["drawn_from"],
    "lightning_modules.data.large_images.LargeImages": ["augment", "val_fraction"],
    "lightning_modules.data.text.TextTokens": ["masked", "version"],
    "lightning_modules.models.gpt.GPT": ["norm", "positions", "feed_forward", "bias", "qk_norm"],
}


class _OurSettings(Settings, extra="allow"):
    """The settings of our data sets and models; a name means the same in each that has it.

    The defaults here only mark a setting that not every class has.
    """

    augment: Literal["crop", "none"] | None = None
    val_fraction: Fraction | None = None
    bias: Switch = True
    blocks: Count = 1
    channels: _Counts = (1,)
    decay: Number = 1
    depth: Count = 1
    distinct: Count = 1
    download: Switch = False
    drawn_from: Count | None = None
    dropout: Fraction = 0
    feed_forward: Literal["gelu", "swiglu"] = "gelu"
    flip: Switch = False
    head_std: NotNegative | None = None
    heads: Count = 1
    hidden: Count = 1
    length: Count = 1
    masked: Fraction = 0
    mean: _Numbers = (0,)
    noise_scale: Positive = 1
    norm: Literal["layer", "rms"] = "layer"
    num_classes: Count = 1
    num_train_examples: Index = 1
    num_val_examples: Index = 1
    num_workers: Index | Literal["auto"] = 0
    padding: Index = 0
    positions: Literal["learned", "rotary"] = "learned"
    qk_norm: Switch = False
    resize: Count = 1
    root: Text | None = ""
    settings: Annotated[dict[str, Any], Rule("a group")] = Field(default_factory=dict)
    shape: _Counts = (1,)
    size: Count = 1
    source: Text = ""
    std: _Numbers = (1,)
    stem: Literal["auto", "imagenet", "small"] = "auto"
    stem_stride: Count = 1
    validation_fold: Index = 0
    version: Text | None = None
    vocabulary: Count = 1
    width: Count = 1


class _OurGroups(Settings):
    data: _OurSettings | None = None
    model: _OurSettings | None = None


def check_settings(groups: Iterable[tuple[str, Component]]) -> None:
    """Refuse values that our classes cannot have, and settings of another option of a group.

    `groups` has keys and components of data, models and optimizers. ValueError with a line of key,
    value and remedy for each.
    """
    mistakes: dict[str, None] = {}  # a set in order
    for key, group in groups:
        mistakes |= dict.fromkeys(_wrong_settings(key, group))
        if is_ours(group.target) and key in _OurGroups.model_fields:
            try:
                read = getattr(read_model(_OurGroups, {key: group.settings}), key)
                check_heads(
                    width=read.width, heads=read.heads, is_rotary=read.positions == "rotary"
                )
            except ValueError as refused:
                mistakes |= dict.fromkeys(str(refused).splitlines())
    if mistakes:
        raise ValueError("\n".join(mistakes))


def _wrong_settings(key: str, group: Component) -> list[str]:
    """A sentence for each setting that a class lacks, or that it must be given.

    Library classes have more settings than conf/ gives them. So theirs are refused only if another
    option of the group has them, as where a recipe sets the momentum of another optimizer.
    """
    options = _option_settings(key)
    if group.target not in options:
        return []
    known = options[group.target]
    allowed = [*known, *_OPTIONAL.get(group.target, [])]
    others = set[str]().union(*options.values()) - {*known}
    is_complete = is_ours(group.target) and key in _OurGroups.model_fields
    what = group.target.rpartition(".")[2]
    what = what if is_ours(group.target) else f"{key}._target_={group.target}"
    found = [
        f"{key}.{name} must be given to {what}. Write {key}.{name}=VALUE."
        for name in known
        if is_complete and name not in group.settings
    ]
    for name, value in group.settings.items():
        if name in others or (is_complete and name not in allowed):
            hint = did_you_mean(name, allowed, f"{key}.") or f"Its settings: {', '.join(allowed)}."
            got = f"got {key}.{name}={format_value(value)}"
            found.append(f"{key}.{name} must be a setting of {what}; {got}. {hint}")
    return found


@cache
def _option_settings(key: str) -> dict[str, list[str]]:
    """By target, the settings that the options of a group in conf/ give it."""
    found: dict[str, list[str]] = {}
    for path in sorted((CONFIG_FOLDER / key).glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        group = content.get(key, content)  # an option may also set keys outside its group
        no_settings = {"_target_", "about", "defaults", "name" if key == "optimizer" else ""}
        names = [name for name in group if name not in no_settings]
        found[group["_target_"]] = list(dict.fromkeys([*found.get(group["_target_"], []), *names]))
    return found


_LIBRARIES = {
    "lightning_modules.models.library.timm_model": "timm",
    "lightning_modules.models.library.torchvision_model": "torchvision",
}

_MOST_NAMED = 8
_LONGEST_NAME = 255  # of a file, on any file system


def check_names(named: Iterable[tuple[str, str, str | None]]) -> None:
    """Refuse classes and models that certainly do not exist.

    `named` has key, `_target_` and `name` of each group. ValueError with a line of key, name and
    remedy for each.
    """
    mistakes = {_name_mistake(key, target, str(name)) for key, target, name in {*named}} - {""}
    if mistakes:
        raise ValueError("\n".join(sorted(mistakes)))


def _name_mistake(key: str, target: str, name: str) -> str:
    if why := _why_missing(target, f"{key}._target_="):
        return (
            f"{key}._target_ must name something that can be imported; got "
            f"{key}._target_={target!r}, {why}"
        )
    if target not in _LIBRARIES:
        return ""
    library = _LIBRARIES[target]
    words, models = _library_models(library)
    if not words:
        return f"model={library} needs the package {library}. Install it: pip install {library}."
    if name.partition(".")[0] in words:  # after the dot: which pretrained weights
        return ""
    mistake = f"model.name must be a model of {library}; got model.name={name!r}."
    return f"{mistake} {did_you_mean(name, models, 'model.name=')}".rstrip()


@cache
def _library_models(library: str) -> tuple[frozenset[str], list[str]]:
    """All words in the sources of a library's models, and the names registered as models."""
    found = find_spec(library)
    folders = found.submodule_search_locations if found else None
    files = Path(folders[0], "models").rglob("*.py") if folders else ()
    text = "\n".join(file.read_text(errors="replace") for file in files)
    models = re.findall(r"@register_model.*?\ndef (\w+)\(", text, re.DOTALL)
    return frozenset(re.findall(r"\w+", text)), sorted(models)


def read_source(dotted: str) -> tuple[Path, str, str] | None:
    """Where a dotted path leads, as far as files do: its last file or folder, text and the rest.

    None if there is no such package. The text is empty for what is no Python file.
    """
    top, *rest = dotted.split(".")
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        found = None
    if found is None or len(max(dotted.split("."), key=len)) > _LONGEST_NAME:
        return None
    folders = found.submodule_search_locations
    path = Path(next(iter(folders)) if folders else found.origin or "")
    while rest and path.is_dir():
        inside = path / rest[0]
        if not inside.is_dir() and not (inside := path / f"{rest[0]}.py").is_file():
            break
        path = inside
        del rest[0]
    file = path / "__init__.py" if path.is_dir() else path
    is_read = file.suffix == ".py" and file.is_file()
    return file, file.read_text(errors="replace") if is_read else "", ".".join(rest)


Definition = ast.ClassDef | ast.FunctionDef


@cache
def find_definition(target: str) -> tuple[Definition, Sequence[str]] | None:
    """A class or function as its source has it, and the paths of its bases; None without source.

    It is found where it is imported from, too.
    """
    module, _, name = target.rpartition(".")
    file, text, rest = (module and read_source(module)) or (Path(), "", "")
    try:
        tree = ast.parse("" if rest else text)
    except (SyntaxError, ValueError):  # told by the process that imports it
        return None
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    origins = dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origins |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            where = resolve_name("." * node.level + (node.module or ""), package)
            origins |= {alias.asname or alias.name: f"{where}.{alias.name}" for alias in node.names}
    defined = {node.name: node for node in tree.body if isinstance(node, Definition)}
    if name not in defined:
        return find_definition(origins[name]) if origins.get(name, target) != target else None
    bases = list[str]()
    for base in map(ast.unparse, getattr(defined[name], "bases", ())):
        first, dot, others = base.partition(".")
        origin = f"{module}.{first}" if first in defined else origins.get(first, first)
        bases.append(f"{origin}{dot}{others}")
    return defined[name], bases


def find_arguments(target: str) -> tuple[Sequence[str], bool]:
    """The arguments that a class or function names, and whether it may have others.

    Those of a class without an `__init__` are those of the first base that names any. What no
    source says, such as what `**kwargs` passes on, may be anything.
    """
    node, bases = find_definition(target) or (None, ())
    init, skipped = node, 0
    if isinstance(node, ast.ClassDef):
        methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
        init, skipped = next((m for m in methods if m.name == "__init__"), None), 1
        if init is None and not node.decorator_list:  # a decorator may make one
            return next((found for found in map(find_arguments, bases) if found[0]), ((), True))
    if not isinstance(init, ast.FunctionDef):
        return (), True
    given = init.args
    names = [argument.arg for argument in [*given.args[skipped:], *given.kwonlyargs]]
    return names, given.kwarg is not None or bool(init.decorator_list)


def _why_missing(dotted: str, before: str) -> str:
    """Why a dotted path certainly names nothing to call, and what to write; empty if it may."""
    remedy = "Correct it, install its package or put its folder on PYTHONPATH."
    found = read_source(dotted)
    if found is None:
        return f"which does not exist. {remedy}"
    _, text, rest = found
    classes = re.findall(r"^class ([^\W_]\w*)", text, re.MULTILINE)
    if not rest:
        named = f", such as {', '.join(classes[:_MOST_NAMED])}" if classes else ""
        return f"which is a module. Write {before}{dotted}.CLASS{named}."
    # A module may define a name that its text has, or any if it does so dynamically.
    name = rest.partition(".")[0]
    dynamic = rf"\b{re.escape(name)}\b|import \*|__getattr__|globals\(\)"
    if not text or re.search(dynamic, text):
        return ""
    imported = re.findall(r"^from \S+ import ([\w, ]+)", text, re.MULTILINE)
    classes += [name for line in imported for name in re.findall(r"\b[A-Z]\w*", line)]
    like = did_you_mean(name, classes, f"{before}{dotted.removesuffix(rest)}")
    return f"which does not exist. {like or remedy}"
