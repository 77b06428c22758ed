"""A keeper's part in the copies of its job: whom it lets in, what it sends, what it keeps, what it gives back.

The keeper tells what happens beside it: a round, a training process, a sealed step. All else is done in the background.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec

from turnout.launcher.checkpoint.peers import Fetch, Follow, Go, Kept, No, Offer, unpacked
from turnout.launcher.checkpoint.wire import Bring, Brought, Hello, Inherit, Seat
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError, NoMemory
from turnout.launcher.keeping import ALL, BARRED, MOST_HOLDS, Held
from turnout.launcher.shell.buddies.copying import Copying
from turnout.launcher.shell.buddies.giving import fetched, give
from turnout.launcher.shell.buddies.home import Here, Home
from turnout.launcher.shell.buddies.inheriting import brought, inherited
from turnout.launcher.shell.buddies.leading import Leading, follow
from turnout.launcher.shell.buddies.shelf import Shelf
from turnout.launcher.shell.buddies.talk import Talk, greeted
from turnout.launcher.shell.memory.arena import Taken
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.storage.pace import Pace, Paced

BYTES_S = "TURNOUT_REPLICATE_BYTES_S"  # of the keeper's environment, which is that of the agent
MOST_CALLERS = 512
OVER = 2  # saves of all ranks, of which the older one is whole everywhere: nothing older is gone on from
FULL_S = 1.0  # where no more files can be opened
_OWN = 32  # of what is held: places for what the worker has of its own
_THREADS = 16  # that receive; each is idle while nothing comes


class Copies:
    """Of one keeper. bytes_s: sent a second at most, 0 for no limit."""

    def __init__(self, home: Home, say: Say, bytes_s: float = 0.0) -> None:
        self._sends = ThreadPoolExecutor(1, "turnout-send")
        self._receives = ThreadPoolExecutor(_THREADS, "turnout-receive")
        self._here = Here(home, say, self._sends, self._receives, Paced(Pace(bytes_s)))
        self.shelf = Shelf(home.folder, home.run, home.worker, say, self._receives)
        self._copying: Copying | None = None
        self._leading: Leading | None = None
        self._round: asyncio.Task[Any] | None = None  # leads or follows
        self._callers: set[asyncio.Task[None]] = set()
        self._talks: set[Talk] = set()
        self._listens: socket.socket | None = None
        self._sealed = 0  # saves of this round, where nobody has copies of them

    def listen(self, listens: socket.socket) -> None:
        """For other keepers, from now on."""
        if listens.fileno() < 0:
            return
        listens.setblocking(False)
        self._listens = listens
        asyncio.get_running_loop().add_reader(listens.fileno(), self._accept, listens)

    def trust(self, token: bytes) -> None:
        """By this token the keepers of the job know one another."""
        self._here.token = token

    async def gathered(self, step: int, seat: Seat) -> None:
        """A world: what this worker lacks of that step is fetched. Raises LauncherError, and nothing may be started."""
        self._close_round()
        here = self._here
        here.round, here.seat, here.replicas = max(here.round, seat.round), seat, 0
        here.barred, self._sealed = False, 0
        here.whole, here.steps, here.copied = step, set(), set()
        if step >= 0 and seat.fetch:
            await fetched(here, step, seat)

    def met(self, hello: Hello) -> None:
        """A training process has come."""
        here = self._here
        if hello.alike and hello.round:
            here.alike.add(hello.round)
        if not hello.replicas or hello.round != here.round or here.seat is None or here.seat.circle is None:
            return
        here.replicas = max(here.replicas, hello.replicas)
        if self._copying is not None:
            return
        self._copying = Copying(here)
        self._copying.hold(here.whole)
        if here.seat.first_rank:
            work: Coroutine[Any, Any, None] = follow(here, self._copying, self.shelf, here.seat.circle)
        else:
            self._leading = Leading(here, self._copying, self.shelf)
            work = self._leading.lead(here.seat.circle)
        self._round = asyncio.get_running_loop().create_task(work)

    async def sealed(self, local_rank: int, step: int) -> None:
        """One step more that could be copied."""
        if self._copying is None:
            self._sealed += local_rank == 0
            if local_rank == 0 and self._sealed == OVER:
                self.shelf.give_back(self._here.round)
            return
        async with self._here.sealed:
            if local_rank == 0:
                self._here.steps.add(step)
            self._here.sealed.notify_all()

    def done(self) -> tuple[int, int]:
        """The newest step that is copied, -1 for none, and how many were passed over, in this round."""
        return (-1, 0) if self._copying is None else (self._copying.replicated, self._copying.uncopied)

    def busy(self) -> bool:
        """Is somebody being talked to?"""
        return bool(self._callers)

    def give_way(self) -> bool:
        """A save finds no room: the copy under way gives its memory back. False where there is none."""
        return self._copying is not None and self._copying.give_way()

    def kept_bytes(self, local_rank: int) -> int:
        """Taken for others of this local rank."""
        return self.shelf.reserved_bytes(local_rank)

    def give_back(self) -> bool:
        """There is too little memory: what is kept of earlier rounds goes first. False where there is nothing of it."""
        return self.shelf.give_back(self._here.round)

    async def inherit(self, order: Inherit) -> None:
        """Keep what workers that leave have."""
        await inherited(self._here, self.shelf, order)

    async def bring(self, wanted: Bring) -> Brought:
        """Have it here. Raises LauncherError."""
        return await brought(self._here, self.shelf, wanted)

    async def held(self, own: tuple[Held, ...]) -> tuple[Held, ...]:
        """What others may fetch here: what is kept for them, and of `own` what is the same on all ranks.

        And that nothing may be fetched here in the next round, where that has failed in this one.
        """
        alike = [
            msgspec.structs.replace(each, count=1)
            for each in own
            if each.ranks == ALL and not each.count and each.round in self._here.alike
        ]
        barred = [BARRED] if self._here.barred else []
        return (*barred, *alike, *await self.shelf.held())[: MOST_HOLDS - _OWN]

    async def forget_after(self, step: int) -> None:
        """What is newer is of a past that was given up."""
        await self.shelf.forget_after(step)

    def _close_round(self) -> None:
        for each in (self._leading, self._copying):
            if each is not None:
                each.close()
        if self._round is not None:
            self._round.cancel()
        self._leading = self._copying = self._round = None

    def _accept(self, listens: socket.socket) -> None:
        try:
            sock, _ = listens.accept()
        except OSError as error:  # it went before it was taken, or there are too many open files
            if error.errno in (errno.EMFILE, errno.ENFILE):
                loop = asyncio.get_running_loop()
                loop.remove_reader(listens.fileno())
                loop.call_later(FULL_S, self.listen, listens)
            return
        if len(self._callers) >= MOST_CALLERS:
            sock.close()
            return
        talk = Talk(sock)
        self._talks.add(talk)  # also of a task that is cancelled before it begins
        task = asyncio.get_running_loop().create_task(self._serve(talk))
        self._callers.add(task)
        task.add_done_callback(self._callers.discard)

    async def _serve(self, talk: Talk) -> None:
        try:
            if await greeted(talk, self._here.me) and await self._in_time(talk):
                await self._obey(talk)
            else:
                self._here.say("stranger_refused", {"peer": talk.peer, "round": talk.round})
        except BadFrame as error:
            self._here.say("frame_refused", {"why": str(error)})
        except (LauncherError, OSError):  # it is gone, and comes again
            pass
        finally:
            self._talks.discard(talk)
            if self._leading is None or not self._leading.has(talk):
                talk.close()

    async def _in_time(self, talk: Talk) -> bool:
        """Is its round not over for us? What comes of an older one is of a past that was given up."""
        if talk.round < self._here.round:
            await talk.say(No("older_round", f"round {talk.round}: this is {self._here.round}"))
            return False
        return True

    async def _obey(self, talk: Talk) -> None:
        while True:
            match await talk.hear(None):
                case Offer() as offer if await self._in_time(talk):
                    await self._take(talk, offer)
                case Fetch() as asked if await self._in_time(talk):
                    await give(self._here, self.shelf, talk, asked)
                case Follow():
                    if self._leading is None or talk.round != self._here.round:
                        await talk.say(No("not_here", "nobody leads here yet"))
                    else:
                        await self._leading.follow(talk)
                    return
                case Offer() | Fetch():
                    return
                case message:
                    raise BadFrame(f"{type(message).__name__} is not for a keeper")

    async def _take(self, talk: Talk, offer: Offer) -> None:
        record = unpacked(offer.record)
        place = (talk.peer, offer.local_rank)
        if record.round != talk.round or talk.peer == self._here.home.worker:
            raise BadFrame("a shard of another round, or of this worker itself")
        try:
            arena = await self.shelf.room(place, record, offer.generations)
            await talk.say(Go())
            await self.shelf.take(talk, place, record, offer, arena)
        except (NoMemory, Taken) as error:
            self._here.say("replica_refused", {"owner": talk.peer, "step": record.step, "detail": str(error)[:1_000]})
            await talk.say(No("no_memory" if isinstance(error, NoMemory) else "busy", str(error)[:4_096]))
        except BadCheckpoint as error:
            self._here.say("replica_corrupt", {"owner": talk.peer, "step": record.step, "detail": str(error)})
            await talk.say(No("corrupt", str(error)))
            raise
        else:
            await talk.say(Kept())

    async def close(self, *, remove: bool) -> None:
        """The keeper ends. remove: the job is done."""
        self._here.paced.pace = Pace()  # who waits for it finds that its connection is closed
        self._close_round()
        if self._listens is not None:
            asyncio.get_running_loop().remove_reader(self._listens.fileno())
        for task in self._callers:
            task.cancel()
        for talk in list(self._talks):
            talk.close()
        await asyncio.gather(*self._callers, return_exceptions=True)
        self._receives.shutdown(wait=True)
        self._sends.shutdown(wait=True)
        with suppress(OSError):
            self.shelf.close(remove=remove)
