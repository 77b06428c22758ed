"""Turnout's rendezvous: the launcher's listener, coordinator, search and connection, without training processes.

The coordinator has a process of its own, as the server of the lower bound has. A member handles the coordinator's
messages as an agent does: it accepts or refuses a round, and answers a stop at once. It counts as arrived when it has a
rank in a world of all agents. Agents that share an interpreter would slow one another down, so each process lets only
KNOCKING members connect at a time; up to 1,024 agents the limit has no effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

from hack.bench.rendezvous.agents import Gate
from hack.bench.rendezvous.lower_bound import HERE
from turnout.launcher.coordinator_messages import VERSION, Formed, Join, LastWorld, Ready, Stop, ToMember
from turnout.launcher.health.hang_detector import HangPolicy
from turnout.launcher.model import ElasticSpec, Member, Reason, RestartBudget
from turnout.launcher.rendezvous.find_coordinator import Address, GiveUp, Search
from turnout.launcher.rendezvous.form_world import may_train
from turnout.launcher.rendezvous.state_machine import begin
from turnout.launcher.rendezvous.transport.coordinator_link import CoordinatorClient, CoordinatorSearch
from turnout.launcher.rendezvous.transport.coordinator_server import Coordinator
from turnout.launcher.rendezvous.transport.listener import Listener
from turnout.launcher.rendezvous.transport.merge_stacks import StackMerge
from turnout.launcher.settings import Timing

RUN, TOKEN = "bench", b"a token of a benchmark"
KNOCKING = 128
HOSTS_PER_LEAF, LEAVES_PER_SPINE = 16, 16


def terms_of(agents: int) -> ElasticSpec:
    """Return an elastic spec for `agents` workers, in which less than half of them form no world."""
    return ElasticSpec(min_nodes=max(1, agents // 2), max_nodes=agents, join_timeout_s=600)


def member_of(agent: int) -> Member:
    """Return the member for agent number `agent`: eight processes, below its switches."""
    leaf = agent // HOSTS_PER_LEAF
    path = (f"spine-{leaf // LEAVES_PER_SPINE}", f"leaf-{leaf}")
    name = f"worker-{agent}"
    return Member(f"{name}/{agent:012x}", name, name, HERE, 1, 8, path, agent, float(agent), 29_500)


class TurnoutRendezvous:
    """A production coordinator and members that speak its protocol."""

    def warm(self) -> None:
        """Do nothing: all is imported already."""

    def serve(self, agents: int, report: Callable[[float], None]) -> None:
        """Coordinate until killed. report: called with the port, then with the time of each lost member."""
        asyncio.run(_coordinate(agents, report))

    def meet(self, mine: Sequence[int], agents: int, port: int, gate: Gate) -> Iterator[list[float]]:
        """Join the first world with all agents of this process, and the next world after a death.

        Yield the times of each world, monotonic seconds. mine: numbers of this process's agents. gate: returns at the
        start signal.
        """
        with asyncio.Runner() as runner:
            members = runner.run(_followers(mine, agents, port))
            gate()
            connecting = asyncio.Semaphore(KNOCKING)
            yield runner.run(_await_joins([member.join(connecting, agents) for member in members]))
            yield runner.run(_await_joins([member.await_rank(agents - 1) for member in members]))


async def _coordinate(agents: int, report: Callable[[float], None]) -> None:
    """Run a coordinator until its job ends. report: called with its port, then with the time of each lost member.

    agents: number of members that it waits for.
    """

    def say(what: str, fields: Mapping[str, object]) -> None:
        if fields.get("reason") == Reason.MEMBER_LOST.value:
            report(time.monotonic())

    loop, timing = asyncio.get_running_loop(), Timing()
    listener = Listener(TOKEN, RUN, lambda what, fields: None)
    port = await listener.open(HERE, 0)
    state = begin(member_of(0), RUN, terms_of(agents), loop.time(), worker_count=agents)
    merge = StackMerge(HangPolicy(), say).merge
    coordinator = Coordinator(state, say, beat_s=timing.heartbeat_s, silence_s=timing.silence_s, merge=merge)
    listener.lead(coordinator)
    report(port)
    await coordinator.ended


async def _followers(mine: Sequence[int], agents: int, port: int) -> list[_Follower]:
    return [_Follower(member_of(agent), terms_of(agents), (HERE, port)) for agent in mine]


async def _await_joins(joins: Sequence[Coroutine[None, None, float]]) -> list[float]:
    return list(await asyncio.gather(*joins))


class _Follower:
    """One member: an agent without its processes."""

    def __init__(self, me: Member, terms: ElasticSpec, endpoint: Address) -> None:
        self._me, self._terms, self._endpoint = me, terms, endpoint
        self._base = LastWorld()
        self._link: CoordinatorClient | None = None
        self._worlds: asyncio.Queue[tuple[int, float] | str] = asyncio.Queue()

    async def join(self, connecting: asyncio.Semaphore, size: int) -> float:
        """Find the coordinator, and return when this member got a rank in a world of `size` members.

        connecting: limits how many members of this process connect at the same time. Raises ConnectionError if the
        coordinator is not found or is lost.
        """
        finder = CoordinatorSearch(self._new_link, _nobody_leads, ("", 0), None, lambda what, fields: None)
        loop = asyncio.get_running_loop()
        search = Search(self._me.id, self._endpoint, False, False, self._terms.join_timeout_s, since_s=loop.time())
        async with connecting:
            found = await finder.find(search)
        if isinstance(found, GiveUp):
            raise ConnectionError(found.detail)
        self._link, _ = found
        return await self.await_rank(size)

    async def await_rank(self, size: int) -> float:
        """Wait for a rank in a world of `size` members; return when it came. Raises ConnectionError if the
        coordinator is lost.
        """
        while True:
            world = await self._worlds.get()
            if isinstance(world, str):
                raise ConnectionError(world)
            if world[0] == size:
                return world[1]

    def _new_link(self) -> CoordinatorClient:
        """Return a new client of the coordinator, which joins with the last world as its base."""

        def join(nonce: bytes, proof: bytes) -> Join:
            return Join(
                VERSION, RUN, nonce, proof, self._me, self._terms, self._base, RestartBudget(), self._terms.max_nodes
            )

        return CoordinatorClient(join, TOKEN, RUN, self._on_message, self._note_loss)

    def _on_message(self, link: CoordinatorClient, message: ToMember) -> None:
        """Handle a message of the coordinator: record a new world, and answer a stop. Other messages are ignored."""
        match message:
            case Formed() if may_train(self._base, message):
                self._base = LastWorld(message.round, message.group_size, True, True)
                self._worlds.put_nowait((message.group_size, time.monotonic()))
            case Stop(round=round_):
                self._base = LastWorld(self._base.round, self._base.size, self._base.inside, False)
                link.send_message(Ready(round_, self._me.master_port, self._me.path))

    def _note_loss(self, link: CoordinatorClient, reason: Reason) -> None:
        """Let `await_rank` raise an error, since the coordinator is lost."""
        self._worlds.put_nowait(f"the coordinator is lost: {reason.value}")


async def _nobody_leads(search: Search) -> tuple[bool, Address | None]:
    raise AssertionError("the agents have a coordinator")
