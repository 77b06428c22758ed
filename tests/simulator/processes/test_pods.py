"""Pods as processes on the embedded API: real commands, seen from outside."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from turnout.cli.local_cluster.daemon import NO_NAMESPACES
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.cluster.runtime.clients import ApiError
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.local_cluster import local_cluster
from turnout.simulator.processes.runtime.container_init import can_isolate
from turnout.simulator.processes.runtime.pod_dir import PROGRAMS
from turnout.simulator.processes.runtime.pod_runner import Runner

pytestmark = pytest.mark.asyncio
needs_isolation = pytest.mark.skipif(not can_isolate(), reason=f"not run: {NO_NAMESPACES}")
PODS = "/api/v1/namespaces/default/pods"
PACE = Pace(pull_s=0.01, stop_s=0.01, restart_s=0.01, backoff_s=(0.05, 0.2))


def pod(name, script, policy="Never", grace=5, meta=None, volumes=(), **more):
    container = {"name": "main", "image": "any:1", "command": ["sh", "-c", script], **more.pop("container", {})}
    spec = {"restartPolicy": policy, "terminationGracePeriodSeconds": grace, "containers": [container], **more}
    return {"metadata": {"name": name, **(meta or {})}, "spec": {**spec, "volumes": list(volumes)}}


class Pods:
    """The pods of a local cluster, by name."""

    def __init__(self, made):
        self.api, self.made = made.api, made

    async def create(self, body):
        return await self.api.call("POST", PODS, body)

    async def until(self, name, condition):
        """The pod once it is as asked for."""
        async with asyncio.timeout(20):
            async for word, now in self.api.changes(PODS):
                if word in ("ADDED", "MODIFIED"):
                    found = now.obj
                    if found["metadata"]["name"] == name and condition(found):
                        return found
        raise AssertionError("a watch does not end")

    async def over(self, name):
        return await self.until(name, lambda p: p["status"]["phase"] in ("Succeeded", "Failed"))

    async def runs(self, name):
        return await self.until(
            name, lambda p: any("running" in c["state"] for c in p["status"].get("containerStatuses", ()))
        )

    async def gone(self, name):
        async with asyncio.timeout(20):
            async for word, now in self.api.changes(PODS):
                if word == "SYNCED":
                    names = {p["metadata"]["name"] for p in (await self.api.call("GET", PODS))["items"]}
                    if name not in names:
                        return
                if word == "DELETED" and now.obj["metadata"]["name"] == name:
                    return

    async def wrote(self, name, text):
        """Wait until it has written something."""
        await self.runs(name)
        read = ""
        async with (
            asyncio.timeout(20),
            self.made.session.get(f"{self.made.url}{PODS}/{name}/log?follow=true") as answer,
        ):
            async for chunk in answer.content.iter_any():
                read += chunk.decode()
                if text in read:
                    return

    async def log(self, name, **query):
        parameters = "&".join(f"{key}={value}" for key, value in query.items())
        async with self.made.session.get(f"{self.made.url}{PODS}/{name}/log?{parameters}") as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return text


@pytest_asyncio.fixture
async def pods(tmp_path):
    async with local_cluster(tmp_path / "kubeconfig", pace=PACE, processes=tmp_path / "pods") as local:
        await local.add_nodes(generate_nodes(2), 8)
        local.schedule(SchedulerSettings())
        yield Pods(local)


def running(word):
    """The command lines on this machine that hold a word."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [line for line in [file.read_bytes().decode(errors="replace")] if word in line and "tail" in line]
    return found


def main_of(found):
    return found["status"].get("containerStatuses", [{"restartCount": 0, "state": {}}])[0]


async def test_a_pod_whose_folders_cannot_be_made_leaves_none(tmp_path):
    """A file lies where one of its folders belongs, as when a disk is full in the middle."""
    runner = Runner(None, tmp_path, lambda node: "")
    (tmp_path / "uid-1").mkdir()
    (tmp_path / "uid-1" / "shared").touch()
    body = pod("a", "true")
    body["metadata"] |= {"uid": "uid-1", "namespace": "default"}
    body["spec"]["nodeName"] = "n"
    runner.pod_changed(body)
    async with asyncio.timeout(20):
        while runner.runs("uid-1"):
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert list(tmp_path.iterdir()) == []


async def test_a_pod_does_its_work_and_what_it_wrote_is_kept(pods):
    await pods.create(pod("a", "echo one; echo two >&2; echo three; exit 3"))
    found = await pods.over("a")
    assert found["status"]["phase"] == "Failed"
    assert main_of(found)["state"]["terminated"]["exitCode"] == 3
    assert await pods.log("a") == "one\ntwo\nthree\n"
    assert await pods.log("a", tailLines=1) == "three\n"
    assert await pods.log("a", limitBytes=5) == "one\nt"


