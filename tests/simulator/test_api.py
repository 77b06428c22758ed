"""The embedded API over real HTTP: what a Kubernetes client counts on."""

import asyncio
import base64
import time

import kubernetes
import pytest
import yaml

from turnout.simulator.api.model import ApiRefusal, Unserved
from turnout.simulator.api.verbs import not_served_error

PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
GROUP = {
    "apiVersion": "scheduling.volcano.sh/v1beta1",
    "kind": "PodGroup",
    "metadata": {"name": "g"},
    "spec": {"minMember": 2},
}
STRATEGIC = "application/strategic-merge-patch+json"


def pod(name, **more):
    labels = more.pop("labels", {})
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "registry.example.com/a:1"}], **more},
    }


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


SERVED = {"served": True, "schema": {"openAPIV3Schema": {}}}


def crd(**spec):
    names = {"plural": "as", "kind": "A"}
    return {"metadata": {"name": "as.example.com"}, "spec": {"group": "example.com", "names": names, **spec}}


@pytest.mark.asyncio
async def test_a_created_pod_gets_what_the_server_gives(api_server):
    code, created_pod = await api_server.ask("POST", PODS, pod("a"))
    meta = created_pod["metadata"]
    assert code == 201
    assert meta["uid"]
    assert meta["creationTimestamp"].endswith("Z")
    assert int(meta["resourceVersion"]) > 0
    assert (created_pod["kind"], created_pod["apiVersion"], meta["namespace"], meta["generation"]) == (
        "Pod",
        "v1",
        "default",
        1,
    )
    assert created_pod["status"]["phase"] == "Pending"
    assert created_pod["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "path", "body", "code", "reason"),
    [
        pytest.param("GET", PODS + "/nobody", None, 404, "NotFound", id="an unknown name is not found"),
        pytest.param("POST", PODS, pod("taken"), 409, "AlreadyExists", id="a name is given once"),
        pytest.param("POST", PODS, pod("Not_A_Name"), 422, "Invalid", id="a name follows RFC 1123"),
        pytest.param(
            "POST", "/api/v1/namespaces/nowhere/pods", pod("a"), 404, "NotFound", id="the namespace must exist"
        ),
        pytest.param(
            "GET", "/apis/networking.k8s.io/v1/ingresses", None, 501, "NotImplemented", id="a kind left out gets 501"
        ),
        pytest.param("GET", PODS + "/taken/exec", None, 501, "NotImplemented", id="unknown subresources get 501"),
        pytest.param("POST", "/api/v1/pods", pod("a"), 400, "BadRequest", id="a pod needs a namespace"),
        pytest.param("POST", PODS, [1], 400, "BadRequest", id="a list is no object"),
        pytest.param(
            "POST",
            PODS,
            {**pod("a"), "metadata": {"name": "a", "labels": "x"}},
            422,
            "Invalid",
            id="labels are an object",
        ),
        pytest.param("POST", CRDS, crd(versions=[SERVED]), 422, "Invalid", id="a version of a CRD has a name"),
        pytest.param("DELETE", PODS + "/taken/status", None, 405, "MethodNotAllowed", id="a part is not deleted"),
    ],
)
async def test_what_is_refused_is_a_status(api_server, method, path, body, code, reason):
    await api_server.ask("POST", PODS, pod("taken"))
    answered, status = await api_server.ask(method, path, body)
    assert (answered, status["kind"], status["code"], status["reason"]) == (code, "Status", code, reason)
    assert status["message"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param({"labelSelector": "app=x"}, ["a", "b"], id="equal"),
        pytest.param({"labelSelector": "app!=x"}, ["c"], id="not equal"),
        pytest.param({"labelSelector": "app in (x,y),tier"}, ["b"], id="a set and an existence"),
        pytest.param({"labelSelector": "app in(x)"}, ["a", "b"], id="a set without a space before it"),
        pytest.param({"labelSelector": "!tier"}, ["a", "c"], id="absence"),
        pytest.param({"labelSelector": "tier>0"}, ["b"], id="a number above another"),
        pytest.param({"labelSelector": "tier<1"}, [], id="a number that is not below another"),
        pytest.param({"labelSelector": "app>0"}, [], id="a label that is no number"),
        pytest.param({"fieldSelector": "metadata.name=c"}, ["c"], id="by name"),
        pytest.param({"fieldSelector": "spec.nodeName="}, ["a", "c"], id="without a node"),
        pytest.param({"fieldSelector": "spec.nodeName!=,status.phase=Pending"}, ["b"], id="with a node"),
    ],
)
async def test_a_list_shows_what_its_selectors_ask_for(api_server, query, names):
    await api_server.ask("POST", PODS, pod("a", labels={"app": "x"}))
    await api_server.ask("POST", PODS, pod("b", labels={"app": "x", "tier": "1"}, nodeName="n1"))
    await api_server.ask("POST", PODS, pod("c", labels={"app": "z"}))
    _, found = await api_server.ask("GET", PODS, **query)
    assert [item["metadata"]["name"] for item in found["items"]] == names


