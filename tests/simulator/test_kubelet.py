"""A pod's life by the table, and on the embedded API."""

import asyncio

import pytest

from turnout.simulator.cluster.kubelet import (
    EXIT_CODE,
    IGNORES_TERM,
    RUNS_FOR,
    NextState,
    Pace,
    PodState,
    missing_image,
    next_state,
    state_of,
    status_in,
)
from turnout.simulator.cluster.node_builder import generate_nodes, hosts_without_node_name, map_text, nodes_of_map
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.local_cluster import local_cluster
from turnout.topology import names
from turnout.topology.map_formats import read_map

PODS = "/api/v1/namespaces/default/pods"
PACE = Pace(pull_s=0.01, stop_s=0.01, restart_s=0.01)
STAMP = "2026-01-01T00:00:00Z"


def pod(status=None, grace=None, policy="Always", **notes):
    meta = {"name": "a", "annotations": {key.replace("__", "/"): value for key, value in notes.items()}}
    if grace is not None:
        meta |= {"deletionTimestamp": STAMP, "deletionGracePeriodSeconds": grace}
    spec = {"restartPolicy": policy, "containers": [{"name": "m", "image": "i:1"}]}
    return {"metadata": meta, "spec": spec, "status": status or {"phase": "Pending"}}


def noted(raw_pod, **notes):
    return {**raw_pod, "metadata": {**raw_pod["metadata"], "annotations": notes}}


RUNNING = {"phase": "Running", "startTime": STAMP, "containerStatuses": [{"name": "m", "state": {"running": {}}}]}
ENDED = {"phase": "Running", "startTime": STAMP, "containerStatuses": [{"name": "m", "state": {"terminated": {}}}]}
PULLING = {"phase": "Pending", "startTime": STAMP, "containerStatuses": [{"name": "m", "state": {"waiting": {}}}]}


