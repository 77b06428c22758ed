"""Gates as the chart installs them: the rights of its account, what policies refuse, and which pods get the gate."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys

import pytest

from hack.codegen import chart
from hack.controlplane.errors import ApiError
from hack.controlplane.plane import free_ports
from hack.controlplane.tools.parts import NEXT
from tests.e2e.gates.test_gates import GATE, PODS, gang, gated
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]
VALUES = {
    "extender.enabled": "false",
    "autoscaler.enabled": "false",
    "controller.enabled": "false",
    "nominator.enabled": "true",
    "nominator.gates": "true",
}
# MutatingAdmissionPolicy is served by itself from Kubernetes 1.36 on.
SERVED = {
    "apiserver_flags": (
        "--feature-gates=MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    )
}
SYSTEM = "/api/v1/namespaces/turnout-system"
RESERVATIONS = f"{SYSTEM}/configmaps?fieldSelector=metadata.name%3Dturnout-reservations"
LEAVES = ("asw-00", "asw-01")
LONE = f"{PODS}/lone"
TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


async def install(stage, *, kubernetes=chart.KUBERNETES, **values):
    """Install the chart's objects into turnout-system. Gives the flags of its nominator. kubernetes: for it."""
    objects = chart.documents(chart.render({**VALUES, **values}, f"--kube-version={kubernetes}"))
    async with stage.plane.api() as api:
        await api.apply(cluster.namespace("turnout-system"))
        for each in objects:
            await api.apply(each)
        await api.apply(cluster.config_map(stage.text, namespace="turnout-system"))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    flags = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return [each.replace("$(POD_NAMESPACE)", "turnout-system") for each in flags]


def start(stage, flags):
    """Start the nominator with the installed account, and no other right."""
    probes = f"127.0.0.1:{free_ports(1)[0]}"
    kubeconfig = stage.plane.service_account_kubeconfig("turnout-system", "turnout-nominator")
    flags = [each.replace("0.0.0.0:9091", probes) for each in flags]
    command = [sys.executable, "-m", "turnout.scheduler_ext.nominator", *flags, f"--kubeconfig={kubeconfig}"]
    stage.plane.start_program("nominator", command, f"http://{probes}/readyz")


