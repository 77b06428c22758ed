"""Defines the coordinator's state, its events, its effects, and one transition of it. docs/design.md 5.

States, and the event that ends each:

    GATHERING  nobody trains         enough members have no process running: CLAIMING, or CHECKING first
    CHECKING   nobody trains         all groups have measured: GATHERING, with the members that passed
    CLAIMING   nobody trains         the arbiter grants the round: TRAINING; it has another holder: OVER
    TRAINING   the world is fixed    a loss or a fault: STOPPING; a leaver or growth: DRAINING; all done: FINISHING
    DRAINING   a stop step is agreed everybody has stopped: GATHERING; time is up: STOPPING
    STOPPING   processes are ended   everybody has stopped or is lost: HANDING
    HANDING    some members leave    members that stay have adopted the shards, or time is up: GATHERING
    FINISHING  nobody trains         all members know that the job is over: OVER

A transition copies the members once and can take any number of events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from turnout.launcher.coordinator_messages import (
    Finish,
    HeldStep,
    LastWorld,
    Message,
    Stacks,
    Stop,
    StoredStepReport,
    Successor,
    Waiting,
)
from turnout.launcher.goodput.job_time import JobTime, RankZero
from turnout.launcher.goodput.ledger import Ledger
from turnout.launcher.health.hang_detector import HangAction
from turnout.launcher.health.model import NodeCheckState
from turnout.launcher.model import ElasticSpec, Exit, Member, Reason, RestartBudget, RoundRecord, World


class HangStage(Enum):
    """The coordinator's progress in the handling of a hang."""

    QUIET = "quiet"  # nobody hangs
    ASKED = "asked"  # members capture the stacks of their processes
    MERGED = "merged"  # the received traces are being merged and written
    HANDLED = "handled"  # the policy was applied to the suspect ranks


@dataclass(frozen=True, slots=True)
class HangState:
    """The policy for hangs, and the state of the current one."""

    act: HangAction = HangAction.ASK
    stage: HangStage = HangStage.QUIET
    round: int = 0  # of the hang
    number: int = 0  # of the newest request for traces
    hanging: frozenset[tuple[str, int]] = frozenset()  # processes that hang now: member id and local rank
    first: str = ""  # the first hanging process, and why it counts as hanging
    awaited_members: frozenset[str] = frozenset()  # members whose traces are awaited until until_s
    stacks: Mapping[int, Stacks] = field(default_factory=dict)  # received traces by rank
    until_s: float = 0.0  # by the coordinator's clock; then missing traces are no longer awaited
    # member ids that must not return since their ranks were suspect, with the reason
    excluded: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergeStacks:
    """An effect: merge the traces of this world, write the result, and raise StacksMerged."""

    number: int  # of the request for traces
    world: int  # number of ranks
    stacks: Mapping[int, bytes]  # compressed, by rank
    why: Mapping[int, str]  # reasons for missing traces, by rank


@dataclass(frozen=True, slots=True)
class StacksMerged:
    """An event: the traces are merged."""

    number: int  # of the request for traces
    suspects: tuple[int, ...] = ()  # ranks for which the other ranks seem to wait; () for none
    verdict: str = ""  # the result in words


Rings: TypeAlias = tuple[Mapping[str, tuple[str, ...]], ...]

NO_BUDGET, NO_BASE, NO_HANG = RestartBudget(), LastWorld(), HangState()


class Phase(Enum):
    """The phase of the job, as the coordinator sees it."""

    GATHERING = "gathering"
    CHECKING = "checking"
    CLAIMING = "claiming"
    TRAINING = "training"
    DRAINING = "draining"
    STOPPING = "stopping"
    HANDING = "handing"
    FINISHING = "finishing"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member as the coordinator knows it."""

    member: Member
    base: LastWorld  # the last world that the member reported, or that it was told
    busy: int = 0  # the newest round whose processes may run there, 0 for none
    leave_s: float | None = None  # the time by which it has to end; None if it stays
    step: int = -1  # the newest that it reported, -1 for none
    reached: int | None = None  # its answer to the proposed stop step: the farthest step it has begun; None before
    held_steps: tuple[HeldStep, ...] = ()  # what its memory held, as last reported
    stored_step: StoredStepReport | None = None  # what it sees in storage; None before it has reported
    ready_s: float = 0.0  # when it became able to start processes; if in the future: the latest time for that


@dataclass(frozen=True, slots=True)
class HandoverState:
    """The handover of the shards of leaving members to members that stay."""

    awaits: frozenset[str] = frozenset()  # ids of the adopting members that have not answered
    until_s: float = 0.0  # the deadline, after which nobody is awaited


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The constant facts of the job: its coordinator, its bounds and its waiting times in seconds."""

    member: Member  # the coordinator itself
    run: str  # the job's id
    elastic_spec: ElasticSpec
    has_arbiter: bool = False  # an arbiter grants rounds; without one a world needs more than half of the last one
    sole_coordinator: bool = False  # nobody may succeed this coordinator, so there can be no other world
    regroup_s: float = 2.0  # for members to return after their coordinator was lost
    alone_s: float = 10.0  # for more than half of the last world to come, without an arbiter
    search_period_s: float = 10.0  # base of the time between two searches for another coordinator
    fence_s: float = 15.0  # how long a member may still train after it lost its coordinator
    ask_s: float = 0.0  # between two requests that ask the endpoint for another coordinator; 0: never ask


