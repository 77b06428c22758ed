"""Makes the parent of the next rounds while the script trains for the first time, with that script's imports.

If an import makes the parent unusable, the parent is ended, and the next one leaves out that package. If none can be
made, the first parent stays, and nothing fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from turnout.launcher.event_log import EventLog
from turnout.launcher.workers.forkserver.client import ForkserverClient
from turnout.launcher.workers.forkserver.learning import FILE, settled
from turnout.launcher.workers.forkserver.messages import Ready
from turnout.launcher.workers.forkserver.preimport import MOST_TRIES, packages, worth_it

QUIET_S = 3.0  # seconds without a new import: the script is training
LISTEN_S = 1_800.0  # seconds since the round began: later imports do not belong to the start
PATIENCE_S = 120.0  # seconds for a parent's imports


class Successor:
    """Makes the successor of one agent's parent.

    open_: starts a parent that imports these modules. folder: for its files, "" to make no successor.
    """

    def __init__(
        self, open_: Callable[[Sequence[str]], Awaitable[ForkserverClient]], say: EventLog, folder: str, quiet_s: float
    ) -> None:
        self._open, self._say, self._folder, self._quiet_s = open_, say, folder, quiet_s
        self._parent: ForkserverClient | None = None
        self._left_out = set[str]()
        self._tries = MOST_TRIES if folder else 0
        self._learning: asyncio.Task[None] | None = None
        self._making = False
        self._closing: asyncio.Task[None] | None = None

    def begin(self, preload: Sequence[str]) -> str:
        """Begin a round; return the file in which its first process records its imports, "" if none is needed."""
        if not self._tries or self._making:
            return ""
        file = Path(self._folder, "imports")
        file.unlink(missing_ok=True)
        self.hear_no_more()
        self._learning = asyncio.create_task(self._learn(str(file), tuple(preload)))
        return str(file)

    def hear_no_more(self) -> None:
        """Stop listening for imports, since the round ends and there is no time to start a parent."""
        if self._learning is not None and not self._making:
            self._learning.cancel()

    def instead_of(self, parent: ForkserverClient | None) -> ForkserverClient | None:
        """Return the parent to use from now on. If it is a new one, `parent` is closed."""
        ours, self._parent = self._parent, None
        if ours is None:
            return parent
        self._tries = 0
        if parent is not None:
            self._closing = asyncio.create_task(parent.close())
        return ours

    def lost(self, parent: ForkserverClient) -> None:
        """Record that this parent has ended unasked; it may be the successor."""
        if parent is self._parent:
            self._parent = None

    async def _learn(self, file: str, preload: tuple[str, ...]) -> None:
        """Make a parent when the script imports nothing more, and another one if it later imports more."""
        names: tuple[str, ...] = ()
        while self._tries:
            try:
                names = await asyncio.wait_for(settled(file, self._quiet_s, len(names)), LISTEN_S)
            except TimeoutError:
                return
            self._making = True
            try:
                await self._make(names, preload)
            finally:
                self._making = False

    async def _make(self, names: Sequence[str], preload: tuple[str, ...]) -> None:
        file = Path(self._folder, "ahead")
        while self._tries and worth_it(names, self._left_out):
            self._tries -= 1
            known = [name for each in packages(names, self._left_out).values() for name in each]
            try:
                await asyncio.to_thread(file.write_text, "\n".join(known))
                ready = await self._made((*preload, f"{FILE}{file}"))
            except OSError as error:
                self._say("parent_failed", {"why": str(error)})
                ready = None
            if ready is not None and not ready.refuses:
                self._say("parent_learned", {"modules": len(known), "took_s": ready.took_s})
                return
            if ready is None or not ready.harmful:
                self._tries = 0
                return
            self._say("preload_failed", {"module": ready.harmful, "why": ready.refuses})
            self._left_out.add(ready.harmful)

    async def _made(self, modules: Sequence[str]) -> Ready | None:
        """Start a parent and keep it if it can be forked. None if it ended or took too long. Raises OSError."""
        parent, ready = await self._open(modules), None
        try:
            ready = await asyncio.wait_for(asyncio.shield(parent.ready), PATIENCE_S)
        except TimeoutError:
            self._say("parent_failed", {"why": f"it has not imported what the script did in {PATIENCE_S:g} s"})
        finally:
            useless = parent if ready is None or ready.refuses else self._parent
            if useless is not parent:
                self._parent = parent
            if useless is not None:
                await useless.close()
        return ready

    async def close(self) -> None:
        """Stop everything and close the parents."""
        self._tries = 0
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait([self._learning])
        if self._closing is not None:
            await self._closing
        if self._parent is not None:
            parent, self._parent = self._parent, None
            await parent.close()
