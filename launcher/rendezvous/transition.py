"""Collects the changes of one transition of the coordinator: the new state and its effects.

A transition copies the members once and can take any number of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.launcher.health.node_check import ExcludedNode
from turnout.launcher.model import Exit, Member, Reason
from turnout.launcher.rendezvous.messages import Finish, Message, Stop, Successor, Waiting
from turnout.launcher.rendezvous.state import (
    Effect,
    Ending,
    Logged,
    MemberState,
    Phase,
    RoundCause,
    SendMessage,
    State,
    Wake,
)

SUCCESSORS = 8
FAREWELL_S = 5.0  # seconds for all members to hear that the job is over
MOST_DETAIL = 1_000  # characters of the last message; a longer one would not fit a frame
STOP_GRACE_S = 30.0  # seconds for processes to end if there is no hurry


class Transition:
    """One transition in progress. `at` is the state; its members are in `members`, to be changed in place."""

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
        """Send a message to those of these members that are present."""
        if present := tuple(id_ for id_ in ids if id_ in self.members):
            self.effects.append(SendMessage(present, message))

    def log_event(self, event: str, reason: Reason, **fields: object) -> None:
        """Write a line to the log."""
        self.effects.append(Logged(event, reason, tuple(fields.items())))

    def wake(self, at_s: float) -> None:
        """Ask to be called again at this time."""
        self.effects.append(Wake(at_s))

    def set_member(self, id_: str, known: MemberState) -> None:
        """Replace what is known of a member."""
        self.members[id_] = known
        if self._names is not None:
            self._names[known.member.name] = id_

    def id_of(self, name: str) -> str | None:
        """Return the id of the member with this name, or None."""
        if self._names is None:
            self._names = dict(self.state.names)
        return self._names.get(name)

    @property
    def world_round(self) -> int:
        """Return the round of the newest world formed here, 0 for none. `at.round` may be newer, from elsewhere."""
        return self.state.world.round if self.state.world is not None else 0

    def is_in_world(self, id_: str) -> bool:
        """True if the member is in the newest world."""
        return self.state.world is not None and id_ in self.state.world.assignments

    def is_ready(self, id_: str) -> bool:
        """True if the member can start processes now, as far as known. A member of the newest world always counts."""
        return self.ready_s(id_) <= self.now_s or self.is_in_world(id_)

    def ready_s(self, id_: str) -> float:
        """Return the time from which a world may be stopped to add this member: it has imported and is not excluded."""
        known, left = self.members[id_], self.exclusion(id_)
        return known.ready_s if left is None else max(known.ready_s, left.until_s)

    def exclusion(self, id_: str) -> ExcludedNode | None:
        """Return this member's exclusion by a node check, if it is still too early to test the node again;
        else None.
        """
        checking, member = self.state.checking, self.members[id_].member
        for left in checking.excluded if checking is not None else ():
            peer_is_back = not left.unreachable_peer or self.id_of(left.unreachable_peer) in self.members
            if self.now_s < left.until_s and peer_is_back and left.is_of(member):
                return left
        return None

    def busy_members(self) -> list[str]:
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
        self.send((id_,), Waiting(self.state.fencing.base, self.state.fencing.base_size, reason.value, detail))

    def stop(self, reason: Reason, detail: str = "", grace_s: float = STOP_GRACE_S) -> None:
        """End the round and all processes. The next round begins when no member has any."""
        self.log_event("round_ended", reason, round=self.state.round, detail=detail)
        self.state = replace(self.state, cause=RoundCause(reason, detail, since_s=self.now_s))
        self.end_processes(grace_s)

    def end_processes(self, grace_s: float) -> None:
        """Tell all members to end their processes within this time."""
        self.state = replace(self.state, phase=Phase.STOPPING, ending=Ending())
        self.send(self.busy_members(), Stop(self.state.round, self.state.cause.reason.value, grace_s))

    def finish(self, exit_: Exit, reason: Reason, detail: str = "") -> None:
        """End the job: tell all members, and wait FAREWELL_S for them to go."""
        detail = detail[:MOST_DETAIL]
        self.log_event("job_ended", reason, exit=int(exit_), detail=detail)
        until_s = self.now_s + FAREWELL_S
        cause = replace(self.state.cause, reason=reason, detail=detail)
        ending = replace(self.state.ending, exit=exit_, until_s=until_s)
        self.state = replace(self.state, phase=Phase.FINISHING, cause=cause, ending=ending)
        self.send(list(self.members), Finish(int(exit_), reason.value, detail, self.state.checkpoints.persist_step))
        self.wake(until_s)


def could_grow_by(state: State, id_: str, now_s: float) -> bool:
    """True if a running world could grow by this member once it has finished its imports."""
    known, world = state.members.get(id_), state.world
    new = state.phase is Phase.TRAINING and world is not None and id_ not in world.assignments
    return new and known is not None and known.ready_s > now_s


def _age(member: Member) -> tuple[float, int, str, str]:
    return member.age