@pytest.mark.parametrize(
    ("raw_pod", "next_"),
    [
        pytest.param(pod(), NextState(0.0, PodState.PULLING), id="a bound pod is pulled at once"),
        pytest.param(pod(PULLING), NextState(0.5, PodState.RUNNING), id="a pulled one runs"),
        pytest.param(pod(RUNNING), None, id="a running one runs on"),
        pytest.param(
            noted(pod(RUNNING), **{RUNS_FOR: "7"}), NextState(7.0, PodState.ENDED), id="unless it says how long"
        ),
        pytest.param(noted(pod(RUNNING), **{RUNS_FOR: "soon"}), None, id="what is no number is not heeded"),
        pytest.param(noted(pod(RUNNING), **{RUNS_FOR: "nan"}), None, id="nor what is no finite number"),
        pytest.param(pod(ENDED), NextState(1.0, PodState.RUNNING), id="an ended one is restarted"),
        pytest.param(pod({"phase": "Failed"}), None, id="a failed one stays"),
        pytest.param(pod(RUNNING, grace=30), NextState(0.5, PodState.DELETED), id="a deleted one stops soon"),
        pytest.param(
            noted(pod(RUNNING, grace=30), **{IGNORES_TERM: "true"}),
            NextState(30.0, PodState.DELETED),
            id="or takes all its grace",
        ),
        pytest.param(pod(RUNNING, grace=0), NextState(0.0, PodState.DELETED), id="without grace it goes at once"),
    ],
)
def test_what_comes_next(raw_pod, next_):
    assert next_state(raw_pod, Pace()) == next_


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        ("Always", 0, "Running"),
        ("Always", 1, "Running"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 1, "Running"),
        ("Never", 0, "Succeeded"),
        ("Never", 3, "Failed"),
    ],
)
def test_the_restart_policy_says_what_an_end_means(policy, code, phase):
    status = status_in(pod(RUNNING, policy=policy), PodState.ENDED, STAMP, code=code)
    assert status["phase"] == phase
    (container,) = status["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == code


def test_a_restart_is_counted_and_the_last_end_is_kept():
    ended = pod(status_in(pod(RUNNING), PodState.ENDED, STAMP, code=2))
    ended["status"]["startTime"] = STAMP
    assert state_of(ended) is PodState.ENDED
    (container,) = status_in(ended, PodState.RUNNING, STAMP)["containerStatuses"]
    assert container["restartCount"] == 1
    assert container["lastState"]["terminated"]["exitCode"] == 2


async def until(api, condition):
    async with asyncio.timeout(10):
        async for _ in api.changes(PODS):
            found = {p["metadata"]["name"]: p for p in (await api.call("GET", PODS))["items"]}
            if condition(found):
                return found
    raise AssertionError("a watch does not end")


@pytest.mark.parametrize(
    ("images", "missing"),
    [
        pytest.param(None, "", id="any image can be pulled by default"),
        pytest.param({"i:1", "init:1"}, "", id="all images are there"),
        pytest.param({"i:1"}, "init:1", id="an image of an init container counts"),
        pytest.param({"init:1"}, "i:1", id="an image that nobody published"),
    ],
)
def test_which_image_cannot_be_pulled(images, missing):
    one_pod = pod()
    one_pod["spec"]["initContainers"] = [{"name": "first", "image": "init:1"}]
    assert missing_image(one_pod, images) == missing


def waits_for(pods):
    (container,) = (pods["a"].get("status") or {}).get("containerStatuses") or [{}]
    return ((container.get("state") or {}).get("waiting") or {}).get("reason")


@pytest.mark.asyncio
async def test_a_pod_whose_image_is_missing_runs_once_its_image_is_corrected():
    async with local_cluster(pace=PACE, images={"i:1"}) as local:
        await local.add_nodes(generate_nodes(1), 8)
        spec = {"nodeName": generate_nodes(1)[0].name, "containers": [{"name": "m", "image": "i:2"}]}
        await local.api.call("POST", PODS, {"metadata": {"name": "a"}, "spec": spec})
        found = await until(local.api, lambda pods: waits_for(pods) == "ErrImagePull")
        assert found["a"]["status"]["phase"] == "Pending"
        right = {"spec": {"containers": [{"name": "m", "image": "i:1"}]}}
        await local.api.call("PATCH", f"{PODS}/a", right, "application/strategic-merge-patch+json")
        await until(local.api, lambda pods: pods["a"]["status"]["phase"] == "Running")


@pytest.mark.asyncio
async def test_a_pod_is_scheduled_runs_fails_and_another_leaves():
    async with local_cluster(pace=PACE) as local:
        await local.add_nodes(generate_nodes(2), 8)
        local.schedule(SchedulerSettings())
        spec = {"restartPolicy": "Never", "containers": [{"name": "m", "image": "i:1"}]}
        for name, notes in (("short", {RUNS_FOR: "0.01", EXIT_CODE: "3"}), ("long", {})):
            await local.api.call("POST", PODS, {"metadata": {"name": name, "annotations": notes}, "spec": spec})
        found = await until(
            local.api, lambda pods: {p["status"]["phase"] for p in pods.values()} == {"Failed", "Running"}
        )
        assert found["short"]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert found["long"]["status"]["podIP"].startswith("10.")
        assert found["long"]["status"]["hostIP"] in {place.ip for place in generate_nodes(2)}
        assert {c["type"] for c in found["long"]["status"]["conditions"]} > {"PodScheduled", "Ready"}
        await local.api.call("DELETE", f"{PODS}/long")
        await until(local.api, lambda pods: "long" not in pods)


def test_generated_nodes_and_their_map_agree():
    generated = generate_nodes(40)
    reading = read_map({names.TEXT_KEY: map_text(generated)})
    assert not reading.faults
    assert [(entry.host, entry.path) for entry in reading.entries] == [(place.ip, place.path) for place in generated]


def test_a_map_gives_a_node_for_each_host():
    text = "asw-1 psw-1 10.0.0.1\nasw-1 psw-1 gpu7\nasw-2 psw-1 UPPER\n"
    nodes = nodes_of_map(read_map({names.TEXT_KEY: text}).entries)
    assert [(place.name, place.ip) for place in nodes][:2] == [("node-10-0-0-1", "10.0.0.1"), ("gpu7", "10.0.0.2")]
    assert hosts_without_node_name(nodes) == ["UPPER"]
