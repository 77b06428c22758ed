"""The terminal: colours only where somebody can see them, and a SIGTERM that ends as cleanly as a Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from rich.console import Console

_PLAIN_COLUMNS = 96  # what a file or a pipe gets
_T = TypeVar("_T")


def terminal(plain: bool) -> Console:
    """Make the console. rich itself heeds NO_COLOR, and prints plainly when stdout is no terminal."""
    if plain:
        return Console(force_terminal=False, no_color=True, highlight=False, width=_PLAIN_COLUMNS)
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_COLUMNS)


async def ended_by_sigterm(work: Coroutine[Any, Any, _T]) -> _T:
    """Do the work; SIGTERM cancels it, so that everything it started ends with it."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
