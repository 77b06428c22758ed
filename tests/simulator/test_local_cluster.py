"""The local cluster's scheduler over real HTTP: an embedded API on one side, a small real extender on the other."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import test_utils, web

from turnout.kube import labels
from turnout.simulator.cluster.runtime.clients import ApiError, ExtenderClient, HttpClient, read_reply
from turnout.simulator.cluster.runtime.scheduler_loop import Scheduler, SchedulerSettings
from turnout.simulator.cluster.scheduler import ExtenderReply, ExtenderSettings, ExtenderVerb, WaitReason
from turnout.simulator.local_cluster import background, local_cluster

PODS = "/api/v1/namespaces/default/pods"


def raw_node(name, gpus=8):
    offers = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {"metadata": {"name": name}, "status": {"allocatable": offers}}


def raw_pod(name, gpus=8, **spec):
    asks = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "m", "image": "a:1", "resources": {"requests": asks, "limits": asks}}],
            **spec,
        },
    }


@asynccontextmanager
async def extender(answer):
    """A real extender: answer(verb, asked) gives what goes back as JSON, or an HTTP status."""

    async def handle(request):
        reply = answer(request.path.strip("/"), json.loads(await request.read()))
        return web.Response(status=reply) if isinstance(reply, int) else web.json_response(reply)

    app = web.Application()
    app.router.add_post("/{verb}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def scheduling(api_server, url=None, **settings):
    """A scheduler at work. Gives a function that waits until a pod has been tried once more, and says the outcome."""
    outcomes = asyncio.Queue()
    asks = ExtenderClient(api_server.session, url) if url else None
    scheduler = Scheduler(
        HttpClient(api_server.session, api_server.url),
        SchedulerSettings(extender=ExtenderSettings() if url else None, backoff_s=(0.01, 0.05), **settings),
        asks,
        lambda namespace, name, outcome: outcomes.put_nowait((name, outcome)),
    )
    task = asyncio.create_task(scheduler.run())
    try:
        yield lambda: asyncio.wait_for(outcomes.get(), 10)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def nodes_of(api_server):
    _, listed = await api_server.ask("GET", PODS)
    return {item["metadata"]["name"]: item["spec"].get("nodeName") for item in listed["items"]}


@pytest.mark.asyncio
async def test_pods_are_bound_through_the_api_and_spread(api_server):
    for name in ("a", "b"):
        await api_server.ask("POST", "/api/v1/nodes", raw_node(name))
    async with scheduling(api_server) as scheduler:
        for name in ("p", "q"):
            await api_server.ask("POST", PODS, raw_pod(name))
            await scheduler()
    assert sorted((await nodes_of(api_server)).values()) == ["a", "b"]


@pytest.mark.asyncio
async def test_a_binding_that_fails_is_reported_as_no_node_and_tried_again(api_server):
    await api_server.ask("POST", "/api/v1/nodes", raw_node("a"))
    await api_server.ask("POST", PODS, raw_pod("p"))
    fault = {"verb": "create", "resource": "pods", "code": 503}
    assert (await api_server.ask("POST", "/turnout/faults", fault))[0] == 201
    async with scheduling(api_server) as scheduler:
        _, failed = await scheduler()
        _, bound = await scheduler()
    assert failed.why is WaitReason.SCHEDULER_ERROR
    assert bound.node == (await nodes_of(api_server))["p"] == "a"


@pytest.mark.asyncio
async def test_the_extender_sees_names_and_a_whole_pod_and_is_obeyed(api_server):
    questions = []

    def answer(verb, arguments):
        questions.append((verb, arguments))
        if verb == "filter":
            return {
                "NodeNames": [n for n in arguments["NodeNames"] if n != "a"],
                "FailedNodes": {"a": "no"},
                "Error": "",
            }
        return [{"Host": "c", "Score": 10}]

    for name in ("a", "b", "c"):
        await api_server.ask("POST", "/api/v1/nodes", raw_node(name))
    async with extender(answer) as url, scheduling(api_server, url) as scheduler:
        await api_server.ask("POST", PODS, raw_pod("p"))
        await scheduler()
    assert (await nodes_of(api_server))["p"] == "c"
    assert [verb for verb, _ in questions] == ["filter", "prioritize"]
    first = questions[0][1]
    assert sorted(first["NodeNames"]) == ["a", "b", "c"]
    assert first["Nodes"] is None
    assert first["Pod"]["metadata"]["name"] == "p"
    assert first["Pod"]["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert sorted(questions[1][1]["NodeNames"]) == ["b", "c"]


@pytest.mark.parametrize(
    "raw", [b'{"x":' + b"[" * 100_000, b"[]", b"\xff"], ids=["nested too deep", "a list", "no JSON"]
)
def test_a_reply_that_cannot_be_read_is_a_value_error(raw):
    with pytest.raises(ValueError, match=r"\w"):
        read_reply(ExtenderVerb.FILTER, raw)


@pytest.mark.asyncio
async def test_an_extender_that_fails_does_not_stop_scheduling(api_server):
    await api_server.ask("POST", "/api/v1/nodes", raw_node("a"))
    await api_server.ask("POST", "/api/v1/nodes", raw_node("b"))
    async with extender(lambda *_: 500) as url, scheduling(api_server, url) as scheduler:
        await api_server.ask("POST", PODS, raw_pod("p"))
        await scheduler()
    assert (await nodes_of(api_server))["p"] in ("a", "b")


@pytest.mark.asyncio
async def test_a_pod_without_room_waits_until_room_is_made(api_server):
    await api_server.ask("POST", "/api/v1/nodes", raw_node("a"))
    await api_server.ask("POST", PODS, raw_pod("there", nodeName="a"))
    async with scheduling(api_server) as scheduler:
        await api_server.ask("POST", PODS, raw_pod("p"))
        _, first = await scheduler()
        assert first.message == "0/1 nodes are available: none holds the pod."
        await api_server.ask("DELETE", PODS + "/there", gracePeriodSeconds="0")
        assert (await scheduler())[1].node == "a"
    assert (await nodes_of(api_server))["p"] == "a"


@pytest.mark.asyncio
async def test_the_nominated_node_is_tried_first(api_server):
    for name in ("a", "b", "c"):
        await api_server.ask("POST", "/api/v1/nodes", raw_node(name))
    gated = raw_pod("p", schedulerName="later")
    await api_server.ask("POST", PODS, gated)
    await api_server.ask(
        "PATCH", PODS + "/p/status", {"status": {"nominatedNodeName": "c"}}, "application/merge-patch+json"
    )
    async with scheduling(api_server, name="later") as scheduler:
        assert (await scheduler())[1].feasible == 1
    assert (await nodes_of(api_server))["p"] == "c"


@pytest.mark.asyncio
async def test_pods_of_another_scheduler_and_gated_pods_are_left_alone(api_server):
    await api_server.ask("POST", "/api/v1/nodes", raw_node("a"))
    await api_server.ask("POST", PODS, raw_pod("other", schedulerName="another"))
    await api_server.ask("POST", PODS, raw_pod("gated", schedulingGates=[{"name": "wait"}]))
    async with scheduling(api_server) as scheduler:
        await api_server.ask("POST", PODS, raw_pod("mine", gpus=1))
        assert (await scheduler())[0] == "mine"
    assert await nodes_of(api_server) == {"other": None, "gated": None, "mine": "a"}


BAD_ANSWERS = [
    pytest.param(b"<html>502 Bad Gateway</html>", id="the page of a proxy"),
    pytest.param(b"\xff\xfe", id="bytes that are no text"),
    pytest.param(b"[1]", id="JSON that is no object"),
    pytest.param(b"[" * 100_000, id="lists a hundred thousand deep"),
]


@pytest.mark.parametrize("text", BAD_ANSWERS)
@pytest.mark.parametrize("is_listed", [
    pytest.param(False, id="of the list"),
    pytest.param(True, id="of the watch"),
])  # fmt: skip
@pytest.mark.asyncio
async def test_an_answer_that_no_api_server_gives_is_an_error_like_a_refusal(api_server, is_listed, text):
    """The loops that watch log such an error and begin again."""

    async def answer(request):
        if is_listed and "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        return web.Response(body=text + b"\n", status=200 if is_listed else 502)

    app = web.Application()
    app.router.add_get("/api/v1/pods", answer)
    async with test_utils.TestServer(app) as server:
        changes = HttpClient(api_server.session, str(server.make_url("")).rstrip("/")).changes("/api/v1/pods")
        if is_listed:
            assert (await anext(changes))[0] == "SYNCED"
        with pytest.raises(ApiError):
            await anext(changes)


@pytest.mark.asyncio
async def test_what_was_deleted_while_the_watch_was_away_is_told(api_server):
    await api_server.ask("POST", PODS, raw_pod("stays"))
    await api_server.ask("POST", PODS, raw_pod("goes"))
    changes = HttpClient(api_server.session, api_server.url).changes("/api/v1/pods")
    first = [await anext(changes) for _ in range(3)]
    assert [word for word, _ in first] == ["ADDED", "ADDED", "SYNCED"]
    await api_server.ask("DELETE", PODS + "/goes")
    for number in range(120):  # the API keeps 50 changes: the version is too old before the watch begins
        await api_server.ask("POST", PODS, raw_pod(f"p{number}"))
    word, change = await asyncio.wait_for(anext(changes), 10)
    assert (word, change.obj["metadata"]["name"]) == ("DELETED", "goes")
    words = [(await asyncio.wait_for(anext(changes), 10))[0] for _ in range(122)]
    assert words == ["ADDED"] * 121 + ["SYNCED"]
    await changes.aclose()


class Meddler:
    """An extender's client that lets something happen while it is asked about a pod, once."""

    def __init__(self, pod, meanwhile):
        self.pod, self.meanwhile = pod, meanwhile

    async def ask(self, pod, question):
        if pod["metadata"]["name"] == self.pod and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return ExtenderReply(feasible_nodes=question.names)