@pytest.mark.asyncio
@pytest.mark.parametrize("selector", ["tier>", "tier>x", "tier<>1", "<tier", "tier>1.5"])
async def test_a_malformed_comparison_is_a_bad_request(api_server, selector):
    code, status = await api_server.ask("GET", PODS, labelSelector=selector)
    assert (code, status["reason"]) == (400, "BadRequest")


@pytest.mark.asyncio
async def test_a_field_that_no_selector_knows_is_a_bad_request(api_server):
    code, status = await api_server.ask("GET", PODS, fieldSelector="spec.colour=red")
    assert (code, status["reason"]) == (400, "BadRequest")


@pytest.mark.asyncio
async def test_pages_show_every_object_once(api_server):
    for number in range(7):
        await api_server.ask("POST", PODS, pod(f"p{number}"))
    records, token = [], ""
    while True:
        _, page = await api_server.ask("GET", PODS, limit="3", **({"continue": token} if token else {}))
        records += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert records == [f"p{number}" for number in range(7)]


@pytest.mark.asyncio
@pytest.mark.parametrize("token", ['[Infinity, "a", "b"]', "[" * 100_000, "7", "no JSON"])
async def test_a_malformed_continue_token_is_a_bad_request(api_server, token):
    sent = base64.urlsafe_b64encode(token.encode()).decode()[:4000]
    code, status = await api_server.ask("GET", PODS, limit="3", **{"continue": sent})
    assert (code, status["reason"]) == (400, "BadRequest")


@pytest.mark.asyncio
@pytest.mark.parametrize("media_type", [MERGE, STRATEGIC])
@pytest.mark.parametrize("depth", [400, 100_000])
async def test_a_deeply_nested_body_gets_an_answer(api_server, depth, media_type):
    await api_server.ask("POST", PODS, pod("a"))
    nested = '{"x": ' * depth + "1" + "}" * depth
    for method, path, sent, type_ in (
        ("POST", PODS, f'{{"metadata": {{"name": "b"}}, "spec": {nested}}}', "application/json"),
        ("PATCH", PODS + "/a", f'{{"spec": {{"overhead": {nested}}}}}', media_type),
        ("PUT", PODS + "/a", f'{{"metadata": {{"name": "a"}}, "spec": {nested}}}', "application/json"),
        ("DELETE", PODS + "/a", nested, "application/json"),
    ):
        code, _ = await api_server.ask(method, path, sent, type_)
        assert code in (200, 201, 400, 422), method


@pytest.mark.asyncio
@pytest.mark.parametrize("containers", [[{"name": ["x"]}], [{"name": {}}]])
async def test_a_merge_key_that_is_no_text_is_invalid(api_server, containers):
    await api_server.ask("POST", PODS, pod("a"))
    code, status = await api_server.ask("PATCH", PODS + "/a", {"spec": {"containers": containers}}, STRATEGIC)
    assert (code, status["reason"]) == (422, "Invalid")


