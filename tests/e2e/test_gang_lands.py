"""A gang lands under one switch: our extender beside a real kube-scheduler, on 64 fake GPU nodes."""

from __future__ import annotations

import pytest

from hack.controlplane import scheduler_config
from hack.controlplane.certs import Authority
from hack.controlplane.tools.parts import NEXT
from tests.e2e.stories import landed_where, remove, tempt
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio]


@pytest.mark.contract("CS-01")
async def test_a_gang_that_default_scoring_scatters_lands_ringed_under_one_leaf(stage):
    await stage.build()
    stage.plane.start_scheduler(None)
    await stage.submit(*cluster.volcano_gang("bert", 8))
    scattered = await stage.landed("bert", 8)
    stage.plane.stop_scheduler()
    await remove(stage, "bert", 8)
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.volcano_gang("bert", 8))
    node_by_pod = await stage.landed("bert", 8)
    assert len(stage.leaves(node_by_pod)) == 1
    assert stage.ring(node_by_pod).total == 0
    assert len(stage.leaves(scattered)) > 1
    assert stage.ring(scattered).total > 0


async def test_the_only_whole_leaf_is_found_and_two_leaves_ring_with_least_cost(stage):
    """16 pods need two leaves: a ring over their indices leaves each switch once."""
    await stage.build()
    free_leaf = await tempt(stage)
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.koordinator_gang("bert", 8))
    assert set(stage.leaves(await stage.landed("bert", 8))) == {free_leaf}
    await stage.submit(*cluster.koordinator_gang("gpt", 12))
    node_by_pod = await stage.landed("gpt", 12)
    across = stage.leaves(node_by_pod)
    assert stage.ring(node_by_pod).crossings[0] == len(across) > 1


async def test_an_indexed_job_of_the_controller_manager_lands_under_one_leaf(stage):
    await stage.build()
    free_leaf = await tempt(stage)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_controller_manager()
    await stage.submit(cluster.indexed_job("train", 8))
    node_by_pod = await landed_where(stage, "job-name%3Dtrain", 8)
    assert set(stage.leaves(node_by_pod)) == {free_leaf}


async def test_a_pytorch_job_of_the_training_operator_lands_under_one_leaf(stage):
    await stage.build()
    free_leaf = await tempt(stage)
    stage.start_extender()
    stage.start_scheduler()
    stage.plane.start_training_operator()
    await stage.submit(cluster.pytorch_job("train", 8))
    node_by_pod = await landed_where(stage, f"{labels.TRAINING_JOB}%3Dtrain", 8)
    assert set(stage.leaves(node_by_pod)) == {free_leaf}
    assert stage.ring(node_by_pod).total == 0


async def test_a_mixed_gang_lands_under_one_leaf_and_its_cpu_master_is_untouched(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    required = {labels.TOPOLOGY: "required"}
    master = cluster.koordinator_gang("bert", 1, minimum=6, gpus=0, notes=required)
    gpu_pods = cluster.koordinator_gang("bert", 4, minimum=6, gpus=8, notes=required)[1:]
    halves = cluster.koordinator_gang("bert", 6, minimum=6, gpus=4, notes=required)[4:]
    await stage.submit(*halves, *master, *gpu_pods)
    node_by_pod = await stage.landed("bert", 6)
    workers = {pod: node for pod, node in node_by_pod.items() if pod != "bert-0"}
    assert len(stage.leaves(workers)) == 1


@pytest.mark.parametrize(
    "control_plane",
    [pytest.param({}, id="1.35"), pytest.param({"release": NEXT}, id="1.37", marks=pytest.mark.slow)],
    indirect=True,
)
async def test_the_shipped_configuration_speaks_mtls_with_the_extender(stage, tmp_path):
    await stage.build(leaves=2, hosts_per_leaf=4)
    authority = Authority(tmp_path / "pki")
    server = authority.server("extender", scheduler_config.EXTENDER_HOSTS)
    client = authority.user("system:kube-scheduler", ())
    tls = ("--tls-cert", str(server.cert), "--tls-key", str(server.key), "--client-ca", str(authority.ca))
    port = stage.start_extender("extender", *tls)
    stage.plane.start_scheduler(scheduler_config.with_extender_url(f"https://127.0.0.1:{port}", authority.ca, client))
    await stage.submit(*cluster.volcano_gang("bert", 4, notes={labels.TOPOLOGY: "required"}))
    assert len(stage.leaves(await stage.landed("bert", 4))) == 1
    assert stage.metric('turnout_extender_requests_total{outcome="answered",verb="filter"}') >= 4
