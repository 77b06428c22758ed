"""What a member tells its coordinator of hangs: which of its processes hang now, and, when asked, where all stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from turnout.launcher.health.frames import Hung, ShowStacks, Stacks
from turnout.launcher.health.stacks.reading import without_record
from turnout.launcher.shell.hands import Hands
from turnout.launcher.shell.watching.merging import pack
from turnout.launcher.shell.watching.stacks import Taken

MOST_WHY = 1_000  # letters


class Showing:
    """Of one agent. hands: who has the processes; send: to the coordinator that there is by then."""

    def __init__(self, hands: Hands, send: Callable[[Hung | Stacks], None]) -> None:
        self._hands, self._send = hands, send
        self._told: tuple[object, int, dict[int, str]] = (None, 0, {})
        self._task: asyncio.Task[None] | None = None

    def tell(self, link: object, round_: int) -> None:
        """Say what is new of hangs, and to a new link, or in a new round, all that hang. Called now and then."""
        hung = dict(self._hands.hung())
        told = self._told[2] if self._told[:2] == (link, round_) else {}
        for local_rank in sorted(hung.keys() - told.keys()):
            self._send(Hung(round_, local_rank, hung[local_rank][:MOST_WHY]))
        for local_rank in sorted(told.keys() - hung.keys()):
            self._send(Hung(round_, local_rank))
        self._told = (link, round_, hung)

    def begin(self, order: ShowStacks) -> None:
        """Show these, and no longer what was asked for before."""
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._show(order))

    async def _show(self, order: ShowStacks) -> None:
        for local_rank, taken in sorted((await self._hands.show()).items()):
            self._send(await asyncio.to_thread(partial(_answer, order, local_rank, taken)))

    async def close(self) -> None:
        """Nothing is shown any more, until somebody asks again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def _answer(order: ShowStacks, local_rank: int, taken: Taken) -> Stacks:
    packed = pack(taken.file)
    if len(packed) > order.most_bytes:  # stacks say more than numbers do
        packed = pack(without_record(taken.file))
    if len(packed) > order.most_bytes:
        why = f"its stacks have {len(packed)} bytes packed, {order.most_bytes} may be sent: they are in its own folder"
        return Stacks(order.number, local_rank, b"", why)
    return Stacks(order.number, local_rank, packed)
