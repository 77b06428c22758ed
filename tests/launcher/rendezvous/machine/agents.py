"""An agent as the shell makes one, without processes and sockets: it follows, searches, and may coordinate.

What it decides by is the real thing: rendezvous.seek, follow, arbiter. What is here stands for launcher/agent/agent.py
and meeting/finding.py, leading.py and door.py. A pause stops a whole host.
"""

from dataclasses import replace

from tests.launcher.rendezvous.machine.leads import BEAT_S, RENEW_S, SILENCE_S, Leads
from turnout.launcher.coordinator_messages import (
    Finish,
    Formed,
    Hung,
    Join,
    LastWorld,
    Leaving,
    Probe,
    ProcessFailed,
    Reached,
    Ready,
    Redirect,
    Refused,
    ShowStacks,
    Stacks,
    Stop,
    StopAt,
    Succeeded,
    Waiting,
    Welcome,
)
from turnout.launcher.model import Exit, Member, Reason, RestartBudget, RoundRecord
from turnout.launcher.rendezvous import arbiter
from turnout.launcher.rendezvous.find_coordinator import (
    AskArbiter,
    ConnectTo,
    GiveUp,
    Lead,
    Search,
    SearchLap,
    SearchPause,
    next_lap,
    next_move,
    record_arbiter,
    record_failure,
    record_other_holder,
    record_redirect,
)
from turnout.launcher.rendezvous.form_world import may_train
from turnout.launcher.rendezvous.state_machine import begin, replace_coordinator

GREET_S, HOLD_S, FAREWELL_S = 5.0, 3.0, 6.0
PORT = 29400


