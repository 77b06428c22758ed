"""A preemption storm, kind 19: 256 of 300 members are told to leave at once, on the coordinator's own state machine.

Members are simulated, each message on its way for a drawn time; what the coordinator makes of it is the product's code.
Some leavers die in the middle of it without a word.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from itertools import count

from hack.chaos.fault_kinds import Kind
from hack.chaos.strike_table import Check, Strike
from turnout.launcher.coordinator_messages import (
    Finish,
    Formed,
    Heartbeat,
    Leaving,
    Message,
    Reached,
    Ready,
    Stop,
    StopAt,
    Succeeded,
)
from turnout.launcher.model import ElasticSpec, Member
from turnout.launcher.rendezvous.state import (
    Claim,
    Event,
    Granted,
    Joined,
    Lost,
    MessageSent,
    Phase,
    SendMessage,
    State,
    Ticked,
    Wake,
)
from turnout.launcher.rendezvous.state_machine import begin, steps

MEMBERS, LEAVERS = 300, 256
GRACE_S, STEP_S = 5.0, 0.2  # of SIGTERM; of a training step
_DELAY_S, _APART_S = 0.05, 0.2  # of a message; between the first and the last to be told
_MOST_DEAD = 8  # of the leavers
_LONGEST_S = 60.0

ONCE = "the group forms anew once, not once for each leaver"
STAYED = "everybody who stays is in the new world, nobody else"
DRAINED = "leavers end as drained, and nobody else is ended"
IN_GRACE = "leavers are gone within their grace"


class Storm:
    """A coordinator and its members, simulated event by event. now_s begins at 0."""

    def __init__(self, dice: random.Random, members: int, leavers: int) -> None:
        self.dice, self.now_s = dice, 0.0
        spec = ElasticSpec(1, members, max_restarts=3, last_call_s=1.0)
        self.members = [
            Member(f"m{at}/0", f"m{at}", f"h{at}", started_s=float(at), master_port=1) for at in range(members)
        ]
        self.leavers = dice.sample([each.id for each in self.members[1:]], leavers)
        self.state: State = begin(self.members[0], "storm", spec, 0.0, worker_count=members, granted=1)
        self.worlds: dict[int, set[str]] = {}
        self.finished: dict[str, tuple[int, str, float]] = {}
        self.gone_s: dict[str, float] = {}
        self.told_s = 0.0  # when the first leaver is told
        self.dead: list[str] = []
        self._queue: list[tuple[float, int, Event]] = []
        self._order = count()
        for each in self.members:
            self.later(0.0, Joined(each, spec, worker_count=members))

    def later(self, at_s: float, event: Event) -> None:
        """Have this event happen then."""
        heapq.heappush(self._queue, (max(at_s, self.now_s), next(self._order), event))

    def run(self) -> None:
        """Form the first world, strike once it trains, and go on until nothing more happens."""
        struck = False
        while self._queue and self.now_s < _LONGEST_S:
            self.now_s, _, event = heapq.heappop(self._queue)
            if isinstance(event, MessageSent) and event.id in self.gone_s:
                continue
            if isinstance(event, Lost):
                self.gone_s.setdefault(event.id, self.now_s)
            self.state, effects = steps(self.state, (event,), self.now_s)
            for effect in effects:
                self._carry_out(effect)
            if not struck and self.state.phase is Phase.TRAINING:
                struck = True
                self._strike()

    def _strike(self) -> None:
        self.told_s = self.now_s + 1.0
        for each in self.members:
            self.later(self.told_s - 0.5, MessageSent(each.id, Heartbeat(10)))
        for id_ in self.leavers:
            self.later(self.told_s + self.dice.uniform(0.0, _APART_S), MessageSent(id_, Leaving(GRACE_S)))
        self.dead = self.dice.sample(self.leavers, self.dice.randint(0, _MOST_DEAD))
        for id_ in self.dead:
            self.later(self.told_s + self.dice.uniform(0.0, 1.0), Lost(id_))

    def _carry_out(self, effect: object) -> None:
        match effect:
            case SendMessage(ids=ids, message=message):
                self._hear(ids, message)
            case Claim(record=record):
                self.later(self._soon(), Granted(record.round))
            case Wake(at_s=at_s):
                self.later(at_s, Ticked())

    def _hear(self, ids: Iterable[str], message: Message) -> None:
        for id_ in ids:
            if id_ not in self.gone_s:
                self._answer(id_, message)

    def _answer(self, id_: str, message: Message) -> None:
        match message:
            case Formed(round=round_):
                self.worlds.setdefault(round_, set()).add(id_)
            case StopAt(round=round_, confirmed=False):
                self.later(self._soon(), MessageSent(id_, Reached(round_, 10)))
            case StopAt(round=round_, confirmed=True):
                self.later(self._soon() + 2 * STEP_S, MessageSent(id_, Succeeded(round_)))
            case Stop(round=round_):
                self.later(self._soon(), MessageSent(id_, Ready(round_, 1)))
            case Finish(exit=code, reason=reason):
                self.finished[id_] = (code, reason, self.now_s)
                self.gone_s[id_] = self.now_s
                self.later(self._soon(), Lost(id_))

    def _soon(self) -> float:
        return self.now_s + self.dice.uniform(0.001, _DELAY_S)


def play(seed: int, members: int = MEMBERS, leavers: int = LEAVERS) -> Strike:
    """Strike once under this seed, and check what became of everybody."""
    storm = Storm(random.Random(f"leavers/{seed}"), members, leavers)
    storm.run()
    return Strike(Kind.LEAVERS, seed, len(storm.leavers), checks(storm), f"{leavers} of {members} members leave")


def checks(storm: Storm) -> tuple[Check, ...]:
    """Check the end of a storm."""
    leavers, dead = set(storm.leavers), set(storm.dead)
    rounds = sorted(storm.worlds)
    last = storm.worlds[rounds[-1]] if rounds else set()
    stay = {each.id for each in storm.members} - leavers
    ended = {id_: told for id_, told in storm.finished.items() if id_ not in dead}
    odd = [f"{id_}: {told[:2]}" for id_, told in ended.items() if id_ not in leavers or told[:2] != (143, "drained")]
    late = [f"{i}: {at_s - storm.told_s:.1f} s" for i, at_s in storm.gone_s.items() if at_s - storm.told_s > GRACE_S]
    lost = sorted(leavers - dead - set(ended))
    return (
        Check(ONCE, () if len(rounds) == 2 else (f"{len(rounds)} worlds were formed, 2 were to be",)),
        Check(STAYED, () if last == stay else (f"{len(last - stay)} too many, {len(stay - last)} missing",)),
        Check(DRAINED, (*odd[:3], *(f"{each} was never told to end" for each in lost[:3]))),
        Check(IN_GRACE, tuple(late[:3])),
    )
