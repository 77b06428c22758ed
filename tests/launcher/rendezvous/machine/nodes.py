"""True states of nodes, what their probes measure, and conclusions that a coordinator must never draw.

A fault lies on a host and is there each time. What else may spoil a check, as a host that stands still or has no path,
is trouble: who is in it may be blamed, and where faults and trouble are more than a third of a check anybody may be.
"""

from dataclasses import dataclass, field

from turnout.launcher.coordinator_messages import Finish, Formed, Probe, Probed
from turnout.launcher.health.hang_detector import HangAction
from turnout.launcher.health.model import EXCLUSION_S, NodeCheckState
from turnout.launcher.model import Exit, Reason
from turnout.launcher.rendezvous.state import HangState, Logged, MergeStacks, SendMessage, StacksMerged

COMPUTE_S, STAGE_S, MEET_S, ROUND_S = 0.5, 3.0, 4.0, 12.0
ALONE = ("broken", "stuck", "mute", "unfit")  # shown by the node itself: it fails, never ends, never answers, says so
HARD = (*ALONE, "dead")  # dead: its network
SLOW = ("slow", "drags")  # alone, in the network


@dataclass(eq=False)
class Watch:
    """One coordinator's acts since its last check began: whom it had measured, whom it has left out, and when.

    out: ids; before: when a check of it has last left out a worker of this host. round: the newest that it has formed.
    """

    began_s: float = 0.0
    measured: set = field(default_factory=set)
    out: set = field(default_factory=set)
    before: dict = field(default_factory=dict)
    round: int = 0


