"""A member's connection to the coordinator: handshake, heartbeats and messages; and the search for the coordinator.

find_coordinator.py decides where to look next.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from turnout.launcher.addresses import resolve_host
from turnout.launcher.coordinator_messages import (
    MAX_BYTES,
    NONCE_BYTES,
    VERSION,
    Challenge,
    Heartbeat,
    HeartbeatInterval,
    Join,
    LastWorld,
    Redirect,
    Refused,
    ToCoordinator,
    ToMember,
    Welcome,
    encode,
    is_proof,
    proof,
    read_at_member,
)
from turnout.launcher.errors import BadFrame
from turnout.launcher.event_log import EventLog
from turnout.launcher.framing import FrameAuth, NotProven
from turnout.launcher.goodput.job_time import RankZero
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.arbiter import LockRefused, LockUnreachable
from turnout.launcher.rendezvous.find_coordinator import (
    Address,
    AskArbiter,
    ConnectTo,
    GiveUp,
    Lead,
    Move,
    Search,
    SearchPause,
    next_lap,
    next_move,
    record_arbiter,
    record_failure,
    record_other_holder,
    record_redirect,
)
from turnout.launcher.rendezvous.locks.round_lock import RoundLock
from turnout.launcher.rendezvous.transport.frame_connection import FrameConnection, next_frame

CONNECT_S = 2.0  # seconds for a living host to accept a connection

LISTEN_CHECK_S = 1.0  # seconds for an agent to connect and send the challenge, when it is asked for each second

CHALLENGE_S = 5.0  # seconds for its agent to send the challenge; a stopped agent sends none

SLEPT_S = 5.0  # seconds between two clock readings after which this process must have been suspended

GREET_S = 20.0  # seconds for the welcome: others may be first, or the agent has yet to notice a lost coordinator


@dataclass(frozen=True, slots=True)
class NobodyListens:
    """The host refused the connection, so the process that listened on this port is dead."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No valid answer came in time, so nothing is known about the other side. why: the reason."""

    why: str


class MemberHandshake:
    """The member's side of the proof by which both ends of a connection know that the other has the job's token.

    join: makes the Join from this side's nonce and proof. token, run: of the job. `answer`: the coordinator's answer.
    """

    def __init__(self, join: Callable[[bytes, bytes], Join], token: bytes, run: str) -> None:
        self._join, self._token, self._run = join, token, run
        self._nonce, self._peer_nonce = os.urandom(NONCE_BYTES), b""
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Welcome | Redirect | Refused | NoAnswer] = loop.create_future()

    def prove(self, nonce: bytes) -> tuple[FrameAuth, Join]:
        """Return the code of all later frames, and the Join that answers a Challenge. nonce: of the Challenge."""
        self._peer_nonce = nonce
        auth = FrameAuth(self._token, self._run, self._nonce, nonce, listens=False)
        return auth, self._join(self._nonce, proof(self._token, "member", self._run, nonce, self._nonce))

    def check(self, welcome: Welcome) -> None:
        """Raise NotProven if the sender of a Welcome has not proved that it knows the token."""
        if not is_proof(welcome.proof, self._token, "coordinator", self._run, self._nonce, self._peer_nonce):
            raise NotProven("a Welcome without the proof that its sender knows the job's token")

    @property
    def is_challenged(self) -> bool:
        """Return True if the other side has sent its Challenge."""
        return self._peer_nonce != b""

    def set_answer(self, answer: Welcome | Redirect | Refused | NoAnswer) -> None:
        """Set the result of the handshake, unless there is one."""
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """The progress of this member's processes that its heartbeats report."""

    step: int = -1  # the newest step done, -1 if unknown
    saved: int = -1  # the newest step saved, -1 if unknown
    importing_s: float = 0.0  # upper bound of the seconds until imports end, 0 if they have ended
    rank_zero: RankZero | None = None  # of the process of rank 0, None if it runs elsewhere
    read_s: float = 0.0  # when it was read, on the event loop's clock

    def heartbeat(self, now_s: float) -> Heartbeat:
        """Return the heartbeat that reports it, with the times of rank 0 moved to now."""
        rank_zero = None if self.rank_zero is None else self.rank_zero.age_by(now_s - self.read_s)
        return Heartbeat(self.step, self.saved, self.importing_s, rank_zero)


