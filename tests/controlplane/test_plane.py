"""The control plane itself: it is up soon, does what a cluster does, and leaves nothing behind."""

import asyncio
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from dataclasses import replace

import pytest
import pytest_asyncio

from hack.controlplane.errors import ApiError, ControlPlaneError, NotBuilt, NotReady
from hack.controlplane.nodes import gpu_nodes
from hack.controlplane.plane import ControlPlane, free_ports
from hack.controlplane.servers import wipe
from tests.kit.cluster import bound, in_phase, indexed_job, make_pod, namespace, plain_crd, pytorch_job, unschedulable

pytestmark = pytest.mark.real


@pytest_asyncio.fixture
async def api(control_plane):
    async with control_plane.api() as api:
        yield api


@pytest.mark.fresh_plane
@pytest.mark.asyncio
async def test_a_fresh_plane_is_ready_and_says_which_kubernetes_it_is(control_plane, api, record_property):
    record_property("ready_after_s", round(control_plane.ready_after_s, 2))
    print(f"ready after {control_plane.ready_after_s:.2f} s")
    version = await api.get("/version")
    assert (version["gitVersion"], version["major"], version["minor"]) == ("v1.35.4", "1", "35")
    assert control_plane.ready_after_s < 30  # under 6 s on two quiet cores; only a hang is a failure here


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(None, id="no certificate"),
        pytest.param("system:masters", id="the certificate of an administrator of the cluster"),
    ],
)
def test_etcd_answers_its_api_server_alone(control_plane, shown):
    context = ssl.create_default_context(cafile=str(control_plane.etcd_ca))
    if shown is not None:
        pair = control_plane.authority.user("admin", (shown,))
        context.load_cert_chain(pair.cert, pair.key)
    with pytest.raises(OSError):
        wipe.snapshot(replace(control_plane.etcd, context=context))
    assert wipe.snapshot(control_plane.etcd)


@pytest.mark.asyncio
async def test_a_pod_is_scheduled_onto_a_kwok_node_runs_ends_and_goes(control_plane, api):
    await api.create_all(gpu_nodes(4))
    control_plane.start_kwok()
    control_plane.start_scheduler()
    await api.create(make_pod("short", 8, notes={"turnout.dev/test-runs-for": "100ms"}))
    await api.create(make_pod("long", 8))
    node_by_pod = await api.until("/api/v1/pods", bound(2))
    assert len(set(node_by_pod.values())) == 2  # 8 GPUs each: they cannot share a node
    await api.until("/api/v1/pods", in_phase("Running", 1))
    await api.until("/api/v1/pods", in_phase("Succeeded", 1))
    await api.delete("/api/v1/namespaces/default/pods/long")
    await api.until("/api/v1/pods", lambda pods: [pod["metadata"]["name"] for pod in pods] == ["short"])


@pytest.mark.asyncio
async def test_a_pod_that_fits_nowhere_is_told_so(control_plane, api):
    await api.create_all(gpu_nodes(2, gpus=4))
    control_plane.start_scheduler()
    await api.create(make_pod("large", 8))
    messages = await api.until("/api/v1/pods", unschedulable(1))
    assert "Insufficient nvidia.com/gpu" in messages["large"]


@pytest.mark.asyncio
async def test_the_job_controller_makes_the_pods_of_an_indexed_job(control_plane, api):
    control_plane.start_controller_manager()
    await api.create(indexed_job("train", 4))
    pods = await api.until("/api/v1/namespaces/default/pods", lambda pods: pods if len(pods) == 4 else None)
    indices = [pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods]
    assert sorted(indices) == ["0", "1", "2", "3"]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_training_operator_makes_the_pods_of_a_pytorch_job_and_resizes_it(control_plane, api):
    await asyncio.to_thread(control_plane.start_training_operator)
    await api.create(pytorch_job("bert", 2, maximum=4))
    path = "/api/v1/namespaces/default/pods"
    pods = await api.until(path, lambda pods: pods if len(pods) == 2 else None)
    assert sorted(pod["metadata"]["name"] for pod in pods) == ["bert-worker-0", "bert-worker-1"]
    env = {each["name"]: each.get("value") for each in pods[0]["spec"]["containers"][0]["env"]}
    assert env["PET_NNODES"] == "2:4"
    change = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}}
    await api.patch("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/bert", change)
    await api.until(path, lambda pods: len(pods) == 3)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.debian("util-linux")
