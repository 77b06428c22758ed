"""Reports hanging processes to the coordinator, and sends stack traces when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack
from turnout.launcher.health.hang_monitor.stack_merge import pack
from turnout.launcher.health.messages import Hung, ShowStacks, Stacks
from turnout.launcher.workers.worker_backend import WorkerBackend

MOST_WHY = 1_000  # characters


class StackResponder:
    """Reports the hangs of one agent's processes. send: sends a message to the current coordinator."""

    def __init__(self, backend: WorkerBackend, send: Callable[[Hung | Stacks], None]) -> None:
        self._backend, self._send = backend, send
        self._reported: tuple[object, int, dict[int, str]] = (None, 0, {})
        self._task: asyncio.Task[None] | None = None

    def report(self, link: object, round_: int) -> None:
        """Report changes of hangs. For a new link or a new round, report all hanging processes."""
        hung = dict(self._backend.hanging())
        reported = self._reported[2] if self._reported[:2] == (link, round_) else {}
        for local_rank in sorted(hung.keys() - reported.keys()):
            self._send(Hung(round_, local_rank, hung[local_rank][:MOST_WHY]))
        for local_rank in sorted(reported.keys() - hung.keys()):
            self._send(Hung(round_, local_rank))
        self._reported = (link, round_, hung)

    def begin(self, order: ShowStacks) -> None:
        """Send the stack traces of this order, and stop an earlier one."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._show(order))

    async def _show(self, order: ShowStacks) -> None:
        for local_rank, stack in sorted((await self._backend.capture_stacks()).items()):
            self._send(await asyncio.to_thread(partial(_answer, order, local_rank, stack)))

    async def close(self) -> None:
        """Stop sending stack traces, until there is another order."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def _answer(order: ShowStacks, local_rank: int, stack: CapturedStack) -> Stacks:
    packed = pack(stack.file)
    if len(packed) > order.most_bytes:
        why = f"its stacks have {len(packed)} bytes packed, {order.most_bytes} may be sent: they are in its own folder"
        return Stacks(order.number, local_rank, b"", why)
    return Stacks(order.number, local_rank, packed)
