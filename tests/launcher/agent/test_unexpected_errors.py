"""An error that nobody expects ends the agent with its traceback: it does not wait for ever."""

import asyncio

import pytest

from turnout.launcher.agent.start_agent import run_agent
from turnout.launcher.agent.torchrun.background_agent import TorchAgentWorkers
from turnout.launcher.cli.to_settings import read


class BrokenWorkers(TorchAgentWorkers):
    """Workers whose start or end raises what no launcher error stands for."""

    def __init__(self, broken):
        super().__init__()
        self._broken = broken

    async def start(self, formed, named):
        if self._broken == "start":
            raise TypeError("no such field")

    async def ended(self):
        raise TypeError("no such field")


@pytest.mark.parametrize("broken", ["start", "end"])
def test_an_unexpected_error_of_the_workers_ends_the_agent(broken):
    settings = read(["--standalone", "train.py"], {})
    agent = run_agent(settings, {}, lambda word, facts: None, training=BrokenWorkers(broken))
    with pytest.raises(TypeError, match="no such field"):
        asyncio.run(asyncio.wait_for(agent, 20))
