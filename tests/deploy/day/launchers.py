"""The launchers of one job of the day: a coordinator's real decisions and account of time, and each agent's metrics.

`tests/launcher/rendezvous/story.py` tells the coordinator's state machine what happens. Its log, and the words that an
agent logs itself (launcher/agent/agent.py, launcher/health/hang_monitor/), are counted as turnout-run counts them. The
ends of saves come as the frames that a checkpoint daemon writes. No training process runs.
"""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import generate_latest

from tests.launcher.rendezvous.story import Story
from turnout.launcher.agent.goodput_metrics import GoodputMetrics
from turnout.launcher.agent.metrics import Metrics
from turnout.launcher.agent.save_metrics import SaveMetrics
from turnout.launcher.checkpoint.daemon.save_reports import SaveReportReader
from turnout.launcher.checkpoint.format.daemon_messages import SaveEnded, encode
from turnout.launcher.coordinator_messages import Heartbeat, Hung, Reached, StopAt, Succeeded
from turnout.launcher.goodput import ledger as ledgers
from turnout.launcher.goodput.job_time import NS, RankZero
from turnout.launcher.model import SaveOutcome, SaveTier
from turnout.launcher.rendezvous.state import Logged

NAMES = "abcdefgh"
PROCESSES = 8  # of one agent


class Agent:
    """The metrics page of one agent, as launcher/agent/start_agent.py makes it."""

    def __init__(self, run):
        self._metrics = Metrics(run)
        self._others = GoodputMetrics(self._metrics.registry, run), SaveMetrics(self._metrics.registry, run)
        self._saves = SaveReportReader(self.log)

    def log(self, event, fields):
        """Count an event of the log."""
        for each in (self._metrics, *self._others):
            each.count_event(event, fields)

    def save_ended(self, save):
        """Read the end of a save from the daemon's pipe."""
        self._saves.data_received(encode(save))

    def page(self):
        """Return the metrics page."""
        return generate_latest(self._metrics.registry)


