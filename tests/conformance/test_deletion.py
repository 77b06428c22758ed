"""How objects go: grace, finalizers, owners."""

import pytest

from tests.conformance.sides import MERGE, config_map, pod

pytestmark = [pytest.mark.real, pytest.mark.asyncio]


def is_deleted(code, answer):
    return code == 404


def deleting(answer):
    """Return if an object is being deleted, and how much grace it has left."""
    meta = answer["metadata"]
    return bool(meta.get("deletionTimestamp")), meta.get("deletionGracePeriodSeconds")


def owned(name, owner, block=False, **more):
    meta = owner["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}
    return config_map(name, ownerReferences=[reference | ({"blockOwnerDeletion": True} if block else {})], **more)


async def test_a_bound_pod_has_its_grace_and_an_unbound_one_goes_at_once(both):
    async def story(side):
        await side.peek("POST", side.path("pods"), pod("free"))
        await side.peek("POST", side.path("pods"), pod("bound", spec={"nodeName": "n1"}))
        await side.ask("DELETE", side.path("pods", "free"))
        await side.ask("GET", side.path("pods", "free"))
        _, answer = await side.ask("DELETE", side.path("pods", "bound"))
        side.transcript.append(deleting(answer))
        for grace_s in (60, 5, 0):  # a later wish only shortens
            _, answer = await side.ask("DELETE", side.path("pods", "bound"), {"gracePeriodSeconds": grace_s})
            side.transcript.append(deleting(answer))
        await side.ask("GET", side.path("pods", "bound"))

    await both.agree(story)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
async def test_a_pod_that_has_ended_needs_no_grace(both, phase):
    async def story(side):
        await side.peek("POST", side.path("pods"), pod("a", spec={"nodeName": "n1"}))
        await side.ask("PATCH", side.path("pods", "a", "status"), {"status": {"phase": phase}}, MERGE)
        await side.ask("DELETE", side.path("pods", "a"))
        await side.ask("GET", side.path("pods", "a"))

    await both.agree(story)


async def test_a_finalizer_holds_an_object_until_it_is_taken_off(both):
    async def story(side):
        path = side.path("configmaps", "a")
        await side.ask("POST", side.path("configmaps"), config_map("a", finalizers=["turnout.dev/hold"]))
        _, answer = await side.ask("DELETE", path)
        side.transcript.append(deleting(answer))
        await side.ask("DELETE", path)
        await side.ask("PATCH", path, {"data": {"still": "here"}}, MERGE)
        await side.ask("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
        await side.ask("GET", path)

    await both.agree(story)


async def test_a_deletion_means_one_object(both):
    async def story(side):
        path = side.path("configmaps", "a")
        _, stored = await side.ask("POST", side.path("configmaps"), config_map("a"))
        await side.ask("DELETE", path, {"preconditions": {"uid": "somebody-else"}})
        await side.ask("DELETE", path, {"preconditions": {"resourceVersion": "1"}})
        await side.ask("DELETE", path, {"preconditions": {"uid": stored["metadata"]["uid"]}})
        await side.ask("GET", path)

    await both.agree(story)


async def test_a_collection_is_deleted_by_its_selector(both):
    async def story(side):
        for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
            await side.peek("POST", side.path("configmaps"), config_map(name, labels={"app": app}))
        await side.peek("DELETE", side.path("configmaps"), labelSelector="app=x")
        await side.ask("GET", side.path("configmaps"), labelSelector="app")

    await both.agree(story)


async def test_dependents_go_after_their_owner(both):
    async def story(side):
        _, owner = await side.ask("POST", side.path("configmaps"), config_map("owner"))
        _, child = await side.ask("POST", side.path("configmaps"), owned("child", owner))
        await side.ask("POST", side.path("configmaps"), owned("grandchild", child))
        await side.ask("DELETE", side.path("configmaps", "owner"))
        for name in ("child", "grandchild"):
            await side.until(side.path("configmaps", name), is_deleted)

    await both.agree(story)


async def test_in_the_foreground_dependents_go_first(both):
    async def story(side):
        _, owner = await side.peek("POST", side.path("configmaps"), config_map("owner"))
        await side.peek(
            "POST", side.path("configmaps"), owned("child", owner, block=True, finalizers=["turnout.dev/x"])
        )
        await side.ask("DELETE", side.path("configmaps", "owner"), {"propagationPolicy": "Foreground"})
        await side.until(side.path("configmaps", "child"), lambda code, it: "deletionTimestamp" in it["metadata"])
        await side.ask("GET", side.path("configmaps", "owner"))
        await side.peek("PATCH", side.path("configmaps", "child"), {"metadata": {"finalizers": None}}, MERGE)
        for name in ("child", "owner"):
            await side.until(side.path("configmaps", name), is_deleted)

    await both.agree(story)


async def test_orphans_stay(both):
    async def story(side):
        _, owner = await side.peek("POST", side.path("configmaps"), config_map("owner"))
        await side.peek("POST", side.path("configmaps"), owned("child", owner))
        await side.peek("DELETE", side.path("configmaps", "owner"), {"propagationPolicy": "Orphan"})
        await side.until(side.path("configmaps", "owner"), is_deleted)
        await side.ask("GET", side.path("configmaps", "child"))

    await both.agree(story)


async def test_a_child_of_two_stays_with_the_one_that_is_left(both):
    async def story(side):
        _, one = await side.peek("POST", side.path("configmaps"), config_map("one"))
        _, two = await side.peek("POST", side.path("configmaps"), config_map("two"))
        child = owned("child", one)
        child["metadata"]["ownerReferences"] += owned("child", two)["metadata"]["ownerReferences"]
        await side.peek("POST", side.path("configmaps"), child)
        await side.peek("DELETE", side.path("configmaps", "one"))
        await side.until(side.path("configmaps", "child"), lambda code, it: len(it["metadata"]["ownerReferences"]) == 1)
        await side.peek("DELETE", side.path("configmaps", "two"))
        await side.until(side.path("configmaps", "child"), is_deleted)

    await both.agree(story)


@pytest.mark.slow
async def test_a_namespace_goes_once_it_is_empty(both):
    async def story(side):
        name = f"{side.namespace}-gone"
        place = f"/api/v1/namespaces/{name}"
        await side.peek("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        await side.peek("POST", f"{place}/configmaps", config_map("a"))
        await side.peek("POST", f"{place}/configmaps", config_map("held", finalizers=["turnout.dev/hold"]))
        await side.peek("POST", f"{place}/pods", pod("p"))
        _, namespace = await side.peek("DELETE", place)
        side.transcript.append(namespace["status"]["phase"])
        await side.until(f"{place}/configmaps/a", lambda code, _: code == 404)
        await side.until(f"{place}/pods/p", lambda code, _: code == 404)
        code, refused = await side.peek("POST", f"{place}/configmaps", config_map("late"))
        side.transcript.append((code, refused["reason"]))
        code, left = await side.peek("GET", place)
        side.transcript.append((code, left["status"]["phase"]))
        await side.peek("PATCH", f"{place}/configmaps/held", {"metadata": {"finalizers": None}}, MERGE)
        await side.until(place, lambda code, _: code == 404)

    await both.agree(story)
