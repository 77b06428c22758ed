"""The orders of a coordinator to one agent: however fast they come, one order's probes run at a time."""

import asyncio

import pytest
import pytest_asyncio

from turnout.launcher.coordinator_messages import Probe
from turnout.launcher.health.model import NodeChecks
from turnout.launcher.health.probe_messages import Report
from turnout.launcher.health.probes.runner import ProbeRunner
from turnout.launcher.model import Member

pytestmark = pytest.mark.asyncio


class SlowlyKilledProbes:
    """Probes that run until they are cancelled, and then until `killed` is set."""

    def __init__(self):
        self.running, self.most_running, self.killed = 0, 0, asyncio.Event()

    async def __call__(self, plans, env):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.Event().wait()
        finally:
            await self.killed.wait()
            self.running -= 1
        return (Report(),)


@pytest_asyncio.fixture
async def probes():
    """Probes that can be killed after the test, also if it fails."""
    slow_probes = SlowlyKilledProbes()
    yield slow_probes
    slow_probes.killed.set()


def begin(runner, number):
    runner.begin(Member("a/1", "a"), Probe(number, 0, 1, 1, "127.0.0.1", 1))


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_last_of_three_orders_waits_for_the_probes_of_the_first(probes):
    runner = ProbeRunner(NodeChecks(network=True), lambda message: None, lambda *event: None, probes)
    for number in range(3):
        begin(runner, number)
        await turns()
    assert probes.most_running == 1
    probes.killed.set()
    await turns()
    assert (probes.running, probes.most_running) == (1, 1)
    await runner.close()


async def test_an_end_waits_for_the_probes_of_all_orders(probes):
    runner = ProbeRunner(NodeChecks(network=True), lambda message: None, lambda *event: None, probes)
    for number in range(2):
        begin(runner, number)
        await turns()
    closing = asyncio.create_task(runner.close())
    await turns()
    assert not closing.done()
    probes.killed.set()
    await closing
    assert probes.running == 0