@pytest.mark.asyncio
async def test_two_training_operators_run_side_by_side_with_own_certificates(control_plane, make_control_plane):
    planes = [control_plane, make_control_plane()]
    for plane in planes:
        await asyncio.to_thread(plane.start_training_operator)
    both = [(plane.folder / "webhook-certificates" / "tls.crt").read_bytes() for plane in planes]
    assert both[0] != both[1]
    for plane in planes:
        async with plane.api() as api:
            await api.create(pytorch_job("torch", 2))
            await api.until("/api/v1/pods", lambda pods: len(pods) == 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("control_plane", [pytest.param({"emulated_version": "1.33"}, id="as 1.33")], indirect=True)
async def test_an_older_kubernetes_is_emulated_and_still_schedules(control_plane, api):
    assert (await api.get("/version"))["emulationMinor"] == "33"
    await api.create_all(gpu_nodes(1))
    control_plane.start_scheduler()
    await api.create(make_pod("alone", 8))
    await api.until("/api/v1/pods", bound(1))


@pytest.mark.asyncio
async def test_what_was_stored_outlives_a_restart_of_the_api_server(control_plane, api):
    await api.create(namespace("kept"))
    url, before = control_plane.url, control_plane.pid("kube-apiserver")
    control_plane.restart_apiserver()
    assert control_plane.url == url
    assert control_plane.pid("kube-apiserver") != before
    assert (await api.get("/api/v1/namespaces/kept"))["metadata"]["name"] == "kept"


@pytest.mark.asyncio
async def test_an_account_may_do_only_what_rbac_gives_it(control_plane, api):
    await api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}})
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    await api.create(
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": rules}
    )
    await api.create(
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
        }
    )
    async with control_plane.api(control_plane.service_account_token("default", "reader")) as reader:
        assert (await reader.get("/api/v1/nodes"))["items"] == []
        with pytest.raises(ApiError, match="forbidden") as refused:
            await reader.get("/api/v1/pods")
    assert refused.value.status == 403


def test_a_program_that_cannot_start_is_told_with_the_end_of_its_log(control_plane):
    with pytest.raises(NotReady, match="no-such-field"):
        control_plane.start_scheduler({"no-such-field": 1})