async def forgotten(scheduler, uid):
    """Wait until a scheduler has seen that a pod is gone."""
    async for _ in every_turn():
        if scheduler.waiting.pod_info(uid) is None:
            return


async def every_turn():
    """Give the others a turn of the loop, again and again."""
    while True:
        yield await asyncio.sleep(0)


def gang_pod(name, gang="bert", minimum=2):
    pod = raw_pod(name, gpus=1, schedulerName="volcano")
    notes = {labels.KOORD_NAME: gang, labels.KOORD_MIN: str(minimum)}
    return {**pod, "metadata": {"name": name, "annotations": notes}}


@pytest.mark.asyncio
@pytest.mark.parametrize("deleted_member", ["bert-0", "bert-1", "bert-2"])
async def test_a_member_that_is_deleted_while_its_gang_is_decided_stops_nobody(api_server, deleted_member):
    """Asked about bert-1, the second of three: one before it is decided, one after it is not."""
    await api_server.ask("POST", "/api/v1/nodes", raw_node("a"))
    uids = {}
    for index in range(3):
        _, stored = await api_server.ask("POST", PODS, gang_pod(f"bert-{index}", minimum=3))
        uids[stored["metadata"]["name"]] = stored["metadata"]["uid"]

    async def meanwhile():
        await api_server.ask("DELETE", f"{PODS}/{deleted_member}?gracePeriodSeconds=0")
        await forgotten(scheduler, uids[deleted_member])

    outcomes = asyncio.Queue()
    scheduler = Scheduler(
        HttpClient(api_server.session, api_server.url),
        SchedulerSettings(extender=ExtenderSettings(), backoff_s=(0.01, 0.05)),
        Meddler("bert-1", meanwhile),
        lambda namespace, name, outcome: outcomes.put_nowait((name, outcome)),
    )
    async with asyncio.timeout(20), background() as tasks:
        tasks.start(scheduler.run())
        refused = {(await outcomes.get())[0] for _ in range(2)}
        assert refused == uids.keys() - {deleted_member}
        await api_server.ask("POST", PODS, raw_pod("later", gpus=1))
        while (await outcomes.get())[0] != "later":
            pass
        await api_server.ask("POST", PODS, gang_pod("bert-3", minimum=3))
        while list((await nodes_of(api_server)).values()).count("a") < 4:
            await outcomes.get()


@pytest.mark.asyncio
async def test_an_object_that_cannot_be_read_stops_nobody(api_server):
    await api_server.ask("POST", "/api/v1/nodes", raw_node("a"))
    groups = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups"
    odd = {"metadata": {"name": "odd"}, "spec": {"minMember": "two"}}
    await api_server.ask("POST", groups, {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup", **odd})
    async with scheduling(api_server) as scheduler:
        await api_server.ask("POST", PODS, raw_pod("p"))
        assert (await scheduler())[0] == "p"


async def fails():
    raise KeyError("bert")


async def runs(*parts):
    """Run a local cluster with these parts beside its block, which waits for ever if there are any."""
    async with asyncio.timeout(20), local_cluster() as local:
        local.schedule(SchedulerSettings())
        for part in parts:
            local.background.start(part())
        if parts:
            await asyncio.Event().wait()
        raise ZeroDivisionError


@pytest.mark.asyncio
async def test_a_part_of_a_cluster_that_fails_ends_the_block_with_its_error():
    with pytest.raises(KeyError, match="bert"):
        await runs(fails)


@pytest.mark.asyncio
async def test_an_error_of_the_block_itself_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        await runs()
