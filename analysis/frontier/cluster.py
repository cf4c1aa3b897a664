"""A cluster as its preset describes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sweeper import CONFIG_FOLDER
from sweeper.planning.exchange import Algorithm, Exchange, Places, all_reduce_s, exchange
from sweeper.spec.hardware import Hardware
from sweeper.spec.sentences import checked
from sweeper.spec.values import Count, Money, Settings

MIB = 2**20


class _Preset(Settings, extra="ignore"):
    devices: Count
    hardware: Hardware
    price: Money | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where runs are imagined to run.

    Attributes:
        name: of its preset.
        per_node: devices of a node.
        hardware: its links.
        price: of a device-hour, such as EUR:2.50; None if not known.
    """

    name: str
    per_node: int
    hardware: Hardware
    price: str | None = None

    def in_node(self, ranks: int) -> int:
        """Ranks per node: as many as it has devices, or the most that are equal on all nodes."""
        return max(n for n in range(1, self.per_node + 1) if ranks % n == 0)

    def exchange(
        self, num_bytes: float, ranks: int, backward_s: float, algorithm: Algorithm | None = None
    ) -> Exchange:
        """The exchange of a step's gradients over this number of ranks."""
        places = Places(ranks, self.in_node(ranks))
        return exchange(
            num_bytes,
            self.hardware.bucket_mib * MIB,
            backward_s,
            lambda part: all_reduce_s(part, places, self.hardware, algorithm),
        )


def read_cluster(name: str, folders: Sequence[Path] = ()) -> Cluster:
    """A preset of a folder of configs, or of ours.

    Raises:
        ValueError: for a name without a preset, or a preset without its hardware.
    """
    for place in _places(folders):
        if (path := place / f"{name}.yaml").is_file():
            return _read(name, path)
    msg = (
        f"--cluster must be one of {', '.join(presets(folders))}; got --cluster {name}. "
        f"Describe your own in DIR/cluster/{name}.yaml and give --config-dir DIR."
    )
    raise ValueError(msg)


def presets(folders: Sequence[Path] = ()) -> list[str]:
    """Names of the clusters that folders of configs and ours describe."""
    return sorted({path.stem for place in _places(folders) for path in place.glob("*.yaml")})


def _places(folders: Sequence[Path]) -> list[Path]:
    return [folder / "cluster" for folder in (*folders, CONFIG_FOLDER)]


def _read(name: str, path: Path) -> Cluster:
    try:
        given: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        msg = f"{path} must be YAML; {error}."
        raise ValueError(msg) from error
    if not isinstance(given, dict) or not given.get("hardware"):
        msg = (
            f"--cluster {name} must describe its links; got {path} without hardware. "
            "docs/frontier.md has its keys."
        )
        raise ValueError(msg)
    try:
        preset = checked(_Preset, given)
    except ValueError as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from error
    return Cluster(name, preset.devices, preset.hardware, preset.price)
