"""A network of agents that a test bends at will: time is a number, and nothing happens by itself.

A connection keeps its order, as TCP does: what is sent arrives late, or the connection breaks and the rest is lost.
Who connects again may so be heard twice. The agents are in agents.py.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from turnout.launcher.model import ElasticSpec
from turnout.launcher.rendezvous.arbiter import HeldRound, StaleRound, record_to_write

TICK_S = 0.5
DELAY_S = 1.0  # what has lain for so long is delivered by the next tick, where a path is


@dataclass(eq=False)
class Conn:
    """From a member to a door. up, down: (sent_s, message, of which world); the message None is the end."""

    member: object
    endpoint: object
    host: object = None
    up: deque = field(default_factory=deque)
    down: deque = field(default_factory=deque)
    broken: bool = False
    dead: bool = False

    def say(self, way, now_s, message, of=None):
        if not self.broken and not self.dead:
            getattr(self, way).append((now_s, message, of))

    def end(self, now_s):
        """Either side closes: the other reads what was sent, then the end."""
        if not self.broken:
            self.broken = True
            for queue in () if self.dead else (self.up, self.down):
                queue.append((now_s, None, None))

    def cut(self, now_s, keep_up, keep_down):
        """Break the connection: only so many messages of each way still arrive."""
        for queue, keep in ((self.up, keep_up), (self.down, keep_down)):
            while len(queue) > keep:
                queue.pop()
        self.broken = False
        self.end(now_s)

    def stalls(self):
        """Let nothing more pass, without telling anybody: a peer that checks may find out."""
        self.up.clear()
        self.down.clear()
        self.dead = True


class Register:
    """An arbiter: one record, compare-and-set. It counts renewals."""

    def __init__(self):
        self.record, self.version = None, 0

    def look(self):
        return HeldRound(self.record, str(self.version), 0.0, self.record.round if self.record else 0)

    def claim(self, record, after):
        if after.token != str(self.version):
            return None
        try:
            self.record = record_to_write(record, after)
        except StaleRound:
            return None
        self.version += 1
        return self.look()

    def renew(self, mine):
        if self.record is None or (self.record.coordinator, self.record.round) != (
            mine.record.coordinator,
            mine.record.round,
        ):
            return None
        return self.claim_same(mine.record)

    def claim_same(self, record):
        self.record = record
        self.version += 1
        return self.look()


@dataclass
class Network:
    """Everything there is. cut_off: pairs of names without a path; "arbiter" is one of the names."""

    terms: ElasticSpec
    mode: str = "arbiter"  # or "majority", or "only"
    fence_s: float = 100.0  # a coordinator that has not renewed for so long stops its world
    stranger_s: float = 150.0  # who was not in its world takes over after this
    now_s: float = 1000.0
    agents: dict = field(default_factory=dict)  # every incarnation by id
    here: dict = field(default_factory=dict)  # name -> the newest incarnation
    cut_off: set = field(default_factory=set)
    conns: list = field(default_factory=list)
    register: Register = field(default_factory=Register)
    worlds: dict = field(default_factory=dict)  # (leader, round) -> ids of its seats
    faults: int = 0  # process failures that were told to anybody
    budgets: list = field(default_factory=list)
    saga: list = field(default_factory=list)
    nodes: object = None  # of a job that is checked, or whose processes hang: nodes.py

    def path(self, one, other):
        return one == other or frozenset((one, other)) not in self.cut_off

    def tell(self, who, what):
        self.saga.append(f"{self.now_s:7.1f} {who}: {what}")

    def add(self, agent):
        self.agents[agent.id] = self.here[agent.name] = agent

    def living(self):
        return [agent for agent in self.agents.values() if agent.alive]

    def at(self, address):
        """Give who listens at an address, dead or alive. A name, or an address used again, finds the newest one."""
        named = self.here.get(address[0])
        return named or next((a for a in reversed(self.agents.values()) if a.here == address), None)

    def connect(self, member, endpoint, join):
        conn = Conn(member, endpoint)
        conn.say("up", self.now_s, join)
        self.conns.append(conn)
        return conn

    def reader(self, conn, way):
        """Give who would read the next message of this way now, None if nobody can."""
        queue = getattr(conn, way)
        agent = conn.endpoint if way == "up" else conn.member
        clear = self.path(conn.member.name, conn.endpoint.name)
        return agent if queue and agent.alive and not agent.paused and clear else None

    def deliver(self, conn, way):
        """The next message of one way arrives."""
        agent = self.reader(conn, way)
        if agent is None:
            return
        _, message, of = getattr(conn, way).popleft()
        if way == "up":
            agent.endpoint_reads(conn, message)
            if agent.lead is not None:
                agent.lead.turn()
        else:
            agent.reads(conn, message, of)

    def tick(self, seconds):
        """Time passes, on healthy paths without delay above DELAY_S."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += TICK_S
            for conn in list(self.conns):
                for way in ("up", "down"):
                    while (queue := getattr(conn, way)) and queue[0][0] <= self.now_s - DELAY_S:
                        if self.reader(conn, way) is None:
                            break
                        self.deliver(conn, way)
            self.conns = [c for c in self.conns if not c.broken or c.up or c.down]
            if self.nodes is not None:
                self.nodes.passes()
            for agent in list(self.agents.values()):
                if agent.alive and not agent.paused:
                    agent.timers()

    def formed(self, world, agent):
        """A coordinator tells somebody about a world: it is as it was, and as large as the job allows."""
        seats = frozenset(agent.assignments)
        assert self.worlds.setdefault(world, seats) == seats, f"{world} has changed"
        size = len(seats)
        assert self.terms.world_size(size) == size, f"{world} has {size}"

    def wants(self, state):
        """Give the state that the job's coordinator begins with."""
        nodes = self.nodes
        return replace(state, checking=nodes.checking, hanging=nodes.hanging) if nodes is not None else state

    def grows(self, lead):
        """A world is stopped to grow: not for who still imports, nor to test again who was left out."""
        world, peers = lead.state.world, lead.peers
        ready = [id_ for id_ in peers if id_ in world.assignments or not self.agents[id_].importing_s]
        ready = self.nodes.grows(lead, ready) if self.nodes is not None else ready
        size, now = len(world.assignments), self.terms.world_size(len(ready))
        assert now > size, "\n".join(
            [*self.saga, f"{size} grow to {now} of {sorted(peers)}, {sorted(ready)} are ready"]
        )

    def accepted(self, agent, formed):
        """A member is about to train: it goes forward only, and no restart is charged without a fault."""
        assert formed.round > agent.base.round, f"{agent.id} goes from {agent.base.round} to {formed.round}"
        assert formed.budget.total <= self.faults, f"{formed.budget} after {self.faults} faults"
        assert formed.budget.newer_of(agent.budget) == formed.budget, f"{formed.budget} after {agent.budget}"

    def training(self):
        """Worlds all of whose seats have accepted them and run."""
        return [
            world
            for world, seats in self.worlds.items()
            if all((a := self.agents[id_]).runs and a.world == world for id_ in seats)
        ]

    def nearly_done(self):
        """A world of which a part is done neither grows nor drains: the others are soon done, too."""
        for agent in self.living():
            if agent.lead is not None and agent.lead.state.ending.done:
                for id_ in agent.lead.state.world.assignments:
                    self.agents[id_].processes_end(well=True)