@needs_isolation
async def test_it_is_given_its_environment_and_files(pods):
    await pods.api.call(
        "POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "c"}, "data": {"k": "v"}}
    )
    env = [
        {"name": "PLAIN", "value": "p"},
        {"name": "MADE", "value": "$(PLAIN)-$$(PLAIN)"},
        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ]
    script = "echo $PLAIN $MADE $ME $IP $NODE $K $(hostname); cat /etc/podinfo/labels /new/k; echo hi > /dev/shm/x"
    down = {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
    body = pod(
        "a",
        script,
        meta={"labels": {"app": "train"}},
        container={
            "env": env,
            "volumeMounts": [{"name": "d", "mountPath": "/etc/podinfo"}, {"name": "c", "mountPath": "/new"}],
        },
        volumes=[{"name": "d", **down}, {"name": "c", "configMap": {"name": "c"}}],
    )
    await pods.create(body)
    found = await pods.over("a")
    ip, node = found["status"]["podIP"], found["spec"]["nodeName"]
    assert ip.startswith("127.")
    assert await pods.log("a") == f'p p-$(PLAIN) a {ip} {node} v a\napp="train"v'


@needs_isolation
async def test_its_memory_is_its_own_and_its_containers_share_it(pods, tmp_path):
    name = f"turnout-test-{tmp_path.name}"
    reader = {
        "name": "beside",
        "image": "i",
        "command": ["sh", "-c", f"until cat /dev/shm/{name}; do sleep 0.01; done"],
    }
    body = pod("a", f"echo hi > /dev/shm/{name}")
    body["spec"]["containers"].append(reader)
    await pods.create(body)
    await pods.over("a")
    assert (await pods.log("a", container="beside")).endswith("hi\n")
    assert name not in os.listdir("/dev/shm")


@needs_isolation
async def test_a_volume_is_mounted_in_another_and_nothing_is_left_on_the_machine(pods):
    mounts = [{"name": "out", "mountPath": "/turnout-test"}, {"name": "in", "mountPath": "/turnout-test/in"}]
    volumes = [{"name": "out", "emptyDir": {}}, {"name": "in", "emptyDir": {"medium": "Memory"}}]
    script = "cd /turnout-test; touch a in/b; find . | sort"
    await pods.create(pod("a", script, container={"volumeMounts": mounts}, volumes=volumes))
    await pods.over("a")
    assert await pods.log("a") == ".\n./a\n./in\n./in/b\n"
    assert "turnout-test" not in os.listdir("/")


@needs_isolation
async def test_a_volume_over_the_folder_of_our_programs_does_not_hide_them(pods):
    """A chart mounts a volume at /tmp, and a checkout may lie there."""
    above = str(Path(PROGRAMS[0]).parent)
    above = above if above != "/" else "/turnout-test"  # nothing is mounted over a checkout in the root
    body = pod("a", f"touch {above}/mine && python -c 'import turnout.launcher; print(1)'")
    body["spec"]["containers"][0]["volumeMounts"] = [{"name": "tmp", "mountPath": above}]
    body["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    await pods.create(body)
    await pods.over("a")
    assert await pods.log("a") == "1\n"
    assert not await asyncio.to_thread(Path(above, "mine").exists)


@needs_isolation
async def test_peers_find_one_another_by_name_each_at_its_own_address(pods):
    service = {"metadata": {"name": "ring"}, "spec": {"clusterIP": "None", "selector": {"app": "ring"}}}
    await pods.api.call("POST", "/api/v1/namespaces/default/services", service)
    listens = (
        "import socket; s = socket.create_server((socket.gethostname(), 7000)); c, a = s.accept(); print(c.recv(9))"
    )
    asks = (
        "import socket, time\n"
        "while True:\n"
        "    try: s = socket.create_connection(('b-0.ring', 7000)); break\n"
        "    except OSError as error: time.sleep(0.02)\n"
        "s.send(socket.gethostname().encode())"
    )
    for name, code in (("b-0", listens), ("b-1", asks)):
        body = pod(name, "", meta={"labels": {"app": "ring"}}, hostname=name, subdomain="ring")
        body["spec"]["containers"][0]["command"] = ["python", "-c", code]
        await pods.create(body)
    assert (await pods.over("b-0"))["status"]["phase"] == "Succeeded"
    assert await pods.log("b-0") == "b'b-1'\n"


async def test_a_deleted_pod_hears_sigterm_and_has_its_grace(pods):
    await pods.create(pod("a", "trap 'echo leaving; exit 0' TERM; echo up; sleep 60 & wait"))
    await pods.runs("a")
    following = asyncio.create_task(pods.log("a", follow="true"))
    await pods.until("a", lambda p: p["status"]["phase"] == "Running")
    await pods.wrote("a", "up")
    await pods.api.call("DELETE", f"{PODS}/a")
    await pods.gone("a")
    assert await following == "up\nleaving\n"


async def test_one_that_does_not_heed_it_is_killed_with_everything_it_started(pods, tmp_path):
    mark = tmp_path / "mark"
    mark.touch()
    await pods.create(pod("a", f"trap '' TERM; setsid tail -f {mark} & echo up; wait; wait", grace=1))
    await pods.wrote("a", "up")
    assert running(str(mark))
    await pods.api.call("DELETE", f"{PODS}/a")
    await pods.gone("a")
    assert not running(str(mark))


@pytest.mark.parametrize(
    ("policy", "script", "phase", "restarts"),
    [
        pytest.param("OnFailure", "test -e $D/x || { touch $D/x; exit 1; }", "Succeeded", 1, id="until it succeeds"),
        pytest.param("Never", "exit 1", "Failed", 0, id="never"),
    ],
)
async def test_the_restart_policy_is_kept(pods, tmp_path, policy, script, phase, restarts):
    await pods.create(pod("a", script, policy, container={"env": [{"name": "D", "value": str(tmp_path)}]}))
    found = await pods.over("a")
    assert (found["status"]["phase"], main_of(found)["restartCount"]) == (phase, restarts)


@needs_isolation
async def test_one_that_keeps_failing_restarts_later_and_its_last_words_are_kept(pods):
    await pods.create(pod("a", "echo run; echo why > /dev/termination-log; exit 7", "Always"))
    found = await pods.until("a", lambda p: main_of(p)["restartCount"] >= 2 and "waiting" in main_of(p)["state"])
    assert main_of(found)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert main_of(found)["lastState"]["terminated"] | {"startedAt": "", "finishedAt": ""} == {
        "exitCode": 7,
        "reason": "Error",
        "message": "why\n",
        "startedAt": "",
        "finishedAt": "",
    }
    assert await pods.log("a", previous="true") == "run\n"


async def test_what_it_refers_to_is_waited_for(pods):
    env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    await pods.create(pod("a", "echo $K", container={"env": env}))
    found = await pods.until("a", lambda p: "CreateContainerConfigError" in str(main_of(p)["state"]))
    assert main_of(found)["state"]["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": 'secret "s" not found',
    }
    with pytest.raises(AssertionError, match="is waiting to start: CreateContainerConfigError"):
        await pods.log("a")
    secret = {"metadata": {"name": "s"}, "data": {"k": "bm93"}}
    await pods.api.call("POST", "/api/v1/namespaces/default/secrets", secret)
    await pods.over("a")
    assert await pods.log("a") == "now\n"


@needs_isolation
async def test_init_containers_come_first_and_a_sidecar_goes_last(pods):
    shared = [{"name": "w", "mountPath": "/shared"}]
    first = {"name": "first", "image": "i", "command": ["sh", "-c", "echo 1 > /shared/n"], "volumeMounts": shared}
    sidecar = {
        "name": "beside",
        "image": "i",
        "command": [
            "sh",
            "-c",
            "trap 'echo last >> /shared/n; cat /shared/n; exit 0' TERM; echo s >> /shared/n; sleep 60 & wait",
        ],
        "restartPolicy": "Always",
        "volumeMounts": shared,
    }
    script = "until grep -q s /shared/n; do sleep 0.01; done; echo main >> /shared/n"
    body = pod(
        "a",
        script,
        container={"volumeMounts": shared},
        initContainers=[first, sidecar],
        volumes=[{"name": "w", "emptyDir": {}}],
    )
    await pods.create(body)
    found = await pods.over("a")
    assert found["status"]["phase"] == "Succeeded"
    assert [each["name"] for each in found["status"]["initContainerStatuses"]] == ["first", "beside"]
    assert await pods.log("a", container="beside") == "1\ns\nmain\nlast\n"


async def test_a_command_that_is_not_there_says_so(pods):
    body = pod("a", "")
    body["spec"]["containers"][0]["command"] = ["nosuch"]
    await pods.create(body)
    found = await pods.over("a")
    assert main_of(found)["state"]["terminated"]["exitCode"] == 128
    assert "nosuch" in main_of(found)["state"]["terminated"]["message"]


async def test_an_unknown_container_has_no_log(pods):
    await pods.create(pod("a", "true"))
    await pods.over("a")
    with pytest.raises(AssertionError, match="container other is not valid for pod a"):
        await pods.log("a", container="other")
    with pytest.raises(ApiError):
        await pods.api.call("GET", f"{PODS}/b/log")


async def test_it_is_ready_while_its_probe_is_answered(pods, tmp_path):
    """The folder of its HTTP server has the file that is asked for, then not, then again."""
    file = tmp_path / "readyz"
    script = f"exec {sys.executable} -m http.server 8080 --bind $POD_IP --directory {tmp_path}"
    probe = {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 0.05, "failureThreshold": 1}
    own = {"env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
    await pods.create(pod("server", script, container={"readinessProbe": probe, **own}))
    assert not main_of(await pods.runs("server"))["ready"]
    for is_answered in (True, False, True):
        (file.touch if is_answered else file.unlink)()
        found = await pods.until("server", lambda p, is_answered=is_answered: main_of(p)["ready"] is is_answered)
        (ready,) = (each for each in found["status"]["conditions"] if each["type"] == "Ready")
        assert ready["status"] == str(is_answered)
