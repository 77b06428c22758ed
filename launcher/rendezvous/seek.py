"""Where a member goes that has no coordinator: succession, the same for everybody. docs/design.md 5.

First where it was sent, then back to the coordinator that it had, then to the successors it was told of, the oldest
first, until it is one itself; then where the arbiter's record points; then to the endpoint of the command line. Whoever
finds that it is its own turn leads, if it may: the arbiter is asked, or more than half of the last world must come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import NO_BASE
from turnout.launcher.wire import Base, Redirect, Successor

Address: TypeAlias = tuple[str, int]

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 1.0
LEADERLESS_S = 3.0  # how long a member that is no successor leaves an unclaimed job to those that are


@dataclass(frozen=True, slots=True)
class Seek:
    """A member in search of its coordinator.

    host: it is the one that the endpoint names, or the first worker where nobody names one. arbiter: there is one to
    ask. successors: as last told. refused: where nobody listens, so whoever was there is dead; silent: where nothing
    answered. asked: the arbiter had nothing new in this lap. since_s: when the search began. handed: the
    coordinator left in peace, and the base counts it no longer. roams: it has led, with too few: others may lead, too,
    and are tried before it leads again.
    """

    id: str
    endpoint: Address | None
    host: bool
    arbiter: bool
    join_timeout_s: float
    base: Base = NO_BASE
    last: Address | None = None
    successors: tuple[Successor, ...] = ()
    hint: Address | None = None
    refused: frozenset[Address] = frozenset()
    silent: frozenset[Address] = frozenset()
    asked: bool = False
    laps: int = 0
    since_s: float = 0.0
    handed: bool = False
    roams: bool = False


@dataclass(frozen=True, slots=True)
class Go:
    """Connect there."""

    to: Address


@dataclass(frozen=True, slots=True)
class Lead:
    """Coordinate, if the arbiter lets us."""


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the arbiter who decides."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Nobody is there: begin again after this time."""

    for_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The search has lasted too long."""

    reason: Reason
    detail: str


Move: TypeAlias = Go | Lead | Look | Pause | GiveUp


def next_move(seek: Seek, now_s: float) -> Move:
    """What to try now. A failed try is told with `failed`, and the next move differs."""
    if now_s - seek.since_s > seek.join_timeout_s:
        where = seek.endpoint or seek.last
        at = f" at {where[0]}:{where[1]}" if where else ""
        return GiveUp(Reason.JOIN_TIMEOUT, f"no coordinator was found{at} within {seek.join_timeout_s:g} s")
    for move in _lap(seek, now_s):
        if not isinstance(move, Go) or move.to not in seek.refused | seek.silent:
            return move
    return Pause(min(FIRST_PAUSE_S * 2**seek.laps, MOST_PAUSE_S))


def _lap(seek: Seek, now_s: float) -> Iterator[Move]:
    if seek.hint is not None:
        yield Go(seek.hint)
    if seek.last is not None:
        yield Go(seek.last)
    for successor in seek.successors:
        if successor.id == seek.id:
            if not seek.roams:
                yield Lead()
            continue
        yield Go((successor.address, successor.port))
    if not seek.base.round and seek.endpoint is not None and not seek.host:
        yield Go(seek.endpoint)
    if seek.arbiter and not seek.asked:
        yield Look()
    if seek.host and not seek.base.round:
        yield Lead()
    if seek.endpoint is not None and not seek.host:
        yield Go(seek.endpoint)
    if seek.roams:
        yield Lead()
    if seek.arbiter and seek.laps and now_s - seek.since_s > LEADERLESS_S:
        yield Lead()


def failed(seek: Seek, to: Address, *, refused: bool) -> Seek:
    """Nobody listens there (refused), or nothing answered in time."""
    if refused:
        return replace(seek, refused=seek.refused | {to}, hint=None if seek.hint == to else seek.hint)
    return replace(seek, silent=seek.silent | {to}, hint=None if seek.hint == to else seek.hint)


def redirected(seek: Seek, to: Redirect) -> Seek:
    """Somebody says who decides. Not believed twice in a lap."""
    return replace(seek, hint=(to.address, to.port)) if to.port else seek


def looked(seek: Seek, holder: Address | None) -> Seek:
    """The arbiter has told who decides, or that nobody does."""
    return replace(seek, asked=True, hint=holder if holder not in seek.refused | seek.silent else None)


def not_ours(seek: Seek, holder: Address | None) -> Seek:
    """We may not lead: the holder lives, as far as anybody can tell."""
    return looked(paused(seek), holder)


def paused(seek: Seek) -> Seek:
    """A new lap begins: everybody is tried again."""
    return replace(seek, refused=frozenset(), silent=frozenset(), asked=False, hint=None, laps=min(seek.laps + 1, 16))
