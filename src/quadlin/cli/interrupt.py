"""Ctrl-C: at once where nothing can be lost, between two chunks where a stream would be torn."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from quadlin.data.prefetch import read_ahead

PATIENCE = 3  # the signal after which the process ends wherever it is


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what to tell the user."""


class _State:
    """The signals of the command under way."""

    count = 0
    gentle = False


_state = _State()


@contextmanager
def interruptible() -> Iterator[None]:
    """Count Ctrl-C meanwhile; the first raises KeyboardInterrupt, unless in `gently`."""
    _state.count, _state.gentle = 0, False
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    before = signal.signal(signal.SIGINT, _handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def gently() -> Iterator[None]:
    """Let the first Ctrl-C wait for `check_interrupt`."""
    _state.gentle = True
    try:
        yield
    finally:
        _state.gentle = False


def check_interrupt() -> None:
    """Raise if Ctrl-C came: between chunks, and again where a solver took it for a wish to stop."""
    if _state.count:
        raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
    _state.count += 1
    if _state.count >= PATIENCE:
        os._exit(130)  # a thread may be waiting for a stream that says nothing
    if not (_state.gentle and _state.count == 1) or _waits_for_rows(frame):
        raise KeyboardInterrupt


def _waits_for_rows(frame: FrameType | None) -> bool:
    """Tell whether the interrupt came while nothing was done but to wait for the next chunk."""
    while frame is not None:
        if frame.f_code is read_ahead.__code__:
            return True
        frame = frame.f_back
    return False
