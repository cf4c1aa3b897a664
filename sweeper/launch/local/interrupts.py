"""Ctrl-C, SIGTERM and SIGHUP: caught to interrupt a sweep, or deferred."""

import math
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from sweeper.spec.worker_args import SIGNALS_OF_LAUNCHER

_SAME_SIGNAL_S = 0.5


@contextmanager
def defer_signals() -> Generator[None]:
    """Hold back Ctrl-C and similar signals until the end of the block."""
    received: list[int] = []
    before = {
        n: signal.signal(n, lambda number, frame: received.append(number))
        for n in SIGNALS_OF_LAUNCHER
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received:
        signal.raise_signal(number)


@contextmanager
def catch_signals() -> Generator[None]:
    """Let Ctrl-C, SIGTERM or a closed terminal end a sweep, unless the caller handles them.

    Of signals in quick succession only the first counts, because `timeout` and torchrun send them
    to a sweep and again to its process group.
    """
    last_at = -math.inf
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last_at
        del number, frame
        for stream in terminals:
            if not os.isatty(stream):  # it was closed, but printing must not fail
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        earlier_at, last_at = last_at, time.monotonic()
        if last_at - earlier_at > _SAME_SIGNAL_S:
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
