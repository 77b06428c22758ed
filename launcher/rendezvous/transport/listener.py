"""Listens for other agents. Every agent listens, since every member may become the coordinator.

A peer has to prove that it knows the job's token before it is admitted or redirected.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from turnout.launcher.coordinator_messages import (
    MAX_JOIN_BYTES,
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
    is_proof,
    proof,
    read_at_coordinator,
)
from turnout.launcher.errors import BadFrame
from turnout.launcher.event_log import EventLog, limit_rate
from turnout.launcher.framing import MAC_BYTES, FrameAuth, NotProven
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.transport.frame_connection import Acceptor, FrameConnection

GREET_S = 10.0  # seconds for a new peer to prove its identity
HOLD_S = 3.0  # seconds to hold an early member until the coordinator is known
BACKLOG = 4_096  # connections that the kernel queues
MAX_STRANGERS = 12_000  # connections that have proved nothing yet: as many as arrive when a large job starts
MAX_STRANGERS_OF_ONE = 64  # from one address, except this machine's


_LOOPBACK = ("127.0.0.1", "::1")


class ListenerHost(Protocol):
    """The part of the coordinator that handles accepted peers."""

    def admit(self, peer: MemberConnection, join: Join) -> None:
        """Accept a peer: answer with Welcome or Refused."""

    def on_message(self, peer: MemberConnection, message: ToCoordinator) -> None:
        """Handle a peer's message."""

    def on_closed(self, peer: MemberConnection) -> None:
        """Handle the end of a peer's connection."""


