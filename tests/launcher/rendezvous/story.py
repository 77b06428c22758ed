"""A job told event by event: who comes, what is said, what the coordinator makes of it. Worker a coordinates."""

from dataclasses import replace

from turnout.launcher.coordinator_messages import (
    Finish,
    Formed,
    Heartbeat,
    LastWorld,
    Leaving,
    ProcessFailed,
    Ready,
    Stop,
    StopAt,
    Succeeded,
    Waiting,
)
from turnout.launcher.model import ElasticSpec, Member, RestartBudget
from turnout.launcher.rendezvous.state import (
    Claim,
    Disconnect,
    Granted,
    JobOver,
    Joined,
    Logged,
    Lost,
    MessageSent,
    SendMessage,
    StepDown,
    Ticked,
)
from turnout.launcher.rendezvous.state_machine import begin, replace_coordinator, step, steps

NO_BASE = LastWorld()


def member(name, incarnation=0, **more):
    """The older the nearer to a."""
    return Member(f"{name}/{incarnation}", name, name, started_s=float(ord(name[0])), master_port=1, **more)


class Story:
    """nnodes: "min:max". base: what a succeeds with, None for a job that nobody has begun."""

    def __init__(
        self, nnodes, base=None, worker_count=0, granted=None, only=False, succeeds=None, begins_s=0.0, **terms
    ):
        minimum, _, maximum = nnodes.partition(":")
        self.terms = ElasticSpec(int(minimum), int(maximum or minimum), **{"max_restarts": 3, **terms})
        self.now_s = begins_s
        self.state = begin(
            member("a"), "job", self.terms, begins_s, worker_count=worker_count, granted=granted, sole_coordinator=only
        )
        if base is not None:
            self.state = replace_coordinator(self.state, base, RestartBudget(), **(succeeds or {}))
        self.ids, self.told, self.effects = {"a": "a/0"}, {}, []

    def happens(self, *events):
        """All at once."""
        self.state, effects = steps(self.state, events, self.now_s)
        for effect in effects:
            self.effects.append(effect)
            for id_ in effect.ids if isinstance(effect, SendMessage) else ():
                self.told.setdefault(id_.partition("/")[0], []).append(effect.message)
        return self

    def join(
        self, *names, base=NO_BASE, incarnation=0, worker_count=0, budget=None, terms=None, importing_s=0.0, **more
    ):
        for name in names:
            self.ids[name] = f"{name}/{incarnation}"
        newcomers = [member(name, incarnation, **more) for name in names]
        arguments = (terms or self.terms, base, budget or RestartBudget(), worker_count, (), importing_s)
        return self.happens(*(Joined(each, *arguments) for each in newcomers))

    def say(self, names, message):
        """Send a message from each of these names; the lost ones send nothing."""
        return self.happens(*(MessageSent(self.ids[name], message) for name in names))

    def imported(self, names):
        """From now on they can start processes."""
        return self.say(names, Heartbeat())

    def lose(self, names):
        return self.happens(*(Lost(self.ids[name]) for name in names))

    def wait(self, seconds):
        self.now_s += seconds
        return self.happens(Ticked())

    def fail(self, names, round_=None):
        return self.say(names, ProcessFailed(round_ or self.round, 0, "it crashed"))

    def succeed(self, names):
        return self.say(names, Succeeded(self.round))

    def ready(self, names):
        return self.say(names, Ready(self.state.round, 1))

    def leave(self, names, grace_s=25.0):
        return self.say(names, Leaving(grace_s))

    def reach(self, names, step_):
        return self.say(names, Heartbeat(step_))

    def grant(self):
        return self.happens(Granted(self.of(Claim)[-1].record.round))

    @property
    def phase(self):
        return self.state.phase.value

    @property
    def round(self):
        return self.state.world.round if self.state.world else 0

    @property
    def world(self):
        """Names by group rank while they train, "" else."""
        trains = self.phase in ("training", "draining")
        return "".join(sorted(each.name for each in self.state.world.members)) if trains else ""

    def of(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def last(self, name, *kinds):
        """The newest thing that it was told, of these kinds."""
        return next((each for each in reversed(self.told.get(name, ())) if not kinds or isinstance(each, kinds)), None)

    def events(self, what):
        return [(each.reason.value, dict(each.fields)) for each in self.of(Logged) if each.event == what]


def running(names="abc", nnodes="1:3", **more):
    """A job of these members, whose world has begun at once."""
    return Story(nnodes, **{"last_call_s": 0.0, **more}).join(*names)


__all__ = [
    "NO_BASE",
    "Claim",
    "Disconnect",
    "Finish",
    "Formed",
    "Granted",
    "JobOver",
    "LastWorld",
    "ProcessFailed",
    "Ready",
    "RestartBudget",
    "StepDown",
    "Stop",
    "StopAt",
    "Story",
    "Succeeded",
    "Waiting",
    "member",
    "replace",
    "running",
    "step",
]  # fmt: skip
