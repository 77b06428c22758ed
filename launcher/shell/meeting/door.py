"""Where others knock: every agent listens, whether it coordinates or may have to. Who knocks has to prove the token."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from turnout.launcher.errors import BadFrame
from turnout.launcher.model import Reason
from turnout.launcher.shell.meeting.frames import Frames
from turnout.launcher.shell.say import Say
from turnout.launcher.wire import (
    MOST_JOIN_BYTES,
    NONCE_BYTES,
    VERSION,
    Challenge,
    Join,
    Message,
    Redirect,
    Refused,
    ToCoordinator,
    Welcome,
    encode,
    proof,
    proves,
    read_at_coordinator,
)

GREET_S = 10.0  # for a stranger to prove himself
HOLD_S = 3.0  # how long one who came too early waits for us to know who coordinates
BACKLOG = 4_096
_MOST_STRANGERS = 12_000  # connections that have proved nothing yet


class Host(Protocol):
    """Who is asked about a guest that has proved himself: the coordinator."""

    def admit(self, guest: Guest, join: Join) -> None:
        """Take him: answer with Welcome or Refused."""

    def heard(self, guest: Guest, message: ToCoordinator) -> None:
        """He says something."""

    def gone(self, guest: Guest) -> None:
        """His connection is closed."""


class Guest(Frames):
    """One connection from outside, from our side."""

    most_bytes = MOST_JOIN_BYTES

    def __init__(self, door: Door) -> None:
        super().__init__()
        self._door = door
        self._nonce, self._theirs = os.urandom(NONCE_BYTES), b""
        self.host: Host | None = None
        self.id = ""
        self.join: Join | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def opened(self) -> None:
        """Ask for the proof."""
        self._door.came(self)
        self._alarm = asyncio.get_running_loop().call_later(GREET_S, self.abort)
        self.send(encode(Challenge(VERSION, self._nonce)))

    def took(self, body: bytes) -> None:
        """A frame: the first has to be Join."""
        message = read_at_coordinator(body)
        if self.host is not None:
            self.host.heard(self, message)
        elif isinstance(message, Join) and self.join is None:
            self._judge(message)
        else:
            raise BadFrame(f"{type(message).__name__} before Join was answered")

    def _judge(self, join: Join) -> None:
        door = self._door
        if not proves(join.proof, door.token, "member", join.run, self._nonce, join.nonce):
            door.say("stranger_refused", {"peer": self.peer, "detail": "it does not know the job's token"})
            self.refuse("the job's token is another one here")
        elif join.run != door.run:
            self.refuse(f"this is job {door.run}, not {join.run}")
        elif join.version != VERSION:
            self.refuse(f"the coordinator speaks version {VERSION} and not {join.version}: use one version in a job")
        else:
            self.join, self._theirs, self.id = join, join.nonce, join.member.id
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = asyncio.get_running_loop().call_later(HOLD_S, door.send_on, self)
            door.proved(self)

    def welcome(self, host: Host, make: Callable[[bytes], Welcome]) -> None:
        """Take him in. make: the Welcome with our proof in it."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.host, self.splitter.max_bytes = host, 1 << 20
        self.send(encode(make(proof(self._door.token, "coordinator", self._door.run, self._theirs, self._nonce))))

    def tell(self, message: Message) -> None:
        """Say this to him."""
        self.send(encode(message))

    def refuse(self, detail: str) -> None:
        """Say no, for good."""
        self.tell(Refused(Reason.REFUSED.value, detail))
        self.close()

    def bad(self, fault: str) -> None:
        """He sent what is no message."""
        self._door.say("bad_frame", {"peer": self.peer, "member": self.id, "detail": fault})

    def closed(self, why: Exception | None) -> None:
        """He is gone."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._door.left(self)
        if self.host is not None:
            self.host.gone(self)


class Door:
    """The listening socket of one agent. It opens to whoever coordinates here, and else says where to go."""

    def __init__(self, token: bytes, run: str, say: Say) -> None:
        self.token, self.run, self.say = token, run, say
        self.elsewhere: Callable[[], Redirect | None] = lambda: None
        self._host: Host | None = None
        self._waiting: set[Guest] = set()  # proved, and held until we know who coordinates
        self._strangers: set[Guest] = set()
        self._server: asyncio.Server | None = None

    async def open(self, address: str, port: int) -> int:
        """Listen there, an IP literal; port 0 for any. Raises OSError. Returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Guest(self), address, port, backlog=BACKLOG)
        return int(self._server.sockets[0].getsockname()[1])

    def lead(self, host: Host | None) -> None:
        """From now on this one coordinates here, or nobody does."""
        self._host = host
        if host is not None:
            waiting, self._waiting = self._waiting, set()
            for guest in sorted(waiting, key=lambda guest: guest.id):
                if guest.join is not None:
                    host.admit(guest, guest.join)

    def came(self, guest: Guest) -> None:
        """A stranger."""
        if len(self._strangers) >= _MOST_STRANGERS:
            guest.abort()
        else:
            self._strangers.add(guest)

    def proved(self, guest: Guest) -> None:
        """He knows the token."""
        self._strangers.discard(guest)
        if self._host is not None and guest.join is not None:
            self._host.admit(guest, guest.join)
        elif self.elsewhere() is not None:
            self.send_on(guest)
        else:
            self._waiting.add(guest)

    def send_on(self, guest: Guest) -> None:
        """Nobody coordinates here: say who does, as far as we know."""
        self._waiting.discard(guest)
        guest.tell(self.elsewhere() or Redirect("", "", 0))
        guest.close()

    def left(self, guest: Guest) -> None:
        """He closed."""
        self._strangers.discard(guest)
        self._waiting.discard(guest)

    async def close(self) -> None:
        """Nobody comes in any more; who is inside stays."""
        if self._server is not None:
            self._server.close()
        for guest in [*self._strangers, *self._waiting]:
            guest.abort()
