"""A member's connection to the coordinator: the handshake, heartbeats, and what either side says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from turnout.launcher.errors import BadFrame
from turnout.launcher.model import Reason
from turnout.launcher.shell.meeting.frames import Frames
from turnout.launcher.wire import (
    NONCE_BYTES,
    VERSION,
    Base,
    Beat,
    Challenge,
    Join,
    Pace,
    Redirect,
    Refused,
    ToCoordinator,
    ToMember,
    Welcome,
    encode,
    proof,
    proves,
    read_at_member,
)

CONNECT_S = 2.0  # for a host that is there to take a connection
CHALLENGE_S = 5.0  # for its agent to say a word: one that is stopped says none
SLEPT_S = 5.0  # between two looks at the clock: we were stopped
GREET_S = 20.0  # from then on: a crowd comes before us, or it first has to find out that the coordinator is lost


@dataclass(frozen=True, slots=True)
class NobodyListens:
    """The host is there and refuses: whoever listened on that port is dead."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nothing came in time: nobody knows. why: as far as it is known."""

    why: str


class Link(Frames):
    """One connection, from its side. on_message: what comes after the Welcome; on_lost: once, with the reason."""

    def __init__(
        self,
        join: Callable[[bytes, bytes], Join],
        token: bytes,
        run: str,
        on_message: Callable[[Link, ToMember], None],
        on_lost: Callable[[Link, Reason], None],
    ) -> None:
        super().__init__()
        self._join, self._token, self._run = join, token, run
        self._on_message, self._on_lost = on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Welcome | Redirect | Refused | NoAnswer] = self._loop.create_future()
        self._nonce, self._theirs = os.urandom(NONCE_BYTES), b""
        self.welcome: Welcome | None = None
        self.claimed = Base()  # what the Join said of us
        self._heard_s = self._looked_s = self._loop.time()
        self._beats: asyncio.TimerHandle | None = None
        self._beat_s = self.silence_s = 0.0
        self.step = self.saved = -1
        self.importing_s = 0.0
        self._over = False

    def took(self, body: bytes) -> None:
        """A frame from the coordinator."""
        self._heard_s = self._loop.time()
        if self._slept():
            return
        message = read_at_member(body)
        if self.welcome is not None:
            if isinstance(message, Pace):
                self._beat_s, self.silence_s = message.beat_s, message.silence_s
            elif not isinstance(message, Beat):
                self._on_message(self, message)
            return
        match message:
            case Challenge(version=version, nonce=nonce):
                if version != VERSION:
                    self._answer(NoAnswer(f"it speaks version {version}, this is {VERSION}"))
                    return
                self._theirs = nonce
                join = self._join(self._nonce, self._proof(nonce))
                self.claimed, self.importing_s = join.base, join.importing_s
                self.send(encode(join))
            case Welcome():
                if not proves(message.proof, self._token, "coordinator", self._run, self._nonce, self._theirs):
                    self._answer(Refused(Reason.REFUSED.value, "the coordinator does not know the job's token"))
                    self.abort()
                    return
                self.welcome = message
                self._beat_s, self.silence_s = message.beat_s, message.silence_s
                self._looked_s = self._loop.time()
                if self._beats is not None:
                    self._beats.cancel()
                self._beats = self._loop.call_later(message.beat_s, self._beat)
                self._answer(message)
            case Redirect() | Refused():
                self._answer(message)
            case _:
                raise BadFrame(f"{type(message).__name__} before Welcome")

    @property
    def challenged(self) -> bool:
        """Has the other side said anything?"""
        return self._theirs != b""

    def _proof(self, theirs: bytes) -> bytes:
        return proof(self._token, "member", self._run, theirs, self._nonce)

    def _answer(self, answer: Welcome | Redirect | Refused | NoAnswer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def say(self, message: ToCoordinator) -> None:
        """Send this; nothing when the connection is gone: the next one begins afresh."""
        self.send(encode(message))

    def tells(self, step: int, saved: int, importing_s: float) -> None:
        """What heartbeats say from now on. That there are steps now, or that all is imported, is said at once."""
        soon = self.step < 0 <= step or importing_s == 0 < self.importing_s
        self.step, self.saved, self.importing_s = step, saved, importing_s
        if soon:
            self.say(Beat(step, saved, importing_s))

    def _beat(self) -> None:
        now_s, limit_s = self._loop.time(), self.silence_s
        if self._slept():
            return
        if now_s - self._looked_s > limit_s / 2:
            self._heard_s = now_s  # we were stopped ourselves: what came meanwhile is still to be read
        self._looked_s = now_s
        if now_s - self._heard_s > limit_s:
            self._lost(Reason.MEMBER_SILENT)
            self.abort()
            return
        self.say(Beat(self.step, self.saved, self.importing_s))
        self._beats = self._loop.call_later(self._beat_s, self._beat)

    def _slept(self) -> bool:
        """Were we stopped for so long that the others have given us up? What they said before that is over."""
        if self._loop.time() - self._looked_s <= (self.silence_s or SLEPT_S):
            return False
        if self.welcome is not None:
            self._lost(Reason.MEMBER_SILENT)
        self.abort()
        return True

    def opened(self) -> None:
        """Notice, while we wait for the Welcome, whether we are stopped meanwhile."""
        self._looked_s = self._loop.time()
        self._beats = self._loop.call_later(1.0, self._wait)

    def _wait(self) -> None:
        if self.welcome is None and not self._slept():
            self.opened()

    def closed(self, why: Exception | None) -> None:
        """The connection is gone."""
        if self._beats is not None:
            self._beats.cancel()
        self._answer(NoAnswer("the connection was closed" if why is None else str(why)))
        if self.welcome is not None:
            self._lost(Reason.MEMBER_LOST)

    def _lost(self, reason: Reason) -> None:
        if not self._over:
            self._over = True
            self._on_lost(self, reason)

    def leave(self) -> None:
        """Close without a word about it."""
        self._over = True
        if self._beats is not None:
            self._beats.cancel()
        self.close()


async def connect(
    make: Callable[[], Link], address: str, port: int, *, connect_s: float = CONNECT_S, greet_s: float = GREET_S
) -> tuple[Link | None, Welcome | Redirect | Refused | NobodyListens | NoAnswer]:
    """Knock there. address: an IP literal or a name; only a name is looked up. A Link comes with Welcome only."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_s):
            _, link = await loop.create_connection(make, address, port)
    except ConnectionRefusedError:
        return None, NobodyListens()
    except (OSError, TimeoutError) as error:
        return None, NoAnswer(str(error) or f"no connection within {connect_s:g} s")
    try:
        await asyncio.wait([link.answer], timeout=min(CHALLENGE_S, greet_s))
        if link.challenged:
            await asyncio.wait([link.answer], timeout=greet_s)
        answer = link.answer.result() if link.answer.done() else NoAnswer(f"no greeting within {greet_s:g} s")
    except asyncio.CancelledError:
        link.abort()
        raise
    if isinstance(answer, Welcome):
        return link, answer
    link.leave()
    return None, answer
