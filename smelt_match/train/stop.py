"""A run that is asked to stop by a signal: SIGTERM, as Slurm and other schedulers send it before they kill.

The step that runs is finished and saved, and the process ends with 143 (128 + SIGTERM), which is what a shell and Slurm
report of a process that SIGTERM ended. The same command goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Asked = Callable[[], bool]


def never() -> bool:
    """Nobody asks."""
    return False


@contextmanager
def on_signal(number: signal.Signals, patient: bool = False) -> Iterator[Asked]:
    """Whether a signal came since, instead of its doing what it did before.

    A second one does that, as ever; to a ``patient`` process it says nothing new.

    Signals reach the main thread alone; in any other, nobody asks.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never
        return
    came = False
    before = signal.getsignal(number)

    def note(*_: Any) -> None:
        nonlocal came
        came = True
        if not patient:
            signal.signal(number, before)

    signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        signal.signal(number, before)
