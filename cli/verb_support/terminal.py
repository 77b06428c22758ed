"""The terminal: colours only on a terminal, and a SIGTERM that ends a command as cleanly as Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_COLUMNS = 96  # what a file or a pipe gets
_T = TypeVar("_T")


def terminal(plain: bool) -> Console:
    """Return a console for stdout. plain: no colours.

    rich itself obeys NO_COLOR, and prints plainly if stdout is no terminal.
    """
    from rich.console import Console

    if plain:
        return Console(force_terminal=False, no_color=True, highlight=False, width=_PLAIN_COLUMNS)
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_COLUMNS)


@dataclass(frozen=True, slots=True)
class TerminalPage:
    """The width and the colours of stdout, for a verb that has no time to import rich."""

    columns: int
    colours: bool

    @classmethod
    def of_stdout(cls, plain: bool) -> TerminalPage:
        """Return the width and the colours of stdout. plain: as for a file, without colours."""
        if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            return cls(_PLAIN_COLUMNS, False)
        return cls(shutil.get_terminal_size().columns, not os.environ.get("NO_COLOR"))

    def bold(self, text: str) -> str:
        """Return a text in bold where there are colours."""
        return f"\x1b[1m{text}\x1b[0m" if self.colours and text else text

    def cyan(self, text: str) -> str:
        """Return a text in cyan where there are colours."""
        return f"\x1b[36m{text}\x1b[0m" if self.colours and text.strip() else text


async def cancel_on_sigterm(work: Coroutine[Any, Any, _T]) -> _T:
    """Run the coroutine and return its result. SIGTERM cancels it, so that it can end everything that it started.

    Then CancelledError is raised.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