@pytest.mark.asyncio
async def test_a_stale_write_conflicts_and_an_empty_one_is_no_write(api_server):
    _, first = await api_server.ask("POST", PODS, pod("a"))
    _, second = await api_server.ask("PATCH", PODS + "/a", {"metadata": {"labels": {"x": "1"}}}, MERGE)
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    code, status = await api_server.ask("PUT", PODS + "/a", first)
    assert (code, status["reason"]) == (409, "Conflict")
    _, third = await api_server.ask("PATCH", PODS + "/a", {"metadata": {"labels": {"x": "1"}}}, MERGE)
    assert third["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


@pytest.mark.asyncio
async def test_status_and_the_rest_are_written_apart(api_server):
    await api_server.ask("POST", PODS, pod("a"))
    wish = {"status": {"nominatedNodeName": "n7"}, "spec": {"priority": 7}}
    _, with_status = await api_server.ask("PATCH", PODS + "/a/status", wish, MERGE)
    assert with_status["status"]["nominatedNodeName"] == "n7"
    assert with_status["status"]["phase"] == "Pending"
    assert with_status["spec"]["priority"] == 0
    _, unchanged = await api_server.ask("PATCH", PODS + "/a", {"status": {"phase": "Failed"}}, MERGE)
    assert unchanged["status"]["phase"] == "Pending"


@pytest.mark.asyncio
async def test_conditions_merge_by_type_in_a_strategic_patch(api_server):
    await api_server.ask(
        "POST",
        "/api/v1/nodes",
        {
            "metadata": {"name": "n1"},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]
            },
        },
    )
    wish = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    _, node = await api_server.ask("PATCH", "/api/v1/nodes/n1/status", wish, STRATEGIC)
    assert {c["type"]: c["status"] for c in node["status"]["conditions"]} == {
        "Ready": "Unknown",
        "DiskPressure": "False",
    }


@pytest.mark.asyncio
async def test_a_pod_is_bound_once_and_loses_its_nomination(api_server):
    await api_server.ask("POST", PODS, pod("a"))
    await api_server.ask("PATCH", PODS + "/a/status", {"status": {"nominatedNodeName": "n1"}}, MERGE)
    assert (await api_server.ask("POST", PODS + "/a/binding", {"target": {"kind": "Node", "name": "n1"}}))[0] == 201
    _, bound = await api_server.ask("GET", PODS + "/a")
    assert bound["spec"]["nodeName"] == "n1"
    assert "nominatedNodeName" not in bound["status"]
    assert {c["type"]: c["status"] for c in bound["status"]["conditions"]} == {"PodScheduled": "True"}
    code, status = await api_server.ask("POST", PODS + "/a/binding", {"target": {"kind": "Node", "name": "n2"}})
    assert (code, status["reason"]) == (409, "Conflict")
    assert (await api_server.ask("PATCH", PODS + "/a", {"spec": {"nodeName": "n2"}}, MERGE))[0] == 422


def affinity(*terms):
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
NODE = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
GATED = {"schedulingGates": [{"name": "wait"}]}


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        pytest.param(GATED, {"affinity": affinity(NODE)}, 200, id="a gated pod is bound to one node"),
        pytest.param(
            GATED,
            {"affinity": affinity(NODE), "schedulingGates": None},
            200,
            id="the gate is lifted with the same write",
        ),
        pytest.param(
            {**GATED, "affinity": affinity(ZONE)},
            {"affinity": affinity({**ZONE, **NODE})},
            200,
            id="a term gets narrower",
        ),
        pytest.param({**GATED, "affinity": affinity(ZONE)}, {"affinity": affinity(NODE)}, 422, id="a term is replaced"),
        pytest.param(
            {**GATED, "affinity": affinity(ZONE)},
            {"affinity": affinity(ZONE, NODE)},
            422,
            id="another term allows more",
        ),
        pytest.param(GATED, {"nodeSelector": {"zone": "a"}}, 200, id="a gated pod gets a selector"),
        pytest.param(
            {**GATED, "nodeSelector": {"zone": "a"}}, {"nodeSelector": {"zone": "b"}}, 422, id="a selector is changed"
        ),
        pytest.param({}, {"affinity": affinity(NODE)}, 422, id="a pod without a gate keeps its affinity"),
    ],
)
@pytest.mark.asyncio
async def test_only_a_gated_pod_may_be_narrowed_to_fewer_nodes(api_server, before, after, code):
    """Source: ValidatePodUpdate and KEP-3838 of Kubernetes"""
    one_pod = pod("a")
    one_pod["spec"].update(before)
    assert (await api_server.ask("POST", PODS, one_pod))[0] == 201
    assert (await api_server.ask("PATCH", PODS + "/a", {"spec": after}, MERGE))[0] == code


