"""The processes that torchrun started together, and how they exchange messages."""

import os
import secrets
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

_TICK_S = 0.05
_NUMBERS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes that torchrun started together."""

    rank: int  # over all processes
    local_rank: int  # within a machine
    node_rank: int  # over machines
    world_size: int
    devices: int  # processes on this machine
    master: str  # the machine of rank 0

    @property
    def num_nodes(self) -> int:
        """Number of machines [count]."""
        return self.world_size // self.devices


def torchrun_group() -> Group | None:
    """The group that this process is in; None if torchrun did not start it.

    ValueError if any of torchrun's variables is missing or not a number.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    given = {name: os.environ.get(name, "") for name in _NUMBERS}
    if wrong := [f"{name}={text}" for name, text in given.items() if not text.isdecimal()]:
        msg = (
            "torchrun's processes must have its variables, which are numbers; got "
            f"{', '.join(wrong)}. If torchrun did not start this command: unset "
            "TORCHELASTIC_RUN_ID."
        )
        raise ValueError(msg)
    rank, local_rank, node_rank, world_size, devices = map(int, given.values())
    return Group(
        rank=rank,
        local_rank=local_rank,
        node_rank=node_rank,
        world_size=world_size,
        devices=devices,
        master=os.environ.get("MASTER_ADDR", "localhost"),
    )


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages among the processes of one start of the group, separate from earlier starts.

    `store` is torch's: values by key, shared by all processes, also across their restarts.
    """

    store: Any
    start: str

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self.store.set(f"{self.start}/{key}", value)

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        return self.store.get(f"{self.start}/{key}")

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self.store.check([f"{self.start}/{key}"])


@cache
def open_messages() -> Messages:
    """Meet the other processes through the store of torchrun's own agents.

    Each writes a fresh random word; rank 0 answers it with the name of this start.
    """
    # This imports torch, which torchrun itself has done too.
    from lightning_modules.process.world import open_store

    group = torchrun_group()
    assert group is not None, "torchrun started this process"
    store = open_store()
    own = secrets.token_hex(8)
    if group.rank:
        store.set(f"sweeper-hello/{group.rank}", own)
        while not store.check([f"sweeper-answer/{own}"]):
            time.sleep(_TICK_S)
        messages = Messages(store, store.get(f"sweeper-answer/{own}").decode())
        messages.set(f"here/{group.rank}", "")
        return messages
    messages = Messages(store, own)
    while missing := [r for r in range(1, group.world_size) if not messages.has(f"here/{r}")]:
        for rank in missing:  # answering a word that a dead process has left does no harm
            if store.check([f"sweeper-hello/{rank}"]):
                word = store.get(f"sweeper-hello/{rank}").decode()
                store.set(f"sweeper-answer/{word}", own)
        time.sleep(_TICK_S)
    return messages
