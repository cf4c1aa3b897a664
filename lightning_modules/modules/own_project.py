"""A user's LightningModule and DataModule: making them, and what a plan must know about them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

from lightning_modules.data.batch_counts import item_count
from lightning_modules.data.batches import VAL_BATCH, Data
from lightning_modules.data.counted_loaders import count_data, is_iterable, most_ranks
from lightning_modules.data.own_loaders import OwnExamples, Pass
from lightning_modules.data.randomness import seed_everything
from lightning_modules.modules.classifier import build_classifier
from lightning_modules.modules.item_findings import (
    ITEMS,
    OTHER_EXAMPLES,
    check_passes,
    fingerprint_items,
)
from lightning_modules.modules.own_components import (
    check_sizes,
    instantiate_component,
    own_batch_size,
)
from lightning_modules.modules.trial_findings import EXAMPLES, check_seeds, findings
from lightning_modules.process.output import quieten
from lightning_modules.run_class import call_once_layers_exist, run_class
from sweeper.spec.config import Component, is_ours
from sweeper.spec.guarantee_names import ADDITIVE, KEYED_ITEMS
from sweeper.spec.import_path import import_callable
from sweeper.upstream.one_lightning import unite
from sweeper.upstream.torchs import record_seeds

Indices = npt.NDArray[np.int64]
_BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


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


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What can only be known by making the user's module and data.

    Args:
        config: resolved; `module`, `data`, `loss_items` and `seed` are read, and for a model of
            the user's in our classifier `model` and what else makes it.

    Returns:
        `num_train_examples`; for data without indices `is_iterable` and `most_ranks`;
        for a user's module or model also `has_batchnorm`, `is_automatic` (whether Lightning steps
        the optimizer), `found` (what `findings` returned) and, if the data have no size of their
        own, `val_batch`, the examples of a validation batch.

    Raises:
        ValueError: if the examples have no order that could be the run's, or the items of a batch
            cannot be counted; if the module has data of its own but is to be trained on ours, or
            the user's network cannot be made for the data.
    """
    seeds: list[object] = []
    data = _set_up_data(config, seeds)
    has_classifier = is_ours(config["module"]["_target_"])
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
            most = most_ranks(loader.dataset)
            found = {"num_train_examples": num, "is_iterable": True, "most_ranks": most}
        else:
            examples = OwnExamples(loader, seed=0).examples(0)
            found["num_train_examples"] = len(examples)
        if weigh is not None:
            weigh(next(iter(loader)))
    model = config.get("model")
    if has_classifier and (model is None or is_ours(model["_target_"])):
        return found
    found |= _own_validation(config["data"], data)

    latest: list[pl.LightningModule] = []

    def make() -> pl.LightningModule:
        seed_everything(config["seed"])
        with record_seeds(seeds):
            latest[:] = [_build_trained(config, data)]
        return latest[0]

    module, fitted = make(), data
    if not isinstance(data, pl.LightningDataModule):
        if not has_classifier and is_overridden("train_dataloader", module):
            msg = (
                "a module with data of its own must not be trained on other data; got "
                f"{type(module).__name__}.train_dataloader and "
                f"data._target_={config['data']['_target_']}. Move its loaders into a "
                "LightningDataModule, and name that with data._target_=."
            )
            raise ValueError(msg)
        loader, examples = DataLoader(Items(data)), Pass(0, range(data.num_train_examples))
        fitted = pl.LightningDataModule()
    first = [examples.request(place) for place in range(min(EXAMPLES, len(examples)))]
    found_out = findings(make, fitted, loader, first, weigh) if first else {}
    if found.get("is_iterable"):
        found_out = check_passes(loader)
    elif found_out and found_out[KEYED_ITEMS]["holds"] and not isinstance(loader.dataset, Items):
        before = fingerprint_items(loader, first[:ITEMS])
        del data, fitted, loader, examples  # large data may not fit twice
        loader = _set_up_data(config, []).train_dataloader()
        examples = OwnExamples(loader, seed=0).examples(0)
        again = [examples.request(place) for place in range(min(ITEMS, len(examples)))]
        if fingerprint_items(loader, again) != before:
            found_out[KEYED_ITEMS] = asdict(OTHER_EXAMPLES)
    if has_classifier and found_out.get(ADDITIVE, {}).get("holds") is False:
        found_out[ADDITIVE]["do"] = _OF_MODELS
    settings = {f"{key}.{k}": v for key in ("module", "data") for k, v in config[key].items()}
    layers = [*module.modules(), *latest[0].modules()]  # those of its `setup` too
    return {
        **found,
        "has_batchnorm": any(isinstance(layer, _BATCHNORM) for layer in layers),
        "is_automatic": module.automatic_optimization,
        "found": {**found_out, **check_seeds(seeds, config["seed"], settings)},
    }


def _own_validation(described: Mapping[str, Any], data: Any) -> dict[str, int]:
    """The examples of a validation batch, if data have no size of their own for it."""
    is_users = isinstance(data, pl.LightningDataModule)
    has_own = is_users and own_batch_size(described["_target_"])
    return {} if has_own else {"val_batch": VAL_BATCH}


def _build_trained(config: Mapping[str, Any], data: Any) -> pl.LightningModule:
    """The user's module, or our classifier with the user's model, and with some optimizer."""
    if not is_ours(config["module"]["_target_"]):
        return build_module(config["module"])
    module = build_classifier(
        Component.model_validate(config["model"]),
        data,
        label_smoothing=config["label_smoothing"],
        zero_init_last_norm=config["zero_init_last_norm"],
    )

    def configure_optimizers(module: pl.LightningModule) -> SGD:
        return SGD(module.parameters(), 0.1)

    run_class(module).kind.configure_optimizers = configure_optimizers
    return module


_OF_MODELS = (
    "Let the output for an example depend on no other example, and on no earlier call in the step; "
    "otherwise compare only runs with the same micro_batch and devices."
)


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
