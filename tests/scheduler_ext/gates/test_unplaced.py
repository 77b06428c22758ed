"""Gated pods let go where nobody has held the nominator's Lease for longer than a bound, and only there."""

import msgspec
import pytest

from tests.kit.clock import ManualClock
from tests.scheduler_ext.gates.gated_world import gang
from tests.scheduler_ext.writers.test_release_all import NOW_S, Calls
from turnout.kube.errors import Forbidden, NotFound
from turnout.kube.objects import Lease, LeaseSpec
from turnout.kube.times import rfc3339_micro
from turnout.scheduler_ext.gates.release import PlacerState, placer_state
from turnout.scheduler_ext.writers.release_all import release_unplaced

BOUND_S = 600
LEASE = "turnout-system/turnout-nominator"


def lease(ago_s, term_s=4):
    return Lease(spec=LeaseSpec(renew_time=rfc3339_micro(NOW_S - ago_s), lease_duration_seconds=term_s))


@pytest.mark.parametrize(
    ("found", "lease_state"),
    [
        pytest.param(lease(1), "Placed", id="it is renewed"),
        pytest.param(lease(11), "Placed", id="another may still take it"),
        pytest.param(lease(30), "Silent", id="nobody has for a while"),
        pytest.param(lease(601), "Gone", id="nobody has for longer than the bound"),
        pytest.param(lease(-99), "Placed", id="the holder's clock goes ahead"),
        pytest.param(lease(300, term_s=9999), "Silent", id="a record that claims a long term"),
        pytest.param(None, "Gone", id="there is no Lease"),
        pytest.param(Lease(spec=LeaseSpec(renew_time="yesterday")), "Gone", id="no time that can be read"),
    ],
)
def test_how_a_lease_stands(found, lease_state):
    assert placer_state(found, BOUND_S, NOW_S) is PlacerState(lease_state)


class Server:
    """Pods behind gates, a Lease, and Events."""

    def __init__(self, found, *pods):
        self.api, self.lease, self.events, self.deaf = Calls(*pods), found, (), False
        self.pages, self.patch = self.api.pages, self.api.patch

    async def get(self, path):
        assert path.endswith("/namespaces/turnout-system/leases/turnout-nominator")
        if self.lease is None:
            raise NotFound("GET", path, 404, "none")
        return msgspec.json.encode(self.lease)

    async def create(self, path, body, *, deadline_s):
        if self.deaf:
            raise Forbidden("POST", path, 403, "no")
        self.events = (*self.events, (body["involvedObject"]["name"], body["reason"]))
        return b"{}"


class Clock(ManualClock):
    """A clock with the wall time of the pods."""

    def wall(self):
        return NOW_S


def server(found):
    return Server(found, *gang("g", 3), *gang("h", 2))


async def run(api):
    return await release_unplaced(api, api, LEASE, "", BOUND_S, Clock(), "host")


@pytest.mark.asyncio
async def test_while_somebody_places_nothing_is_done():
    api = server(lease(1))
    assert (await run(api)).placer is PlacerState.PLACED
    assert (api.api.asked, api.events) == (0, ())


@pytest.mark.asyncio
async def test_each_gang_is_told_once_while_the_bound_is_not_over():
    api = server(lease(60))
    found = await run(api)
    assert (found.placer, found.notified_gangs, found.result.released_pods) == (PlacerState.SILENT, 2, ())
    assert api.events == (("g-0", "NobodyPlaces"), ("h-0", "NobodyPlaces"))
    assert api.api.asked == 0


@pytest.mark.asyncio
async def test_who_cannot_be_told_is_not_counted():
    api = server(lease(60))
    api.deaf = True
    assert (await run(api)).notified_gangs == 0


@pytest.mark.asyncio
async def test_after_the_bound_every_gate_is_lifted():
    api = server(lease(700))
    assert len((await run(api)).result.released_pods) == 5
    assert api.api.gated() == []