class Launchers:
    """The workers of one job. agents: by the names of their pods, the coordinator's first.

    save_each: minutes between two saves, 0 for no saves. saves: how they end. step_s: seconds of a step. stands: True
    while no step is done. data_s: how long of each minute training waits for data.
    """

    def __init__(self, clock, namespace, name, workers, maximum):
        self.clock, self.namespace, self.name = clock, namespace, name
        self.save_each, self.saves, self.step_s, self.is_hanging, self.data_s = 10, SaveOutcome.DONE, 2.0, False, 3.0
        self.agents = {}
        self._steps, self._first, self._saved, self._round = 0, -1, -1, -1
        self._began_s = self._data_s = self._minutes = self._read = 0
        self.story = story = Story(
            f"1:{maximum}", begins_s=clock.wall(), last_call_s=0.0, max_restarts=1000, settle_s=0.0, only=True
        )
        now_ns = round(clock.wall() * NS)
        story.state = replace(story.state, ledger=ledgers.new_ledger("a/0", now_ns, now_ns))
        self._agent("a").log("coordinator_begun", {})
        self.join(*NAMES[:workers])

    def _agent(self, name):
        pod = f"{self.name}-worker-{NAMES.index(name)}"
        if pod not in self.agents:
            self.agents[pod] = Agent(self.name)
        return self.agents[pod]

    @property
    def members(self):
        """The workers of the world, by letter."""
        return self.story.world

    def follow(self, names):
        """Let workers leave and join until the world has these."""
        for name in sorted({*self.members} - {*names}):
            self.leave(name)
        if new := sorted({*names} - {*self.members}):
            self.join(*new)

    def join(self, *names):
        """Let workers join. A world that trains grows."""
        self._now()
        for name in names:
            self._agent(name)
        self.story.join(*names, processes=PROCESSES)
        self._settle()

    def leave(self, name):
        """Let a worker leave, and its page with it."""
        self._now()
        self.story.leave([name])
        self._settle()
        self.story.lose([name])
        self._hear()
        del self.agents[f"{self.name}-worker-{NAMES.index(name)}"]

    def fail(self, name):
        """Let a training process end with an error; the job restarts without the steps that are not saved."""
        self._now()
        self._agent(name).log("process_failed", {})
        self.story.fail([name])
        self._steps = max(0, self._saved)
        self._settle()

    def hang(self, name, why="no step for 300 s"):
        """Let the first process of a worker hang, or go on with why="". Its monitor and its agent report it."""
        self._now()
        rank = NAMES.index(name) * PROCESSES
        self._agent(name).log("process_hung" if why else "process_moved", {"rank": rank})
        self.story.say([name], Hung(self.story.round, 0, why))
        self.is_hanging = bool(why)
        if why:  # as transport/merge_stacks.py logs it once all stacks are there
            self._agent("a").log("stacks_gathered", {"apart": [rank]})
        self._hear()

    def _settle(self):
        """Let everybody end the processes of the last round, until a world trains."""
        for _ in range(4):
            self.story.wait(0.0)
            present = [name for name in NAMES if f"{name}/0" in self.story.state.members]
            if self.story.phase == "draining":  # all stop after one step
                training, round_ = self.members, self.story.round
                for name in training:
                    self.story.say([name], Reached(round_, self.story.last(name, StopAt).step))
                self._saved = self._steps  # processes save before they stop
                self.story.say(["a"], Heartbeat(self._steps, self._saved)).say(training, Succeeded(round_))
            elif self.story.phase != "training":
                self.story.now_s += 4.0
                self.story.ready(present)
        self._hear()
        assert self.story.phase == "training", self.story.phase
        if self.story.round != self._round:
            self._round, self._first, self._began_s, self._data_s = self.story.round, -1, self.story.now_s, 0
            for at, name in enumerate(self.members):
                self._agent(name).log("processes_started", {"round": self._round, "group_rank": at})

    def _hear(self):
        """Count what the coordinator has logged."""
        logged = self.story.of(Logged)
        for each in logged[self._read :]:
            self._agent("a").log(each.event, {**dict(each.fields), "reason": each.reason.value})
        self._read = len(logged)

    def _now(self):
        self.story.now_s = max(self.story.now_s, self.clock.wall())

    def minute(self):
        """Train for a minute, save if it is time, and report."""
        self._now()
        self._minutes += 1
        if not self.is_hanging:
            if self._first < 0:
                self._first = self._steps
            self._steps += round(60 / self.step_s)
            self._data_s += self.data_s
        if self.save_each and self._minutes % self.save_each == 0 and not self.is_hanging:
            self._save()
        rank_zero = RankZero(
            self._round,
            self._steps if self._first >= 0 else -1,
            data_ns=round(self._data_s * NS),
            first=self._first,
            since_first_ns=round(max(0.0, self.story.now_s - self._began_s - 20) * NS) if self._first >= 0 else 0,
        )
        self.story.say(["a"], Heartbeat(self._steps, self._saved, rank_zero=rank_zero))
        self._hear()
        self._agent("a").log("job_time_measured", {"record": ledgers.record_of(self.story.state.ledger)})

    def _save(self):
        """End a save of the first rank of each worker in memory and in storage."""
        now_s, ok = self.clock.wall(), self.saves is SaveOutcome.DONE
        for at, name in enumerate(self.members):
            for tier in SaveTier:
                outcome = self.saves if tier is SaveTier.STORAGE else SaveOutcome.DONE
                complete = outcome is SaveOutcome.DONE and (tier is not SaveTier.STORAGE or at == 0)
                times = {"announced_s": now_s - 20.0, "ended_s": now_s - 5.0}
                end = SaveEnded(self._steps, self._round, at * PROCESSES, tier, outcome, complete, **times)
                self._agent(name).save_ended(end)
        if ok:
            self._saved = self._steps