@dataclass(frozen=True, slots=True)
class RoundCause:
    """Says why the last round ended or the next one begins, and since when."""

    reason: Reason = Reason.FIRST_ROUND
    detail: str = ""  # the same in words, for people
    fault: str = ""  # the process failure that will be charged unless a loss explains it, "" for none
    lost: bool = False  # a member whose processes may still run was lost since the round ended
    since_s: float = 0.0  # when the present wait began: at the job's start, a round's end, or a world's formation


@dataclass(frozen=True, slots=True)
class Fencing:
    """The earlier worlds, and until when one of them may still train."""

    newest_round: int = 0  # the round of the newest world that anybody was in
    newest_size: int = 0  # its members, without those that have left for good
    granted_before: int = 0  # the round that the arbiter gave to an earlier coordinator, 0 for none
    ended_round: int = 0  # the round of a world that lost a member's processes, so it never trains again
    # Until then a lost member, or a member of a world that is unknown here, may still train; on the clock of now_s.
    old_world_until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Gathering:
    """Says how long the next round waits, for how many members, and whether to search for another coordinator."""

    worker_count: int = 0  # members that the job was started with; 0 if unknown
    expected: int = 0  # members for which the round waits, if more may come; 0 for none
    last_call_s: float = 0.0  # seconds after the latest join during which the round still waits for more members
    joined_s: float = 0.0  # when the latest new member came
    logged_s: float = -1e9  # when missing members were last logged
    # True: with too few members, step down so that all search for another coordinator; False: not yet; None: never.
    may_search: bool | None = None
    search_began_s: float = 0.0  # when this member's search for a coordinator began, before it led; 0 for none
    endpoint_s: float = 0.0  # when the endpoint was last asked for another coordinator


@dataclass(frozen=True, slots=True)
class Claiming:
    """The round that the arbiter was asked for, or has granted."""

    granted: int = 0  # a granted round whose world is not formed yet, 0 for none
    chosen: tuple[Member, ...] = ()  # members of its world
    asked_s: float = 0.0  # when the arbiter was asked for the round, or gave it
    retry_s: float = 0.0  # no claim before then
    grant_expired: bool = False  # the arbiter was unreachable for too long; only its grant lets training continue


@dataclass(frozen=True, slots=True)
class Ending:
    """Says how far the end of the round, or of the job, has come."""

    done: frozenset[str] = frozenset()  # members of the world whose processes have all succeeded
    stop_step: int | None = None  # the proposed step after which all stop; None before
    confirmed: bool = False  # all have answered that they have not passed it
    until_s: float = 0.0  # deadline of the drain, or of the farewell at the job's end
    exit: Exit | None = None  # the job's exit code; None before its end


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints that members hold in memory and storage, where all have to agree."""

    unreported: int = 0  # members that have not reported yet what they see in storage
    stored_step: StoredStepReport | None = None  # the stored step that all read; None before
    # Members write this step to storage: the newest step that all of the last world held when it stopped; -1 for none.
    persist_step: int = -1
    handover: HandoverState | None = None  # the handover of leavers' shards; None before it begins
    rings: Rings = ()  # for 1, 2, ... replicas: by member id, the ids that keep its replicas in the newest world


@dataclass(frozen=True, slots=True)
class State:
    """The coordinator's whole state. A successor does not inherit it, but starts from the reports of members."""

    job: JobFacts
    phase: Phase = Phase.GATHERING
    round: int = 0  # the newest number used anywhere
    world: World | None = None  # the newest world formed here
    members: Mapping[str, MemberState] = field(default_factory=dict)  # present ones, by id
    names: Mapping[str, str] = field(default_factory=dict)  # by name of a present or former member: its newest id
    budget: RestartBudget = NO_BUDGET
    cause: RoundCause = RoundCause()
    fencing: Fencing = Fencing()
    gathering: Gathering = Gathering()
    claiming: Claiming = Claiming()
    ending: Ending = Ending()
    checkpoints: Checkpoints = Checkpoints()
    checking: NodeCheckState | None = None  # None if nodes are not checked
    hanging: HangState = NO_HANG  # the current hang and what is done about it
    rank_zero: RankZero | None = None  # the newest report of rank 0, of any round; None before it has reported
    ledger: Ledger | None = None  # the job's time by kind; None if it is not measured

    @property
    def world_round(self) -> int:
        """Return the round of the newest world formed here, 0 for none. `round` may be newer, from elsewhere."""
        return self.world.round if self.world is not None else 0

    def is_in_world(self, id_: str) -> bool:
        """Return True if the member is in the newest world."""
        return self.world is not None and id_ in self.world.assignments


