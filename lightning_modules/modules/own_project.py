"""A user's LightningModule and DataModule: making them, and what a plan must know about them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset

from lightning_modules.data.batch_counts import item_count
from lightning_modules.data.batches import Data
from lightning_modules.data.counted_loaders import count_data, is_iterable
from lightning_modules.data.own_loaders import OwnExamples, Pass
from lightning_modules.data.randomness import seed_everything
from lightning_modules.modules.item_findings import check_passes
from lightning_modules.modules.trial_findings import EXAMPLES, check_seeds, findings
from lightning_modules.process.output import quieten
from lightning_modules.run_class import call_once_layers_exist, run_class
from sweeper.spec.config import Component, is_ours
from sweeper.spec.import_path import import_callable
from sweeper.upstream.one_lightning import unite
from sweeper.upstream.torchs import record_seeds

Indices = npt.NDArray[np.int64]
_BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


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
    call_once_layers_exist(module, lambda: _check_sizes(module))
    return module


def _check_sizes(module: pl.LightningModule) -> None:
    """Refuse lazy layers that have no weights yet: their initial values would be unknown.

    Raises:
        ValueError: if there are any.
    """
    lazy = [name for name, p in module.named_parameters() if is_lazy(p)]
    if lazy:
        msg = (
            f"every layer must have its weights when training begins; got {lazy[0]} of a lazy "
            "layer, which has seen no batch. Pass a batch through it in __init__, configure_model "
            "or setup, or give its sizes."
        )
        raise ValueError(msg)


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What can only be known by making the user's module and data.

    Args:
        config: resolved; `module`, `data`, `loss_items` and `seed` are read.

    Returns:
        `num_train_examples`, and `is_iterable` for data without indices; for a user's module also
        `has_batchnorm`, `is_automatic` (whether Lightning steps the optimizer) and `found` (what
        `findings` returned).

    Raises:
        ValueError: if the examples have no order that could be the run's, or the items of a batch
            cannot be counted; or if the module has data of its own but is to be trained on ours.
    """
    seeds: list[object] = []
    data = _set_up_data(config, seeds)
    found: dict[str, Any] = {}
    loader: Any = None
    examples = Pass(0, range(0))
    weigh = item_count(config["loss_items"]) if config.get("loss_items") else None
    if not isinstance(data, pl.LightningDataModule):
        found["num_train_examples"] = data.num_train_examples
    else:
        loader = data.train_dataloader()
        stated = config["data"].get("num_train_examples")
        if is_iterable(loader):
            num = count_data(loader) if stated is None else stated
            found = {"num_train_examples": num, "is_iterable": True}
        else:
            examples = OwnExamples(loader, seed=0).examples(0)
            found["num_train_examples"] = len(examples)
        if weigh is not None:
            weigh(next(iter(loader)))
    if is_ours(config["module"]["_target_"]):
        return found

    latest: list[pl.LightningModule] = []

    def make() -> pl.LightningModule:
        seed_everything(config["seed"])
        with record_seeds(seeds):
            latest[:] = [build_module(config["module"])]
        return latest[0]

    module = make()
    if not isinstance(data, pl.LightningDataModule):
        if is_overridden("train_dataloader", module):
            msg = (
                "a module with data of its own must not be trained on other data; got "
                f"{type(module).__name__}.train_dataloader and "
                f"data._target_={config['data']['_target_']}. Move its loaders into a "
                "LightningDataModule, and name that with data._target_=."
            )
            raise ValueError(msg)
        loader, examples = DataLoader(Items(data)), Pass(0, range(data.num_train_examples))
        data = pl.LightningDataModule()
    first = [examples.request(place) for place in range(min(EXAMPLES, len(examples)))]
    found_out = findings(make, data, loader, first, weigh) if first else {}
    if found.get("is_iterable"):
        found_out = check_passes(loader)
    layers = [*module.modules(), *latest[0].modules()]  # those of its `setup` too
    return {
        **found,
        "has_batchnorm": any(isinstance(layer, _BATCHNORM) for layer in layers),
        "is_automatic": module.automatic_optimization,
        "found": {**found_out, **check_seeds(seeds, config["seed"])},
    }


def _set_up_data(config: Mapping[str, Any], seeds: list[object]) -> Any:
    """The data, set up; what they seed as they are made is added to `seeds`."""
    seed_everything(config["seed"])
    described = {key: value for key, value in config["data"].items() if key != "about"}
    with record_seeds(seeds):
        data = build_data(described, config["module"]["_target_"], 1)
    if isinstance(data, pl.LightningDataModule):
        quieten()
        data.trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False)  # it may ask for it
        data.prepare_data()
        data.setup("fit")
    return data


unite()  # before anything of the user's is imported


class Items(Dataset[Any]):
    """Inputs and label of each example of the first epoch."""

    def __init__(self, data: Data) -> None:
        data.set_epoch(0, 0)
        self._data = data

    def __len__(self) -> int:
        return self._data.num_train_examples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        inputs, labels = self._data.train_examples(torch.tensor([index]))
        return inputs[0], labels[0]