class MemberConnection(FrameConnection):
    """The listener's side of one connection from another agent: it demands the proof and waits to be admitted.

    `host`: the coordinator that has admitted the peer, None before. `id`: the member's id, "" before its proof.
    """

    max_bytes = MAX_JOIN_BYTES

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._nonce, self._peer_nonce = os.urandom(NONCE_BYTES), b""
        self.host: ListenerHost | None = None
        self.id = ""
        self.join: Join | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def on_open(self) -> None:
        """Send the Challenge, and set a limit of GREET_S for the proof."""
        self._listener.register(self)
        self._alarm = asyncio.get_running_loop().call_later(GREET_S, self.abort)
        self.send(encode(Challenge(VERSION, self._nonce)))

    def on_frame(self, body: bytes) -> None:
        """Handle a frame: the first must be Join, later ones go to the coordinator.

        body: of a Join with its code, which is checked here; of later frames without it. Raises BadFrame for an invalid
        message, for a first one that is not Join, and for one before Join was answered. A Join that is not admitted is
        refused or redirected, and raises nothing.
        """
        if self.host is not None:
            self.host.on_message(self, read_at_coordinator(body))
            return
        message = read_at_coordinator(body[:-MAC_BYTES])
        if not isinstance(message, Join) or self.auth is not None:
            raise BadFrame(f"{type(message).__name__} before Join was answered")
        self._check_join(message, body)

    def _check_join(self, join: Join, sealed: bytes) -> None:
        """Admit a member of the same job and version that proves its knowledge of the token; refuse any other.

        sealed: the received frame with its code. The member is redirected if no coordinator admits it within HOLD_S.
        """
        listener = self._listener
        self.auth = FrameAuth(listener.token, join.run, join.nonce, self._nonce, listens=True)
        try:
            self.auth.open(sealed)
            if not is_proof(join.proof, listener.token, "member", join.run, self._nonce, join.nonce):
                raise NotProven("a Join without its proof")
        except NotProven:
            listener.log_event("stranger_refused", {"peer": self.peer, "detail": "it does not know the job's token"})
            self.refuse("the job's token is another one here")
            return
        if join.run != listener.run:
            self.refuse(f"this is job {listener.run}, not {join.run}")
        elif join.version != VERSION:
            self.refuse(f"the coordinator speaks version {VERSION} and not {join.version}: use one version in a job")
        else:
            self.join, self._peer_nonce, self.id = join, join.nonce, join.member.id
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = asyncio.get_running_loop().call_later(HOLD_S, listener.redirect, self)
            listener.admit(self)

    def welcome(self, host: ListenerHost, make: Callable[[bytes], Welcome]) -> None:
        """Send the Welcome, and pass later messages of this peer to `host`. Ends the time limit for the proof.

        make: returns the Welcome that contains the given proof of this side.
        """
        if self._alarm is not None:
            self._alarm.cancel()
        self.host, self.splitter.max_bytes = host, 1 << 20
        self.send(
            encode(make(proof(self._listener.token, "coordinator", self._listener.run, self._peer_nonce, self._nonce)))
        )

    def send_message(self, message: Message) -> None:
        """Send a message to the peer."""
        self.send(encode(message))

    def refuse(self, detail: str) -> None:
        """Refuse the peer for good and close the connection. detail: the reason."""
        self.send_message(Refused(Reason.REFUSED.value, detail))
        self.close()

    def on_bad_frame(self, fault: str) -> None:
        """Log an invalid frame of the peer."""
        self._listener.log_event("bad_frame", {"peer": self.peer, "member": self.id, "detail": fault})

    def on_close(self, why: Exception | None) -> None:
        """Report the end of the connection to the listener and the coordinator."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._listener.forget(self)
        if self.host is not None:
            self.host.on_closed(self)


class Listener:
    """The listening socket of one agent. It admits peers to the coordinator in this agent, or redirects them.

    token, run: of the job. `redirect_target`: set by the agent; returns the coordinator to name, None if unknown.
    """

    def __init__(self, token: bytes, run: str, log_event: EventLog) -> None:
        self.token, self.run, self.log_event = (
            token,
            run,
            limit_rate(log_event),
        )  # peers without the token must not fill the log
        self.redirect_target: Callable[[], Redirect | None] = lambda: None
        self._host: ListenerHost | None = None
        self._waiting: set[MemberConnection] = set()  # proved, and held until the coordinator is known
        self._strangers: dict[MemberConnection, None] = {}  # oldest first
        self._strangers_by_address: Counter[str] = Counter()  # peers that have proved nothing yet, by address
        self._listens: socket.socket | None = None
        self._acceptor: Acceptor | None = None

    async def open(self, address: str, port: int) -> int:
        """Listen on this address, an IP literal, and port, 0 for any. Return the port.

        Raises OSError if the address is not of this host, or the port is in use or not permitted.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listens = socket.create_server((address, port), family=family, backlog=BACKLOG)
        self._acceptor = Acceptor(self._listens, lambda: MemberConnection(self))
        return int(self._listens.getsockname()[1])

    def lead(self, host: ListenerHost | None) -> None:
        """Set the coordinator in this agent, None for none, and pass it the peers that wait for a coordinator."""
        self._host = host
        if host is not None:
            waiting, self._waiting = self._waiting, set()
            for peer in sorted(waiting, key=lambda peer: peer.id):
                if peer.join is not None:
                    host.admit(peer, peer.join)

    def register(self, peer: MemberConnection) -> None:
        """Register a connection that has proved nothing. If there are too many, in all or from its address, abort the
        oldest of them: members that know the token prove it quickly.
        """
        is_crowded = peer.peer not in _LOOPBACK and self._strangers_by_address[peer.peer] >= MAX_STRANGERS_OF_ONE
        if is_crowded or len(self._strangers) >= MAX_STRANGERS:
            oldest = next(each for each in self._strangers if not is_crowded or each.peer == peer.peer)
            self._remove_stranger(oldest)
            oldest.abort()
        self._strangers[peer] = None
        self._strangers_by_address[peer.peer] += 1

    def _remove_stranger(self, peer: MemberConnection) -> None:
        """Remove a connection from those that have proved nothing."""
        if peer in self._strangers:
            del self._strangers[peer]
            self._strangers_by_address[peer.peer] -= 1
            if not self._strangers_by_address[peer.peer]:
                del self._strangers_by_address[peer.peer]

    def admit(self, peer: MemberConnection) -> None:
        """Pass a proven peer to the coordinator in this agent; else redirect it to the one that is known; else let it
        wait.
        """
        self._remove_stranger(peer)
        if self._host is not None and peer.join is not None:
            self._host.admit(peer, peer.join)
        elif self.redirect_target() is not None:
            self.redirect(peer)
        else:
            self._waiting.add(peer)

    def redirect(self, peer: MemberConnection) -> None:
        """Redirect the peer to the coordinator, with port 0 if it is unknown, and close the connection."""
        self._waiting.discard(peer)
        peer.send_message(self.redirect_target() or Redirect("", "", 0))
        peer.close()

    def forget(self, peer: MemberConnection) -> None:
        """Remove a peer whose connection has ended."""
        self._remove_stranger(peer)
        self._waiting.discard(peer)

    async def close(self) -> None:
        """Stop listening, and cut off the peers that wait for a coordinator or have not proved that they know the
        token.

        Peers that a coordinator has admitted stay connected.
        """
        if self._acceptor is not None and self._listens is not None:
            self._acceptor.close()
            self._listens.close()
            self._acceptor = None
        for peer in [*self._strangers, *self._waiting]:
            peer.abort()