# Events.


@dataclass(frozen=True, slots=True)
class Joined:
    """An event: a member has joined, or joined again. The fields are those of its Join."""

    member: Member
    elastic_spec: ElasticSpec
    base: LastWorld = NO_BASE
    budget: RestartBudget = NO_BUDGET
    worker_count: int = 0
    held_steps: tuple[HeldStep, ...] = ()
    importing_s: float = 0.0
    job_time: JobTime | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """An event: a member's connection has closed, or it was silent for too long."""

    id: str
    reason: Reason = Reason.MEMBER_LOST


@dataclass(frozen=True, slots=True)
class MessageSent:
    """An event: a member has sent a message, any of ToCoordinator in launcher/coordinator_messages.py except Join."""

    id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Granted:
    """An event: the arbiter has granted this round to this coordinator."""

    round: int


@dataclass(frozen=True, slots=True)
class Denied:
    """An event: another coordinator holds the job now."""

    holder: RoundRecord


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An event: the arbiter did not answer the claim of this round, so the result is unknown."""

    round: int
    fault: str = ""  # the reason


@dataclass(frozen=True, slots=True)
class GrantExpired:
    """An event: the arbiter was unreachable for so long that another coordinator may take over."""


@dataclass(frozen=True, slots=True)
class EndpointAnswered:
    """An event: another agent of the job listens at the endpoint, which has this address."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """An event: time has passed, so deadlines have to be checked."""


Event: TypeAlias = (
    Joined
    | Lost
    | MessageSent
    | Granted
    | Denied
    | Unanswered
    | GrantExpired
    | EndpointAnswered
    | Ticked
    | StacksMerged
)


# Effects.


@dataclass(frozen=True, slots=True)
class SendMessage:
    """An effect: send one message to these members."""

    ids: tuple[str, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class Disconnect:
    """An effect: close this member's connection after sending what is pending."""

    id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """An effect: ask the arbiter for this record's round."""

    record: RoundRecord


@dataclass(frozen=True, slots=True)
class AskEndpoint:
    """An effect: find out whether another agent listens at the endpoint."""


