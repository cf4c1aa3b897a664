"""Leaving a run before its end: all ranks after the same optimizer step, soon after being asked."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_LOOK_S = 1.0


class Left(Exception):
    """The run was saved and left because somebody asked; the text says where."""


class Leaving:
    """Whether to leave, looked up by rank 0 about once a second, the same answer on all ranks.

    Ranks are not at the same step at the same time, so rank 0 also says after how many steps they
    look again: in between nothing is sent.

    Args:
        asked: whether somebody asked; only rank 0 looks.
        rank: this process among the ranks.
    """

    def __init__(self, asked: Callable[[], bool], *, rank: int) -> None:
        self._asked, self._rank = asked, rank
        self._steps_between = self._steps_left = 1
        self._looked_at = time.perf_counter()

    def is_due(self, device: torch.device) -> bool:
        """Whether to leave after this step; all ranks call it after each step.

        Args:
            device: what the ranks exchange tensors on.
        """
        self._steps_left -= 1
        return self._steps_left <= 0 and self.look(device)

    def look(self, device: torch.device) -> bool:
        """Whether to leave, as of now; all ranks call it at the same place."""
        is_asked = False
        if self._rank == 0:
            is_asked, self._steps_between = self._asked(), self._steps_per_look()
        if dist.get_world_size() > 1:
            told = torch.tensor([is_asked, self._steps_between], device=device)
            dist.broadcast(told, src=0)
            is_asked, self._steps_between = bool(told[0]), int(told[1])
        self._steps_left = self._steps_between
        return is_asked

    def _steps_per_look(self) -> int:
        """Steps that took as long as there shall be between looks; at most twice those before."""
        now = time.perf_counter()
        step_s = max(now - self._looked_at, 1e-9) / max(1, self._steps_between - self._steps_left)
        self._looked_at = now
        return max(1, min(2 * self._steps_between, round(_LOOK_S / step_s)))
