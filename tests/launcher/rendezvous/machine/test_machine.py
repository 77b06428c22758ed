"""Whatever happens on the network and to its hosts, two worlds never train at once, and peace ends in one world."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.kit.hypothesis_examples import scaled
from tests.launcher.rendezvous.machine.agents import Agent
from tests.launcher.rendezvous.machine.network import Network
from turnout.launcher.model import ElasticSpec
from turnout.launcher.rendezvous.state import Phase

PEACE_S = 600.0
WHO = st.integers(0, 4)
IMPORTS = st.sampled_from([0.0, 0.0, 6.0, 1e6])  # seconds, the last is for ever
PATIENCE_S = 30.0  # with imports


class Machine(RuleBasedStateMachine):
    """mode: who settles rounds."""

    mode = "arbiter"

    @initialize(
        members=st.integers(2, 5), minimum=st.integers(1, 5), spare=st.integers(0, 2),
        unit=st.sampled_from([1, 1, 1, 2]),
        late=st.integers(0, 2), imports=IMPORTS,
    )  # fmt: skip
    def begin(self, members, minimum, spare, unit, late, imports):
        maximum = max(unit, members - spare)
        minimum = min(minimum, maximum)
        if self.mode == "majority" and 2 * minimum <= members:
            maximum = members  # with more workers than the max, and no arbiter, two first worlds may begin
        if ElasticSpec(minimum, maximum, unit, 3).world_size(maximum) == 0:
            unit = 1
        self.network = self.ground(ElasticSpec(minimum, maximum, unit, 3, 2.0, 600.0, 1.0))
        self.incarnations = {}
        for number in range(members):
            if number < members - late or number == 0:
                self.network.add(self.comes(number, 0, imports))
            self.incarnations[number] = 0
        self.network.tell("story", f"{members} members, {self.network.terms}, {self.mode}")

    def ground(self, terms):
        """The network of a job."""
        return Network(terms, self.mode)

    def comes(self, number, incarnation, imports):
        """A new life of one worker."""
        return Agent(self.network, number, incarnation, imports, PATIENCE_S)

    def agent(self, who):
        return self.network.here.get(f"w{who % len(self.incarnations)}")

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0, 13.0, 20.0]))
    def time_passes(self, seconds):
        self.network.tick(seconds)

    @rule(which=st.integers(0, 30), way=st.sampled_from(["up", "down"]))
    def one_message_arrives(self, which, way):
        ready = [conn for conn in self.network.conns if self.network.reader(conn, way)]
        if ready:
            self.network.deliver(ready[which % len(ready)], way)

    @rule(which=st.integers(0, 30), up=st.integers(0, 2), down=st.integers(0, 2))
    def a_connection_breaks(self, which, up, down):
        if self.network.conns:
            conn = self.network.conns[which % len(self.network.conns)]
            conn.cut(self.network.now_s, up, down)
            self.network.tell(conn.member.id, f"connection to {conn.endpoint.id} breaks")

    @rule(who=WHO, host=st.booleans())
    def one_dies(self, who, host):
        if (agent := self.agent(who)) is not None and agent.alive:
            agent.dies(host)
            self.network.tell(agent.id, f"dies, host {host}")

    @rule(who=WHO, imports=IMPORTS)
    def one_is_started(self, who, imports):
        agent = self.agent(who)
        if self.may_start(who % len(self.incarnations)) and (agent is None or not agent.alive):
            number = who % len(self.incarnations)
            self.incarnations[number] += agent is not None
            self.network.add(self.comes(number, self.incarnations[number], imports))

    @rule(who=WHO)
    def one_is_stopped(self, who):
        if (agent := self.agent(who)) is not None and agent.alive:
            agent.paused = True
            self.network.tell(agent.id, "is stopped")

    @rule(who=WHO)
    def one_goes_on(self, who):
        if (agent := self.agent(who)) is not None and agent.alive and agent.paused:
            agent.goes_on()

    @rule(away=st.sets(WHO, min_size=1, max_size=3), arbiter=st.booleans())
    def the_network_parts(self, away, arbiter):
        names = {f"w{who}" for who in away}
        others = {agent.name for agent in self.network.agents.values()} - names | ({"arbiter"} if arbiter else set())
        self.network.cut_off |= {frozenset((one, other)) for one in names for other in others}
        self.network.tell("story", f"{sorted(names)} are cut off, from the arbiter {arbiter}")

    @rule(who=WHO)
    def the_arbiter_is_out_of_reach(self, who):
        self.network.cut_off.add(frozenset((f"w{who}", "arbiter")))
        self.network.tell("story", f"w{who} is cut off from the arbiter")

    @rule()
    def the_network_heals(self):
        self.network.cut_off.clear()
        self.network.tell("story", "heals")

    @rule(who=WHO, lost_answer=st.booleans(), within=st.booleans())
    def the_arbiter_answers(self, who, lost_answer, within):
        agent = self.agent(who)
        if agent is not None and agent.alive and not agent.paused and agent.lead and agent.lead.claim:
            agent.lead.answered(lost_answer, within)
            agent.lead.turn()

    @rule(who=WHO, well=st.booleans())
    def processes_end(self, who, well):
        if (agent := self.agent(who)) is not None and agent.runs:
            agent.processes_end(well)
            self.network.tell(agent.id, f"processes end, well {well}")

    @rule(who=WHO)
    def a_step_is_done(self, who):
        if (agent := self.agent(who)) is not None and agent.runs:
            agent.step += 1

    @rule(who=WHO)
    def one_is_asked_to_go(self, who):
        if (agent := self.agent(who)) is not None and agent.alive:
            agent.asked_to_go()
            self.network.tell(agent.id, "is asked to go")

    @invariant()
    def two_worlds_never_train_at_once(self):
        if hasattr(self, "network"):
            training = self.network.training()
            assert len(training) <= 1, "\n".join([*self.network.saga, f"{training} train at once"])

    def teardown(self):
        if not hasattr(self, "network"):
            return
        network = self.network
        network.cut_off.clear()
        for agent in network.living():
            agent.goes_on()
        network.tell("story", "peace")
        until_s = network.now_s + PEACE_S
        calm_s = 0.0
        while network.now_s < until_s and calm_s < 40.0:
            network.tick(1.0)
            network.nearly_done()
            calm_s = calm_s + 1.0 if self.settled() else 0.0
            self.two_worlds_never_train_at_once()
        living = self.fit()
        size = network.terms.world_size(len(living))
        done = any(agent.exit == 0 for agent in network.agents.values())
        if size and not done and self.enough(living):
            saga = "\n".join([*network.saga, *(f"{a.id} {a.base} {a.lead and a.lead.state}" for a in living)])
            training = network.training()
            assert len(training) == 1, f"{saga}\nnobody trains"
            assert len(network.worlds[training[0]]) == size, f"{saga}\nof {len(living)} {len(training)}"
            self.everybody_is_done(training[0], living, saga)

    def everybody_is_done(self, world, living, saga):
        """All say that they have succeeded: then all are told that the job is done, spares that are there too."""
        connected = [agent for agent in living if agent.link is not None and agent.link.endpoint.id == world[0]]
        if any(agent.lead is not None and agent.lead.state.phase is not Phase.TRAINING for agent in connected):
            return  # it is to grow or to shrink: not all of them may finish
        for id_ in self.network.worlds[world]:
            self.network.agents[id_].processes_end(well=True)
        self.network.tick(20.0)
        exits = {agent.id: agent.exit for agent in connected}
        assert set(exits.values()) == {0}, f"{saga}\nexits {exits}"

    def settled(self):
        """True if the largest possible world trains, as far as one look tells."""
        training = self.network.training()
        return training and len(self.network.worlds[training[0]]) == self.network.terms.world_size(len(self.fit()))

    def fit(self):
        """Give those that may be in a world in the end."""
        return self.network.living()

    def may_start(self, number):
        return True

    def enough(self, living):
        return True


class Majority(Machine):
    mode = "majority"

    def may_start(self, number):
        return number > 0 or self.tight()

    def tight(self):
        """True if two worlds do not fit into the workers that there are."""
        return 2 * self.network.terms.min_nodes > len(self.incarnations)

    def enough(self, living):
        newest = max(agent.base.round for agent in living)
        if self.tight() and self.agent(0).alive:
            return not newest or self.come_back(living, newest)
        last = [agent for agent in living if agent.base.round == newest and agent.base.inside]
        first = self.agent(0)
        if first.alive:  # all know its name, and it knows only whom it has heard of
            found = len(first.seek.successors) > 1
        else:  # who is new knows no address but the first one's, and what the first knew is gone with it
            found = all(agent.base.round for agent in living) and self.meet(living)
        return found and last and 2 * len(last) > min(agent.base.size for agent in last)

    def meet(self, living):
        """True if all the others were told the address of one of them, so that they come together there."""
        return any(
            all(one is other or one.here in [(each.address, each.port) for each in other.seek.successors]
                for other in living)
            for one in living
        )  # fmt: skip

    def come_back(self, living, newest):
        """True if more than half of a newest world's places are taken, one by a member that has kept it."""
        for (_, _, round_), seats in self.network.worlds.items():
            names = {self.network.agents[id_].name for id_ in seats}
            returning = [
                agent for agent in living if agent.name in names and (agent.base.round != newest or agent.base.inside)
            ]
            members_left = [agent for agent in returning if agent.base.round == newest and agent.id in seats]
            if round_ == newest and members_left and 2 * len(returning) > len(seats):
                return True
        return False


class Only(Majority):
    mode = "only"

    def may_start(self, number):
        return number > 0

    def enough(self, living):
        return self.agent(0).alive


def case(machine, examples, **more):
    """The machine as a test case."""
    test_case = machine.TestCase
    test_case.settings = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), **more
    )
    return test_case


class Arbiter(Machine):
    """A register that may be out of reach, or answer late, or whose answer is lost."""


class LongArbiter(Arbiter):
    """Runs `Arbiter` for longer."""


class LongMajority(Majority):
    """Runs `Majority` for longer."""


class LongOnly(Only):
    """Runs `Only` for longer."""


TestArbiter = case(Arbiter, scaled(400), derandomize=True)
TestMajority = case(Majority, scaled(200), derandomize=True)
TestOnly = case(Only, scaled(200), derandomize=True)
TestLongArbiter = pytest.mark.long(pytest.mark.timeout(900)(case(LongArbiter, 10_000)))
TestLongMajority = pytest.mark.long(pytest.mark.timeout(900)(case(LongMajority, 10_000)))
TestLongOnly = pytest.mark.long(pytest.mark.timeout(900)(case(LongOnly, 3_000)))
