"""What the coordinator knows, what can happen to it, and what it can ask for. docs/design.md 5.

States, and what ends each:
    GATHERING  nobody trains         enough members have no process running: CLAIMING, or CHECKING first
    CHECKING   nobody trains         groups have measured: GATHERING, with those who have passed
    CLAIMING   nobody trains         the arbiter grants the round: TRAINING; it has another holder: OVER
    TRAINING   the world is frozen   a loss or a fault: STOPPING; a leaver or growth: DRAINING; all done: FINISHING
    DRAINING   a stop step is agreed everybody has stopped: GATHERING; time is up: STOPPING
    STOPPING   processes are ended   everybody has stopped or is lost: HANDING
    HANDING    some leave            members that stay have their shards, or time is up: GATHERING
    FINISHING  nobody trains         everybody knows that the job is over: OVER
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from turnout.launcher.health.checks import Checking
from turnout.launcher.health.stacks.hanging import Hanging, Merge, Merged
from turnout.launcher.model import Budget, Exit, Member, Reason, Record, Terms, World
from turnout.launcher.wire import Base, Held, Message, Stored

Rings: TypeAlias = tuple[Mapping[str, tuple[str, ...]], ...]
NO_BUDGET, NO_BASE, NO_HANG = Budget(), Base(), Hanging()


class Phase(Enum):
    """Where the job stands."""

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
class Known:
    """A member as the coordinator knows it. busy: the newest round of which processes may run there, 0 for none.

    leave_s: by when it has to be gone, None while it stays. step: the newest that it has told, -1 for none. reached:
    its answer to the stop step that is being agreed, None before. held: what its memory held, as last told. stored:
    what it sees in storage, None before. ready_s: when it could start processes, or at the latest counts as ready to.
    """

    member: Member
    base: Base
    busy: int = 0
    leave_s: float | None = None
    step: int = -1
    reached: int | None = None
    held: tuple[Held, ...] = ()
    stored: Stored | None = None
    ready_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Handing:
    """Shards on their way from members that leave. awaits: who takes some and has not answered. until_s: no longer."""

    awaits: frozenset[str] = frozenset()
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """All that the coordinator knows. Soft: a successor begins with what members bring along.

    me: the coordinator itself. arbiter: somebody else grants rounds; without, each world holds more than half of the
    one before it; only: nobody may succeed us, so that no other world can be. granted: a round that is ours and not
    formed yet, 0 for none. round: the newest number that was used anywhere. base, base_size: the newest world that
    anybody was in. retry_s: no claim before then. expected: members that are worth waiting for; call_s: how long after
    the latest join. fence_s: how long after it lost us a member may still train; fenced_s: until then somebody may whom
    we have lost, or never had. ended: a seat of that round has no process any more: its world never trains again.
    before: the round that the arbiter gave to whoever came before us. asked_s: when it was asked for the round, or gave
    it. roams: without an arbiter, who has too few members has everybody search for another coordinator now and then;
    False: not before the first world, None: never; a few times roam_s lie between two searches. sought_s: since when
    we have none, also before we led, or 0. unfenced: the arbiter was out of reach for too long, and only its grant
    lets us go on. told_s: when it was last told who is missing. unnamed: members that have not told yet what they see
    in storage; named: what all read of it, None before. carry: the newest step that all of the last world held when
    it stopped, -1 for none. handing: None before it is known what is handed over. rings: for each number of copies
    who kept whose in the newest world. why: what began the next round. fault: the process failure that will be
    charged unless a loss explains it. checking: None where nodes are not checked. hanging: what is known of a
    process that hangs, and what becomes of its round.
    """

    me: Member
    run: str
    terms: Terms
    arbiter: bool = False
    only: bool = False
    granted: int = 0
    regroup_s: float = 2.0
    alone_s: float = 10.0
    roam_s: float = 10.0
    phase: Phase = Phase.GATHERING
    round: int = 0
    base: int = 0
    base_size: int = 0
    retry_s: float = 0.0
    fence_s: float = 15.0
    fenced_s: float = 0.0
    ended: int = 0
    before: int = 0
    asked_s: float = 0.0
    roams: bool | None = None
    sought_s: float = 0.0
    unfenced: bool = False
    told_s: float = -1e9
    unnamed: int = 0
    named: Stored | None = None
    carry: int = -1
    world: World | None = None
    members: Mapping[str, Known] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # of members that are here or were: the id of the newest
    done: frozenset[str] = frozenset()
    budget: Budget = NO_BUDGET
    expected: int = 0
    call_s: float = 0.0
    wanted: int = 0
    since_s: float = 0.0
    joined_s: float = 0.0
    why: Reason = Reason.FIRST_ROUND
    detail: str = ""
    fault: str = ""
    lost: bool = False
    chosen: tuple[Member, ...] = ()
    stop_step: int | None = None
    sure: bool = False
    until_s: float = 0.0
    exit: Exit | None = None
    checking: Checking | None = None
    hanging: Hanging = NO_HANG
    handing: Handing | None = None
    rings: Rings = ()


# What can happen.


@dataclass(frozen=True, slots=True)
class Joined:
    """A member has come, or come back."""

    member: Member
    terms: Terms
    base: Base = NO_BASE
    budget: Budget = NO_BUDGET
    wanted: int = 0
    held: tuple[Held, ...] = ()
    importing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """A member's connection has closed, or it was silent for too long."""

    id: str
    reason: Reason = Reason.MEMBER_LOST


@dataclass(frozen=True, slots=True)
class Said:
    """A member has said something: any of ToCoordinator in launcher/wire.py but Join."""

    id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Granted:
    """The arbiter has granted this round."""

    round: int


@dataclass(frozen=True, slots=True)
class Denied:
    """Somebody else holds the job now."""

    holder: Record


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The arbiter could not be asked for this round. fault: why."""

    round: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Unfenced:
    """The arbiter has not been reached for so long that somebody else may take over."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event: TypeAlias = Joined | Lost | Said | Granted | Denied | Unanswered | Unfenced | Ticked | Merged


# What can be asked for.


@dataclass(frozen=True, slots=True)
class Tell:
    """One message to these members."""

    ids: tuple[str, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection of this member once what was told it is sent."""

    id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask the arbiter for this record's round."""

    record: Record


@dataclass(frozen=True, slots=True)
class Wake:
    """Say Ticked at this time."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """A line for the log and the metrics. what: a past-tense word."""

    what: str
    reason: Reason
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class StepDown:
    """Somebody else decides: send everybody there.

    handover: he does not know it yet, nor does the arbiter. size: members of the last world that are still there.
    """

    to: Record
    handover: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Over:
    """The job is over, and everybody knows or has had the time to."""

    exit: Exit
    reason: Reason
    detail: str = ""


Effect: TypeAlias = Tell | Drop | Claim | Wake | Told | StepDown | Over | Merge
