"""The shipped KubeSchedulerConfiguration: a real kube-scheduler takes it, obeys it, does without us when it must."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from hack.controlplane import scheduler_config
from hack.controlplane.nodes import gpu_nodes
from tests.kit.cluster import bound, make_pod
from turnout.kube import labels

# Weights 3 + 2 + 2 + 2 + 1 + 1 + 1 of 1.35 without DRA, 100 points each: docs/facts/extender.md 1.4.
IN_TREE_SCORES = 1200


@pytest.mark.contract("CS-08")
@pytest.mark.parametrize("file", [scheduler_config.SHIPPED, scheduler_config.SHIPPED_KOORDINATOR], ids=lambda f: f.stem)
def test_the_shipped_extender_block_is_the_one_we_argue_for(file):
    config = yaml.safe_load(file.read_text())
    (extender,) = config["extenders"]
    assert extender["weight"] * 10 > IN_TREE_SCORES  # one step of ours outweighs all of theirs
    assert [each["name"] for each in extender["managedResources"]] == list(labels.GPU_RESOURCES)
    assert not any(each["ignoredByScheduler"] for each in extender["managedResources"])
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, True)
    assert extender["enableHTTPS"]
    assert extender["tlsConfig"]["caFile"]  # without one kube-scheduler verifies nothing
    assert config["percentageOfNodesToScore"] == 100


def test_the_two_files_differ_only_in_profile_name_and_lease():
    plain, koord = (
        yaml.safe_load(file.read_text()) for file in (scheduler_config.SHIPPED, scheduler_config.SHIPPED_KOORDINATOR)
    )
    assert koord["profiles"].pop() == {"schedulerName": "koord-scheduler"}
    assert plain["profiles"].pop() == {"schedulerName": "default-scheduler"}
    assert koord["leaderElection"].pop("resourceName") == "koord-scheduler"
    assert koord == plain


def test_an_https_extender_without_a_ca_is_refused_by_the_loader():
    with pytest.raises(ValueError, match="needs the CA"):
        scheduler_config.with_extender_url("https://127.0.0.1:1")


@asynccontextmanager
async def listener(chosen, trust=None):
    """Listen as an extender would: filter answers one node, prioritize and preempt nothing. Gives (url, calls)."""
    calls = []

    async def answer(request):
        args = await request.json()
        peer = request.transport.get_extra_info("peercert")
        calls.append((request.path, args["Pod"]["metadata"]["name"], peer and peer["subject"][-1][0][1]))
        names = [name for name in args["NodeNames"] if name == chosen]
        failed = dict.fromkeys(set(args["NodeNames"]) - set(names), "not the one")
        if request.path == "/filter":
            return web.json_response({"NodeNames": names, "FailedNodes": failed})
        return web.json_response([{"Host": name, "Score": 10} for name in names])

    app = web.Application()
    app.router.add_post("/{verb}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0, ssl=trust)
    port = server.sockets[0].getsockname()[1]
    # Begun before the end, since Python 3.11 waits for nothing afterwards: a caller in the middle of its handshake
    # is unknown to aiohttp, and would outlive the loop.
    closing = asyncio.create_task(server.wait_closed())
    try:
        yield f"{'https' if trust else 'http'}://127.0.0.1:{port}", calls
    finally:
        server.close()
        await runner.cleanup()
        await closing


@pytest_asyncio.fixture
async def api(control_plane):
    async with control_plane.api() as api:
        await api.create_all(gpu_nodes(8))
        yield api


@pytest.mark.real
@pytest.mark.asyncio
async def test_the_shipped_file_asks_over_https_with_the_schedulers_certificate(control_plane, api):
    serving = control_plane.authority.server("extender", scheduler_config.EXTENDER_HOSTS)
    client = control_plane.authority.user("kube-scheduler-at-extender")
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(control_plane.ca))
    trust.load_cert_chain(serving.cert, serving.key)
    trust.verify_mode = ssl.CERT_REQUIRED
    async with listener("node-005", trust) as (url, calls):
        control_plane.start_scheduler(scheduler_config.with_extender_url(url, control_plane.ca, client))
        await api.create_all([make_pod("asks-for-gpus", 8), make_pod("asks-for-none", 0)])
        node_by_pod = await api.until("/api/v1/pods", bound(2))
    assert node_by_pod["asks-for-gpus"] == "node-005"
    assert calls == [("/filter", "asks-for-gpus", "kube-scheduler-at-extender")]  # one feasible node: nothing to score


@pytest.mark.real
@pytest.mark.asyncio
async def test_an_extender_not_signed_by_the_ca_is_not_asked_and_blocks_nobody(control_plane, api, tmp_path):
    stranger = type(control_plane.authority)(tmp_path, "somebody-else")
    serving = stranger.server("extender", scheduler_config.EXTENDER_HOSTS)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(serving.cert, serving.key)
    async with listener("node-005", trust) as (url, calls):
        control_plane.start_scheduler(scheduler_config.with_extender_url(url, control_plane.ca))
        await api.create(make_pod("asks", 8))
        await api.until("/api/v1/pods", bound(1))
    assert calls == []
    assert "certificate signed by unknown authority" in control_plane.logs("kube-scheduler")


@pytest.mark.contract("DL-126")
@pytest.mark.real
@pytest.mark.asyncio
async def test_pods_of_koord_scheduler_are_asked_about_under_that_name(control_plane, api):
    async with listener("node-002") as (url, calls):
        config = scheduler_config.with_extender_url(url, file=scheduler_config.SHIPPED_KOORDINATOR)
        control_plane.start_scheduler(config)
        await api.create_all([make_pod("theirs", 1, scheduler="koord-scheduler"), make_pod("nobodys", 1)])
        node_by_pod = await api.until("/api/v1/pods", bound(1))
    assert node_by_pod == {"theirs": "node-002"}
    assert {pod for _, pod, _ in calls} == {"theirs"}
