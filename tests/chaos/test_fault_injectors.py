"""Faults that are undone in the background: an error there is not lost."""

import asyncio
from types import SimpleNamespace

import pytest

from hack.chaos.fault_schedule import Fault, FaultEvent
from hack.chaos.testbed.fault_injectors import FaultInjectors

RESTART = FaultEvent(Fault.API, aim=0.0, after_s=0.0, lasts_s=1.0)


def injectors_of(restart):
    """The injectors of a testbed whose API server restarts in this way."""
    served = SimpleNamespace(restart=restart, address="http://127.0.0.1:1")
    stage = SimpleNamespace(cluster=SimpleNamespace(served=served), round=1, note=lambda record: None)
    return FaultInjectors(stage)


async def failing_restart(lasts_s):
    raise ConnectionError("the API server did not start again")


@pytest.mark.asyncio
@pytest.mark.parametrize("ended", [False, True], ids=["while it is awaited", "before it is awaited"])
async def test_an_error_of_a_fault_is_raised(ended):
    injectors = injectors_of(failing_restart)
    await injectors.do(RESTART)
    if ended:
        await asyncio.wait(injectors.pending)
    with pytest.raises(ConnectionError):
        await injectors.settle()
    await injectors.settle()  # the error is raised once


@pytest.mark.asyncio
async def test_faults_that_have_ended_are_awaited_once():
    lasted = []

    async def restart(lasts_s):
        lasted.append(lasts_s)

    injectors = injectors_of(restart)
    await injectors.do(RESTART)
    await injectors.settle()
    assert (lasted, injectors.pending) == ([1.0], set())


@pytest.mark.asyncio
async def test_without_a_coordinator_no_pod_is_killed():
    killed = []

    async def coordinator():
        return ""

    async def kill_pod(name):
        killed.append(name)  # the path of the pod "" is that of all pods

    stage = SimpleNamespace(coordinator=coordinator, kill_pod=kill_pod, round=1, note=lambda record: None)
    record = await FaultInjectors(stage).do(FaultEvent(Fault.COORDINATOR, aim=0.0, after_s=0.0, lasts_s=1.0))
    assert (record.who, killed) == ("", [])
