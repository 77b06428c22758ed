"""An error that nobody expects ends the agent with its traceback: it does not wait for ever."""

import asyncio
from types import SimpleNamespace

import pytest

from turnout.launcher.agent.coordinator_only import CoordinatorOnlyHost
from turnout.launcher.agent.coordinator_session import CoordinatorSession
from turnout.launcher.agent.start_agent import member_of, run_agent
from turnout.launcher.agent.torchrun.rendezvous import BackgroundAgent, TorchAgentWorkers
from turnout.launcher.cli.to_settings import read
from turnout.launcher.coordinator_messages import VERSION, Join, LastWorld
from turnout.launcher.model import RestartBudget
from turnout.launcher.rendezvous.find_coordinator import Search
from turnout.launcher.rendezvous.transport.listener import Listener


class BrokenWorkers(TorchAgentWorkers):
    """Workers whose start or end raises what no launcher error stands for."""

    def __init__(self, broken):
        super().__init__()
        self._broken = broken

    async def start(self, formed, named):
        if self._broken == "start":
            raise TypeError("no such field")

    async def wait_ended(self):
        raise TypeError("no such field")


@pytest.mark.parametrize("broken", ["start", "end"])
def test_an_unexpected_error_of_the_workers_ends_the_agent(broken):
    settings = read(["--standalone", "train.py"], {})
    agent = run_agent(settings, {}, lambda word, facts: None, training=BrokenWorkers(broken))
    with pytest.raises(TypeError, match="no such field"):
        asyncio.run(asyncio.wait_for(agent, 20))


class BrokenAgent(BackgroundAgent):
    """An agent beside torch's that raises what no launcher error stands for."""

    async def _attend(self, settings):
        raise TypeError("no such field")


def test_an_unexpected_error_comes_to_torchs_agent():
    with pytest.raises(TypeError, match="no such field"):
        BrokenAgent(None).over.result(20)


class BrokenSearch:
    """A search for the coordinator that raises what no launcher error stands for."""

    async def find(self, seek):
        raise TypeError("no such field")


def test_an_unexpected_error_of_the_search_comes_to_the_agents_inbox():
    async def search():
        inbox = asyncio.Queue()
        seek = Search("w0", None, False, False, 30.0)
        CoordinatorSession(seek, BrokenSearch(), None, inbox.put_nowait, lambda word, facts: None).search.begin(
            LastWorld()
        )
        return await asyncio.wait_for(inbox.get(), 20)

    error = asyncio.run(search())
    assert isinstance(error, TypeError)
    assert str(error) == "no such field"


class BrokenLock:
    """A round lock that raises what no launcher error stands for."""

    async def look(self):
        raise TypeError("no such field")

    async def close(self):
        pass


def test_an_unexpected_error_ends_a_coordinator_on_its_own():
    async def serve():
        settings = read(["--standalone", "train.py"], {})
        listener = Listener(b"token", "job", lambda word, facts: None)
        port = await listener.open("127.0.0.1", 0)
        member = member_of(settings.place, "127.0.0.1", port, 1, ())
        host = CoordinatorOnlyHost(settings, member, listener, BrokenLock(), lambda word, facts: None)
        spec = settings.elastic_spec
        join = Join(VERSION, "job", b"n" * 16, b"p" * 32, member, spec, LastWorld(), RestartBudget(), 0, (), 0.0)
        host.admit(SimpleNamespace(abort=lambda: None), join)
        try:
            return await asyncio.wait_for(host.ended, 20)
        finally:
            await host.close()

    with pytest.raises(TypeError, match="no such field"):
        asyncio.run(serve())
