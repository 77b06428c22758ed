"""How our programs run: until they are told to end, or until a part of them fails; and work that only a leader does."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from turnout.kube.client.lease import Elector

log = logging.getLogger(__name__)


async def until_told(
    *works: Coroutine[Any, Any, None],
    may_end: Sequence[Coroutine[Any, Any, None]] = (),
    leave: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Do all of these until SIGTERM or SIGINT, then `leave`. Raises what the first of them fails with.

    The end of one of `works` ends the program as well; one of `may_end` ends alone. None is left running.
    """
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)

    async def wait() -> None:
        await told.wait()

    lasting = [asyncio.create_task(work) for work in (wait(), *works)]
    tasks = [*lasting, *(asyncio.create_task(work) for work in may_end)]
    try:
        waiting = set(tasks)
        while not any(task.done() for task in lasting):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a fault of ours: end with it, so that somebody starts us afresh
                if task in lasting and not told.is_set():
                    log.error("work_ended", extra={"work": getattr(task.get_coro(), "__qualname__", "")})
        if leave is not None:
            await leave()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def together(*works: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do these side by side; none goes on without the others."""
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work())


async def lead(elector: Elector, synced: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]) -> None:
    """Stand for election once everything has been seen, and do the work of each term."""

    async def term(transitions: int) -> None:
        log.info("leading", extra={"transitions": transitions})
        await work()

    await synced()
    await elector.run(term)
