"""What a config describes by `_target_`: objects in general, and networks made for their data."""

import inspect
import math
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from copy import copy
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytorch_lightning as pl
from hydra.errors import InstantiationException
from torch import nn
from torch.nn.parameter import is_lazy

from lightning_modules.data.batches import VAL_BATCH, IndexedData
from lightning_modules.data.randomness import keep_generators
from sweeper.spec.config import Component
from sweeper.spec.import_path import import_callable
from sweeper.upstream.hydras import answer_hydra
from sweeper.upstream.instantiation import instantiate

#: Names of constructors' parameters for what the data have; a default of these is replaced.
_GIVEN = {
    "input_shape": ("input_shape",),
    "num_classes": ("num_classes", "n_classes"),
    "in_channels": ("in_channels", "in_chans"),
}
#: Names that may mean other things too: given only where there is no default.
_NEEDED = {
    "num_classes": ("num_labels", "num_outputs", "out_features", "output_dim", "output_size"),
    "in_channels": ("channels", "input_channels", "num_channels"),
    "in_features": ("in_features", "input_dim", "input_size"),
}


def build_model(component: Component, data: IndexedData) -> nn.Module:
    """The network of a `_target_`, called with what it has parameters for, by name.

    Raises:
        ValueError: if it needs more than the data and its settings give, or is no network.
    """
    target, settings, shape = component.target, component.settings, data.input_shape
    signature = inspect.signature(import_callable(target, "model._target_"))
    values: dict[str, Any] = {
        "input_shape": tuple(shape),
        "num_classes": data.num_classes,
        "in_channels": shape[0],
        "in_features": math.prod(shape),
    }
    optional, needed = (
        {name: values[key] for key, names in table.items() for name in names}
        for table in (_GIVEN, _NEEDED)
    )
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    free = [p for p in signature.parameters.values() if p.name not in settings and p.kind in kinds]
    given = {p.name: optional[p.name] for p in free if p.name in optional}
    given |= {p.name: needed[p.name] for p in free if p.name in needed and p.default is p.empty}
    try:
        signature.bind(**settings, **given)
    except TypeError as error:
        msg = (
            "model._target_ must take its settings, and by name what the data have (input_shape, "
            f"num_classes, in_channels, in_features); got {target}{signature}: {error}. Rename "
            "its parameters, or give each a value: +model.PARAMETER=VALUE."
        )
        raise ValueError(msg) from error
    model = instantiate_component({**component.group, "_partial_": True})(**given)
    if isinstance(model, pl.LightningModule) or not isinstance(model, nn.Module):
        is_module = isinstance(model, pl.LightningModule)
        what = "a LightningModule" if is_module else f"a {type(model).__name__}"
        remedy = "Write module=model, which trains it." if is_module else "Name its class."
        msg = f"model._target_ must make a torch network; got {target}, {what}. {remedy}"
        raise ValueError(msg)
    check_sizes(model)
    return model


def check_sizes(module: nn.Module) -> None:
    """Refuse lazy layers that have no weights yet: their initial values would be unknown.

    Raises:
        ValueError: if there are any.
    """
    lazy = [name for name, p in module.named_parameters() if is_lazy(p)]
    if lazy:
        msg = (
            f"every layer must have its weights when training begins; got {lazy[0]} of a lazy "
            "layer, which has seen no batch. Pass a batch through it in __init__"
            f"{', configure_model or setup' * isinstance(module, pl.LightningModule)}, or give its "
            "sizes."
        )
        raise ValueError(msg)


def instantiate_component(component: Component | Mapping[str, Any], **more: Any) -> Any:
    """The object that a config group describes, with the objects nested in it.

    Args:
        component: `_target_` and its arguments, which may be such groups too; as Hydra reads them,
            with `_convert_` all unless it is given.
        more: arguments passed if the target takes them, in place of those in the group.

    Raises:
        ValueError: if a target cannot be imported or does not take its arguments.
    """
    group = component.group if isinstance(component, Component) else dict(component)
    target = group["_target_"]
    found = import_callable(target, "_target_")
    parameters = inspect.signature(found).parameters
    group |= {key: more[key] for key in more if key in parameters or key in group}
    is_datamodule = isinstance(found, type) and issubclass(found, pl.LightningDataModule)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and not is_datamodule
    if "num_train_examples" not in parameters and not takes_all:
        group.pop("num_train_examples", None)  # stated for the plan
    try:
        return instantiate({"_convert_": "all", **group})
    except InstantiationException as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, TypeError):
            raise error.__cause__ from None
        msg = f"{target} must accept the settings in its config; got {sorted(group)}: {error}."
        raise ValueError(msg) from error


def user_batch_size(target: str) -> int:
    """The default of a target's argument for it; 0 if that is no size, -1 if it takes none."""
    parameters = inspect.signature(import_callable(target, "_target_")).parameters
    if (given := parameters.get("batch_size")) is None:
        return -1
    default = given.default
    return default if isinstance(default, int) and default > 0 else 0


def plain_attributes(component: Component, data: Any) -> dict[str, Any]:
    """What attributes of a new DataModule would be with the batch size of its own.

    Only those that differ: numbers, and collections and settings that hold them.
    """
    is_users = isinstance(data, pl.LightningDataModule)
    size = user_batch_size(component.target) if is_users else -1
    if size < 0:
        return {}
    with keep_generators():
        plain = vars(instantiate_component(component, batch_size=size or VAL_BATCH))
    own = {name: _replace_sizes(value, plain.get(name)) for name, value in vars(data).items()}
    return {name: value for name, value in own.items() if value is not vars(data)[name]}


def _replace_sizes(value: Any, plain: Any) -> Any:
    """A value with the whole numbers of another of its kind; itself if they are the same."""
    if type(value) is not type(plain):
        return value
    if isinstance(value, int):
        return value if value == plain else plain
    parts, of_plain = _parts(value), _parts(plain)
    found = {k: _replace_sizes(parts[k], of_plain[k]) for k in parts if k in of_plain}
    if all(part is parts[key] for key, part in found.items()):
        return value
    found = {**parts, **found}
    if isinstance(value, list | tuple):
        return type(value)(found.values())
    if isinstance(value, partial):
        return partial(value.func, *value.args, **found)
    copied = copy(value)
    (copied if isinstance(value, dict) else vars(copied)).update(found)
    return copied


def _parts(value: Any) -> dict[Any, Any]:
    """The parts of a collection or of settings, by name or place; empty for anything else."""
    if isinstance(value, partial):
        return value.keywords
    if isinstance(value, Namespace | SimpleNamespace) or is_dataclass(value):
        return getattr(value, "__dict__", {})
    if type(value) in (list, tuple):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else {}


def show_output_folder(folder: Path) -> None:
    """Let `${hydra:runtime.output_dir}` be this folder, where the config of a run still has it."""
    answer_hydra(lambda _: str(folder))


show_output_folder(Path(tempfile.gettempdir()))  # until a run begins
