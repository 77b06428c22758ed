"""A coordinator's own list of its members, and the heartbeats that they send to it."""

import asyncio
from itertools import count

import pytest

from tests.kit.wait import until_async
from tests.launcher.rendezvous.transport.test_handover import Host, client, listening, silent
from turnout.launcher.coordinator_messages import VERSION, Heartbeat, HeartbeatInterval, Join, LastWorld, Welcome
from turnout.launcher.model import ElasticSpec, Member, RestartBudget
from turnout.launcher.rendezvous.state_machine import begin
from turnout.launcher.rendezvous.transport.coordinator_link import connect
from turnout.launcher.rendezvous.transport.coordinator_server import Coordinator

pytestmark = pytest.mark.asyncio
PORTS = count(29_400)
SPEC = ElasticSpec(min_nodes=16, max_nodes=16)


def member(name, start=0):
    """A member of this name, after this many starts."""
    return Member(f"{name}/{start}", name, name, "127.0.0.1", next(PORTS), 1)


class Peer:
    """A member's connection, of which only the Welcome counts."""

    def __init__(self, id_):
        self.id, self.answer = id_, None

    def welcome(self, coordinator, make):
        self.answer = make(b"proof")

    def send(self, *bodies):
        pass

    def close(self):
        pass

    def abort(self):
        pass


async def join(coordinator, who):
    """Let a member join; return its Welcome once the coordinator has handled the Join."""
    peer = Peer(who.id)
    coordinator.admit(peer, Join(VERSION, "job", b"", b"", who, SPEC, LastWorld(), RestartBudget()))
    await until_async(lambda: who.id in coordinator.state.members)
    return peer.answer


async def test_a_process_that_a_newer_one_replaced_is_no_successor():
    async def merge(order):
        raise AssertionError("there are no stacks to merge")

    own = member("w0")
    state = begin(own, "job", SPEC, asyncio.get_running_loop().time())
    coordinator = Coordinator(state, silent, beat_s=5.0, silence_s=60.0, merge=merge)
    await join(coordinator, own)
    for start in range(9):
        await join(coordinator, member("w1", start))
    answer = await join(coordinator, member("w2"))
    await coordinator.close()
    assert [each.id for each in answer.successors] == ["w0/0", "w1/8", "w2/0"]


class CountingHost(Host):
    """A coordinator that welcomes with a long interval, and counts heartbeats."""

    heartbeats = 0

    def admit(self, peer, join):
        peer.welcome(self, lambda proof: Welcome(proof, "w0/1", 600.0, 3_000.0))
        self.peer = peer

    def on_message(self, peer, message):
        self.heartbeats += isinstance(message, Heartbeat)


async def test_a_member_uses_a_shorter_interval_at_once():
    host = CountingHost("w0/1")
    async with listening(host) as port:
        link, _ = await connect(client, "127.0.0.1", port)
        host.peer.send_message(HeartbeatInterval(0.01, 60.0))
        await until_async(lambda: host.heartbeats > 2)
        link.leave()