class Agent:
    """One incarnation of a worker."""

    def __init__(self, network, number, incarnation=0, imports=0.0, patience_s=0.0, host=None):
        self.network, self.name = network, f"w{number}"
        self.id, self.here = f"{self.name}/{incarnation}", (f"10.0.{incarnation}.{number}", PORT)
        self.member = Member(
            self.id, self.name, host or self.name, *self.here, 1, (), number, started_s=number + 10.0 * incarnation
        )
        self.alive, self.paused, self.host_dead = True, False, False
        self.base, self.budget, self.world, self.report = LastWorld(), RestartBudget(), None, None
        self.link = self.greeting = self.lead = self.leave_s = self.exit = self.fence_s = None
        self.step, self.imported_s, self.given_up_s = -1, network.now_s + imports, network.now_s + patience_s
        self.until_s = self.next_try_s = 0.0
        self.heard_s = self.looked_s = network.now_s
        self.leaving = None  # (exit, until_s): told that it is over, and still coordinating
        self.held_at_endpoint, self.sighting = [], None
        self.probe, self.hung = None, False  # (order, since_s, by whom); does a process of it hang?
        has_endpoint = network.mode != "arbiter"
        self.seek = Search(
            self.id,
            ("w0", PORT) if has_endpoint else None,
            has_endpoint and number == 0,
            network.mode == "arbiter",
            600.0,
        )
        self.search()

    @property
    def runs(self):
        return self.alive and not self.paused and self.base.busy and self.report is None

    # The follower: launcher/agent/agent.py.

    def reads(self, conn, message, of):
        """A message comes down."""
        if conn is self.greeting:
            self.greeted(conn, message)
        elif conn is self.link:
            self.heard_s = self.network.now_s
            if message is None:
                self.lost(Reason.MEMBER_LOST)
            elif self.leaving is None and self.exit is None:
                self.obey(message, of)

    def greeted(self, conn, message):
        self.greeting = None
        to = self.going
        match message:
            case Welcome():
                self.link, self.heard_s, self.fence_s = conn, self.network.now_s, None
                self.network.tell(self.id, f"linked to {conn.endpoint.id}")
                self.seek = replace(
                    self.seek, last=conn.endpoint.here, hint=None, handed_over=False, tries_all_addresses=False
                )
                self.seek = replace(self.seek, successors=self.known(message.successors))
                if self.leave_s is not None:
                    self.say(Leaving(max(self.leave_s - self.network.now_s, 0.0)))
                if self.report is not None:
                    self.say(self.report)
                if self.hung:
                    self.say(Hung(self.base.round, 0, "no progress"))
                return
            case Redirect(port=port) if port:
                self.seek = record_redirect(record_failure(self.seek, to, refused=False), message)
            case Refused():
                self.stop()
                self.gone(Exit.FAILED)
            case _:
                self.seek = record_failure(self.seek, to, refused=False)
        conn.end(self.network.now_s)

    def known(self, first):
        """Those, and whom it knew before, so that two parts of a world meet again."""
        ids = {each.id for each in first}
        return (*first, *(each for each in self.seek.successors if each.id not in ids))

    def lost(self, reason):
        self.network.tell(self.id, f"lost its coordinator, {reason}")
        self.link.end(self.network.now_s)
        self.link = None
        if reason is Reason.MEMBER_SILENT:
            self.fence()
        else:
            self.fence_s = self.network.now_s + SILENCE_S
        self.search()

    def fence(self):
        if self.base.busy:
            self.network.tell(self.id, "fences itself")
            self.stop()

    def stop(self):
        self.report, self.hung = None, False
        self.base = LastWorld(self.base.round, self.base.size, self.base.inside, False)

    def search(self, since_s=None):
        self.greeting, self.next_try_s = None, self.network.now_s
        self.seek = next_lap(replace(self.seek, base=self.base, since_s=since_s or self.network.now_s, lap=SearchLap()))

    def redirected(self, to):
        tries_all_addresses = not to.port and self.link.endpoint is self
        self.link.end(self.network.now_s)
        self.link = None
        self.search(None if to.port else self.seek.since_s)
        handed = to.size > 0 and to.id == self.id
        if handed:
            self.base = LastWorld(self.base.round, to.size, self.base.inside, self.base.busy)
        hint = (to.address, to.port) if to.port else None
        self.seek = replace(
            self.seek, base=self.base, hint=hint, last=None, handed_over=handed, tries_all_addresses=tries_all_addresses
        )

    def obey(self, message, of):
        match message:
            case Formed():
                self.start(message, of)
            case Stop(round=round_):
                self.stop()
                self.say(Ready(max(round_, self.base.round), 1))
            case StopAt(round=round_, confirmed=False) if round_ == self.base.round:
                self.say(Reached(round_, max(self.step, 0)))
            case Waiting(round=round_, size=size) if round_ >= self.base.round and not self.base.busy:
                self.base = LastWorld(round_, size, False)
                self.seek = replace(self.seek, successors=message.successors or self.seek.successors)
            case Finish(exit=code):
                self.stop()
                wait_s = FAREWELL_S if code != Exit.DRAINED else 1.0
                self.leaving = (code, self.network.now_s + (wait_s if self.lead else 0.0))
            case Redirect():
                self.redirected(message)
            case Probe():
                self.probe = (message, self.network.now_s, self.link.endpoint.id)
            case ShowStacks(number=number):
                self.say(Stacks(number, 0, b"stacks"))
            case Refused():
                self.stop()
                self.gone(Exit.FAILED)

    def start(self, formed, of):
        if not may_train(self.base, formed):
            self.network.tell(self.id, f"refuses round {formed.round} after {formed.base}, has {self.base}")
            self.redirected(Redirect("", self.here[0], 0))
            return
        self.network.accepted(self, formed)
        self.base, self.budget = LastWorld(formed.round, formed.group_size, True, True), formed.budget
        self.seek = replace(self.seek, successors=formed.successors)
        self.world, self.report, self.step, self.probe, self.hung = of, None, -1, None, False
        self.network.tell(self.id, f"starts {of}, after {formed.base}")

    def say(self, message):
        if self.link is not None:
            self.link.say("up", self.network.now_s, message)

    def processes_end(self, well):
        if self.base.busy and self.report is None:
            self.hung = False
            if well:
                self.report = Succeeded(self.base.round)
                self.base = LastWorld(self.base.round, self.base.size, self.base.inside, False)
            else:
                self.report = ProcessFailed(self.base.round, 0, "it crashed")
                self.network.faults += 1
            self.say(self.report)

    def hangs(self, hung=True):
        self.hung = hung
        self.say(Hung(self.base.round, 0, "no progress" if hung else ""))

    def asked_to_go(self, grace_s=25.0):
        if self.leave_s is None:
            self.leave_s = self.network.now_s + grace_s
            self.say(Leaving(grace_s))
            if self.link is None and not self.base.busy:
                self.gone(Exit.DRAINED)

    def gone(self, code):
        """End the agent by itself: what it sent arrives."""
        self.network.tell(self.id, f"exits {int(code)}")
        self.exit = int(code)
        self.dies()

    def dies(self, host=False):
        """Its connections end, unless its host dies with it: then they are silent."""
        self.alive, self.host_dead = False, host
        if not host:
            for conn in self.network.conns:
                if self in (conn.member, conn.endpoint):
                    conn.end(self.network.now_s)

    def goes_on(self):
        """Let a stopped agent go on; if it was given up meanwhile, it reads nothing more from before."""
        self.paused = False
        self.network.tell(self.id, "goes on")
        if self.network.now_s - self.looked_s > SILENCE_S:
            if self.greeting is not None:
                self.greeting.end(self.network.now_s)
                self.search()
            if self.link is not None:
                self.lost(Reason.MEMBER_SILENT)

    def timers(self):
        """Fire the timers that are due."""
        now_s = self.network.now_s
        slept = now_s - self.looked_s
        self.looked_s = now_s
        if self.link is not None:
            if slept > SILENCE_S / 2:
                self.heard_s = now_s
            if self.hears():
                self.heard_s = self.link.host.heard_s[self.id] = now_s
            if now_s - self.heard_s > SILENCE_S + BEAT_S:
                self.lost(Reason.MEMBER_SILENT)
        if self.fence_s is not None and now_s >= self.fence_s:
            self.fence_s = None
            if self.link is None:
                self.fence()
        for conn, until_s in [connection for connection in self.held_at_endpoint if connection[1] <= now_s]:
            self.held_at_endpoint.remove((conn, until_s))
            self.send_on(conn)
        if self.leaving is not None and (self.lead is None or now_s >= self.leaving[1]):
            self.gone(self.leaving[0])
        elif self.leave_s is not None and now_s >= self.leave_s and self.leaving is None:
            self.gone(Exit.DRAINED)
        if self.alive and self.probe is not None:
            self.network.nodes.measures(self)
        if self.alive and self.lead is not None:
            self.lead.timers()
        if self.alive and self.link is None and self.leaving is None:
            self.seeks()

    def hears(self):
        """True if heartbeats pass between this agent and its coordinator."""
        conn = self.link
        other = conn.endpoint
        clear = self.network.path(self.name, other.name) and other.alive and not other.paused
        clear = clear and not conn.broken and not conn.dead
        return clear and conn.host is other.lead is not None and other.lead.peers.get(self.id) is conn

    # The search: launcher/rendezvous/transport/coordinator_link.py.

    def seeks(self):
        if self.greeting is not None:
            if self.network.now_s > self.until_s:
                self.greeting.end(self.network.now_s)
                self.greeting = None
                self.seek = record_failure(self.seek, self.going, refused=False)
            return
        for _ in range(8):
            if self.network.now_s < self.next_try_s or self.greeting is not None or self.link or not self.alive:
                return
            self.moves(next_move(self.seek, self.network.now_s))

    def moves(self, move):
        network, seek = self.network, self.seek
        match move:
            case ConnectTo(to=to) if to != self.here and network.at(to) is not self:
                self.knocks(to)
            case ConnectTo() | Lead():
                self.leads()
            case AskArbiter():
                reachable = network.path(self.name, "arbiter")
                record = network.register.record if reachable else None
                self.seek = record_arbiter(seek, (record.address, record.port) if record else None)
            case SearchPause(for_s=for_s):
                self.next_try_s = network.now_s + for_s
                self.seek = next_lap(seek)
            case GiveUp():
                self.stop()
                self.gone(Exit.FAILED)

    @property
    def importing_s(self):
        """For how long at most it cannot start processes; it gives up what takes too long."""
        now_s = self.network.now_s
        return max(self.given_up_s - now_s, 0.0) if now_s < self.imported_s else 0.0

    def join(self):
        own = self.member, self.network.terms, self.base, self.budget
        return Join(1, "job", b"", b"", *own, importing_s=self.importing_s)

    def knocks(self, to):
        other = self.network.at(to)
        if other is None or other.host_dead or not self.network.path(self.name, other.name):
            self.next_try_s = self.network.now_s + 1.0
            self.seek = record_failure(self.seek, to, refused=False)
        elif not other.alive:
            self.seek = record_failure(self.seek, to, refused=True)
        else:
            join = self.join()
            self.going, self.until_s = to, self.network.now_s + GREET_S
            self.greeting = self.network.connect(self, other, join)

    def leads(self):
        """launcher/rendezvous/transport/leadership.py, lead()."""
        network, seek, lock_view, granted, budget, more = self.network, self.seek, None, None, self.budget, {}
        if self.lead is None:
            if network.mode == "only" and seek.base.round:
                self.stop()
                self.gone(Exit.FAILED)
                return
            if network.mode == "arbiter":
                if not network.path(self.name, "arbiter"):
                    self.seek, self.next_try_s = next_lap(seek), network.now_s + 0.5
                    return
                lock_view = self.looks()
                if (record := lock_view.record) is not None:
                    holder = (record.address, record.port)
                    dead = (
                        self.here == holder
                        or holder in seek.lap.refused
                        or record.coordinator.split("/")[0] == self.name
                    )
                    ours = seek.base.inside and seek.base.round >= record.round
                    hold_s = arbiter.HOLD_S if ours else network.stranger_s
                    if not arbiter.may_claim(lock_view, "job", self.id, dead=dead, hold_s=hold_s).allowed:
                        self.seek = record_other_holder(seek, holder if holder != self.here else None)
                        self.next_try_s = network.now_s + 0.1
                        return
                    budget = budget.newer_of(record.budget)
                    more = self.fences(lock_view, dead)
                granted = arbiter.next_round(lock_view, seek.base.round)
                lock_view = network.register.claim(RoundRecord("job", granted, self.id, *self.here, budget), lock_view)
            self.lead = Leads(self, self.first_state(granted, budget, more), lock_view)
            network.tell(self.id, f"leads, granted {granted}, base {seek.base}")
            waiting, self.held_at_endpoint = self.held_at_endpoint, []
            for conn, _ in waiting:
                self.lead.admit(conn, conn.join)
        self.going, self.until_s = self.here, network.now_s + GREET_S
        self.greeting = network.connect(self, self, self.join())

    def first_state(self, granted, budget, more):
        """Make the state with which this agent begins to lead."""
        network, seek = self.network, self.seek
        search_began_s = 0.0 if seek.host and not seek.base.round else seek.since_s
        only = network.mode == "only"
        state = begin(self.member, "job", network.terms, network.now_s, granted=granted, sole_coordinator=only)
        return network.wants(
            replace_coordinator(
                state, self.base, budget, handed_over=seek.handed_over, search_began_s=search_began_s, **more
            )
        )

    def fences(self, lock_view, dead):
        """Until when whoever held the record may train on without us."""
        record, network = lock_view.record, self.network
        if record.coordinator == self.id:
            return {}
        left_s = 0.0 if dead else max(network.fence_s - lock_view.unrenewed_s, 0.0) + RENEW_S
        return {"granted_before": record.round, "old_world_until_s": network.now_s + left_s + 15.0}

    def looks(self):
        """The record, and for how long we have seen nothing new of it."""
        lock_view, now_s = self.network.register.look(), self.network.now_s
        self.sighting = (self.sighting or arbiter.HolderObservation(lock_view.token, now_s)).observe(
            lock_view.token, now_s
        )
        return replace(lock_view, unrenewed_s=now_s - self.sighting.since_s)

    # The door: launcher/rendezvous/transport/listener.py.

    def endpoint_reads(self, conn, message):
        if conn.host is not None:
            conn.host.reads(conn, message)
        elif isinstance(message, Join):
            conn.join = message
            if self.lead is not None:
                self.lead.admit(conn, message)
            elif self.link is not None and self.link.endpoint is not self:
                self.send_on(conn)
            else:
                self.held_at_endpoint.append((conn, self.network.now_s + HOLD_S))
        else:
            self.held_at_endpoint = [connection for connection in self.held_at_endpoint if connection[0] is not conn]

    def send_on(self, conn):
        to = self.link.endpoint if self.link is not None and self.link.endpoint is not self else None
        conn.say("down", self.network.now_s, Redirect(to.id, *to.here) if to else Redirect("", "", 0))
        conn.end(self.network.now_s)
