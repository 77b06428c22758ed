"""Creating, reading, changing: versions, conflicts, the status apart from the rest."""

import pytest

from tests.conformance.sides import MERGE, PATCH, STRATEGIC, config_map, pod

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

REFUSED = [
    pytest.param("configmaps", config_map("Not_A_Name"), id="a name that RFC 1123 does not know"),
    pytest.param("configmaps", {"data": {}}, id="no name"),
    pytest.param("configmaps", config_map("a", namespace="elsewhere"), id="another namespace than the path's"),
    pytest.param("configmaps", config_map("a", labels={"x": "not a value!"}), id="a label that is none"),
    pytest.param("configmaps", config_map("a", annotations={"x": 4}), id="a number as an annotation"),
    pytest.param("configmaps", config_map("a", resourceVersion="7"), id="a version before there is one"),
    pytest.param("configmaps", {"kind": "Pod", "metadata": {"name": "a"}}, id="another kind than the path's"),
    pytest.param("configmaps", [1, 2], id="a list"),
    pytest.param("pods", {"metadata": {"name": "a"}, "spec": {}}, id="a pod without containers"),
    pytest.param("pods", pod("a", spec={"containers": [{"name": "x"}]}), id="a container without an image"),
    pytest.param("pods", pod("a", spec={"restartPolicy": "Perhaps"}), id="a restart policy that is none"),
    pytest.param("pods", pod("a", spec={"priorityClassName": "nobodys"}), id="a priority class that is not there"),
]


@pytest.mark.parametrize(("plural", "body"), REFUSED)
async def test_what_is_refused_at_birth(both, plural, body):
    async def story(side):
        await side.ask("POST", side.path(plural), body)

    await both.agree(story)