class Nodes:
    """faults: by host, with a word of HARD or SLOW. links: pairs of hosts that do not reach one another in a probe."""

    def __init__(self, network, faults=None, links=(), leaves_slow=False, act=HangAction.ASK, again=None):
        self.network, self.faults, self.links = network, dict(faults or {}), {frozenset(link) for link in links}
        self.leaves_slow, self.act, self.again = leaves_slow, act, again
        self.checking, self.hanging = NodeCheckState(leaves_slow=leaves_slow, round_s=ROUND_S), HangState(act)
        self.since_s, self.trouble, self.gone, self.groups, self.watches = {}, {}, {}, {}, {}
        self.culprits = set()

    def back_off_s(self, agent):
        """How long a kubelet waits before it starts this worker again: 10 s, and twice as long each time, up to 300."""
        return min(10.0 * 2 ** int(agent.id.split("/")[1]), 300.0)

    def breaks(self, host, how):
        """From now on."""
        self.faults[host], self.since_s[host] = how, self.network.now_s

    # What is measured.

    def passes(self):
        """Let a moment pass: some stand still, have no path, or have just died."""
        now_s = self.network.now_s
        cut = {name for pair in self.network.cut_off for name in pair}
        for agent in list(self.network.agents.values()):
            if agent.alive:
                hurt = agent.paused or agent.name in cut
            else:
                hurt = agent.id not in self.gone
                self.gone.setdefault(agent.id, now_s)
                self.starts(agent)
            if hurt:
                self.trouble[agent.member.host] = now_s

    def starts(self, agent):
        """A kubelet does, in its time, where it does at all, who has left with 138 and was not replaced."""
        newest = self.network.here[agent.name] is agent
        left = self.again is not None and newest and agent.exit == Exit.FAULTY
        if left and self.network.now_s >= self.gone[agent.id] + self.back_off_s(agent):
            self.again(agent)

    def measures(self, agent):
        """One agent goes on with its probe, and tells what came of it."""
        order, began_s, by = agent.probe
        age_s, how = self.network.now_s - began_s, self.faults.get(agent.member.host)
        if how == "mute" or age_s < COMPUTE_S:
            return
        if how in ("broken", "stuck"):
            if how == "broken" or age_s >= STAGE_S:
                self.answers(agent, None, None)
            return
        alone_s = 3.0 if how == "slow" else 1.0
        if order.members == 1:
            self.answers(agent, alone_s, None)
            return
        group = self.groups.setdefault((by, order.number, order.address, order.port), {"there": {}, "took_s": None})
        group["there"][agent.id] = agent
        if group["took_s"] is None and len(group["there"]) == order.members:
            group["took_s"] = self.together(list(group["there"].values()), order.number)
        if group["took_s"] is not None or age_s >= COMPUTE_S + MEET_S:
            self.answers(agent, alone_s, group["took_s"])

    def together(self, agents, number):
        """How long the collective of these takes, None if it fails."""
        hosts = [agent.member.host for agent in agents]
        pairs = [(one, other) for one in agents for other in agents if one is not other]
        all_ready = all(a.alive and not a.paused and a.probe and a.probe[0].number == number for a in agents)
        paths = all(self.network.path(one.name, other.name) for one, other in pairs)
        links = any(frozenset((one.member.host, other.member.host)) in self.links for one, other in pairs)
        if not all_ready or not paths or links or any(self.faults.get(host) == "dead" for host in hosts):
            return None
        return 3.0 if any(self.faults.get(host) == "drags" for host in hosts) else 1.0

    def answers(self, agent, alone_s, together_s):
        order, agent.probe = agent.probe[0], None
        unfit = "a broken switchbox" if self.faults.get(agent.member.host) == "unfit" else ""
        agent.say(Probed(order.number, 7, alone_s, together_s, unfit))

    def folded(self, lead, merge):
        """Give the suspects that the merged stacks show: those whose processes hang."""
        world = lead.state.world
        ids = [id_ for id_ in world.assignments if self.network.agents[id_].hung] if merge.world == world.ranks else []
        self.culprits |= set(ids)
        return StacksMerged(merge.number, tuple(world.assignments[id_].first_rank for id_ in ids), f"{ids} stand apart")

    # What must never be.

    def sees(self, lead, effect):
        """Check the coordinator's next effect."""
        watch = self.watches.setdefault(lead, Watch())
        match effect:
            case Logged(event="check_started"):
                watch.began_s, watch.measured, watch.out = self.network.now_s, set(), set()
            case SendMessage(ids=ids, message=Probe()):
                watch.measured |= set(ids)
            case Logged(event="node_left_out", reason=reason, fields=fields) if lead.state.checking is not None:
                named = dict(fields)
                if "again_s" in named:
                    self.left_out(lead, watch, lead.state.names[named["member"]], reason)
            case SendMessage(ids=ids, message=Finish(exit=Exit.FAULTY)):
                for id_ in ids:
                    assert id_ in watch.out | self.culprits, self.saga(f"{id_} ends with 138, and was found fine")
            case SendMessage(message=Formed()):
                self.formed(lead, watch)
            case Logged(event="round_ended", reason=Reason.PROCESS_HUNG):
                self.network.faults += 1
            case MergeStacks():
                assert lead.state.hanging.round == lead.state.world.round, self.saga("stacks of another round")

    def left_out(self, lead, watch, id_, reason):
        """Only one that is at fault, or in trouble, or was proven before; where most are well."""
        host = self.network.agents[id_].member.host
        watch.out.add(id_)
        hosts = self.hosts(watch)
        hurt = {each for each in hosts if self.hurts(each, watch.began_s)}
        ends = sum(host in link and link <= hosts for link in self.links)
        innocent = host not in hurt and 3 * len(hurt) <= len(hosts)
        if reason is Reason.LINK_FAULTY or ends > 1:
            innocent = innocent and not ends
        if host in watch.before:
            innocent = False
        watch.before[host] = self.network.now_s, reason
        assert not innocent, self.saga(f"{id_} is left out, {reason}, and was fine; {sorted(hurt)} were not")

    def hosts(self, watch):
        return {self.network.agents[id_].member.host for id_ in watch.measured}

    def hurts(self, host, since_s):
        """True if the host was at fault, or in trouble, since then."""
        return self.is_blamed(host) or self.trouble.get(host, -1.0) >= since_s

    def is_blamed(self, host):
        """True if the host has a fault for which a check leaves it out."""
        how = self.faults.get(host)
        return how in HARD or (how in SLOW and self.leaves_slow)

    def formed(self, lead, watch):
        """Nobody trains who has not been measured, or was left out; nor one at fault, where nothing else was amiss."""
        if watch.round == lead.state.world.round:
            return
        seats, watch.round = set(lead.state.world.assignments), lead.state.world.round
        assert seats <= watch.measured - watch.out, self.saga(
            f"{sorted(seats)} train, {sorted(watch.measured)} were measured and {sorted(watch.out)} left out"
        )
        hosts = self.hosts(watch)
        bad = {host for host in hosts if host in self.faults}
        quiet = all(self.trouble.get(host, -1.0) < watch.began_s for host in hosts)
        old = all(self.since_s.get(host, 0.0) < watch.began_s for host in bad)
        mixed = any(link <= hosts for link in self.links)
        for id_ in seats if quiet and old and not mixed and 3 * len(bad) <= len(hosts) else ():
            how = self.faults.get(self.network.agents[id_].member.host)
            assert how not in HARD, self.saga(f"{id_} trains, and is {how}")
        for host in {self.network.agents[id_].member.host for id_ in seats}:
            watch.before.pop(host, None)
        watch.measured, watch.out = set(), set()  # each start has a check of its own

    def grows(self, lead, ready):
        """Give those by whom a world may grow: nobody that was left out here within the hour."""
        before = self.watches[lead].before if lead in self.watches else {}
        limit_s = self.network.now_s - EXCLUSION_S  # an end of a link may come at once when the other has gone
        hosts = {host for host, (at_s, why) in before.items() if at_s > limit_s and why is not Reason.LINK_FAULTY}
        return [id_ for id_ in ready if self.network.agents[id_].member.host not in hosts]

    def saga(self, what):
        known = f"faults {self.faults}, links {[sorted(link) for link in self.links]}, trouble {self.trouble}"
        return "\n".join([*self.network.saga, known, what])