class CoordinatorClient(FrameConnection):
    """The member's side of one connection to a coordinator.

    join: makes the Join from this side's nonce and proof. token, run: of the job. on_message: called with each message
    after Welcome. on_lost: called once if the welcomed connection is lost, with the reason.
    """

    def __init__(
        self,
        join: Callable[[bytes, bytes], Join],
        token: bytes,
        run: str,
        on_message: Callable[[CoordinatorClient, ToMember], None],
        on_lost: Callable[[CoordinatorClient, Reason], None],
    ) -> None:
        super().__init__()
        self.handshake = MemberHandshake(join, token, run)
        self._on_message, self._on_lost = on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self.welcome: Welcome | None = None
        self.reported_world = LastWorld()  # the base that the Join reported
        self._heard_s = self._last_check_s = self._loop.time()
        self._beat_timer: asyncio.TimerHandle | None = None
        self._beat_s = self.silence_s = 0.0
        self._progress = ReportedProgress()
        self._is_loss_reported = False

    def on_frame(self, body: bytes) -> None:
        """Handle a frame from the coordinator: the handshake, then messages for `on_message`.

        Heartbeats without totals of the job's time, and new intervals, are not passed on. If this process was suspended
        for too long, the frame is dropped, the connection is aborted and its loss is reported. Raises BadFrame for an
        invalid message, or one that does not fit the handshake, and NotProven if the sender has not proved that it
        knows the token.
        """
        self._heard_s = self._loop.time()
        if self._abort_if_suspended():
            return
        message = read_at_member(body)
        if self.welcome is None:
            self._continue_handshake(message)
        elif isinstance(message, HeartbeatInterval):
            is_shorter = message.beat_s < self._beat_s
            self._beat_s, self.silence_s = message.beat_s, message.silence_s
            if is_shorter:  # the pending timer of the longer interval would look like a suspension
                self._last_check_s = self._loop.time()
                self._stop_timer()
                self._beat()
        elif not isinstance(message, Heartbeat) or message.job_time is not None:
            self._on_message(self, message)

    def _continue_handshake(self, message: ToMember) -> None:
        """Handle a message before Welcome: prove that this member knows the token, and check the other's proof.

        A Challenge of another version ends the handshake with NoAnswer. Raises NotProven for any other message before
        the Challenge and for a Welcome without its proof, and BadFrame for a message that does not belong to the
        handshake.
        """
        match message:
            case Challenge(version=version, nonce=nonce):
                if version != VERSION:
                    self.handshake.set_answer(NoAnswer(f"it speaks version {version}, this is {VERSION}"))
                    return
                self.auth, join = self.handshake.prove(nonce)
                self.reported_world = join.base
                self._progress = replace(self._progress, importing_s=join.importing_s)
                self.send(encode(join))
            case _ if self.auth is None:
                raise NotProven(f"{type(message).__name__} from one who has not proved that it knows the job's token")
            case Welcome():
                self.handshake.check(message)
                self.welcome = message
                self._beat_s, self.silence_s = message.beat_s, message.silence_s
                self._last_check_s = self._loop.time()
                self._stop_timer()
                self._beat_timer = self._loop.call_later(message.beat_s, self._beat)
                self.handshake.set_answer(message)
            case Redirect() | Refused():
                self.handshake.set_answer(message)
            case _:
                raise BadFrame(f"{type(message).__name__} before Welcome")

    def send_message(self, message: ToCoordinator) -> None:
        """Send a message. It is dropped if the connection is lost, since the next connection starts again."""
        self.send(encode(message))

    def report(self, step: int, saved: int, importing_s: float, rank_zero: RankZero | None = None) -> None:
        """Set the progress that the next heartbeats report. Send one now if the first step or the end of imports is
        new.

        step, saved: the newest step done, and saved; -1 if unknown. importing_s: upper bound of the seconds until
        imports end, 0 if they have ended. rank_zero: progress of rank 0, None if it runs elsewhere.
        """
        before = self._progress
        is_urgent = before.step < 0 <= step or importing_s == 0 < before.importing_s
        self._progress = ReportedProgress(step, saved, importing_s, rank_zero, self._loop.time())
        if is_urgent:
            self.send_message(self._progress.heartbeat(self._loop.time()))

    def _beat(self) -> None:
        """Send a heartbeat and schedule the next one, or abort the connection and report its loss.

        The connection is aborted if the coordinator was silent for more than silence_s, and if this process was
        suspended for more than silence_s, because the others then count it as lost. After a suspension of more than
        half of silence_s the silence counts from now.
        """
        now_s, limit_s = self._loop.time(), self.silence_s
        if self._abort_if_suspended():
            return
        if now_s - self._last_check_s > limit_s / 2:
            self._heard_s = now_s  # this process was stopped: read what has arrived meanwhile first
        self._last_check_s = now_s
        if now_s - self._heard_s > limit_s:
            self._report_loss(Reason.MEMBER_SILENT)
            self.abort()
            return
        self.send_message(self._progress.heartbeat(now_s))
        self._beat_timer = self._loop.call_later(self._beat_s, self._beat)

    def _abort_if_suspended(self) -> bool:
        """Abort the connection if this process was suspended for so long that its peers count it as lost.

        Returns True if it did.
        """
        if self._loop.time() - self._last_check_s <= (self.silence_s or SLEPT_S):
            return False
        if self.welcome is not None:
            self._report_loss(Reason.MEMBER_SILENT)
        self.abort()
        return True

    def on_open(self) -> None:
        """Check for suspension of this process each second, until the Welcome."""

        def check() -> None:
            """Check once, and schedule the next check unless the connection was welcomed or aborted."""
            if self.welcome is None and not self._abort_if_suspended():
                self.on_open()

        self._last_check_s = self._loop.time()
        self._beat_timer = self._loop.call_later(1.0, check)

    def on_bad_frame(self, fault: str) -> None:
        """Handle an invalid frame during the handshake as no answer."""
        self.handshake.set_answer(NoAnswer(fault))

    def on_close(self, why: Exception | None) -> None:
        """Stop the heartbeats, and report the loss of a welcomed connection. why: the error, None for a normal end."""
        self._stop_timer()
        self.handshake.set_answer(NoAnswer("the connection was closed" if why is None else str(why)))
        if self.welcome is not None:
            self._report_loss(Reason.MEMBER_LOST)

    def _report_loss(self, reason: Reason) -> None:
        """Call `on_lost`, unless it was called or this side has left."""
        if not self._is_loss_reported:
            self._is_loss_reported = True
            self._on_lost(self, reason)

    def leave(self) -> None:
        """Close the connection without reporting its loss."""
        self._is_loss_reported = True
        self._stop_timer()
        self.close()

    def _stop_timer(self) -> None:
        """Stop the timer of the next heartbeat or check."""
        if self._beat_timer is not None:
            self._beat_timer.cancel()


