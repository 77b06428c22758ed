"""Collects the changes of one transition of the coordinator: the new state and its effects.

A transition copies the members once and can take any number of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.launcher.health.node_check import ExcludedNode
from turnout.launcher.model import Exit, Member, Reason
from turnout.launcher.rendezvous.messages import Finish, Message, Stop, Successor, Waiting
from turnout.launcher.rendezvous.state import Cause, Effect, Ending, MemberState, Phase, State, Tell, Told, Wake

SUCCESSORS = 8
FAREWELL_S = 5.0  # seconds for all members to hear that the job is over
MOST_DETAIL = 1_000  # characters of the last message; a longer one would not fit a frame
STOP_GRACE_S = 30.0  # seconds for processes to end if there is no hurry


class Transition:
    """One transition in progress. `at` is the state; its members are in `members`, to be changed in place."""

    __slots__ = ("_names", "at", "effects", "members", "now_s")

    def __init__(self, state: State, now_s: float) -> None:
        self.at, self.now_s = state, now_s
        self.members = dict(state.members)
        self.effects: list[Effect] = []
        self._names: dict[str, str] | None = None

    def ended(self) -> tuple[State, tuple[Effect, ...]]:
        """Return the new state and the effects."""
        names = self.at.names if self._names is None else self._names
        return replace(self.at, members=self.members, names=names), tuple(self.effects)

    def tell(self, ids: Iterable[str], message: Message) -> None:
        """Send a message to those of these members that are present."""
        if there := tuple(id_ for id_ in ids if id_ in self.members):
            self.effects.append(Tell(there, message))

    def told(self, what: str, reason: Reason, **fields: object) -> None:
        """Write a line to the log."""
        self.effects.append(Told(what, reason, tuple(fields.items())))

    def wake(self, at_s: float) -> None:
        """Ask to be called again at this time."""
        self.effects.append(Wake(at_s))

    def know(self, id_: str, known: MemberState) -> None:
        """Replace what is known of a member."""
        self.members[id_] = known
        if self._names is not None:
            self._names[known.member.name] = id_

    def named(self, name: str) -> str | None:
        """Return the id of the member with this name, or None."""
        if self._names is None:
            self._names = dict(self.at.names)
        return self._names.get(name)

    @property
    def world_round(self) -> int:
        """Return the round of the newest world formed here, 0 for none. `at.round` may be newer, from elsewhere."""
        return self.at.world.round if self.at.world is not None else 0

    def inside(self, id_: str) -> bool:
        """True if the member is in the newest world."""
        return self.at.world is not None and id_ in self.at.world.seats

    def ready(self, id_: str) -> bool:
        """True if the member can start processes now, as far as known. A member of the newest world always counts."""
        return self.ready_s(id_) <= self.now_s or self.inside(id_)

    def ready_s(self, id_: str) -> float:
        """Return the time from which a world may be stopped to add this member: it has imported and is not excluded."""
        known, left = self.members[id_], self.kept_out(id_)
        return known.ready_s if left is None else max(known.ready_s, left.until_s)

    def kept_out(self, id_: str) -> ExcludedNode | None:
        """Return this member's exclusion by a node check, if it is still too early to test the node again;
        else None.
        """
        checking, member = self.at.checking, self.members[id_].member
        for left in checking.left if checking is not None else ():
            beside = not left.beside or self.named(left.beside) in self.members
            if self.now_s < left.until_s and beside and left.is_of(member):
                return left
        return None

    def busy(self) -> list[str]:
        """List the members that may have running processes."""
        return [id_ for id_, known in self.members.items() if known.busy]

    def successors(self) -> tuple[Successor, ...]:
        """List the oldest members, which all members know as successors. This coordinator is included, so it can be
        found again.
        """
        staying = (known.member for known in self.members.values() if known.leave_s is None)
        oldest = sorted(staying, key=_age)[:SUCCESSORS]
        return tuple(Successor(member.id, member.address, member.port) for member in oldest)

    def wait(self, id_: str, reason: Reason, detail: str = "") -> None:
        """Tell a member that it is not in this world."""
        self.tell((id_,), Waiting(self.at.fencing.base, self.at.fencing.base_size, reason.value, detail))

    def stop(self, reason: Reason, detail: str = "", grace_s: float = STOP_GRACE_S) -> None:
        """End the round and all processes. The next round begins when no member has any."""
        self.told("round_ended", reason, round=self.at.round, detail=detail)
        self.at = replace(self.at, cause=Cause(reason, detail, since_s=self.now_s))
        self.end_processes(grace_s)

    def end_processes(self, grace_s: float) -> None:
        """Tell all members to end their processes within this time."""
        self.at = replace(self.at, phase=Phase.STOPPING, ending=Ending())
        self.tell(self.busy(), Stop(self.at.round, self.at.cause.why.value, grace_s))

    def finish(self, exit_: Exit, reason: Reason, detail: str = "") -> None:
        """End the job: tell all members, and wait FAREWELL_S for them to go."""
        detail = detail[:MOST_DETAIL]
        self.told("job_ended", reason, exit=int(exit_), detail=detail)
        until_s = self.now_s + FAREWELL_S
        cause = replace(self.at.cause, why=reason, detail=detail)
        ending = replace(self.at.ending, exit=exit_, until_s=until_s)
        self.at = replace(self.at, phase=Phase.FINISHING, cause=cause, ending=ending)
        self.tell(list(self.members), Finish(int(exit_), reason.value, detail, self.at.checkpoints.carry))
        self.wake(until_s)


def awaited(state: State, id_: str, now_s: float) -> bool:
    """True if a running world could grow by this member once it has finished its imports."""
    known, world = state.members.get(id_), state.world
    new = state.phase is Phase.TRAINING and world is not None and id_ not in world.seats
    return new and known is not None and known.ready_s > now_s


def _age(member: Member) -> tuple[float, int, str, str]:
    return member.age
