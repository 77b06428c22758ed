"""A node that a real launcher's check finds faulty: told on the pod, tainted by the autoscaler, avoided, and freed."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.e2e.autoscaler.lending import JOBS, PODS, log_lines, signal_to, start_around, start_autoscaler
from tests.kit import cluster
from tests.launcher.agent.crew import Crew
from turnout.kube import labels
from turnout.kube.node_health import has_taint

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]

NODES = "/api/v1/nodes"
GIVEN = Path(__file__).parents[3] / "deploy/manifests/launcher"
ALONE = ("1", "--network-check", "--switchbox-check", "--node-verdicts")


@pytest.fixture
def crew(tmp_path):
    agents = Crew(tmp_path / "crew", *ALONE)
    yield agents
    agents.end()


def kubeconfig(stage, token, file):
    """Write what a pod's own account sees the API server by."""
    config = yaml.safe_load(stage.plane.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    file.write_text(yaml.safe_dump(config))
    return file


async def turnout(stage, *argv, code=0, by=None):
    """Run `turnout` and give what it prints. by: the kubeconfig of the caller, else the administrator's."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnout.cli", *argv, "--kubeconfig", str(by or stage.plane.kubeconfig)),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await child.communicate()
    assert child.returncode == code, err.decode()
    return (out + err).decode()


async def worker(api, but=""):
    """Wait until the job has a worker with a node, another one than before; the pod."""

    def running_worker(pods):
        mine = (pod for pod in pods if (pod["metadata"].get("labels") or {}).get("job-name") == "bert")
        living = (pod for pod in mine if not pod["metadata"].get("deletionTimestamp"))
        return next((pod for pod in living if pod["spec"].get("nodeName") and pod["metadata"]["uid"] != but), None)

    return await api.until(PODS, running_worker, 40.0)


async def replaced(api, pod):
    """End a pod as the controller of a job ends one whose agent has left with 138; where its replacement runs."""
    await api.delete(f"{PODS}/{pod['metadata']['name']}")
    return await worker(api, but=pod["metadata"]["uid"])


async def tainted(api, node, is_tainted=True, key=labels.FAULTY):
    """Wait until a node bears a taint, ours without a key, or no longer."""

    def node_has_taint(nodes):
        return next(
            (each for each in nodes if each["metadata"]["name"] == node and has_taint(each, key) is is_tainted), None
        )

    return await api.until(NODES, node_has_taint, 30.0)


async def submit(stage, api):
    """A job of one worker with the account of deploy/manifests/launcher, which fits tightest beside a stranger."""
    for file in ("job.yaml", "job-verdicts.yaml"):
        text = (GIVEN / file).read_text().replace("example-job", "bert").replace("example-namespace", "default")
        for each in yaml.safe_load_all(text):
            await api.apply(each)
    await stage.submit(cluster.make_pod("stranger", 1, nodeName="node-001"))
    job = cluster.indexed_job("bert", 1, gpus=1)
    job["spec"]["template"]["spec"]["serviceAccountName"] = "bert"
    await stage.submit(job)
    return await worker(api)


async def checks(stage, crew, pod, folder):
    """A real agent where that pod is, with the pod's own token, of which the check finds the switchbox broken."""
    meta, config = pod["metadata"], folder / "account"
    kubeconfig(stage, cluster.bound_token(stage.plane, "bert", pod), config)
    own = {"POD_NAMESPACE": "default", "POD_NAME": meta["name"], "POD_UID": meta["uid"]}
    agent = crew.start("w0", env={"KUBECONFIG": str(config), "NODE_NAME": pod["spec"]["nodeName"], **own})
    assert await asyncio.to_thread(agent.code, 120) == 138, agent.log.read_text()
    assert [each["found"] for each in agent.entries("verdict_written")] == ["faulty"], agent.log.read_text()


async def wait_until_free(stage, node):
    """`turnout nodes` lists the node and frees it, for who may."""
    (row,) = json.loads(await turnout(stage, "nodes", "-o", "json"))
    assert (row["node"], row["state"], row["reason"], row["times"]) == (node, "tainted", "switchbox_failed", 1)
    assert "0 of 4 links" in row["evidence"]
    assert "no node 'node-9'" in await turnout(stage, "nodes", "untaint", "node-9", code=1)
    assert "has no taint" in await turnout(stage, "nodes", "untaint", "node-002", code=1)
    kubeconfig = stage.plane.user_kubeconfig("nobody")
    assert "you may not" in await turnout(stage, "nodes", "untaint", node, code=1, by=kubeconfig)
    assert f"the taint is removed from node {node}" in await turnout(stage, "nodes", "untaint", node)


@pytest.mark.contract("DL-82", "DL-83", "DL-97")
async def test_a_node_with_broken_gpu_links_is_tainted_avoided_listed_and_freed(stage, crew, tmp_path):
    """DL-82, DL-83, DL-97. The leader is killed and followed meanwhile."""
    await stage.build(leaves=1, hosts_per_leaf=4, gpus=2)
    start_around(stage)
    flags = ("--act", "--taint-nodes", "--lease-seconds", "4")
    start_autoscaler(stage, *flags)
    async with stage.plane.api() as api:
        pod = await submit(stage, api)
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        assert node == "node-001"
        await checks(stage, crew, pod, tmp_path)
        accused = await tainted(api, node)
        record = json.loads(accused["metadata"]["annotations"][labels.NODE_RECORD])
        assert (record["state"], record["proofs"][0]["pod"]) == ("tainted", f"default/{name}")
        (line,) = log_lines(stage, "node_changed")
        assert (line["reason"], line["node"], line["outcome"]) == ("NodeTainted", node, "Written")
        assert {event["involvedObject"]["kind"] for event in await stage.events("NodeTainted")} <= {"Node", "Pod"}

        signal_to(stage, "autoscaler", 9)
        stage.plane.stop_program("autoscaler")
        start_autoscaler(stage, *flags, name="heir")
        elsewhere = await replaced(api, pod)
        assert elsewhere["spec"]["nodeName"] != node
        gauge = 'turnout_gpu_nodes{state="tainted"}'
        await stage.eventually(lambda: stage.metric(gauge, "heir") == 1, 30.0)
        assert log_lines(stage, "node_changed", "heir") == [], "all that it has to know stands on the node"

        await wait_until_free(stage, node)
        await tainted(api, node, is_tainted=False)
        assert "no node is tainted" in await turnout(stage, "nodes")
        assert (await replaced(api, elsewhere))["spec"]["nodeName"] == node
        await api.delete(f"{JOBS}/bert?propagationPolicy=Background")


def verdict(kind):
    """Make the annotation that a launcher's check leaves on its pod."""
    report = {"kind": kind, "at": datetime.now(UTC).isoformat(), "round": 1, "by": "w0", "node": "node-001"}
    return {"metadata": {"annotations": {labels.NODE_VERDICT: json.dumps(report)}}}


@pytest.mark.contract("DL-82")
async def test_an_admins_own_key_is_the_taint_and_a_passing_check_takes_it_away(stage):
    key = "gpus.example.com/broken"
    await stage.build(leaves=1, hosts_per_leaf=2, gpus=2)
    start_autoscaler(stage, "--act", "--taint-nodes", "--taint-key", key)
    await stage.submit(cluster.make_pod("bert-0", 1, nodeName="node-001"))
    async with stage.plane.api() as api:
        await api.call("PATCH", f"{PODS}/bert-0", verdict("faulty"), "application/merge-patch+json")
        found = await tainted(api, "node-001", key=key)
        assert not has_taint(found, labels.FAULTY)
        assert [each["effect"] for each in found["spec"]["taints"] if each["key"] == key] == ["NoSchedule"]
        await api.call("PATCH", f"{PODS}/bert-0", verdict("fine"), "application/merge-patch+json")
        await tainted(api, "node-001", is_tainted=False, key=key)