@pytest.mark.slow
def test_a_port_that_somebody_took_in_between_is_given_up_for_another(make_control_plane):
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        busy_port = somebody.getsockname()[1]
        offered = []

        def ports(count):  # the API server's port is taken, once
            offered.append([*free_ports(count - 1), busy_port] if not offered else free_ports(count))
            return offered[-1]

        plane = make_control_plane(ports=ports)
    assert len(offered) == 2
    assert plane.url == f"https://127.0.0.1:{offered[1][-1]}"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_plane_that_begins_again_is_as_fresh_and_does_the_same_once_more(make_control_plane):
    plane = make_control_plane()
    crd = plain_crd("x.turnout.dev", "v1", "Gadget")
    gadget = {"apiVersion": "x.turnout.dev/v1", "kind": "Gadget", "metadata": {"name": "g", "finalizers": ["a.b/c"]}}
    pending_pod = make_pod("held", 8)
    pending_pod["metadata"]["finalizers"] = ["turnout.dev/test-holds"]
    for _ in range(2):
        async with plane.api() as api:
            assert [each["metadata"]["name"] for each in (await api.get("/api/v1/nodes"))["items"]] == []
            assert await api.pods() == []
            default = await api.get("/api/v1/namespaces/default")
            assert "x" not in default["metadata"]["labels"]
            await api.patch("/api/v1/namespaces/default", {"metadata": {"labels": {"x": "y"}}})
            await api.create_all(gpu_nodes(2))
            await api.create_all([namespace("team"), crd])
            await api.create(pending_pod)
            plane.start_kwok()
            plane.start_scheduler()
            await api.until("/api/v1/pods", in_phase("Running", 1))
            await api.until("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _established)
            await _served(api, gadget)
            assert len((await api.get("/apis/x.turnout.dev/v1/gadgets"))["items"]) == 1
        assert plane.reset()
        assert plane.pid("kube-scheduler") is None
        assert plane.logs("kube-scheduler") == ""


def _established(crds):
    conditions = [each.get("status", {}).get("conditions") or () for each in crds]
    return crds and all(any(c["type"] == "Established" and c["status"] == "True" for c in each) for each in conditions)


async def _served(api, body):
    """Create an object of a kind that is established, and routed a moment later."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await api.create(body)
            except ApiError as error:
                if error.status != 404:
                    raise


@pytest.mark.asyncio
async def test_a_plane_with_an_admission_policy_is_not_used_again(make_control_plane):
    """Admission goes on by a policy for a while after it is gone."""
    plane = make_control_plane()
    match = {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-pods"},
        "spec": {"matchConstraints": match, "validations": [{"expression": "false"}]},
    }
    async with plane.api() as api:
        await api.create(policy)
    assert not plane.reset()


def test_a_plane_whose_supervisor_was_killed_is_given_up_without_a_trace(make_control_plane):
    plane = make_control_plane()
    watched = os.pidfd_open(plane.supervisor_pid)
    os.kill(plane.supervisor_pid, signal.SIGKILL)
    _wait_for_end(watched, within_s=10)
    with pytest.raises(ControlPlaneError, match="the supervisor is gone"):
        plane.reset()
    plane.stop()


def test_a_plane_that_has_died_says_so_with_its_last_words(make_control_plane):
    plane = make_control_plane()
    assert plane.fault() is None
    plane.kill_program("kube-apiserver")
    _wait_for_end(os.pidfd_open(plane.pid("kube-apiserver")), within_s=10)
    assert "kube-apiserver ended with status -9" in str(plane.fault())
    with pytest.raises(NotReady, match="kube-apiserver ended"):
        plane.reset()


def test_stopping_leaves_no_process_and_no_file(make_control_plane):
    plane = make_control_plane()
    pids = [plane.pid("etcd"), plane.pid("kube-apiserver"), plane.supervisor_pid]
    plane.stop()
    assert [pid for pid in pids if _lives(pid)] == []
    assert not plane.folder.exists()


STARTED_BY_A_THREAD_THAT_ENDS = """
import sys, threading, time
from hack.controlplane.plane import ControlPlane
plane = ControlPlane()
thread = threading.Thread(target=plane.start)
thread.start()
thread.join()
print(plane.folder, plane.supervisor_pid, plane.pid("etcd"), plane.pid("kube-apiserver"), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["parent", "supervisor"])
def test_everything_ends_when_one_of_its_holders_is_killed(victim, control_plane):
    # control_plane is asked for so that missing binaries are told in the usual way.
    user = subprocess.Popen([sys.executable, "-c", STARTED_BY_A_THREAD_THAT_ENDS], stdout=subprocess.PIPE, text=True)
    try:
        folder, *pids = user.stdout.readline().split()
        pids = [int(pid) for pid in pids]
        assert all(_lives(pid) for pid in pids)
        watched = [os.pidfd_open(pid) for pid in pids]
        os.kill({"parent": user.pid, "supervisor": pids[0]}[victim], signal.SIGKILL)
        for pidfd in watched:
            _wait_for_end(pidfd, within_s=10)
    finally:
        user.kill()
        user.wait()
        user.stdout.close()
    if victim == "parent":  # the supervisor tidied up; a killed one cannot
        assert not os.path.exists(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_for_end(pidfd, within_s):
    """Wait until a process has ended; a pidfd becomes readable then, so there is nothing to poll."""
    try:
        ready, _, _ = select.select([pidfd], [], [], within_s)
        assert ready, "a program outlived its holder"
    finally:
        os.close(pidfd)


def test_a_plane_that_lacks_its_binaries_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNOUT_CONTROLPLANE_CACHE", str(tmp_path))
    with pytest.raises(NotBuilt, match=r"etcd is not built .* Type: make controlplane"):
        ControlPlane()
