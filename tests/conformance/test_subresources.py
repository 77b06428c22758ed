"""Binding, eviction, scale."""

import pytest

from tests.conformance.sides import MERGE, STRATEGIC, pod

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
APPS = "apps/v1"


def binding(name, node):
    return {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}


def stateful_set(name, replicas=None):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    spec = {"serviceName": name, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec | ({} if replicas is None else {"replicas": replicas})}


def serving(name, **labels):
    return pod(name, labels=labels, spec={"nodeName": "n1"})


async def run(side, name):
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await side.peek("PATCH", side.path("pods", name, "status"), {"status": status}, MERGE)


async def test_a_pod_is_bound_once(both):
    async def story(side):
        await side.ask("POST", side.path("pods"), pod("a"))
        wish = {"status": {"nominatedNodeName": "n9"}}
        await side.ask("PATCH", side.path("pods", "a", "status"), wish, MERGE)
        await side.ask("POST", side.path("pods", "a", "binding"), binding("a", "n1"))
        await side.ask("POST", side.path("pods", "a", "binding"), binding("a", "n2"))
        await side.ask("POST", side.path("pods", "nobody", "binding"), binding("nobody", "n1"))
        await side.ask("POST", side.path("pods", "a", "binding"), {"metadata": {"name": "a"}, "target": {}})
        await side.ask("GET", side.path("pods", "a"))

    await both.agree(story)


async def test_a_pod_that_leaves_is_not_bound(both):
    async def story(side):
        await side.peek("POST", side.path("pods"), pod("a", finalizers=["turnout.dev/hold"]))
        await side.peek("DELETE", side.path("pods", "a"))
        await side.ask("POST", side.path("pods", "a", "binding"), binding("a", "n1"))

    await both.agree(story)


async def test_scale_is_read_and_written(both):
    async def story(side):
        scale = side.path("statefulsets", "web", "scale", APPS)
        await side.ask("POST", side.path("statefulsets", group=APPS), stateful_set("web", 3))
        _, scale_object = await side.ask("GET", scale)
        await side.ask("PUT", scale, scale_object | {"spec": {"replicas": 5}})
        await side.ask("PUT", scale, scale_object | {"spec": {"replicas": 6}})  # its version is old by now
        await side.ask("PATCH", scale, {"spec": {"replicas": 2}}, MERGE)
        await side.ask("PATCH", scale, {"spec": {"replicas": -1}}, MERGE)
        await side.ask("GET", side.path("statefulsets", "nobody", "scale", APPS))

    await both.agree(story)


async def test_an_eviction_deletes_with_grace(both):
    async def story(side):
        await side.peek("POST", side.path("pods"), serving("a"))
        await side.ask("POST", side.path("pods", "a", "eviction"), {"metadata": {"name": "a"}})
        _, answer = await side.ask("GET", side.path("pods", "a"))
        side.transcript.append(bool(answer["metadata"].get("deletionTimestamp")))
        await side.ask("POST", side.path("pods", "nobody", "eviction"), {"metadata": {"name": "nobody"}})

    await both.agree(story)


async def test_a_log_is_asked_for(both):
    async def story(side):
        await side.ask("GET", side.path("pods", "nobody", "log"))
        await side.ask("POST", side.path("pods"), pod("a"))
        await side.ask("GET", side.path("pods", "a", "log"))
        await side.ask("GET", side.path("pods", "a", "log"), container="other")
        two = [{"name": name, "image": "registry.example.com/a:1"} for name in ("one", "two")]
        await side.peek("POST", side.path("pods"), pod("b", spec={"containers": two}))
        await side.ask("GET", side.path("pods", "b", "log"))

    await both.agree(story)


async def test_container_statuses_are_replaced_as_one(both):
    async def story(side):
        await side.ask("POST", side.path("pods"), pod("a", spec={"nodeName": "n1"}))
        for state in ({"waiting": {"reason": "ContainerCreating"}}, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}):
            container_status = {
                "name": "main",
                "image": "a:1",
                "imageID": "a:1",
                "ready": False,
                "restartCount": 0,
                "state": state,
            }
            body = {
                "status": {
                    "containerStatuses": [container_status],
                    "conditions": [{"type": "Ready", "status": "False"}],
                }
            }
            await side.ask("PATCH", side.path("pods", "a", "status"), body, STRATEGIC)
        other = {"type": "Initialized", "status": "True"}
        await side.ask("PATCH", side.path("pods", "a", "status"), {"status": {"conditions": [other]}}, STRATEGIC)

    await both.agree(story)


async def test_a_quota_lets_in_what_it_holds_and_no_more(both):
    async def story(side):
        hard = {"pods": "2", "requests.nvidia.com/gpu": "3"}
        await side.ask("POST", side.path("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": hard}})
        # A quota whose use nobody has counted yet lets nothing in on a real server; here its controller is played.
        status = {"status": {"hard": hard, "used": {"pods": "0", "requests.nvidia.com/gpu": "0"}}}
        await side.peek("PATCH", side.path("resourcequotas", "q", "status"), status, MERGE)
        for name, gpus in (("a", 2), ("b", 2), ("c", 1), ("d", 0)):
            body = pod(name)
            body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
            code, _ = await side.peek("POST", side.path("pods"), body)
            side.transcript.append((name, code))

    await both.agree(story)
