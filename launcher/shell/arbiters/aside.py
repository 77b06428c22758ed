"""Blocking calls beside the event loop, one at a time and in order, none waited for past its limit.

A thread that hangs in a dead mount cannot be ended. It is left behind as a daemon, so that neither the loop nor the
end of the process waits for it; asyncio.to_thread would do both.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """One line of blocking calls. limit_s: of one call, with its wait for those before it."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._turn = asyncio.Lock()
        self._last: concurrent.futures.Future[Any] | None = None

    async def call(self, do: Callable[[], T]) -> T:
        """What `do` returns or raises. Raises TimeoutError; it may come to its end later, and before any other."""
        async with asyncio.timeout(self.limit_s), self._turn:
            if self._last is not None and not self._last.done():
                with suppress(Exception):  # told to its own caller, or given up by it
                    await asyncio.wrap_future(self._last)
            future: concurrent.futures.Future[T] = concurrent.futures.Future()
            future.set_running_or_notify_cancel()  # from here on nobody can cancel it: it will be done
            self._last = future
            threading.Thread(target=_finish, args=(do, future), name="arbiter", daemon=True).start()
            return await asyncio.wrap_future(future)


def _finish(do: Callable[[], T], future: concurrent.futures.Future[T]) -> None:
    try:
        future.set_result(do())
    except BaseException as error:  # it is raised where it was called
        future.set_exception(error)
