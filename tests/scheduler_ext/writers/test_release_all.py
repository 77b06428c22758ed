"""Our gate taken from every pod without a plan: which pods, what is told, and pods that change meanwhile."""

import msgspec
import pytest

from tests.kit import cluster
from tests.scheduler_ext.gates.gated_world import GATE, Api, gang
from turnout.kube.errors import Forbidden
from turnout.kube.times import unix_s
from turnout.scheduler_ext.writers.release_all import release_all

pytestmark = pytest.mark.asyncio
NOW_S = unix_s("2026-01-01T01:00:00Z")


class Calls(Api):
    """Lists and reads, too. changes: names of pods that change just before they are patched first."""

    changes = ()
    forbidden = ()

    async def pages(self, path, params=None):
        assert params == {"fieldSelector": "spec.nodeName="}
        self.listed = path
        names = list(self.pods)
        for some in (names[:2], names[2:]):
            yield msgspec.json.encode({"items": [self.pods[name] for name in some]})

    async def get(self, path):
        return msgspec.json.encode(self.pods[path.split("/")[6]])

    async def patch(self, path, body, *, field_manager):
        name = path.split("/")[6]
        if name in self.forbidden:
            raise Forbidden("PATCH", path, 403, "no")
        if name in self.changes:
            self.changes.remove(name)
            self.change(name, lambda pod: pod["metadata"]["labels"].update(new="one"))
        return await super().patch(path, body, field_manager=field_manager)


def calls():
    theirs = cluster.make_pod("theirs", 1, schedulingGates=[{"name": "a/x"}])
    both = cluster.make_pod("both", 1, schedulingGates=[*GATE, {"name": "a/x"}])
    return Calls(*gang("g", 3), theirs, both, cluster.make_pod("plain", 1))


async def test_every_gate_of_ours_is_lifted_and_no_other():
    api = calls()
    found = await release_all(api, "", 0, NOW_S)
    assert found.released_pods == ("default/g-0", "default/g-1", "default/g-2", "default/both")
    assert found.failures == ()
    assert api.gated() == ["both", "theirs"]
    assert api.pods["both"]["spec"]["schedulingGates"] == [{"name": "a/x"}]
    assert api.listed == "/api/v1/pods"


async def test_a_pod_that_changed_meanwhile_is_tried_again():
    api = calls()
    api.changes = ["g-1"]
    assert len((await release_all(api, "default", 0, NOW_S)).released_pods) == 4
    assert api.listed == "/api/v1/namespaces/default/pods"


async def test_a_pod_that_cannot_be_patched_is_told_and_stops_no_other():
    api = calls()
    api.forbidden = ["g-1"]
    found = await release_all(api, "", 0, NOW_S)
    assert [name for name, _ in found.failures] == ["default/g-1"]
    assert len(found.released_pods) == 3


@pytest.mark.parametrize(("older_s", "released_names"), [(3000, 4), (3700, 0)])
async def test_pods_of_late_stay_gated_where_an_age_is_given(older_s, released_names):
    assert len((await release_all(calls(), "", older_s, NOW_S)).released_pods) == released_names
