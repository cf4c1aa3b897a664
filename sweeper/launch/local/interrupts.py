"""Ctrl-C and SIGTERM: when they reach a sweep, and when they wait."""

import signal
from collections.abc import Generator
from contextlib import contextmanager


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
def terminable() -> Generator[None]:
    """SIGTERM ends a sweep as Ctrl-C does, unless the caller handles it."""
    before = signal.getsignal(signal.SIGTERM)
    if before != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
