"""The wire against a real kube-apiserver: what the scripted one was taught is what the real one does."""

import asyncio
import json
import random

import pytest

from tests.kit.clock import ManualClock
from tests.kit.wait import until_async
from tests.kube.world import Dice, Receiver, running
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import RealClock
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.client.lease import Elector, LeaseSettings
from turnout.kube.client.reflector import Reflector
from turnout.kube.errors import Conflict, Forbidden, NotFound, Rejected
from turnout.kube.objects import ConfigMap, PodGroup

pytestmark = [pytest.mark.asyncio, pytest.mark.real]
MAPS = "/api/v1/namespaces/default/configmaps"
GROUPS = "/apis/scheduling.turnout.test/v1/podgroups"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/autoscaler"
PATIENCE_S = 30


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"of": "us"}}, "data": data}


def reflecting(client, path, kind, **more):
    clock, receiver = ManualClock(), Receiver()
    return clock, receiver, Reflector(client, path, kind, receiver, clock=clock, rng=Dice(0.5), **more)


async def test_the_errors_are_the_servers_own(module_plane):
    async with await Client.open(str(module_plane.kubeconfig)) as client:
        await client.create(MAPS, config_map("errors"))
        with pytest.raises(Conflict) as exists:
            await client.create(MAPS, config_map("errors"))
        assert exists.value.reason == "AlreadyExists"
        with pytest.raises(Conflict):
            await client.patch(f"{MAPS}/errors", {"metadata": {"resourceVersion": "1"}, "data": {"a": "1"}})
        with pytest.raises(Conflict):
            await client.delete(f"{MAPS}/errors", uid="another")
        with pytest.raises(Rejected):
            await client.create(MAPS, config_map("No Name"))
        await client.delete(f"{MAPS}/errors")
        with pytest.raises(NotFound):
            await client.get(f"{MAPS}/errors")
    async with await Client.open(str(module_plane.user_kubeconfig("stranger"))) as stranger:
        with pytest.raises(Forbidden):
            await stranger.get(MAPS)


async def test_list_watch_over_pages_and_a_restart_of_the_server(control_plane):
    async with await Client.open(str(control_plane.kubeconfig)) as client:
        names = [f"m{n:04}" for n in range(1001)]
        await asyncio.gather(*(client.create(MAPS, config_map(name)) for name in names))
        clock, receiver, reflector = reflecting(client, MAPS, ConfigMap, params={"labelSelector": "of=us"})
        async with running(reflector.run()):
            await receiver.until("synced")
            assert sorted(name for _, name in receiver.objects) == names
            await client.patch(f"{MAPS}/m0001", {"data": {"a": "1"}})
            await client.delete(f"{MAPS}/m0002")

            async def until_shown():
                return receiver.objects["default", "m0001"].data and ("default", "m0002") not in receiver.objects

            await until_async(until_shown)
            await asyncio.to_thread(control_plane.restart_apiserver)
            await client.delete(f"{MAPS}/m0003")

            async def caught_up():
                if any(pause < 60 for pause in clock.sleepers()):
                    await clock.skip()
                return ("default", "m0003") not in receiver.objects

            await until_async(caught_up)
            assert len(receiver.objects) == 999
            assert reflector.reconnect_count >= 1
            assert reflector.skipped_count == 0


async def test_a_version_that_is_forgotten_is_gone(control_plane):
    async with await Client.open(str(control_plane.kubeconfig)) as client:
        await asyncio.gather(*(client.create(MAPS, config_map(f"m{n}")) for n in range(20)))
        await asyncio.to_thread(control_plane.restart_apiserver)  # its watch cache starts at today's version
        clock, receiver, reflector = reflecting(Forgetful(client), MAPS, ConfigMap)
        async with running(reflector.run()):
            await receiver.until("synced")

            async def listed_again():
                if any(pause < 60 for pause in clock.sleepers()):
                    await clock.skip()
                return reflector.relist_count == 1

            await until_async(listed_again)
            assert "410" in reflector.last_error


class Forgetful:
    """A client whose first watch asks for the first version there ever was."""

    def __init__(self, client):
        self.pages, self._client, self._first = client.pages, client, True

    def watch(self, path, params):
        params = {**params, "resourceVersion": "1"} if self._first else params
        self._first = False
        return self._client.watch(path, params)


async def test_a_kind_whose_definition_comes_late_is_seen(module_plane):
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podgroups.scheduling.turnout.test"},
        "spec": {
            "group": "scheduling.turnout.test",
            "names": names,
            "scope": "Cluster",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    group = {"apiVersion": "scheduling.turnout.test/v1", "kind": "PodGroup", "metadata": {"name": "bert"}}
    async with await Client.open(str(module_plane.kubeconfig)) as client:
        clock, receiver, reflector = reflecting(client, GROUPS, PodGroup, optional=True)
        async with running(reflector.run()):
            await receiver.until("synced")
            await client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)

            async def create_one():
                try:
                    await client.create(GROUPS, {**group, "spec": {"minMember": 4}})
                except NotFound:
                    return False
                return True

            await until_async(create_one)

            async def until_shown():
                if any(pause < 60 for pause in clock.sleepers()):
                    await clock.skip()
                return ("", "bert") in receiver.objects

            await until_async(until_shown)
            assert receiver.objects["", "bert"].spec.min_member == 4


async def test_one_leader_after_the_other(module_plane):
    quick = LeaseSettings(lease_s=6, renew_s=4, retry_s=0.2, grace_s=2)
    terms = []

    async def work(transitions):
        terms.append(transitions)
        await asyncio.get_running_loop().create_future()

    async with await Client.open(str(module_plane.kubeconfig)) as client:
        one, two = (
            Elector(client, "default", "autoscaler", name, clock=RealClock(), rng=random.Random(1), settings=quick)
            for name in ("one", "two")
        )
        async with running(one.run(work)):

            async def one_leads():
                return terms == [0]

            await until_async(one_leads)
            async with running(two.run(work)):

                async def two_knows():
                    return two.record.holder == "one" and json.loads(await client.get(LEASE))["spec"]["acquireTime"]

                await until_async(two_knows)
                assert (one.is_leading, two.is_leading) == (True, False)
        spec = json.loads(await client.get(LEASE))["spec"]
        assert (spec.get("holderIdentity", ""), one.is_leading) == ("", False)
        async with running(two.run(work)):

            async def two_leads():
                return terms == [0, 1]

            await until_async(two_leads)
            assert json.loads(await client.get(LEASE))["spec"]["holderIdentity"] == "two"


async def test_an_event_is_taken_and_counted(module_plane):
    async with await Client.open(str(module_plane.kubeconfig)) as client:
        recorder = EventRecorder(client, "turnout-extender", "extender-0", clock=RealClock())
        ref = ObjectRef("Node", "v1", "", "gpu-1", "")
        async with running(recorder.run()):
            for after_s in range(3):
                recorder.emit(ref, "Warning", "NoRoom", "8 GPUs short " + "é" * 2000, 1_800_000_000.0 + after_s)
                await asyncio.sleep(0)

            async def counted():
                raw = await client.get("/api/v1/namespaces/default/events", {"fieldSelector": "reason=NoRoom"})
                return [item["count"] for item in json.loads(raw)["items"]] == [3]

            await until_async(counted)
            assert recorder.dropped == 0
