"""Runs blocking calls beside the event loop, one at a time and in order, each with a time limit.

A thread that hangs in a dead mount cannot be ended. It is left as a daemon thread, so neither the loop nor the end of
the process waits for it, as they would with asyncio.to_thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class SerialExecutor:
    """Runs blocking calls in order. limit_s: of one call, including its wait for earlier calls."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._turn = asyncio.Lock()
        self._last: concurrent.futures.Future[Any] | None = None

    async def call(self, do: Callable[[], T]) -> T:
        """Run `do` and return or raise what it does. Raises TimeoutError; `do` may still finish later, before the next
        call starts.
        """
        async with asyncio.timeout(self.limit_s), self._turn:
            if self._last is not None and not self._last.done():
                with suppress(Exception):  # its caller gets the error, or has given up
                    await asyncio.wrap_future(self._last)
            future: concurrent.futures.Future[T] = concurrent.futures.Future()
            future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
            self._last = future
            threading.Thread(target=_finish, args=(do, future), name="arbiter", daemon=True).start()
            return await asyncio.wrap_future(future)


def _finish(do: Callable[[], T], future: concurrent.futures.Future[T]) -> None:
    try:
        future.set_result(do())
    except BaseException as error:  # raised in the caller
        future.set_exception(error)