@pytest.mark.asyncio
async def test_a_finalizer_holds_a_deleted_object(api_server):
    path = "/api/v1/namespaces/default/configmaps"
    await api_server.ask("POST", path, {"metadata": {"name": "a", "finalizers": ["x.example/hold"]}})
    await api_server.ask("DELETE", path + "/a")
    code, stored = await api_server.ask("GET", path + "/a")
    assert code == 200
    assert stored["metadata"]["deletionTimestamp"]
    await api_server.ask("PATCH", path + "/a", {"metadata": {"finalizers": None}}, MERGE)
    assert (await api_server.ask("GET", path + "/a"))[0] == 404


@pytest.mark.asyncio
async def test_a_delete_obeys_its_preconditions(api_server):
    _, stored = await api_server.ask("POST", PODS, pod("a"))
    assert (await api_server.ask("DELETE", PODS + "/a", {"preconditions": {"uid": "another"}}))[0] == 409
    assert (await api_server.ask("DELETE", PODS + "/a", {"preconditions": {"uid": stored["metadata"]["uid"]}}))[
        0
    ] == 200


@pytest.mark.asyncio
async def test_an_eviction_obeys_its_preconditions(api_server):
    """A version that is not the pod's changes nothing of it. Source: addConditionAndDeletePod of Kubernetes"""
    await api_server.ask("POST", PODS, pod("a"))
    await api_server.ask("POST", PODS + "/a/binding", {"target": {"name": "n1"}})
    _, bound = await api_server.ask("GET", PODS + "/a")
    for version, code in (("1", 409), (bound["metadata"]["resourceVersion"], 201)):
        body = {"metadata": {"name": "a"}, "deleteOptions": {"preconditions": {"resourceVersion": version}}}
        assert (await api_server.ask("POST", PODS + "/a/eviction", body))[0] == code
        _, left = await api_server.ask("GET", PODS + "/a")
        assert (left == bound) == (code == 409)
    assert [each["type"] for each in left["status"]["conditions"]] == ["PodScheduled", "DisruptionTarget"]
    assert left["metadata"]["deletionTimestamp"]


@pytest.mark.asyncio
async def test_a_watch_goes_on_from_a_list_and_misses_nothing(api_server):
    await api_server.ask("POST", PODS, pod("a"))
    _, listed = await api_server.ask("GET", PODS)
    await api_server.ask("POST", PODS, pod("b"))
    await api_server.ask("PATCH", PODS + "/a", {"metadata": {"labels": {"x": "1"}}}, MERGE)
    watching = asyncio.create_task(api_server.watch(PODS, 4, resourceVersion=listed["metadata"]["resourceVersion"]))
    await api_server.ask("DELETE", PODS + "/b")
    await api_server.ask("POST", PODS, pod("c"))
    events = await asyncio.wait_for(watching, 10)
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("DELETED", "b"),
        ("ADDED", "c"),
    ]
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert versions == sorted(set(versions))


@pytest.mark.asyncio
async def test_a_selector_makes_a_watch_see_objects_come_and_go(api_server):
    _, listed = await api_server.ask("GET", PODS)
    version = listed["metadata"]["resourceVersion"]
    await api_server.ask("POST", PODS, pod("a"))
    await api_server.ask("POST", PODS + "/a/binding", {"target": {"name": "n1"}})
    waiting = await api_server.watch(PODS, 2, resourceVersion=version, fieldSelector="spec.nodeName=")
    changes = await api_server.watch(PODS, 1, resourceVersion=version, fieldSelector="spec.nodeName=n1")
    assert [e["type"] for e in waiting] == ["ADDED", "DELETED"]
    assert [e["type"] for e in changes] == ["ADDED"]


@pytest.mark.asyncio
async def test_a_version_that_is_forgotten_is_gone(api_server):
    _, listed = await api_server.ask("GET", PODS)
    for number in range(120):  # the fixture keeps 50 changes
        await api_server.ask("POST", PODS, pod(f"p{number}"))
    status = (await api_server.watch(PODS, 1, resourceVersion=listed["metadata"]["resourceVersion"]))[0]
    assert (status["code"], status["reason"]) == (410, "Expired")


