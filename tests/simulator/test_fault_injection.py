"""FaultRules on demand, and that they end."""

import asyncio
import time

import aiohttp
import pytest

pytestmark = pytest.mark.asyncio
PODS = "/api/v1/namespaces/default/pods"
FAULTS = "/turnout/faults"


async def test_a_refusal_hits_so_many_requests_of_its_kind_and_no_others(api_server):
    await api_server.ask(
        "POST", FAULTS, {"verb": "list", "resource": "pods", "code": 429, "retry_after_s": 3, "times": 2}
    )
    assert (await api_server.ask("GET", "/api/v1/nodes"))[0] == 200
    assert (await api_server.ask("GET", PODS + "/nobody"))[0] == 404
    async with api_server.session.get(api_server.url + PODS) as refused:
        assert (refused.status, refused.headers["Retry-After"]) == (429, "3")
        assert (await refused.json())["reason"] == "TooManyRequests"
    assert [(await api_server.ask("GET", PODS))[0] for _ in range(2)] == [429, 200]


async def test_faults_are_used_up_in_order_and_can_be_cleared(api_server):
    for code in (500, 503):
        await api_server.ask("POST", FAULTS, {"code": code})
    assert [(await api_server.ask("GET", PODS))[0] for _ in range(3)] == [500, 503, 200]
    await api_server.ask("POST", FAULTS, {"code": 500, "times": 100})
    await api_server.ask("DELETE", FAULTS)
    assert (await api_server.ask("GET", PODS))[0] == 200


async def test_an_answer_can_be_slow(api_server):
    await api_server.ask("POST", FAULTS, {"slow_s": 0.2})
    began_s = time.monotonic()
    assert (await api_server.ask("GET", PODS))[0] == 200
    assert time.monotonic() - began_s >= 0.2


async def test_running_watches_can_be_dropped(api_server):
    async with api_server.session.get(api_server.url + PODS, params={"watch": "1"}) as watch:
        await api_server.ask("POST", FAULTS, {"drop": True})
        async with asyncio.timeout(5):
            assert await watch.content.read() == b""


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"code": 418}, id="a code that is none of ours"),
        pytest.param({"verb": "steal"}, id="a verb that is none"),
        pytest.param({"slow_s": -1}, id="faster than at once"),
        pytest.param({"times": 0}, id="never"),
        pytest.param({"colour": "red"}, id="a field that is none"),
        pytest.param({"slow_s": "soon"}, id="a delay that is no number"),
        pytest.param({"times": []}, id="a list of times"),
        pytest.param({"code": [429]}, id="a list of codes"),
    ],
)
async def test_a_fault_that_cannot_be_read_is_refused(api_server, document):
    assert (await api_server.ask("POST", FAULTS, document))[0] == 400
    assert (await api_server.ask("GET", PODS))[0] == 200


async def test_the_api_restarts_on_its_port_with_all_its_objects(api_server):
    pod = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "web"}]}}
    await api_server.ask("POST", PODS, pod)
    async with api_server.session.get(api_server.url + PODS, params={"watch": "1"}) as watch:
        await watch.content.readline()
        away = asyncio.create_task(api_server.served.restart(0.2))
        assert await watch.content.readline() == b"", "watches end"
    refused = 0
    while not away.done():
        try:
            await api_server.ask("GET", PODS)
        except aiohttp.ClientError:
            refused += 1
        await asyncio.sleep(0)
    await away
    assert refused > 0
    assert [each["metadata"]["name"] for each in (await api_server.ask("GET", PODS))[1]["items"]] == ["web"]
    (line,) = await api_server.watch(PODS, 1)
    assert line["object"]["metadata"]["name"] == "web"