async def test_a_pod_is_born_with_its_defaults(both):
    room = {"limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "8"}}
    container = {"name": "main", "image": "registry.example.com/a:1", "resources": room}

    async def story(side):
        await side.ask("POST", side.path("pods"), pod("plain", labels={"app": "x"}))
        await side.ask("POST", side.path("pods"), pod("heavy", spec={"containers": [container]}))
        await side.ask("POST", side.path("pods"), pod("latest", spec={"containers": [{"name": "m", "image": "a"}]}))
        await side.ask("POST", side.path("pods"), {**pod("told"), "status": {"phase": "Running"}})
        await side.ask("GET", side.path("pods", "heavy"))

    await both.agree(story)


async def test_a_name_is_given_once_and_an_unknown_one_is_not_found(both):
    async def story(side):
        await side.ask("POST", side.path("configmaps"), config_map("a"))
        await side.ask("POST", side.path("configmaps"), config_map("a"))
        await side.ask("GET", side.path("configmaps", "nobody"))
        await side.ask("POST", "/api/v1/namespaces/nowhere/configmaps", config_map("a"))
        await side.ask("PUT", side.path("configmaps", "nobody"), config_map("nobody"))
        await side.ask("DELETE", side.path("configmaps", "nobody"))

    await both.agree(story)


async def test_a_stale_write_conflicts_and_an_empty_one_is_no_write(both):
    async def story(side):
        path = side.path("configmaps", "a")
        _, first = await side.ask("POST", side.path("configmaps"), config_map("a"))
        _, second = await side.ask("PATCH", path, {"data": {"x": "1"}}, MERGE)
        await side.ask("PUT", path, first)
        _, third = await side.ask("PATCH", path, {"data": {"x": "1"}}, MERGE)
        assert third["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
        await side.ask("PUT", path, second | {"data": {"y": "2"}})
        await side.ask("PUT", path, config_map("a", {"unconditional": "yes"}))
        await side.ask("PATCH", path, {"metadata": {"uid": "somebody-else"}}, MERGE)
        await side.ask("PATCH", path, {"metadata": {"resourceVersion": "1"}, "data": {"z": "3"}}, MERGE)
        await side.ask("GET", path)

    await both.agree(story)


async def test_status_and_the_rest_are_written_apart(both):
    async def story(side):
        path = side.path("pods", "a")
        await side.ask("POST", side.path("pods"), pod("a"))
        wish = {"status": {"nominatedNodeName": "n7"}, "metadata": {"labels": {"sneaked": "in"}}}
        await side.ask("PATCH", path + "/status", wish, MERGE)
        await side.ask("PATCH", path, {"status": {"phase": "Failed"}}, MERGE)
        await side.ask("GET", path + "/status")

    await both.agree(story)


async def test_of_a_pods_spec_only_little_may_change(both):
    async def story(side):
        path = side.path("pods", "a")
        await side.ask("POST", side.path("pods"), pod("a"))
        await side.ask("PATCH", path, {"spec": {"nodeName": "n1"}}, MERGE)
        await side.ask("PATCH", path, {"spec": {"containers": [{"name": "main", "image": "b:2"}]}}, STRATEGIC)
        await side.ask("PATCH", path, {"spec": {"priority": 7}}, MERGE)
        await side.ask("PATCH", path, {"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}}, MERGE)
        await side.ask("GET", path)

    await both.agree(story)


PATCHES = [
    pytest.param(MERGE, {"data": {"k": None, "n": "1"}}, id="merge: null takes away"),
    pytest.param(MERGE, {"data": None}, id="merge: a whole map goes"),
    pytest.param(PATCH, [{"op": "add", "path": "/data/n", "value": "1"}], id="JSON patch: add"),
    pytest.param(
        PATCH,
        [{"op": "test", "path": "/data/k", "value": "v"}, {"op": "remove", "path": "/data/k"}],
        id="JSON patch: test, remove",
    ),
    pytest.param(PATCH, [{"op": "test", "path": "/data/k", "value": "other"}], id="JSON patch: a test that fails"),
    pytest.param(
        PATCH, [{"op": "replace", "path": "/data/none", "value": "1"}], id="JSON patch: a path that is not there"
    ),
    pytest.param(PATCH, [{"op": "move", "from": "/data/k", "path": "/data/m"}], id="JSON patch: move"),
    pytest.param(STRATEGIC, {"data": {"n": "1"}}, id="strategic merge of a map"),
    pytest.param("text/plain", {"data": {}}, id="a patch of no known kind"),
]


@pytest.mark.parametrize(("kind", "patch"), PATCHES)
async def test_patches(both, kind, patch):
    async def story(side):
        await side.ask("POST", side.path("configmaps"), config_map("a"))
        await side.ask("PATCH", side.path("configmaps", "a"), patch, kind)
        await side.ask("GET", side.path("configmaps", "a"))

    await both.agree(story)


async def test_strategic_merge_goes_by_the_keys_of_lists(both):
    async def story(side):
        node, path = {"metadata": {"name": f"n-{side.namespace}"}}, f"/api/v1/nodes/n-{side.namespace}"
        await side.ask("POST", "/api/v1/nodes", node)
        for taint in ("a", "b"):
            await side.ask("PATCH", path, {"spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]}}, STRATEGIC)
        for kind in ("Ready", "MemoryPressure"):
            new_status = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
            await side.ask("PATCH", path + "/status", new_status, STRATEGIC)
        removal = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
        await side.ask("PATCH", path + "/status", removal, STRATEGIC)
        await side.ask("DELETE", path)

    await both.agree(story)


async def test_who_owns_a_nomination(both):
    """Ours are known by their field manager: the record must be the API server's own."""

    def owners(body):
        return [
            (entry["manager"], entry["operation"], entry.get("subresource"))
            for entry in body["metadata"]["managedFields"]
            if "f:nominatedNodeName" in entry["fieldsV1"].get("f:status", {})
        ]

    async def story(side):
        path = side.path("pods", "a")
        await side.ask("POST", side.path("pods"), pod("a"))
        for manager, node in (("turnout-nominator", "n1"), ("kube-scheduler", "n2"), ("turnout-nominator", None)):
            wish = {"status": {"nominatedNodeName": node}}
            _, answer = await side.ask("PATCH", path + "/status", wish, MERGE, fieldManager=manager)
            side.transcript.append(owners(answer))

    await both.agree(story)