async def refused(api, path, change, policy, within_s=30):
    """Wait until a policy, which the API server compiles within a second or so, refuses a change."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                await api.patch(f"{path}?dryRun=All", change)
            except ApiError as error:
                if policy in error.message:
                    return


def pinned(*terms, **more):
    """A change that lifts the gate and asks for these nodes."""
    node_terms = {TERMS: {"nodeSelectorTerms": list(terms)}} if terms else {}
    return {"spec": {"schedulingGates": None, "affinity": {"nodeAffinity": {**node_terms, **more}}}}


ON_A = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": ZONE}]}


@pytest.mark.parametrize("also", [{}, {"nominator.annotateSwitchPath": "true"}], ids=["alone", "beside switch paths"])
async def test_the_installed_account_lets_gangs_go_and_may_change_nothing_else(stage, also):
    await stage.build(leaves=2)
    flags = await install(stage, **also)
    stage.plane.start_scheduler()
    policy = "turnout-nominator-lifts-gates-only"
    async with stage.plane.api() as api:
        lone = cluster.make_pod("lone", 1, schedulingGates=[*GATE, {"name": "a/x"}], marks={"kept": "yes"})
        stored = await api.create(lone)
        theirs = [{**stored["spec"]["containers"][0], "image": "theirs:1"}]
        tolerations = [*stored["spec"]["tolerations"], {"key": "a", "operator": "Exists"}]
        async with stage.plane.api(stage.plane.service_account_token("turnout-system", "turnout-nominator")) as ours:
            await refused(ours, LONE, {"metadata": {"labels": {"kept": "no"}}}, policy)
            for change in (
                {"spec": {"schedulingGates": None}},  # the other's gate as well
                {"spec": {"schedulingGates": GATE}},  # the other's, and not ours
                {"metadata": {"annotations": {"a": "b"}}, "spec": {"schedulingGates": [{"name": "a/x"}]}},
                {"spec": {"schedulingGates": [{"name": "a/x"}], "tolerations": tolerations}},
                {"spec": {"schedulingGates": [{"name": "a/x"}], "nodeSelector": {"a": "b"}}},
                {"spec": {"schedulingGates": [{"name": "a/x"}], "containers": theirs}},
            ):
                with pytest.raises(ApiError, match=policy):
                    await ours.patch(f"{LONE}?dryRun=All", change)
            await api.create(cluster.make_pod("next", 1, schedulingGates=GATE))
            for change in (pinned(ZONE), pinned(ON_A, ZONE), pinned(ON_A, **PREFERRED)):
                with pytest.raises(ApiError, match=f"{policy}|affinity"):
                    await ours.patch(f"{PODS}/next?dryRun=All", change)
            await ours.patch(f"{PODS}/next?dryRun=All", pinned(ON_A))
            with pytest.raises(ApiError, match="forbidden"):
                await ours.delete(f"{PODS}/next")
        await api.delete(LONE)
        await api.delete(f"{PODS}/next")
    start(stage, flags)
    await stage.submit(*gang("bert", 8, notes={labels.TOPOLOGY: "required"}), *gang("gpt", 4))
    node_by_pod = {**await stage.landed("bert", 8), **await stage.landed("gpt", 4)}
    assert len(node_by_pod) == 12
    assert "forbidden" not in stage.plane.logs("nominator").lower()


async def test_the_installed_account_reserves_nodes_and_moves_a_gang(stage):
    """The program runs with the account's rights alone: it evicts only after it has written its reservation."""
    await stage.build(leaves=2, hosts_per_leaf=4)
    start(stage, await install(stage, **{"nominator.gates": "false", "nominator.repair": "true"}))
    notes = {labels.TOPOLOGY: "required", labels.REPAIR: "move/10"}
    first, second = (sorted(node for node, ip in stage.ip_of.items() if stage.leaf[ip] == leaf) for leaf in LEAVES)
    pods = cluster.koordinator_gang("train", 4, notes=notes)
    for pod, node in zip(pods[:3], first[:3], strict=False):
        pod["spec"]["nodeName"] = node
    async with stage.plane.api() as api:
        await api.patch(f"/api/v1/nodes/{first[3]}", {"spec": {"unschedulable": True}})
        await stage.submit(*pods)
        (found,) = await api.until(RESERVATIONS, lambda found: found if found[0].get("data") else None)
        (text,) = found["data"].values()
        assert set(json.loads(text)["nodes"]) == set(second)
        names = {pod["metadata"]["name"] for pod in pods[:3]}
        await api.until(PODS, lambda pods: names.isdisjoint(pod["metadata"]["name"] for pod in pods))
    token = stage.plane.service_account_token("turnout-system", "turnout-nominator")
    async with stage.plane.api(token) as ours:
        for change in (
            ours.patch(f"{SYSTEM}/configmaps/node-topology-config", {"data": {"topology_config": ""}}),
            ours.delete(f"{SYSTEM}/configmaps/turnout-reservations"),
            ours.create(cluster.config_map("", namespace="turnout-system")),
        ):
            with pytest.raises(ApiError, match="forbidden"):
                await change
    assert "forbidden" not in stage.plane.logs("nominator").lower()


