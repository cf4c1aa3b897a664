"""Hydra's core, which its plugins use, and which it documents by examples only."""

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

__all__ = ["ConfigLoader", "OverridesParser"]

#: Keeps Hydra's behaviour without a warning: 1.3 wants to be told its own, later ones do not.
VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}

#: The user's folder that the next start of Hydra looks into first, if any.
_first: list[str] = []


class OwnFolderSource(FileConfigSource):
    """A user's config folder; its primary configs are for other applications."""

    @staticmethod
    def scheme() -> str:
        """The beginning of its place on Hydra's search path."""
        return "own"

    def is_config(self, config_path: str) -> bool:
        """Whether it has an option of a group."""
        is_primary = "/" not in config_path or config_path == "hydra/config"
        return not is_primary and super().is_config(config_path)


def put_first(folder: str | None) -> None:
    """Look for options in this folder before ours, in what Hydra's next start begins."""
    _first[:] = [] if folder is None else [str(Path(folder).resolve())]


def take_first() -> str | None:
    """The folder that this start of Hydra looks into before ours, if any."""
    return _first.pop() if _first else None


def answer_hydra(find: Callable[[str], Any]) -> None:
    """Let a function answer `${hydra:KEY}`; Hydra's own resolver does so within its jobs only."""
    # one name before OmegaConf 2.4.1, the other since
    takes_more = "replace" in signature(OmegaConf.register_resolver).parameters
    name = "register_resolver" if takes_more else "register_new_resolver"
    getattr(OmegaConf, name)("hydra", find, replace=True)


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


def instantiate_launcher(hydra_context: Any, task_function: Any, config: Any) -> Any:
    """The launcher of a sweep, as in Hydra's example plugins."""
    return Plugins.instance().instantiate_launcher(
        hydra_context=hydra_context, task_function=task_function, config=config
    )