async def connect(
    make_client: Callable[[], CoordinatorClient],
    address: str,
    port: int,
    *,
    connect_s: float = CONNECT_S,
    greet_s: float = GREET_S,
) -> tuple[CoordinatorClient | None, Welcome | Redirect | Refused | NobodyListens | NoAnswer]:
    """Connect to a possible coordinator. Return the connection with its Welcome, or None with any other answer.

    address: an IP literal, or a name to resolve. connect_s: seconds for the connection. greet_s: seconds for the
    handshake; without a Challenge within CHALLENGE_S it ends earlier.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_s):
            _, link = await loop.create_connection(make_client, address, port)
    except ConnectionRefusedError:
        return None, NobodyListens()
    except (OSError, TimeoutError) as error:
        return None, NoAnswer(str(error) or f"no connection within {connect_s:g} s")
    try:
        await asyncio.wait([link.handshake.answer], timeout=min(CHALLENGE_S, greet_s))
        if link.handshake.is_challenged:
            await asyncio.wait([link.handshake.answer], timeout=greet_s)
        answer = (
            link.handshake.answer.result()
            if link.handshake.answer.done()
            else NoAnswer(f"no greeting within {greet_s:g} s")
        )
    except asyncio.CancelledError:
        link.abort()
        raise
    if isinstance(answer, Welcome):
        return link, answer
    link.leave()
    return None, answer


async def is_agent_listening(address: str, port: int, within_s: float = LISTEN_CHECK_S) -> bool:
    """Return True if an agent listens at this address: it sends a Challenge within `within_s` seconds.

    Sends nothing, so the agent does not count this connection as a member.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(address, port)
            return isinstance(read_at_member(await next_frame(reader, MAX_BYTES)), Challenge)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, BadFrame):
        return False
    finally:
        if writer is not None:
            writer.close()


NOTICE_S = 5.0  # seconds for other members to notice a lost coordinator: their heartbeats are not in phase

LOG_PERIOD_S = 10.0  # seconds between two log lines about one address