@dataclass(frozen=True, slots=True)
class Wake:
    """An effect: raise a Ticked event at this time."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Logged:
    """An effect: write a line to the log and count it in metrics."""

    event: str  # a past-tense word
    reason: Reason
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class StepDown:
    """An effect: send all members to another coordinator and stop leading."""

    to: RoundRecord  # of the other coordinator; without an id or port, members have to search
    handover: bool = False  # this coordinator chose the other one, and has to tell the arbiter
    size: int = 0  # members of the last world that remain


@dataclass(frozen=True, slots=True)
class JobOver:
    """An effect: end the coordinator, since the job is over and all members know or had time to."""

    exit: Exit
    reason: Reason
    detail: str = ""


Effect: TypeAlias = SendMessage | Disconnect | Claim | AskEndpoint | Wake | Logged | StepDown | JobOver | MergeStacks


MAX_SUCCESSORS = 8  # members that all know as successors

FAREWELL_S = 5.0  # seconds for all members to hear that the job is over

MAX_DETAIL = 1_000  # characters of the last message; a longer one would not fit a frame

STOP_GRACE_S = 30.0  # seconds for processes to end if there is no hurry


class Transition:
    """One transition in progress: the policy modules read and change it.

    `state` is the state so far, without the changes of members: these are in `members`, which is changed in place.
    `effects` collects what the coordinator's server has to do. `now_s`: the monotonic clock, seconds.
    """

    __slots__ = ("_names", "effects", "members", "now_s", "state")

    def __init__(self, state: State, now_s: float) -> None:
        self.state, self.now_s = state, now_s
        self.members = dict(state.members)
        self.effects: list[Effect] = []
        self._names: dict[str, str] | None = None

    def result(self) -> tuple[State, tuple[Effect, ...]]:
        """Return the new state and the effects."""
        names = self.state.names if self._names is None else self._names
        return replace(self.state, members=self.members, names=names), tuple(self.effects)

    def send(self, ids: Iterable[str], message: Message) -> None:
        """Add an effect that sends a message to these members. Absent ones are skipped."""
        if present := tuple(id_ for id_ in ids if id_ in self.members):
            self.effects.append(SendMessage(present, message))

    def log_event(self, event: str, reason: Reason, **fields: object) -> None:
        """Add an effect that writes a line to the log. fields: facts of the event."""
        self.effects.append(Logged(event, reason, tuple(fields.items())))

    def wake(self, at_s: float) -> None:
        """Add an effect that raises Ticked at this time, so that the state is advanced again."""
        self.effects.append(Wake(at_s))

    def set_member(self, id_: str, member_state: MemberState) -> None:
        """Replace the state of a member, or add the member."""
        self.members[id_] = member_state
        if self._names is not None:
            self._names[member_state.member.name] = id_

    def id_of(self, name: str) -> str | None:
        """Return the newest id of a present or former member with this name, None if the name is unknown."""
        if self._names is None:
            self._names = dict(self.state.names)
        return self._names.get(name)

    def wait(self, id_: str, reason: Reason, detail: str = "") -> None:
        """Tell a member that it is not in the newest world, and why."""
        fencing = self.state.fencing
        self.send((id_,), Waiting(fencing.newest_round, fencing.newest_size, reason.value, detail))

    def stop(self, reason: Reason, detail: str = "", grace_s: float = STOP_GRACE_S) -> None:
        """End the round, set its cause, and order all processes to end. Enters STOPPING.

        grace_s: seconds to save before the processes are killed.
        """
        self.log_event("round_ended", reason, round=self.state.round, detail=detail)
        self.state = replace(self.state, cause=RoundCause(reason, detail, since_s=self.now_s))
        self.end_processes(grace_s)

    def end_processes(self, grace_s: float) -> None:
        """Order the members that have processes to end them within `grace_s` seconds. Enters STOPPING."""
        self.state = replace(self.state, phase=Phase.STOPPING, ending=Ending())
        self.send(busy_members(self.members), Stop(self.state.round, self.state.cause.reason.value, grace_s))

    def finish(self, exit_: Exit, reason: Reason, detail: str = "") -> None:
        """End the job: tell all members, and wait at most FAREWELL_S until they have left. Enters FINISHING."""
        detail = detail[:MAX_DETAIL]
        self.log_event("job_ended", reason, exit=int(exit_), detail=detail)
        until_s = self.now_s + FAREWELL_S
        cause = replace(self.state.cause, reason=reason, detail=detail)
        ending = replace(self.state.ending, exit=exit_, until_s=until_s)
        self.state = replace(self.state, phase=Phase.FINISHING, cause=cause, ending=ending)
        self.send(list(self.members), Finish(int(exit_), reason.value, detail, self.state.checkpoints.persist_step))
        self.wake(until_s)


def busy_members(members: Mapping[str, MemberState]) -> list[str]:
    """List the ids of the members that may have running processes. members: the present ones, by id."""
    return [id_ for id_, member_state in members.items() if member_state.busy]


def successors_of(members: Mapping[str, MemberState]) -> tuple[Successor, ...]:
    """List the members that may succeed the coordinator: those that stay, oldest first, at most MAX_SUCCESSORS.

    The coordinator's own member counts too. members: the present ones, by id.
    """
    staying = (member_state.member for member_state in members.values() if member_state.leave_s is None)
    oldest = sorted(staying, key=_age)[:MAX_SUCCESSORS]
    return tuple(Successor(member.id, member.address, member.port) for member in oldest)


def could_grow_by(state: State, id_: str, now_s: float) -> bool:
    """Return True if this member still imports, and could join the running world as a new member afterwards.

    The maximum size of a world is not considered.
    """
    member_state, world = state.members.get(id_), state.world
    new = state.phase is Phase.TRAINING and world is not None and id_ not in world.assignments
    return new and member_state is not None and member_state.ready_s > now_s


def _age(member: Member) -> tuple[float, int, str, str]:
    """Return Member.age as a sort key."""
    return member.age
