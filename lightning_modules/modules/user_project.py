"""A user's LightningModule and DataModule: making them."""

from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl

from lightning_modules.modules.components import check_sizes, instantiate_component
from lightning_modules.run_class import call_once_layers_exist, run_class
from sweeper.spec.config import Component, is_ours
from sweeper.spec.import_path import import_callable
from sweeper.upstream.one_lightning import unite


def build_data(component: Component | Mapping[str, Any], trained_by: str, batch: int) -> Any:
    """A data set of ours, or a user's, or a user's LightningDataModule.

    Args:
        component: as for `instantiate_component`.
        trained_by: the module's `_target_`; our classifier asks for a shape and classes.
        batch: passed to a target that takes the size of a batch [examples].

    Raises:
        ValueError: as `instantiate_component`, or if it is something else.
    """
    _check_key(component, "data", "module", pl.LightningModule)
    data = instantiate_component(component, batch_size=batch)
    kind = type(data).__name__
    asked = ("input_shape", "num_classes") if is_ours(trained_by) else ()
    own = () if isinstance(data, pl.LightningDataModule) else ("num_train_examples", "set_epoch")
    if lacking := [name for name in (*asked, *own) if not hasattr(data, name)]:
        remedy = (
            "Name your LightningModule with module._target_=, or give the data what our classifier "
            "asks for (docs/data.md)."
            if asked
            else "Write a LightningDataModule that has the data set in its loaders."
        )
        kind += ", a LightningDataModule" * isinstance(data, pl.LightningDataModule)
        msg = f"data must have {lacking[0]}; got {kind}, which has none. {remedy}"
        raise ValueError(msg)
    return data


def _check_key(
    component: Component | Mapping[str, Any], key: str, other: str, of_other: type
) -> None:
    """Refuse a class that belongs under another key, before it is asked for its arguments.

    Raises:
        ValueError: if the target is such a class.
    """
    target = component.target if isinstance(component, Component) else component["_target_"]
    found = import_callable(target, f"{key}._target_")
    if isinstance(found, type) and issubclass(found, of_other):
        msg = (
            f"{key}._target_ must name your {key}; got {target}, a {of_other.__name__}, which is "
            f"for {other}._target_. Are they swapped?"
        )
        raise ValueError(msg)


def build_module(component: Component | Mapping[str, Any]) -> pl.LightningModule:
    """A user's module, whose `configure_model` acts once.

    Raises:
        ValueError: as `instantiate_component`, or if it is no LightningModule.
    """
    _check_key(component, "module", "data", pl.LightningDataModule)
    module = instantiate_component(component)
    if not isinstance(module, pl.LightningModule):
        msg = (
            f"module._target_ must make a LightningModule; got a {type(module).__name__}. A plain "
            "network is a model of our classifier: write model._target_=."
        )
        raise ValueError(msg)
    has_layers = False

    def configure_once(own: Callable[[], None]) -> None:
        nonlocal has_layers
        if not has_layers:
            has_layers = True
            own()

    run_class(module).wrap("configure_model", configure_once)
    call_once_layers_exist(module, lambda: check_sizes(module))
    return module


unite()  # before anything of the user's is imported
