"""How our programs run: until they are told to end, or a part of them fails, which is told; and a leader's work."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from turnout.kube.client.lease import Elector
from turnout.kube.errors import BadKubeconfig

log = logging.getLogger(__name__)

CANNOT_START = (BadKubeconfig, OSError)


def run_program(
    name: str, serve: Callable[[], Coroutine[Any, Any, None]], cannot_start: tuple[type[Exception], ...] = CANNOT_START
) -> int:
    """Run a service until it is told to end, and return its exit code: 0 then, 1 for an end that nobody asked for.

    name: as a person types it. cannot_start: what is told in one line; anything else is a fault of ours, and is told
    in the log with its trace, so that no program dies in silence.
    """
    try:
        asyncio.run(serve())
    except cannot_start as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except Exception:
        log.critical("ended_by_a_fault", extra={"program": name}, exc_info=True)
        return 1
    return 0


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
