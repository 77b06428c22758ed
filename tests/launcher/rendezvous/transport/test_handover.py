"""A member finds its next coordinator at once, whichever of the two agents hears of the change first."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from turnout.launcher.agent.coordinator_session import CoordinatorFound, CoordinatorSession
from turnout.launcher.coordinator_messages import VERSION, Join, LastWorld, Redirect, Welcome
from turnout.launcher.model import ElasticSpec, Member, RestartBudget, RoundRecord
from turnout.launcher.rendezvous.find_coordinator import Search
from turnout.launcher.rendezvous.state import Denied
from turnout.launcher.rendezvous.state_machine import begin
from turnout.launcher.rendezvous.transport.coordinator_link import CoordinatorClient, CoordinatorSearch, connect
from turnout.launcher.rendezvous.transport.coordinator_server import Coordinator
from turnout.launcher.rendezvous.transport.listener import Listener

pytestmark = pytest.mark.asyncio
TOKEN, RUN, PATIENCE_S = b"correct horse battery", "job", 20.0
ME = Member("w1/1", "w1", "h1", "127.0.0.1", 29_400, 1)


def silent(what, fields):
    """A log that nobody reads."""


def client(on_lost=lambda link, reason: None):
    def join(nonce, proof):
        return Join(VERSION, RUN, nonce, proof, ME, ElasticSpec(), LastWorld(3, 3, True, True), RestartBudget())

    return CoordinatorClient(join, TOKEN, RUN, lambda link, message: None, on_lost)


class Host:
    """A coordinator that gives each member that joins the next of these answers, and repeats the last one."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def admit(self, peer, join):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            peer.welcome(self, lambda proof: Welcome(proof, answer, 5.0, 60.0))
        else:
            peer.send_message(answer)
            peer.close()

    def on_message(self, peer, message):
        pass

    def on_closed(self, peer):
        pass


@asynccontextmanager
async def listening(host):
    listener = Listener(TOKEN, RUN, silent)
    listener.lead(host)
    port = await listener.open("127.0.0.1", 0)
    try:
        yield port
    finally:
        await listener.close()


async def test_a_coordinator_that_has_stepped_down_sends_members_on():
    async def merge(order):
        raise AssertionError("there are no stacks to merge")

    state = begin(Member("w0/1", "w0", "h0", "127.0.0.1", 29_400, 1), RUN, ElasticSpec(), 0.0)
    coordinator = Coordinator(state, silent, beat_s=5.0, silence_s=60.0, merge=merge)
    coordinator.events.put(Denied(RoundRecord(RUN, 4, "w2/1", "127.0.0.1", 29_402)))
    await asyncio.wait_for(asyncio.shield(coordinator.ended), PATIENCE_S)
    try:
        async with listening(coordinator) as port:
            link, answer = await connect(client, "127.0.0.1", port)
        assert (link, answer) == (None, Redirect("w2/1", "127.0.0.1", 29_402))
    finally:
        await coordinator.close()


async def lead_here(seek):
    raise AssertionError("this member leads, though another is to lead")


async def test_a_member_asks_a_new_coordinator_again_that_names_the_old_one():
    """Its first answer names the coordinator that has sent this member to it."""
    inbox = asyncio.Queue()
    async with listening(Host("w0/1")) as old:
        new_host = Host(Redirect("w0/1", "127.0.0.1", old), "w2/1")
        async with listening(new_host) as new:
            finder = CoordinatorSearch(client, lead_here, ("127.0.0.1", 29_401), None, silent)
            leadership = type("Leadership", (), {"set_redirect": staticmethod(lambda to: None)})()
            seek = Search(ME.id, None, False, False, 30.0)
            session = CoordinatorSession(seek, finder, leadership, inbox.put_nowait, silent)
            link, _ = await connect(client, "127.0.0.1", old)
            session.adopt_link(link, ("127.0.0.1", old))
            session.move_to(Redirect("w2/1", "127.0.0.1", new))
            session.search.begin(LastWorld(3, 3, True, True))
            found = await asyncio.wait_for(inbox.get(), PATIENCE_S)
            assert isinstance(found, CoordinatorFound)
            link, address = found.found
            assert (link.welcome.coordinator, address) == ("w2/1", ("127.0.0.1", new))
            session.close()
            link.leave()
