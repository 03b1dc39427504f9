"""Ctrl-C at a chosen moment, without a clock: at a call of a function of quadlin."""

import inspect
import sys
from pathlib import Path

import quadlin

HOME = str(Path(quadlin.__file__).parent)


def calls_of(function, stop_at=0, stop=None):
    """Count the functions of quadlin that are called; at a number, press Ctrl-C or call `stop`."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        # What a generator raises while it is closed is lost, as with a real Ctrl-C.
        plain = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if plain and frame.f_code.co_filename.startswith(HOME):
            calls += 1
            if calls == stop_at:
                sys.setprofile(None)
                if stop is None:
                    raise KeyboardInterrupt
                stop()

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def moments(prepare, count):
    """Return numbers of calls, from the first to the last of what `prepare` returns."""
    prepare()()  # the first time also fills caches
    last = calls_of(prepare())
    return sorted({1 + k * (last - 1) // (count - 1) for k in range(count)})
