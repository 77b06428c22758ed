"""Decides where a member without a coordinator looks for one. All members follow the same order. docs/design.md 5.

The order is: the address of the last redirect, the last coordinator, the successors of that coordinator, oldest first,
the arbiter's record, and the endpoint of the command line. If the member itself is the next successor, it becomes the
coordinator, if the arbiter or a majority of the last world allows that. One pass over this order is a lap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from turnout.launcher.coordinator_messages import LastWorld, Redirect, Successor
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import NO_BASE

Address: TypeAlias = tuple[str, int]  # host, port
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 1.0  # seconds after the first lap, and after later ones at most
MAX_LAPS = 16  # passes that are counted: the pause is the longest one long before
LEADERLESS_S = 3.0  # seconds that a member leaves an unclaimed job to its successors


@dataclass(frozen=True, slots=True)
class SearchLap:
    """One pass of a search over all addresses: what it has tried without success."""

    number: int = 0  # complete passes before this one, at most MAX_LAPS
    refused: frozenset[Address] = frozenset()  # addresses where nobody listens, so their coordinator is dead
    silent: frozenset[Address] = frozenset()  # addresses that did not answer
    arbiter_asked: bool = False  # the arbiter was asked

    @property
    def failed_addresses(self) -> frozenset[Address]:
        """Return the addresses that are not tried again in this pass."""
        return self.refused | self.silent


@dataclass(frozen=True, slots=True)
class Search:
    """The state of a member's search for its coordinator."""

    id: str  # of this member
    endpoint: Address | None  # of the command line, None for none
    host: bool  # the endpoint names this member, or it is the first worker and there is no endpoint
    arbiter: bool  # the job has an arbiter
    join_timeout_s: float  # seconds after which the search is given up
    base: LastWorld = NO_BASE  # the last world the member knows
    last: Address | None = None  # address of its last coordinator
    successors: tuple[Successor, ...] = ()  # as last received
    hint: Address | None = None  # an address received from another member or the arbiter
    lap: SearchLap = SearchLap()
    since_s: float = 0.0  # when the search began
    handed_over: bool = False  # its coordinator has left, and base.size no longer counts it
    tries_all_addresses: bool = False  # before it leads again, since the world that it led was too small


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


def next_move(search: Search, now_s: float) -> Move:
    """Choose the next move of a search. GiveUp after `join_timeout_s`; SearchPause at the end of a lap.

    The caller records each failed move in the search (`record_failure` and its neighbours), so that the next one
    differs.
    """
    if now_s - search.since_s > search.join_timeout_s:
        address = search.endpoint or search.last
        place = f" at {address[0]}:{address[1]}" if address else ""
        return GiveUp(Reason.JOIN_TIMEOUT, f"no coordinator was found{place} within {search.join_timeout_s:g} s")
    for move in _moves_of_lap(search, now_s):
        if not isinstance(move, ConnectTo) or move.to not in search.lap.failed_addresses:
            return move
    return SearchPause(min(FIRST_PAUSE_S * 2**search.lap.number, MAX_PAUSE_S))


def _moves_of_lap(search: Search, now_s: float) -> Iterator[Move]:
    """Yield the moves of one lap in the order in which they are tried, including those that failed in this lap."""
    endpoint = None if search.host else search.endpoint
    yield from _moves_to_last_world(search)
    if not search.base.round and endpoint is not None:
        yield ConnectTo(endpoint)
    if search.arbiter and not search.lap.arbiter_asked:
        yield AskArbiter()
    if search.host and not search.base.round:
        yield Lead()
    if endpoint is not None:
        yield ConnectTo(endpoint)
    if search.tries_all_addresses or _is_leaderless(search, now_s):
        yield Lead()


def _moves_to_last_world(search: Search) -> Iterator[Move]:
    """Yield the moves to coordinators of the last world: the redirect, the coordinator, its successors in order."""
    if search.hint is not None:
        yield ConnectTo(search.hint)
    if search.last is not None:
        yield ConnectTo(search.last)
    for successor in search.successors:
        if successor.id == search.id:
            if not search.tries_all_addresses:
                yield Lead()
            continue
        yield ConnectTo((successor.address, successor.port))


def _is_leaderless(search: Search, now_s: float) -> bool:
    """Return True if a job with an arbiter has been without a coordinator for so long that any member may lead."""
    return search.arbiter and search.lap.number > 0 and now_s - search.since_s > LEADERLESS_S


def record_failure(search: Search, to: Address, *, refused: bool) -> Search:
    """Record that connecting to an address failed. refused: nobody listens there; else no answer came in time."""
    lap = search.lap
    lap = replace(lap, refused=lap.refused | {to}) if refused else replace(lap, silent=lap.silent | {to})
    return replace(search, lap=lap, hint=None if search.hint == to else search.hint)


def record_redirect(search: Search, to: Redirect) -> Search:
    """Record the coordinator's address that another member named. A redirect with port 0 names nobody."""
    return replace(search, hint=(to.address, to.port)) if to.port else search


def record_arbiter(search: Search, holder: Address | None) -> Search:
    """Record the arbiter's answer: the address of the round's holder, None if it named nobody."""
    lap = replace(search.lap, arbiter_asked=True)
    return replace(search, lap=lap, hint=holder if holder not in lap.failed_addresses else None)


def record_other_holder(search: Search, holder: Address | None) -> Search:
    """Begin a new lap at the holder of the round, which seems to be alive, so that this member may not lead.

    holder: its address, None if unknown.
    """
    return record_arbiter(next_lap(search), holder)


def next_lap(search: Search) -> Search:
    """Begin a new lap, in which every address is tried again."""
    return replace(search, lap=SearchLap(min(search.lap.number + 1, MAX_LAPS)), hint=None)
