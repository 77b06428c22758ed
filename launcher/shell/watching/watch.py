"""The agent looks at its processes while they train: one that hangs is told, and where all stand is written down.

When a process hangs is decided in launcher/health/hangs.py. Nothing is ended here: what becomes of the round is for
the coordinator to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from turnout.launcher.health.hangs import Hang, Hangs, Limits, Moved, Watch, look
from turnout.launcher.shell.progress import Watched
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.watching.files import folder_of, keep
from turnout.launcher.shell.watching.stacks import Taken, find_py_spy, take

FRESH_S = 10.0  # stacks that were taken so lately are of the same hang: nobody is looked into twice for it


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes of a round. pids: of those that run, by local rank; first_rank, world: who they are."""

    watched: Watched
    pids: Callable[[], Mapping[int, int]]
    first_rank: int
    world: int


class Watching:
    """Of one agent, round after round. hung: processes that hang now, and why, by local rank."""

    def __init__(self, hangs: Hangs, say: Say, limits: Limits | None = None) -> None:
        self._say, self._folder = say, folder_of(hangs)
        self._limits = replace(limits or Limits(), at_most_s=hangs.at_most_s)
        self._crew: Crew | None = None
        self._looking: asyncio.Task[None] | None = None
        self._taking = asyncio.Lock()
        self._taken: tuple[float, dict[int, Taken]] | None = None
        self.hung: dict[int, str] = {}

    def begin(self, crew: Crew) -> None:
        """A round's processes have started."""
        self._crew, self._taken, self.hung = crew, None, {}
        self._looking = asyncio.create_task(self._look(crew))

    async def end(self) -> None:
        """They are stopped, or about to be: from now on standing still is no fault."""
        looking, self._looking, self._crew, self.hung = self._looking, None, None, {}
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _look(self, crew: Crew) -> None:
        watches = [Watch()] * len(crew.watched.paths)
        while True:
            await asyncio.sleep(self._limits.look_s)
            some_hung, alive = bool(self.hung), crew.pids()
            for local_rank, seen in enumerate(crew.watched.seen()):
                if local_rank in alive:
                    watches[local_rank], news = look(watches[local_rank], seen, self._limits, time.monotonic())
                    self._tell(crew, local_rank, news)
            if self.hung and not some_hung:
                await self.show()

    def _tell(self, crew: Crew, local_rank: int, news: Hang | Moved | None) -> None:
        match news:
            case Hang():
                self.hung[local_rank] = str(news)
                self._say("process_hung", {"rank": crew.first_rank + local_rank, "why": str(news)})
            case Moved(after_s):
                self.hung.pop(local_rank, None)
                self._say("process_moved", {"rank": crew.first_rank + local_rank, "after_s": round(after_s, 1)})

    async def show(self) -> dict[int, Taken]:
        """Where all of them stand, not only who hangs: one tells little of what it waits for. By local rank.

        It is written down here too: whoever asks may be lost before it is told.
        """
        async with self._taking:
            if (crew := self._crew) is None:
                return {}
            if self._taken is None or time.monotonic() > self._taken[0] + FRESH_S:
                taken = await self._take(crew)
                self._taken = time.monotonic(), taken
            return self._taken[1]

    async def _take(self, crew: Crew) -> dict[int, Taken]:
        processes = {rank: (pid, crew.watched.paths[rank]) for rank, pid in crew.pids().items()}
        taken = await take(processes, await asyncio.to_thread(find_py_spy))
        files = {crew.first_rank + local_rank: each.file for local_rank, each in taken.items()}
        why = {str(crew.first_rank + local_rank): each.why for local_rank, each in taken.items() if each.why}
        try:
            await asyncio.to_thread(keep, self._folder, files, crew.world)
        except OSError as error:
            self._say("stacks_lost", {"folder": str(self._folder), "why": str(error)})
        else:
            ranks = [crew.first_rank + local_rank for local_rank, each in sorted(taken.items()) if each.shown]
            self._say("stacks_taken", {"folder": str(self._folder), "ranks": ranks, "world": crew.world, "why": why})
        return taken
