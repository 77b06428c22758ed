"""The lifecycle of our programs: run until a signal or a failure, and run the work of a leader."""

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

CANNOT_START = (BadKubeconfig, OSError)  # errors of the start that are printed in one line


def run_program(
    name: str, serve: Callable[[], Coroutine[Any, Any, None]], cannot_start: tuple[type[Exception], ...] = CANNOT_START
) -> int:
    """Run a service to its end and return the exit code: 0 if it returned, 1 if it raised.

    name: the command as a user types it. serve: the service, which itself returns after SIGTERM or SIGINT, as
    run_until_signal() does. cannot_start: errors that are printed in one line. Any other error is a bug, and is logged
    with its traceback.
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


async def run_until_signal(
    *works: Coroutine[Any, Any, None],
    may_end: Sequence[Coroutine[Any, Any, None]] = (),
    leave: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run coroutines until SIGTERM or SIGINT, then call `leave` and cancel those that still run.

    works: if one of them returns, this is logged as an error, and the rest is done as after a signal. may_end: further
    coroutines, which may return without an effect on the others. leave: None for nothing. If a coroutine fails, all
    others are cancelled and its exception is raised, without calling `leave`. Failures after the cancellation are
    ignored.
    """
    stop_requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)

    async def wait_for_stop() -> None:
        await stop_requested.wait()

    service_tasks = [asyncio.create_task(work) for work in (wait_for_stop(), *works)]
    tasks = [*service_tasks, *(asyncio.create_task(work) for work in may_end)]
    try:
        waiting = set(tasks)
        while not any(task.done() for task in service_tasks):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises a failure, so that Kubernetes restarts the program
                if task in service_tasks and not stop_requested.is_set():
                    log.error("work_ended", extra={"work": getattr(task.get_coro(), "__qualname__", "")})
        if leave is not None:
            await leave()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_together(*works: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run all `works` until they end. If one fails, cancel the others and raise an ExceptionGroup with the failures."""
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work())


async def lead(
    elector: Elector, wait_for_sync: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]
) -> None:
    """Wait for the first lists, then take part in the leader election, and run `work` in each term of this process.

    When a term ends because the Lease is lost, `work` is cancelled, and this process becomes a candidate again; work
    that does not stop in time ends the process. Return when `work` returns; raise its exception. wait_for_sync: returns
    once every watch has a complete list.
    """

    async def term(transitions: int) -> None:
        log.info("leading", extra={"transitions": transitions})
        await work()

    await wait_for_sync()
    await elector.run(term)
