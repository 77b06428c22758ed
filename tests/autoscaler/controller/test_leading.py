"""The Lease itself is asked who leads where a job bears a later term, which its owner may have written."""

import pytest

from tests.kit.clock import ManualClock, settle
from tests.kube.test_lease import LeaseServer, Link
from tests.kube.world import Dice, running
from turnout.kube.client.lease import Elector

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("spec", "mode", "ours"),
    [
        pytest.param({}, "ok", True, id="it names us and our term"),
        pytest.param({"holderIdentity": "another"}, "ok", False, id="it names another"),
        pytest.param({"leaseTransitions": 9}, "ok", False, id="it is of another term"),
        pytest.param({}, "refused", False, id="it cannot be read"),
    ],
)
async def test_the_lease_itself_says_whether_we_lead(spec, mode, ours):
    server = LeaseServer()
    link, clock = Link(server), ManualClock()
    elector = Elector(link, "turnout", "autoscaler", "one", clock=clock, rng=Dice())
    confirmed = []

    async def work(_):
        server.touch(**spec)
        link.next["get"] = mode
        confirmed.append(await elector.confirm())

    async with running(elector.run(work)):
        await settle()
    assert confirmed == [ours]
