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
    """A member as the coordinator knows it."""

    member: Member
    base: Base  # the last world that it tells of, or that we have told it
    busy: int = 0  # the newest round of which processes may run there, 0 for none
    leave_s: float | None = None  # by when it has to be gone, None while it stays
    step: int = -1  # the newest that it has told, -1 for none
    reached: int | None = None  # its answer to the stop step that is being agreed, None before
    held: tuple[Held, ...] = ()  # what its memory held, as last told
    stored: Stored | None = None  # what it sees in storage, None before it has told
    ready_s: float = 0.0  # when it could start processes, or at the latest counts as ready to


@dataclass(frozen=True, slots=True)
class Handing:
    """Shards on their way from members that leave. awaits: who takes some and has not answered. until_s: no longer."""

    awaits: frozenset[str] = frozenset()
    until_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """The job that is coordinated, by whom, and how long it waits for what. None of it changes."""

    me: Member  # the coordinator itself
    run: str
    terms: Terms
    arbiter: bool = False  # somebody else grants rounds; without, a world holds more than half of the one before it
    only: bool = False  # nobody may succeed us, so that no other world can be
    regroup_s: float = 2.0  # for members to come again after their coordinator was lost
    alone_s: float = 10.0  # for more than half of the last world to come, where no arbiter grants rounds
    roam_s: float = 10.0  # a few times this lie between two searches for another coordinator
    fence_s: float = 15.0  # how long after it lost us a member may still train


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the last round ended or the next one begins, and since when it stands so."""

    why: Reason = Reason.FIRST_ROUND
    detail: str = ""  # the same in words, for people
    fault: str = ""  # the process failure that will be charged unless a loss explains it, "" for none
    lost: bool = False  # a member whose processes may still run was lost since the round ended
    since_s: float = 0.0  # when the job began, its round ended, all had stopped, or its world was formed


@dataclass(frozen=True, slots=True)
class Fencing:
    """The worlds before the next one, and until when one of them may still train."""

    base: int = 0  # the round of the newest world that anybody was in
    base_size: int = 0  # its members, but those that have left for good
    before: int = 0  # the round that the arbiter gave to whoever came before us, 0 for none
    ended: int = 0  # a seat of that round has no process any more: its world never trains again
    fenced_s: float = 0.0  # until then a member may train whom we have lost, or never had


@dataclass(frozen=True, slots=True)
class Gathering:
    """How long the next round waits, for how many members, and where others may be found."""

    wanted: int = 0  # members that the job was started with, as told; 0 where nobody says
    expected: int = 0  # members that are worth waiting for
    call_s: float = 0.0  # how long after the latest join they are waited for
    joined_s: float = 0.0  # when the latest new member came
    told_s: float = -1e9  # when it was last told who is missing
    roams: bool | None = None  # with too few all search for another coordinator; False: not yet; None: never
    sought_s: float = 0.0  # since when we have no other coordinator, also before we led, or 0


@dataclass(frozen=True, slots=True)
class Claiming:
    """The round that is asked of the arbiter, or was granted by it."""

    granted: int = 0  # a round that is ours and not formed yet, 0 for none
    chosen: tuple[Member, ...] = ()  # who will be in its world
    asked_s: float = 0.0  # when the arbiter was asked for the round, or gave it
    retry_s: float = 0.0  # no claim before then
    unfenced: bool = False  # the arbiter was out of reach for too long: only its grant lets us go on


@dataclass(frozen=True, slots=True)
class Ending:
    """How far the round is from its end, or the whole job."""

    done: frozenset[str] = frozenset()  # members of the world whose processes have all ended well
    stop_step: int | None = None  # after which all stop, as it was last proposed; None before
    sure: bool = False  # all have answered that they have not passed it
    until_s: float = 0.0  # then processes that have not reached it are ended; of a job, then everybody has heard
    exit: Exit | None = None  # how the job has ended, None before


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What the members' memory and storage hold of the job, where all of them have to agree on it."""

    unnamed: int = 0  # members that have not told yet what they see in storage
    named: Stored | None = None  # what all of the round read of it, None before
    carry: int = -1  # the newest step that all of the last world held when it stopped, -1 for none
    handing: Handing | None = None  # what leavers hand over, None before it is known
    rings: Rings = ()  # for each number of copies who kept whose in the newest world


@dataclass(frozen=True, slots=True)
class State:
    """All that the coordinator knows. Soft: a successor begins with what members bring along."""

    job: Job
    phase: Phase = Phase.GATHERING
    round: int = 0  # the newest number that was used anywhere
    world: World | None = None  # the newest that we have formed
    members: Mapping[str, Known] = field(default_factory=dict)  # who is there, by id
    names: Mapping[str, str] = field(default_factory=dict)  # of members that are here or were: the id of the newest
    budget: Budget = NO_BUDGET
    cause: Cause = Cause()
    fencing: Fencing = Fencing()
    gathering: Gathering = Gathering()
    claiming: Claiming = Claiming()
    ending: Ending = Ending()
    checkpoints: Checkpoints = Checkpoints()
    checking: Checking | None = None  # None where nodes are not checked
    hanging: Hanging = NO_HANG  # what is known of a process that hangs, and what becomes of its round


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
