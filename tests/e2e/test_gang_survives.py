"""Gangs outlive what happens to the extender and to the room they were promised."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal

import aiohttp
import pytest
from aiohttp import web

from tests.e2e.proxy import Proxy
from tests.e2e.stories import PODS, bound_now, landed_where, refused, remove, tempt
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
REQUIRED = {labels.TOPOLOGY: "required"}


@pytest.mark.contract("CS-09")
async def test_an_extender_that_dies_in_mid_gang_does_not_stop_scheduling(stage):
    """CS-09: `ignorable`. What it can no longer enforce is counted once it is back."""
    await stage.build(leaves=4, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    pods = cluster.koordinator_gang("bert", 8, notes=REQUIRED | {labels.TOPOLOGY_TIER: "2"})
    await stage.submit(*pods[:4])
    await stage.landed("bert", 4, within_s=15)
    stage.plane.kill_program("extender")
    wide = cluster.koordinator_gang("wide", 8, notes=REQUIRED)
    await stage.submit(*pods[4:], *wide)
    assert len(await stage.landed("bert", 8, within_s=15)) == 8
    assert len(await stage.landed("wide", 8, within_s=15)) == 8
    stage.start_extender()
    await stage.eventually(lambda: stage.metric('turnout_gang_pods_violating{rule="tier"}') >= 8)


@pytest.mark.slow
async def test_an_extender_that_hangs_delays_pods_and_does_not_stop_scheduling(stage):
    """The scheduler waits for its timeout, and then goes on without the extender."""
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    os.kill(stage.plane.pid("extender"), signal.SIGSTOP)
    await stage.submit(*cluster.koordinator_gang("bert", 2))
    assert len(await stage.landed("bert", 2, within_s=60)) == 2


async def test_after_a_kill_in_mid_gang_the_rest_lands_in_the_same_leaf(stage):
    await stage.build()
    free_leaf = await tempt(stage)
    stage.start_extender()
    stage.start_scheduler()
    pods = cluster.koordinator_gang("bert", 8)
    await stage.submit(*pods[:4])
    assert set(stage.leaves(await stage.landed("bert", 4, within_s=15))) == {free_leaf}
    stage.plane.kill_program("extender")
    stage.start_extender()
    await stage.submit(*pods[4:])
    node_by_pod = await stage.landed("bert", 8, within_s=15)
    assert set(stage.leaves(node_by_pod)) == {free_leaf}
    assert stage.ring(node_by_pod).total == 0


@pytest.mark.slow
async def test_calls_that_alternate_between_two_replicas_give_one_leaf(stage):
    await stage.build()
    free_leaf = await tempt(stage)
    ports = [stage.start_extender("extender"), stage.start_extender("another")]
    async with alternating(ports) as (port, counts):
        stage.start_scheduler(port)
        await stage.submit(*cluster.koordinator_gang("bert", 8))
        node_by_pod = await stage.landed("bert", 8)
    assert set(stage.leaves(node_by_pod)) == {free_leaf}
    assert min(counts) >= 3


async def test_a_stranger_on_a_planned_host_sends_the_rest_to_the_next_leaf_only(stage):
    await stage.build()
    free_leaf = await tempt(stage)
    stage.start_extender()
    stage.start_scheduler()
    pods = cluster.koordinator_gang("bert", 8)
    await stage.submit(*pods[:5])
    await stage.landed("bert", 5, within_s=15)
    await take_a_free_host(stage, free_leaf, await bound_now(stage, "bert"))
    await stage.submit(*pods[5:])
    node_by_pod = await stage.landed("bert", 8, within_s=15)
    assert stage.leaves(node_by_pod)[free_leaf] >= 5
    assert stage.ring(node_by_pod).crossings[:2] == (
        2,
        0,
    )  # one leaf more, under the same spine, and a ring in and out of it


@pytest.mark.slow
async def test_a_started_required_gang_that_lost_a_host_is_told_to_be_partial(stage):
    await stage.build()
    free_leaf = await tempt(stage)
    stage.start_extender()
    stage.start_scheduler()
    pods = cluster.koordinator_gang("bert", 8, notes=REQUIRED)
    await stage.submit(*pods[:5])
    await stage.landed("bert", 5, within_s=15)
    await take_a_free_host(stage, free_leaf, await bound_now(stage, "bert"))
    await stage.submit(*pods[5:])
    messages = await refused(stage, "bert", 3)
    assert all("GangPartial" in message for message in messages.values())
    await stage.events("GangPartial")
    await stage.eventually(lambda: stage.metric('turnout_gangs{state="partial"}') == 1)
    async with stage.plane.api() as api:
        await api.delete(f"{PODS}/intruder")
    assert set(stage.leaves(await stage.landed("bert", 8, within_s=20))) == {free_leaf}


@contextlib.asynccontextmanager
async def refused_behind_a_proxy(stage, folder):
    """Place a gang on half of a leaf; another that needs all of it is refused. Gives the proxy of the extender."""
    await stage.build(leaves=1, hosts_per_leaf=4)
    async with Proxy(stage.plane.url) as proxy:
        through = proxy.kubeconfig(stage.plane.kubeconfig, folder)
        await asyncio.to_thread(stage.start_extender, "extender", "--kubeconfig", str(through))
        stage.start_scheduler()
        await stage.submit(*cluster.koordinator_gang("old", 2))
        await stage.landed("old", 2, within_s=15)
        await stage.submit(*cluster.koordinator_gang("new", 4))
        async with stage.plane.api() as api:
            await api.until(f"{PODS}?labelSelector=gang%3Dnew", refusal_of(4, "2 NoRoom: 4 pods must start together"))
        yield proxy


async def test_a_gang_refused_while_a_watch_was_down_lands_once_it_is_back(stage, tmp_path):
    async with refused_behind_a_proxy(stage, tmp_path) as proxy, stage.plane.api() as api:
        proxy.shut()
        await remove(stage, "old", 2)  # the scheduler sees it, the extender does not
        await api.until(f"{PODS}?labelSelector=gang%3Dnew", refusal_of(4, "4 OldView at "))
        assert await bound_now(stage, "new") == {}
        proxy.open()
        assert len(await stage.landed("new", 4)) == 4


async def test_a_gang_refused_by_a_view_behind_the_schedulers_lands_all_the_same(stage, tmp_path):
    """The scheduler asks once, when it sees the pod go itself: nothing changes later."""
    async with refused_behind_a_proxy(stage, tmp_path) as proxy:
        proxy.late_s = 0.5
        await remove(stage, "old", 2)
        assert len(await stage.landed("new", 4)) == 4


def refusal_of(count, why):
    """Return a question to pods: True if `count` of them wait for this reason, as the scheduler was told."""
    return lambda pods: (
        sum(why in c.get("message", "") for p in pods for c in p["status"].get("conditions", [])) == count
    )


async def take_a_free_host(stage, leaf, node_by_pod):
    """A stranger takes a host of a leaf that nobody is bound to, past every scheduler."""
    free = [
        node for node, ip in sorted(stage.ip_of.items()) if stage.leaf[ip] == leaf and node not in node_by_pod.values()
    ]
    await stage.submit(cluster.make_pod("intruder", 8, nodeName=free[0], marks={"who": "intruder"}))
    await landed_where(stage, "who%3Dintruder", 1)
    await stage.eventually(lambda: stage.view()["pods"] > 0)


@contextlib.asynccontextmanager
async def alternating(ports):
    """A proxy that hands each call to the next of some extenders. Gives its port and how often each was asked."""
    turn, counts = itertools.cycle(range(len(ports))), [0] * len(ports)
    async with aiohttp.ClientSession() as session:

        async def hand_on(request):
            at = next(turn)
            counts[at] += 1
            url = f"http://127.0.0.1:{ports[at]}{request.path}"
            async with session.post(url, data=await request.read(), headers={"Content-Type": "application/json"}) as it:
                return web.Response(body=await it.read(), status=it.status, content_type="application/json")

        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/{verb}", hand_on)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield runner.addresses[0][1], counts
        finally:
            await runner.cleanup()
