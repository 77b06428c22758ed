"""A Volcano Job lends on real Volcano: its own scheduler, controllers and CRDs.

Runs when TURNOUT_PEERS names a folder with vc-scheduler and vc-controller-manager. The same on an embedded cluster:
tests/autoscaler/test_on_a_local_cluster.py.
"""

from __future__ import annotations

import pytest

from hack.controlplane.plane import free_ports
from tests.e2e.autoscaler.lending import AT_ONCE, GPU, decided, elastic, listed, runs, start_autoscaler, written_resizes
from tests.e2e.test_peers import VOLCANO_CONF, install, peer
from tests.kit import cluster

pytestmark = [pytest.mark.real, pytest.mark.peers, pytest.mark.asyncio]
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"


def volcano_job(name, minimum, size=None):
    """Build a Volcano Job of one task in the default queue."""
    room = {"cpu": "1", GPU: "1"}
    resources = {"requests": room, "limits": room}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "worker", "image": cluster.IMAGE, "resources": resources}],
    }
    task = {"name": "worker", "replicas": size or minimum, "minAvailable": minimum, "template": {"spec": spec}}
    job_spec = {"minAvailable": minimum, "schedulerName": "volcano", "queue": "default", "tasks": [task]}
    head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    return {**head, "metadata": {"name": name, "namespace": "default"}, "spec": job_spec}


def start_volcano(stage, folder):
    """Start its controllers and its scheduler."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(4)]
    conf = folder / "volcano.yaml"
    conf.write_text(VOLCANO_CONF)
    common = ["--kubeconfig", str(stage.plane.kubeconfig), "--leader-elect=false"]
    controllers = [str(peer("vc-controller-manager")), *common, f"--healthz-address={ports[0]}"]
    stage.plane.start_program("volcano-controllers", [*controllers, f"--listen-address={ports[1]}"])
    scheduler = [str(peer("vc-scheduler")), *common, f"--scheduler-conf={conf}", "--schedule-period=1s"]
    scheduler += ["--scheduler-name=volcano", "--cache-dumper=false", "--enable-healthz=true", "--enable-metrics=true"]
    scheduler += [f"--healthz-address={ports[2]}", f"--listen-address={ports[3]}"]
    stage.plane.start_program("volcano", scheduler)


@pytest.mark.contract("CS-14", "VE-10", "VE-31")
async def test_on_volcano_a_job_fills_the_queue_and_makes_room_for_an_equal(stage, tmp_path):
    """The case that Volcano leaves waiting (volcano#3979)."""
    await stage.build(leaves=1, hosts_per_leaf=3, gpus=2)
    await install(stage, "volcano")
    await listed(stage, JOBS)
    stage.plane.start_controller_manager()  # it takes away the pods of a job that is deleted
    start_volcano(stage, tmp_path)
    start_autoscaler(stage, *AT_ONCE)
    async with stage.plane.api() as api:
        await api.call("POST", JOBS, elastic(volcano_job("lends", 2), 2, 6))
        await runs(stage, lends=6)
        await api.call("POST", JOBS, volcano_job("waits", 3))
        await runs(stage, lends=3, waits=3)
        await decided(stage, "lends", "MakesRoom")
        assert ("lends", 6, 3) in written_resizes(stage)
        assert (await api.get(f"{JOBS}/lends"))["status"]["state"]["phase"] == "Running"  # resized, not restarted
        assert (await api.get(f"{JOBS}/lends"))["status"].get("retryCount", 0) == 0
        await api.delete(f"{JOBS}/waits")
        await runs(stage, lends=6)
