"""The nouns of the rendezvous: who takes part, in which world, and what must outlive every pod."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from turnout.launcher.errors import BadMember, BadTerms

MOST_PROCESSES = 1_024  # training processes of one worker
MOST_MEMBERS = 20_000
MOST_S = 1e7  # of any time that a job may name
MOST_COUNT = 1 << 60


class Exit(IntEnum):
    """How an agent ends. The table is closed: a job controller acts on these numbers."""

    DONE = 0  # the whole world has finished
    FAILED = 1  # the budget is spent, the world never formed, or nobody may decide: the reason is told
    USAGE = 2  # the command line cannot be obeyed
    INTERRUPTED = 130  # a person typed Ctrl-C
    FAULTY = 138  # this node is at fault: a job controller starts the worker elsewhere
    DRAINED = 143  # asked to leave by SIGTERM, and left


class Reason(StrEnum):
    """Why a round began, why a member waits, why a job ended: the same word in log, metric and test."""

    FIRST_ROUND = "first_round"
    PROCESS_FAILED = "process_failed"
    PROCESS_HUNG = "process_hung"  # one stands still, and the others wait for it
    MEMBER_LOST = "member_lost"  # its connection closed
    MEMBER_SILENT = "member_silent"  # its heartbeats ceased
    MEMBER_LEFT = "member_left"  # it said goodbye
    MEMBER_JOINED = "member_joined"  # the world grows
    COORDINATOR_LOST = "coordinator_lost"
    ROUND_LOST = "round_lost"  # another coordinator was granted the round
    BELOW_MIN = "below_min"
    LAST_CALL = "last_call"  # more may come
    SPARE = "spare"  # the world is full, or the unit leaves it over
    ALL_DONE = "all_done"
    BUDGET_SPENT = "budget_spent"
    JOIN_TIMEOUT = "join_timeout"
    NO_ARBITER = "no_arbiter"
    DRAINED = "drained"
    NODE_FAULTY = "node_faulty"  # the check before a round has proven it
    NODE_SLOW = "node_slow"  # the same, where slow nodes are left out
    LINK_FAULTY = "link_faulty"  # good, but not beside another good one: the link is not
    REFUSED = "refused"  # the coordinator does not take this member: its terms differ, or its token is wrong


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job asks of its world. Every member brings the same.

    least, most: members, 1 <= least <= most. unit: a world is a multiple of it. max_restarts: of processes, for
    the whole job, 0 or more.
    """

    least: int = 1
    most: int = 1
    unit: int = 1
    max_restarts: int = 0
    last_call_s: float = 30.0
    join_timeout_s: float = 600.0
    settle_s: float = 1.0  # how long after a join a running world waits for more before it grows

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= MOST_MEMBERS:
            raise BadTerms(f"min and max are {self.least}:{self.most}: 1 <= min <= max <= {MOST_MEMBERS} is needed")
        if self.unit < 1 or self.most < self.unit:
            raise BadTerms(f"the unit is {self.unit}: at least 1 and at most {self.most}, the max, is needed")
        if not 0 <= self.max_restarts <= MOST_COUNT:
            raise BadTerms(f"max_restarts is {self.max_restarts}: 0 or more is needed")
        if not all(0 <= each <= MOST_S for each in (self.last_call_s, self.join_timeout_s, self.settle_s)):
            raise BadTerms(f"a time of the rendezvous is outside 0 to {MOST_S:g} s")

    @property
    def floor(self) -> int:
        """The smallest world: the first multiple of the unit from the least up."""
        return -(-self.least // self.unit) * self.unit

    def size(self, there: int) -> int:
        """The largest world of so many members: a multiple of the unit within min and max, else 0."""
        size = min(there, self.most) // self.unit * self.unit
        return size if size >= self.least else 0


@dataclass(frozen=True, slots=True)
class Member:
    """One agent in the rendezvous.

    id: of this incarnation, never used again. name: of the worker, kept by its replacement in the same place. host:
    where it runs. address: IP literal; port: where its own coordinator would listen. processes: how many it starts.
    path: the switches above its host from the root, () when nobody knows. order: its index where the job numbers its
    workers. born_s: when it began, seconds since 1970: the oldest decides. master_port: a port that is free on its
    host, for the training processes of the next round. keeper: the port where its keeper listens, 0: nowhere.
    """

    id: str
    name: str
    host: str = ""
    address: str = "127.0.0.1"
    port: int = 0
    processes: int = 1
    path: tuple[str, ...] = ()
    order: int | None = None
    born_s: float = 0.0
    master_port: int = 0
    keeper: int = 0

    def __post_init__(self) -> None:
        if not self.id or len(self.id) > 128 or not self.name or len(self.name) > 253:
            raise BadMember(self.name, "an id of 1 to 128 and a name of 1 to 253 characters are needed")
        if not 1 <= self.processes <= MOST_PROCESSES:
            raise BadMember(self.name, f"{self.processes} processes: 1 to {MOST_PROCESSES} are needed")
        if not all(0 <= port < 65_536 for port in (self.port, self.master_port, self.keeper)):
            raise BadMember(self.name, "a port is outside 0 to 65535")
        if self.order is not None and not 0 <= self.order <= MOST_COUNT:
            raise BadMember(self.name, f"its index is {self.order}: 0 or more is needed")
        if not math.isfinite(self.born_s):
            raise BadMember(self.name, "the time when it began is no time")
        if len(self.path) > 16:
            raise BadMember(self.name, f"a path of {len(self.path)} switches: 16 at most")

    @property
    def age(self) -> tuple[float, int, str, str]:
        """The order of succession: the oldest first, then the lowest index, then by name."""
        return (self.born_s, MOST_MEMBERS if self.order is None else self.order, self.name, self.id)


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's place in a world: its group rank and the first of its ranks."""

    member: str
    group_rank: int
    first_rank: int
    processes: int


@dataclass(frozen=True, slots=True)
class World:
    """The frozen members of one round, by group rank. seats: of every member, by its id."""

    round: int
    members: tuple[Member, ...] = ()
    seats: Mapping[str, Seat] = field(default_factory=dict)

    @classmethod
    def of(cls, round_: int, members: tuple[Member, ...]) -> World:
        """The world of these members, which are given in the order of their group ranks."""
        seats, rank = dict[str, Seat](), 0
        for at, member in enumerate(members):
            seats[member.id] = Seat(member.id, at, rank, member.processes)
            rank += member.processes
        return cls(round_, members, seats)

    @property
    def ranks(self) -> int:
        """How many training processes it has."""
        return sum(member.processes for member in self.members)


@dataclass(frozen=True, slots=True)
class Budget:
    """Restarts of processes, counted for the whole job. A newer saved step refills it.

    used: since the last refill. total: ever: what RESTART_COUNT tells. saved_step: the newest one known, -1 for none.
    """

    used: int = 0
    total: int = 0
    saved_step: int = -1

    def __post_init__(self) -> None:
        if not (0 <= self.used <= MOST_COUNT and 0 <= self.total <= MOST_COUNT and -1 <= self.saved_step <= MOST_COUNT):
            raise BadTerms("the budget is out of bounds")

    def charged(self) -> Budget:
        """One fault more."""
        return Budget(self.used + 1, self.total + 1, self.saved_step)

    def saved(self, step: int) -> Budget:
        """A step was saved: progress since the last one refills the budget."""
        return self if step <= self.saved_step else Budget(0, self.total, step)

    def newer(self, other: Budget) -> Budget:
        """Of two copies the one that knows more."""
        return max(self, other, key=lambda each: (each.total, each.saved_step, -each.used))


@dataclass(frozen=True, slots=True)
class Record:
    """What an arbiter keeps of a job: its newest round, who decides, and what must outlive every pod.

    round: the newest one that was granted, 0 before the first. coordinator: the member id of who holds it; address
    and port: where it listens. run: the job's id: a record of another run is no record.
    """

    run: str
    round: int
    coordinator: str
    address: str = ""
    port: int = 0
    budget: Budget = field(default_factory=Budget)
