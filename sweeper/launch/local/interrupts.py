"""Ctrl-C, SIGTERM and SIGHUP: when they interrupt a sweep, and when they are held back."""

import math
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from sweeper.spec.worker_args import SIGNALS_OF_LAUNCHER

_TOGETHER_S = 0.5


@contextmanager
def undivided() -> Generator[None]:
    """Hold back Ctrl-C and similar signals until the end of the block."""
    came: list[int] = []
    before = {
        n: signal.signal(n, lambda number, frame: came.append(number)) for n in SIGNALS_OF_LAUNCHER
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C, SIGTERM or a closed terminal end a sweep, unless the caller handles them.

    Of signals in quick succession only the first counts, because `timeout` and torchrun send them
    to a sweep and again to its process group.
    """
    came_at = -math.inf
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came_at
        del number, frame
        for stream in terminals:
            if not os.isatty(stream):  # it was closed, but printing must not fail
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        before, came_at = came_at, time.monotonic()
        if came_at - before > _TOGETHER_S:
            raise KeyboardInterrupt

    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    ours = [number for number, handler in usual.items() if signal.getsignal(number) == handler]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, usual[number])