@pytest.mark.asyncio
async def test_a_watch_ends_in_time_and_gives_bookmarks(api_server):
    began = time.monotonic()
    events = await api_server.watch(PODS, 99, timeoutSeconds="1", sendInitialEvents="true", allowWatchBookmarks="true")
    assert 0.9 < time.monotonic() - began < 8
    assert events[0]["type"] == "BOOKMARK"
    assert events[0]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@pytest.mark.asyncio
async def test_a_lease_is_never_overwritten_blindly(api_server):
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    await api_server.ask("POST", path, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    code, status = await api_server.ask(
        "PUT", path + "/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}}
    )
    assert (code, status["reason"]) == (422, "Invalid")


@pytest.mark.asyncio
async def test_the_official_client_reads_writes_and_watches(api_server):
    assert await asyncio.to_thread(official, str(api_server.served.kubeconfig)) == (
        ["a"],
        [("ADDED", "a"), ("DELETED", "a")],
    )


def official(kubeconfig):
    with open(kubeconfig) as file:
        config = yaml.safe_load(file)
    assert config["current-context"] == "turnout-local"
    assert [each["name"] for each in config["contexts"]] == ["turnout-local"]
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        core = kubernetes.client.CoreV1Api(client)
        core.create_namespaced_pod("default", pod("a"))
        core.patch_namespaced_pod_status("a", "default", {"status": {"phase": "Running"}})
        listed = core.list_namespaced_pod("default", field_selector="status.phase=Running")
        core.delete_namespaced_pod("a", "default")
        watch = kubernetes.watch.Watch()
        events = []
        for event in watch.stream(core.list_namespaced_pod, "default", resource_version="1", timeout_seconds=5):
            if event["type"] != "MODIFIED":
                events.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                watch.stop()
        return [item.metadata.name for item in listed.items], events


@pytest.mark.asyncio
async def test_custom_resources_take_merge_patches_only(api_server):
    path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
    await api_server.ask("POST", path, GROUP)
    code, status = await api_server.ask("PATCH", path + "/g", {"spec": {"minMember": 4}}, STRATEGIC)
    assert (code, status["reason"]) == (415, "UnsupportedMediaType")
    _, group = await api_server.ask("PATCH", path + "/g", {"spec": {"minMember": 4}}, MERGE)
    assert (group["spec"]["minMember"], group["metadata"]["generation"]) == (4, 2)


@pytest.mark.asyncio
async def test_a_json_patch_applies_whole_or_not_at_all(api_server):
    await api_server.ask("POST", PODS, pod("a", labels={"x": "1"}))
    kind = "application/json-patch+json"
    wish = [
        {"op": "replace", "path": "/metadata/labels/x", "value": "2"},
        {"op": "test", "path": "/kind", "value": "Node"},
    ]
    assert (await api_server.ask("PATCH", PODS + "/a", wish, kind))[0] == 422
    _, stored = await api_server.ask("GET", PODS + "/a")
    assert stored["metadata"]["labels"] == {"x": "1"}
    _, changed = await api_server.ask("PATCH", PODS + "/a", wish[:1], kind)
    assert changed["metadata"]["labels"] == {"x": "2"}
    for path in ("/kind/x", 5):
        assert (await api_server.ask("PATCH", PODS + "/a", [{"op": "remove", "path": path}], kind))[0] == 422


@pytest.mark.parametrize(("group", "version", "error"), [
    pytest.param("networking.k8s.io", "v1", ApiRefusal, id="a stable kind that is left out: this API does less"),
    pytest.param("scheduling.k8s.io", "v1beta1", Unserved, id="a beta, which is off on a real server"),
    pytest.param("apps", "v1", ApiRefusal, id="a stable kind of a group without a dot"),
    pytest.param("batch", "v1beta1", Unserved, id="a beta of a group without a dot, which no server has"),
    pytest.param("autoscaling", "v2beta2", Unserved, id="a second beta of a group without a dot"),
    pytest.param("autoscaling", "v2", ApiRefusal, id="a second stable version"),
    pytest.param("", "v1", ApiRefusal, id="a stable kind of the core group"),
    pytest.param("scheduling.volcano.sh", "v1", Unserved, id="a CRD that nobody applied"),
])  # fmt: skip
def test_whether_a_kind_is_not_found_or_left_out(group, version, error):
    assert isinstance(not_served_error(group, version, "/path"), error)
