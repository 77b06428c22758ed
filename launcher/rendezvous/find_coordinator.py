"""Decides where a member without a coordinator looks for one. All members follow the same order. docs/design.md 5.

It tries the address it was redirected to, then its last coordinator, then the known successors, the oldest first. Then
it tries the arbiter's record and the endpoint of the command line. When it comes to itself among the successors it
leads, if the arbiter or a majority of the last world allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from turnout.launcher.coordinator_messages import LastWorld, Redirect, Successor
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import NO_BASE

Address: TypeAlias = tuple[str, int]

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 1.0
LEADERLESS_S = 3.0  # seconds that a member leaves an unclaimed job to its successors


@dataclass(frozen=True, slots=True)
class Search:
    """The state of a member's search for its coordinator."""

    id: str
    endpoint: Address | None
    host: bool  # the endpoint names this member, or it is the first worker and there is no endpoint
    arbiter: bool  # there is an arbiter
    join_timeout_s: float
    base: LastWorld = NO_BASE  # the last world the member knows
    last: Address | None = None  # address of its last coordinator
    successors: tuple[Successor, ...] = ()  # as last received
    hint: Address | None = None  # an address received from another member or the arbiter
    refused: frozenset[Address] = frozenset()  # addresses where nobody listens, so their coordinator is dead
    silent: frozenset[Address] = frozenset()  # addresses that did not answer
    arbiter_asked: bool = False  # the arbiter was asked in this pass over the addresses
    laps: int = 0
    since_s: float = 0.0  # when the search began
    handed_over: bool = False  # its coordinator handed over, and no longer counts in the base
    roams: bool = False  # it has led with too few members, and tries others before it leads again


@dataclass(frozen=True, slots=True)
class ConnectTo:
    """A move of the search: connect to this address."""

    to: Address


@dataclass(frozen=True, slots=True)
class Lead:
    """A move of the search: become the coordinator, if the arbiter allows it."""


@dataclass(frozen=True, slots=True)
class AskArbiter:
    """A move of the search: ask the arbiter which member coordinates."""


@dataclass(frozen=True, slots=True)
class SearchPause:
    """A move of the search: wait this long, since no coordinator was found, then start a new lap."""

    for_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A move of the search: end it, since it has lasted too long."""

    reason: Reason
    detail: str


Move: TypeAlias = ConnectTo | Lead | AskArbiter | SearchPause | GiveUp


def next_move(seek: Search, now_s: float) -> Move:
    """Choose the next move. If a move fails, pass it to `record_failure`; the next move then differs."""
    if now_s - seek.since_s > seek.join_timeout_s:
        where = seek.endpoint or seek.last
        at = f" at {where[0]}:{where[1]}" if where else ""
        return GiveUp(Reason.JOIN_TIMEOUT, f"no coordinator was found{at} within {seek.join_timeout_s:g} s")
    for move in _moves_of_lap(seek, now_s):
        if not isinstance(move, ConnectTo) or move.to not in seek.refused | seek.silent:
            return move
    return SearchPause(min(FIRST_PAUSE_S * 2**seek.laps, MOST_PAUSE_S))


def _moves_of_lap(seek: Search, now_s: float) -> Iterator[Move]:
    """Yield the moves of one lap of the search for a coordinator, in the order in which they are tried."""
    endpoint = None if seek.host else seek.endpoint
    yield from _moves_to_last_world(seek)
    if not seek.base.round and endpoint is not None:
        yield ConnectTo(endpoint)
    if seek.arbiter and not seek.arbiter_asked:
        yield AskArbiter()
    if seek.host and not seek.base.round:
        yield Lead()
    if endpoint is not None:
        yield ConnectTo(endpoint)
    if seek.roams or _is_leaderless(seek, now_s):
        yield Lead()


def _moves_to_last_world(seek: Search) -> Iterator[Move]:
    """Try what is known of the last world: its coordinator, and the successors in their order."""
    if seek.hint is not None:
        yield ConnectTo(seek.hint)
    if seek.last is not None:
        yield ConnectTo(seek.last)
    for successor in seek.successors:
        if successor.id == seek.id:
            if not seek.roams:
                yield Lead()
            continue
        yield ConnectTo((successor.address, successor.port))


def _is_leaderless(seek: Search, now_s: float) -> bool:
    """Return True if a job with an arbiter has been without a coordinator for so long that any member may lead."""
    return seek.arbiter and seek.laps > 0 and now_s - seek.since_s > LEADERLESS_S


def record_failure(seek: Search, to: Address, *, refused: bool) -> Search:
    """Record a failed try: nobody listens there (`refused`), or nothing answered in time."""
    if refused:
        return replace(seek, refused=seek.refused | {to}, hint=None if seek.hint == to else seek.hint)
    return replace(seek, silent=seek.silent | {to}, hint=None if seek.hint == to else seek.hint)


def record_redirect(seek: Search, to: Redirect) -> Search:
    """Record the coordinator's address that another member gave. Within a lap, an address that failed is not tried
    again.
    """
    return replace(seek, hint=(to.address, to.port)) if to.port else seek


def record_arbiter(seek: Search, holder: Address | None) -> Search:
    """Record the arbiter's answer: the coordinator's address, or None."""
    return replace(seek, arbiter_asked=True, hint=holder if holder not in seek.refused | seek.silent else None)


def record_other_holder(seek: Search, holder: Address | None) -> Search:
    """Record that this member may not lead, since the holder of the round seems to be alive."""
    return record_arbiter(next_lap(seek), holder)


def next_lap(seek: Search) -> Search:
    """Begin a new lap, in which every address is tried again."""
    return replace(
        seek, refused=frozenset(), silent=frozenset(), arbiter_asked=False, hint=None, laps=min(seek.laps + 1, 16)
    )
