"""The world of agents, for a job whose nodes are checked and whose processes hang: nodes.py knows the truth."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.kit.hypothesis_examples import scaled
from tests.launcher.rendezvous.machine.agents import Agent
from tests.launcher.rendezvous.machine.network import Network
from tests.launcher.rendezvous.machine.nodes import HARD, SLOW, Nodes
from tests.launcher.rendezvous.machine.test_machine import IMPORTS, PATIENCE_S, WHO, Machine, Majority, case
from turnout.launcher.health.hang_detector import HangAction
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import Phase

HOW = st.sampled_from([*HARD, *SLOW])


class Checked(Machine):
    """Up to a third of the nodes is at fault from the start, and links between others; more may break."""

    @initialize(
        members=st.integers(2, 6), minimum=st.integers(1, 5), spare=st.integers(0, 2),
        unit=st.sampled_from([1, 1, 1, 2]),
        late=st.integers(0, 2), imports=IMPORTS, at=st.permutations(range(6)), how=st.tuples(HOW, HOW),
        bad=st.integers(0, 2), link=st.booleans(), leaves_slow=st.booleans(), act=st.sampled_from(list(HangAction)),
        in_place=st.booleans(), head_s=st.sampled_from([0.0, 5.0, 8.0, 30.0, 60.0]),
    )  # fmt: skip
    def begin(
        self, members, minimum, spare, unit, late, imports, at, how, bad, link, leaves_slow, act, in_place, head_s
    ):
        at = [number for number in at if number < members]
        self.faults = {f"n{number}": each for number, each in zip(at[: min(bad, members // 3)], how, strict=False)}
        self.links = [(f"n{at[-1]}", f"n{at[-2]}")] if link else []
        self.health = {"leaves_slow": leaves_slow, "act": act, "again": self.again if in_place else None}
        super().begin(members, minimum, spare, unit, late, imports)
        self.network.tell("story", f"{self.faults}, {self.links}, {self.health}")
        self.network.tick(head_s)

    def ground(self, terms):
        network = Network(terms, self.mode)
        network.nodes = Nodes(network, self.faults, self.links, **self.health)
        return network

    def comes(self, number, incarnation, imports):
        host = f"n{number}" if not getattr(self, "elsewhere", False) else f"n{number}-{incarnation}"
        return Agent(self.network, number, incarnation, imports, PATIENCE_S, host)

    def again(self, agent):
        """A kubelet starts who has left with 138: in the same place."""
        number = agent.member.index
        self.incarnations[number] += 1
        newcomer = Agent(self.network, number, self.incarnations[number], 0.0, PATIENCE_S, agent.member.host)
        newcomer.here = agent.here
        newcomer.member = replace(newcomer.member, address=agent.here[0])
        self.network.add(newcomer)
        self.network.tell(newcomer.id, "is started again in the same place")

    @rule(who=WHO, imports=IMPORTS)
    def one_is_started_elsewhere(self, who, imports):
        self.elsewhere = True
        self.one_is_started(who, imports)
        self.elsewhere = False

    @rule(who=WHO, how=HOW)
    def a_node_breaks(self, who, how):
        agent, faults = self.agent(who), self.network.nodes.faults
        if agent is not None and agent.member.host not in faults and 3 * len(faults) < len(self.incarnations):
            self.network.nodes.breaks(agent.member.host, how)
            self.network.tell(agent.id, f"its node is {how} from now on")

    def checking(self):
        """Agents whose coordinator is in mid-check, itself first."""
        leads = [agent for agent in self.network.living() if agent.lead and agent.lead.state.phase is Phase.CHECKING]
        members = [
            a for a in self.network.living() if a.link is not None and a.link.endpoint in leads and a not in leads
        ]
        return [*leads, *members]

    @precondition(lambda self: hasattr(self, "network") and self.checking())
    @rule(which=st.integers(0, 5), host=st.booleans())
    def one_dies_in_mid_check(self, which, host):
        agents = self.checking()
        agent = agents[which % len(agents)]
        agent.dies(host)
        self.network.tell(agent.id, f"dies in mid-check, host {host}")

    @precondition(lambda self: hasattr(self, "network") and self.checking())
    @rule(which=st.integers(0, 5))
    def a_connection_stalls_in_mid_check(self, which):
        """Its member gives it up before the coordinator does, or after: what was on its way is lost."""
        agents = self.checking()
        agent = agents[which % len(agents)]
        if agent.link is not None and not agent.paused:
            agent.link.stalls()
            agent.lost(Reason.MEMBER_SILENT)
            self.network.tell(agent.id, "finds its connection dead, in mid-check")

    @rule(who=WHO)
    def a_process_hangs(self, who):
        if (agent := self.agent(who)) is not None and agent.runs and not agent.hung:
            agent.hangs()
            self.network.tell(agent.id, "hangs")

    @rule(who=WHO)
    def a_process_goes_on_after_all(self, who):
        if (agent := self.agent(who)) is not None and agent.runs and agent.hung:
            agent.hangs(False)
            self.network.tell(agent.id, "goes on after all")

    def teardown(self):
        super().teardown()
        if hasattr(self, "network") and self.network.nodes.act is not HangAction.ASK:
            hung = [agent.id for agent in self.network.living() if agent.runs and agent.hung]
            assert not hung, self.network.nodes.saga(f"{hung} still hang")

    def fit(self):
        """Give those that may be in a world in the end.

        A faulty node that is started again in place may lead, without the exclusions of the coordinator before. The
        story may end before it has checked itself: where the others are too few, no world is expected.
        """
        living, nodes = self.network.living(), self.network.nodes
        left = [each for agent in living if agent.lead for each in agent.lead.state.checking.excluded]
        fit = [agent for agent in living if not any(each.is_of(agent.member) for each in left)]
        if nodes.again is not None:
            living = [agent for agent in living if agent.member.host not in nodes.faults]
            sound = [agent for agent in fit if not nodes.is_blamed(agent.member.host)]
            if not self.network.terms.world_size(len(sound)):
                return sound
        return fit if self.network.terms.world_size(len(fit)) else living


class CheckedMajority(Checked, Majority):
    """Without an arbiter."""


class LongChecked(Checked):
    """Runs `Checked` for longer."""


class LongCheckedMajority(CheckedMajority):
    """Runs `CheckedMajority` for longer."""


TestChecked = case(Checked, scaled(100), derandomize=True)
TestCheckedMajority = case(CheckedMajority, scaled(50), derandomize=True)
TestLongChecked = pytest.mark.long(pytest.mark.timeout(900)(case(LongChecked, 3_000)))
TestLongCheckedMajority = pytest.mark.long(pytest.mark.timeout(900)(case(LongCheckedMajority, 2_000)))