async def test_the_installed_account_releases_all_before_an_uninstallation(stage):
    await stage.build(leaves=1)
    await install(stage)
    (job,) = (each for each in chart.documents(chart.render(VALUES)) if each["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    await stage.submit(*gang("bert", 4))
    kubeconfig = stage.plane.service_account_kubeconfig("turnout-system", account)
    program, *arguments = (*container["command"], *container["args"])
    command = [sys.executable, "-m", f"{program}.cli", *arguments, "--kubeconfig", str(kubeconfig)]
    process = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout == "4 gates lifted\n"


JOB = {"kind": "Job", "apiVersion": "batch/v1", "name": "train", "uid": "1", "controller": True}


def owned(pod, **marks):
    """The pod with an owner that controls it."""
    pod["metadata"] |= {"ownerReferences": [JOB], "labels": marks}
    return pod


def of_none(pod):
    """The pod with an amount of 0 where its accelerators were."""
    for amounts in pod["spec"]["containers"][0]["resources"].values():
        amounts[cluster.GPU] = "0"
    return pod


GATED = {
    "koordinator": cluster.koordinator_gang("koordinator", 1)[0],
    "volcano": cluster.volcano_gang("volcano", 1)[0],
    "plugins": cluster.plugins_gang("plugins", 1)[0],
    "indexed": owned(cluster.make_pod("indexed", 8), **{labels.JOB_INDEX: "0"}),
}
LEFT_ALONE = {
    "no accelerator": cluster.koordinator_gang("cpu", 1, gpus=0)[0],
    "no gang": cluster.make_pod("lone", 8),
    "an index without an owner": cluster.make_pod("orphan", 8, marks={labels.JOB_INDEX: "0"}),
    "an owner without an index": owned(cluster.make_pod("replica", 8)),
    "another's scheduler": cluster.koordinator_gang("elsewhere", 1, scheduler="volcano")[0],
    "an amount of 0": of_none(cluster.koordinator_gang("none", 1)[0]),
    "placed by its owner": cluster.koordinator_gang("placed", 1, nodeName="node-000")[0],
}


def start_webhook(stage, flags, folder, secret=None):
    """Start the nominator where the Service of its webhook is, with the installed certificate or another one."""
    plane = stage.plane
    address = plane.request("GET", f"{SYSTEM}/services/turnout-nominator")["spec"]["clusterIP"]
    secret = secret or plane.request("GET", f"{SYSTEM}/secrets/turnout-nominator-tls")
    for name, text in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(text))
    start(stage, [each.replace("0.0.0.0:9444", f"{address}:9444").replace("/tls/", f"{folder}/") for each in flags])


async def created_in(api, *namespaces):
    """Create every pod in each namespace, of which only `ml` asks for gates."""
    for name, marks in (("ml", {labels.GATES: "true"}), ("web", {}), ("kube-system", {labels.GATES: "true"})):
        await api.apply({**cluster.namespace(name), "metadata": {"name": name, "labels": marks}})
    for each in (*GATED.values(), *LEFT_ALONE.values()):
        each["metadata"].pop("namespace", None)
    async with asyncio.timeout(30):  # the API server takes a new policy or webhook within a second or so
        while True:
            if "schedulingGates" in (await api.create(GATED["koordinator"], "ml", "?dryRun=All"))["spec"]:
                break
    for each in (*GATED.values(), *LEFT_ALONE.values()):
        for namespace in namespaces:
            await api.create(each, namespace)


@pytest.mark.parametrize(
    ("control_plane", "kubernetes", "by"),
    [
        pytest.param(SERVED, "1.35.0", "policy", id="1.35, by the policy"),
        pytest.param({"release": NEXT}, "1.37.0", "policy", id="1.37, by the policy"),
        pytest.param({}, "1.35.0", "webhook", id="1.35 as it is, by the webhook"),
    ],
    indirect=["control_plane"],
)
async def test_pods_of_gangs_get_the_gate_in_labelled_namespaces_only(stage, kubernetes, by, tmp_path):
    await stage.build(leaves=1)
    gates = {"nominator.gatePods": "true", "nominator.gatePodsBy": by}
    flags = await install(stage, kubernetes=kubernetes, **gates)
    async with stage.plane.api() as api:
        if by == "webhook":
            start_webhook(stage, [each for each in flags if each != "--gates"], tmp_path)
        await created_in(api, "ml", "web", "kube-system")
        assert gated(await api.pods("ml")) == {each["metadata"]["name"] for each in GATED.values()}
        assert gated(await api.pods("web")) == gated(await api.pods("kube-system")) == set()


async def test_where_our_webhook_does_not_answer_pods_come_without_the_gate(stage, tmp_path):
    await stage.build(leaves=1)
    gates = {"nominator.gatePods": "true", "nominator.gatePodsBy": "webhook"}
    flags = [each for each in await install(stage, **gates) if each != "--gates"]
    start_webhook(stage, flags, tmp_path)
    async with stage.plane.api() as api:
        await created_in(api)
        stage.plane.kill_program("nominator")
        pods = [each for number in range(2) for each in cluster.koordinator_gang(f"late{number}", 1)]
        assert "schedulingGates" not in (await api.create(pods[0], "ml"))["spec"]
        others = chart.documents(chart.render({**VALUES, **gates}))  # helm makes another CA each time
        (stranger,) = (
            each for each in others if each["kind"] == "Secret" and each["metadata"]["name"].endswith("-tls")
        )
        start_webhook(stage, flags, tmp_path, stranger)
        assert "schedulingGates" not in (await api.create(pods[1], "ml"))["spec"]
