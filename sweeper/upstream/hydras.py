"""Hydra's core, which its plugins use, and which it documents by examples only."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import DictConfig

__all__ = ["ConfigLoader", "OverridesParser"]


def config_loader() -> ConfigLoader:
    """The loader of the configs of this process, once Hydra has begun."""
    return GlobalHydra.instance().config_loader()


def compose_config(loader: ConfigLoader, name: str, overrides: Sequence[str]) -> DictConfig:
    """The composed config; `hydra.compose` would read the primary config for each call."""
    return loader.load_configuration(name, list(overrides), run_mode=RunMode.RUN)


def is_group_with_options(loader: ConfigLoader, key: str) -> bool:
    """Whether a key chooses an option of a group, rather than being a value."""
    sources = loader.get_sources()
    return any(source.is_group(key) and source.list(key, ObjectType.CONFIG) for source in sources)


def override_parser(loader: ConfigLoader | None) -> OverridesParser:
    """Hydra's own grammar, for grids and for what is tuned."""
    return OverridesParser.create(config_loader=loader)


def quoted(text: str) -> str:
    """A text as a value in Hydra's grammar, whatever characters it has."""
    return QuotedString(text, Quote.single).with_quotes()


def instantiate_launcher(hydra_context: Any, task_function: Any, config: Any) -> Any:
    """The launcher of a sweep, as in Hydra's example plugins."""
    return Plugins.instance().instantiate_launcher(
        hydra_context=hydra_context, task_function=task_function, config=config
    )
