"""Defines the nouns that several rooms share: members, worlds, the record that outlives every pod, ends of saves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from turnout.launcher.errors import BadElasticSpec, BadMember

PORT = 29_400  # default port of a coordinator
MAX_PROCESSES = 1_024  # training processes of one worker
MAX_ID_CHARS = 128  # of a member
MAX_MEMBERS = 20_000  # of one job
MAX_DURATION_S = 1e7  # upper bound of any duration that a job may set
MAX_COUNT = 1 << 60  # upper bound of counts and steps


class Exit(IntEnum):
    """The exit codes of an agent. The list is closed, since job controllers act on these numbers."""

    DONE = 0  # all workers have finished
    FAILED = 1  # the restarts are spent, the world never formed, or no coordinator may decide; the log has the reason
    USAGE = 2  # the command line is invalid
    INTERRUPTED = 130  # interrupted by Ctrl-C
    FAULTY = 138  # this node is faulty; a job controller should start the worker elsewhere
    DRAINED = 143  # asked to leave by SIGTERM, and drained


class Reason(StrEnum):
    """Says why a round began, a member waits or a job ended: the same word in log, metric and test."""

    FIRST_ROUND = "first_round"
    PROCESS_FAILED = "process_failed"
    PROCESS_HUNG = "process_hung"  # one process makes no step, and the others wait for it
    MEMBER_LOST = "member_lost"  # its connection closed
    MEMBER_SILENT = "member_silent"  # its heartbeats ceased
    MEMBER_LEFT = "member_left"  # it said goodbye
    MEMBER_JOINED = "member_joined"  # the world grows
    COORDINATOR_LOST = "coordinator_lost"
    ROUND_LOST = "round_lost"  # another coordinator was granted the round
    BELOW_MIN = "below_min"
    LAST_CALL = "last_call"  # more members may come
    SPARE = "spare"  # the world is full, takes a multiple of --node-unit members, or was training when this one came
    ALL_DONE = "all_done"
    BUDGET_SPENT = "budget_spent"
    JOIN_TIMEOUT = "join_timeout"
    NO_ARBITER = "no_arbiter"
    DRAINED = "drained"
    NODE_FAULTY = "node_faulty"  # proven by the check before a round
    NODE_SLOW = "node_slow"  # the same, if slow nodes are excluded
    LINK_FAULTY = "link_faulty"  # the node works with others, but its link to one does not
    REFUSED = "refused"  # the coordinator refuses this member: its terms differ, or its token is wrong


class SaveTier(StrEnum):
    """Where a save of one rank is kept."""

    MEMORY = "memory"  # of its own worker
    REPLICA = "replica"  # the memory of other workers
    STORAGE = "storage"


class SaveOutcome(StrEnum):
    """How a save of one rank ended in one tier: the same word in the log, the metric and the test."""

    DONE = "done"
    SUPERSEDED = "superseded"  # a newer save replaced it, or the job continued from another step
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ElasticSpec:
    """A job's requirements for its world, the same on every member."""

    min_nodes: int = 1  # members, at least 1
    max_nodes: int = 1  # members, at least `min_nodes`
    node_unit: int = 1  # a world's size is a multiple of it
    max_restarts: int = 0  # of processes, for the whole job, 0 or more
    last_call_s: float = 30.0  # seconds to wait for more members after the latest join, before the first round
    join_timeout_s: float = 600.0  # seconds to wait for enough members before the job ends
    settle_s: float = 1.0  # seconds without a further join before a running world grows
    keeps_order: bool = False  # ranks follow the workers' indexes, not the fabric: a mesh is placed by them

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes <= MAX_MEMBERS:
            raise BadElasticSpec(
                f"min and max are {self.min_nodes}:{self.max_nodes}: 1 <= min <= max <= {MAX_MEMBERS} is needed"
            )
        if self.node_unit < 1 or self.max_nodes < self.node_unit:
            raise BadElasticSpec(
                f"the unit is {self.node_unit}: at least 1 and at most {self.max_nodes}, the max, is needed"
            )
        if not 0 <= self.max_restarts <= MAX_COUNT:
            raise BadElasticSpec(f"max_restarts is {self.max_restarts}: 0 or more is needed")
        if not all(0 <= each <= MAX_DURATION_S for each in (self.last_call_s, self.join_timeout_s, self.settle_s)):
            raise BadElasticSpec(f"a time of the rendezvous is outside 0 to {MAX_DURATION_S:g} s")

    @property
    def smallest_world(self) -> int:
        """Return the size of the smallest world: the first multiple of the unit from `min_nodes` on.

        It may exceed `max_nodes`; then no world can form.
        """
        return -(-self.min_nodes // self.node_unit) * self.node_unit

    def world_size(self, present: int) -> int:
        """Return the size of the largest world that `present` members can form, a multiple of the unit; 0 if they are
        too few.
        """
        size = min(present, self.max_nodes) // self.node_unit * self.node_unit
        return size if size >= self.min_nodes else 0


@dataclass(frozen=True, slots=True)
class Member:
    """One agent in the rendezvous, as it describes itself to the others."""

    id: str  # of this process of the agent, as NAME/INCARNATION, a long NAME is cut; never used again
    name: str  # of the worker; its replacement in the same place keeps it
    host: str = ""  # on which it runs, "" if unknown
    address: str = "127.0.0.1"  # IP literal
    port: int = 0  # at which its own coordinator would listen
    processes: int = 1  # how many it starts
    path: tuple[str, ...] = ()  # switches from the root to above its host, () if unknown
    index: int | None = None  # its index if the job numbers its workers
    started_s: float = 0.0  # when it began, in seconds since 1970: the oldest leads
    master_port: int = 0  # a free port on its host, for the next round's processes
    daemon_port: int = 0  # the port at which its checkpoint daemon listens, 0 for none

    def __post_init__(self) -> None:
        if not self.id or len(self.id) > MAX_ID_CHARS or not self.name or len(self.name) > 253:
            raise BadMember(self.name, f"an id of 1 to {MAX_ID_CHARS} and a name of 1 to 253 characters are needed")
        if not 1 <= self.processes <= MAX_PROCESSES:
            raise BadMember(self.name, f"{self.processes} processes: 1 to {MAX_PROCESSES} are needed")
        if not all(0 <= port < 65_536 for port in (self.port, self.master_port, self.daemon_port)):
            raise BadMember(self.name, "a port is outside 0 to 65535")
        if self.index is not None and not 0 <= self.index <= MAX_COUNT:
            raise BadMember(self.name, f"its index is {self.index}: 0 or more is needed")
        if not math.isfinite(self.started_s):
            raise BadMember(self.name, "the time when it began is no time")
        if len(self.path) > 16:
            raise BadMember(self.name, f"a path of {len(self.path)} switches: 16 at most")

    @property
    def age(self) -> tuple[float, int, str, str]:
        """Return the sort key of succession: the oldest first, then the lowest index, then the name."""
        return (self.started_s, MAX_MEMBERS if self.index is None else self.index, self.name, self.id)


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """One member's place in a world: its group rank and the first of its ranks."""

    member: str  # id
    group_rank: int  # number of the member in the world, >= 0
    first_rank: int  # rank of its first training process
    processes: int  # training processes, which have consecutive ranks


@dataclass(frozen=True, slots=True)
class World:
    """The fixed members of one round, by group rank."""

    round: int
    members: tuple[Member, ...] = ()  # by group rank
    assignments: Mapping[str, RankAssignment] = field(default_factory=dict)  # by member id

    @classmethod
    def of(cls, round_: int, members: tuple[Member, ...]) -> World:
        """Return the world of these members, which are in the order of their group ranks. Ranks are assigned in this
        order.
        """
        assignments, rank = dict[str, RankAssignment](), 0
        for index, member in enumerate(members):
            assignments[member.id] = RankAssignment(member.id, index, rank, member.processes)
            rank += member.processes
        return cls(round_, members, assignments)

    @property
    def ranks(self) -> int:
        """Return the number of training processes."""
        return sum(member.processes for member in self.members)


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """Counts restarts of processes for the whole job. A newer saved step refills the budget.

    `rendezvous/drain.py` charges it, and ends the job when max_restarts are used.
    """

    used: int = 0  # since the last refill
    total: int = 0  # since the job began, as in TORCHELASTIC_RESTART_COUNT
    saved_step: int = -1  # the newest known, -1 for none

    def __post_init__(self) -> None:
        if not (0 <= self.used <= MAX_COUNT and 0 <= self.total <= MAX_COUNT and -1 <= self.saved_step <= MAX_COUNT):
            raise BadElasticSpec("the budget is out of bounds")

    def add_restart(self) -> RestartBudget:
        """Return the budget with one more restart."""
        return RestartBudget(self.used + 1, self.total + 1, self.saved_step)

    def refill(self, step: int) -> RestartBudget:
        """Return the budget after a step was saved: a newer step refills it."""
        return self if step <= self.saved_step else RestartBudget(0, self.total, step)

    def newer_of(self, other: RestartBudget) -> RestartBudget:
        """Return the newer one of two copies of the job's budget.

        That is the one with more restarts in total, then with the newer saved step, then with fewer restarts used.
        """
        return max(self, other, key=lambda each: (each.total, each.saved_step, -each.used))


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """The record that an arbiter keeps of a job: its newest round, its coordinator, and its restart budget."""

    run: str  # the job's id; records of other runs are ignored
    round: int  # the newest granted, 0 before the first
    coordinator: str  # the member id of its holder, "" if unknown
    address: str = ""  # where the holder listens, "" if unknown
    port: int = 0  # 0 if unknown
    budget: RestartBudget = field(default_factory=RestartBudget)
    totals: str = ""  # the job's time by kind, "" for none; launcher/goodput/job_time.py writes and reads it
