"""Each configuration of the throughput benchmark really runs, on a cluster too small to measure anything."""

import pytest

from hack.bench.scheduler.matrix import SETUPS, WORKLOADS
from hack.bench.scheduler.throughput import Cluster

pytestmark = [pytest.mark.real, pytest.mark.asyncio, pytest.mark.slow]


@pytest.mark.parametrize("load", WORKLOADS)
async def test_every_configuration_binds_every_pod(control_plane, load):
    cluster = Cluster(control_plane, 16)
    await cluster.build()
    for setup in SETUPS:
        result = await cluster.run(setup, WORKLOADS[load](16), None)
        assert result.bound == 16, setup.name
        assert result.rate > 0


async def test_the_scheduler_alone_binds_what_was_nominated_before_it_started(control_plane):
    cluster = Cluster(control_plane, 16)
    await cluster.build()
    result = await cluster.run_nominated(WORKLOADS["singles"](16), 100, nominate=True)
    assert result.bound == 16