class CoordinatorSearch:
    """Finds the coordinator, or makes this member the coordinator.

    make_client: makes a new client for one connection. own_address: of this agent's listener. arbiter: None for none.
    lead: makes this member the coordinator if it may; returns (True, None), or (False, address of the round's holder or
    None).
    """

    def __init__(
        self,
        make_client: Callable[[], CoordinatorClient],
        lead: Callable[[Search], Awaitable[tuple[bool, Address | None]]],
        own_address: Address,
        arbiter: RoundLock | None,
        log_event: EventLog,
    ) -> None:
        self._make_client, self._lead, self._own_address, self._arbiter, self._log_event = (
            make_client,
            lead,
            own_address,
            arbiter,
            log_event,
        )
        self._logged_s: dict[Address, float] = {}

    async def find(self, search: Search) -> tuple[CoordinatorClient, Address] | GiveUp:
        """Search until a coordinator has welcomed this member; return the connection and its address, or GiveUp.

        search: where to begin: the places already tried, and the time of the first try.
        """
        loop = asyncio.get_running_loop()
        while True:
            move = next_move(search, loop.time())
            if isinstance(move, GiveUp):
                return move
            outcome = await self._carry_out(search, move)
            if isinstance(outcome, Search):
                search = outcome
            else:
                return outcome

    async def _carry_out(self, search: Search, move: Move) -> Search | tuple[CoordinatorClient, Address] | GiveUp:
        """Carry out one move of the search.

        Returns the connection and its address, or the search to continue with, or a reason to give up.
        """
        match move:
            case ConnectTo(to=to) if to == self._own_address:
                return await self._lead_here(search)
            case ConnectTo(to=to):
                return await self._connect(search, to)
            case Lead():
                return await self._lead_here(search)
            case AskArbiter():
                return await self._ask_arbiter(search)
            case SearchPause(for_s=for_s):
                # Random, so that members do not return all at once.
                await asyncio.sleep(for_s * (0.5 + random.random()))
        return next_lap(search)

    async def _connect(self, search: Search, to: Address) -> Search | tuple[CoordinatorClient, Address] | GiveUp:
        """Try to join the coordinator at an address.

        Returns the connection and its address if the coordinator welcomes this member, GiveUp if it refuses, else the
        search with the redirect or the failure recorded.
        """
        if (address := await resolve_host(to[0])) is None:
            self._log_no_answer(search, to, "the name is not known, or not yet")
            return record_failure(search, to, refused=False)
        link, answer = await connect(self._make_client, address, to[1])
        if link is not None and isinstance(answer, Welcome):
            return link, (address, to[1])
        match answer:
            case Refused(reason=reason, detail=detail):
                return GiveUp(Reason(reason) if reason in set(Reason) else Reason.REFUSED, detail)
            case Redirect() if answer.port:
                lost = (answer.address, answer.port) in search.lap.failed_addresses
                if lost and asyncio.get_running_loop().time() < search.since_s + NOTICE_S:
                    await asyncio.sleep(0.1)
                    return search  # ask it again: it has not noticed yet that the coordinator it names is lost
                return record_redirect(record_failure(search, to, refused=False), answer)
            case NobodyListens():
                self._log_no_answer(search, to, "nobody listens there")
                return record_failure(search, to, refused=True)
            case NoAnswer(why=why):
                self._log_no_answer(search, to, why)
        return record_failure(search, to, refused=False)

    def _log_no_answer(self, search: Search, to: Address, why: str) -> None:
        """Log that an address does not answer and when the search ends; at most once in LOG_PERIOD_S for an address."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._logged_s.get(to, -LOG_PERIOD_S) + LOG_PERIOD_S:
            return
        self._logged_s[to] = now_s
        left_s = max(round(search.since_s + search.join_timeout_s - now_s), 0)
        self._log_event("coordinator_sought", {"at": f"{to[0]}:{to[1]}", "detail": why, "gives_up_in_s": left_s})

    async def _lead_here(self, search: Search) -> Search | tuple[CoordinatorClient, Address] | GiveUp:
        """Become the coordinator if the arbiter agrees, and join it like any member: see `_connect` for the result.

        Otherwise returns, after a pause, the search with the round's holder recorded, or in its next lap if the arbiter
        cannot be asked. GiveUp if the lock refuses this member.
        """
        try:
            leads, holder = await self._lead(search)
        except LockUnreachable as error:
            self._log_event("arbiter_unreachable", {"detail": error.why})
            await asyncio.sleep(0.5)
            return next_lap(search)
        except LockRefused as error:
            return GiveUp(Reason.NO_ARBITER, str(error))
        if not leads:
            await asyncio.sleep(0.1)
            return record_other_holder(search, holder)
        return await self._connect(search, self._own_address)

    async def _ask_arbiter(self, search: Search) -> Search | GiveUp:
        """Return the search with the coordinator that the arbiter names, if any; GiveUp if the lock refuses this
        member.
        """
        assert self._arbiter is not None
        try:
            held_round = await self._arbiter.look()
        except LockUnreachable as error:
            self._log_event("arbiter_unreachable", {"detail": error.why})
            return record_arbiter(search, None)
        except LockRefused as error:
            return GiveUp(Reason.NO_ARBITER, str(error))
        record = held_round.record
        return record_arbiter(search, (record.address, record.port) if record is not None and record.port else None)
