"""Ctrl-C and SIGTERM: when they reach a sweep, and when they wait."""

import math
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

_TOGETHER_S = 0.5


@contextmanager
def undivided() -> Generator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is over."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came:
        signal.raise_signal(number)


@contextmanager
def interruptible() -> Generator[None]:
    """Ctrl-C ends a sweep, and SIGTERM as Ctrl-C does, unless the caller handles them.

    Of signals that come together only the first counts: `timeout` and torchrun send them to a
    sweep and to its process group.
    """
    came_at = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came_at
        del number, frame
        before, came_at = came_at, time.monotonic()
        if came_at - before > _TOGETHER_S:
            raise KeyboardInterrupt

    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number, handler in usual.items() if signal.getsignal(number) == handler]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, usual[number])
