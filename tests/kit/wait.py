"""Wait in real time until a condition holds: for tests of programs and threads, which no clock of ours moves."""

import asyncio
import inspect
import threading
import time

_NEVER = threading.Event()


def _failure(what, seconds):
    """Return the error of a wait that has lasted too long."""
    return AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")


def until(condition, what="the condition", seconds=60.0, pause_s=0.01):
    """Wait until condition() is true, and return its value.

    what: the name of the condition, or a function that describes the state; it is in the error. seconds: at most.
    """
    end_s = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end_s:
            raise _failure(what, seconds)
        _NEVER.wait(pause_s)
    return value


async def until_async(condition, what="the condition", seconds=60.0, pause_s=0.005):
    """Wait until condition() is true, and return its value. condition: may be async. The rest as for until()."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(pause_s)
    except TimeoutError:
        raise _failure(what, seconds) from None
