"""Volcano's controller and ours get the same jobs on one API server, one after the other, a namespace each.

Runs when TURNOUT_PEERS names a folder with vc-controller-manager. No kubelet and no scheduler run: the test admits
PodGroups and says what becomes of pods, the same in both. What differs is named in `as_ours`.
"""

import asyncio
import copy
from contextlib import suppress

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.errors import ApiError
from tests.controllers.volcano.volcanojobs import job, task
from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.controllers.shared import compared
from tests.e2e.test_peers import free_ports, peer
from turnout.simulator.api.kinds.volcano import job_defaults

pytestmark = [pytest.mark.real, pytest.mark.peers, pytest.mark.asyncio(loop_scope="module")]

THEIRS, OURS = "theirs", "ours"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups"
PODS, MAPS, SERVICES = (f"/api/v1/namespaces/{{}}/{plural}" for plural in ("pods", "configmaps", "services"))
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "2", "nvidia.com/gpu": 1}}}
SVC = {"svc": ["--disable-network-policy=true"]}


def policy(action, **of):
    return [{**of, "action": action}]


SHAPES = {
    "one": job(task(replicas=1)),
    "elastic": job(task(replicas=4, minimum=2, container=GPU), minAvailable=2),
    "queue": job(queue="default", maxRetry=1, ttlSecondsAfterFinished=600),
    "two": job(task("ps", 2, 1, container=GPU), task(replicas=3, minimum=2), minAvailable=4),
    "below": job(task("ps", 2, container=GPU), task(replicas=2, container=GPU), minAvailable=3),
    "env": job(plugins={"env": []}),
    "svc": job(task("ps", 1), task(replicas=2), plugins={**SVC, "env": []}),
    "hidden": job(plugins={"svc": [*SVC["svc"], "--inject-hosts-env=false"]}),
    "early": job(plugins={"svc": [*SVC["svc"], "--publish-not-ready-addresses"]}),
    "noted": job(notes={"volcano.sh/preemptable": "true", "mine": "a"}, marks={"volcano.sh/preemptable": "true"}),
    "named": job(task(replicas=1, spec={"hostname": "h", "subdomain": "s"}), plugins=SVC),
    "begins": job(task(replicas=1, spec={"initContainers": [{"name": "i", "image": "i"}]}), plugins={**SVC, "env": []}),
    "topology": job(networkTopology={"mode": "hard", "highestTierAllowed": 2}),
}
GOOD, BAD = ("Succeeded", 0), ("Failed", 1)
# What becomes of the pods of one task, by index, the phase that follows, and the pods that are left.
STORIES = {
    "completes": (job(task(replicas=2)), {0: GOOD, 1: GOOD}, "Completed"),
    "fails": (job(task(replicas=2)), {0: GOOD, 1: BAD}, "Failed"),
    "goes-on": (job(task(replicas=2)), {1: BAD}, "Running"),
    "lenient": (job(task(replicas=3, minimum=2), minAvailable=2), {0: GOOD, 1: BAD, 2: GOOD}, "Completed"),
    "too-few": (job(task(replicas=3, minimum=2), minAvailable=2), {0: GOOD, 1: BAD, 2: BAD}, "Failed"),
    "aborts": (job(policies=policy("AbortJob", event="PodFailed")), {1: BAD}, "Aborted"),
    "terminates": (job(policies=policy("TerminateJob", event="PodFailed")), {1: BAD}, "Terminated"),
    "is-done": (job(policies=policy("CompleteJob", event="TaskCompleted")), {0: GOOD, 1: GOOD, 2: GOOD}, "Completed"),
    "by-code": (job(policies=policy("AbortJob", exitCode=3)), {1: ("Failed", 3)}, "Aborted"),
    "not-by-code": (job(policies=policy("AbortJob", exitCode=4)), {1: ("Failed", 3)}, "Running"),
    "by-task": (
        job(task(policies=policy("CompleteJob", event="PodFailed")), policies=policy("AbortJob", event="PodFailed")),
        {1: BAD},
        "Completed",
    ),
    "restarts": (job(policies=policy("RestartJob", event="PodFailed")), {1: BAD}, "Pending"),
}


def sent(name, raw):
    """A job as Volcano's webhook would leave it."""
    copy_of_raw = copy.deepcopy({**raw, "metadata": {**raw["metadata"], "name": name}})
    for key in ("namespace", "uid", "resourceVersion"):
        copy_of_raw["metadata"].pop(key, None)
    del copy_of_raw["status"]
    job_defaults(copy_of_raw)
    return copy_of_raw


class Played:
    """The jobs of one namespace, brought up and played to their ends under one controller."""

    def __init__(self, api, namespace):
        self.api, self.namespace, self.children, self.ends = api, namespace, {}, {}

    async def admit(self):
        """Stand in for Volcano's scheduler until cancelled: every PodGroup is let in."""
        while True:
            with suppress(ApiError):  # one is gone already, or the kind is not served yet
                for each in await self.listed(GROUPS):
                    if (each.get("status") or {}).get("phase", "Pending") == "Pending":
                        path = f"{GROUPS.format(self.namespace)}/{each['metadata']['name']}"
                        await self.api.patch(path, {"status": {"phase": "Inqueue"}})
            await asyncio.sleep(0.2)

    async def listed(self, path):
        return (await self.api.get(path.format(self.namespace)))["items"]

    async def of(self, path, job):
        owned = [each for each in await self.listed(path) if _owner(each) == job]
        return {each["metadata"]["name"]: each for each in owned}

    async def play(self):
        jobs = {**SHAPES, **{name: each[0] for name, each in STORIES.items()}}
        await self.api.create_all([sent(name, raw) for name, raw in jobs.items()], self.namespace)
        pods_total = sum(task["replicas"] for raw in jobs.values() for task in raw["spec"]["tasks"])
        await self.api.until(PODS.format(self.namespace), lambda pods: len(pods) >= pods_total or None, 60)
        for name in SHAPES:
            found = {path: await self.of(path, name) for path in (PODS, GROUPS, MAPS, SERVICES)}
            (raw,) = [each for each in await self.listed(JOBS) if each["metadata"]["name"] == name]
            self.children[name] = {path: as_ours(path, each, raw) for path, each in found.items()}
        for name, (_, _, comes_to) in STORIES.items():
            await self._become(name, lambda _: ("Running", 0))
            await self._phase(name, "Running")
            before = await self.of(PODS, name)
            events = STORIES[name][1]
            await self._become(name, events.get)
            await self._phase(name, comes_to, restarted=comes_to == "Pending")
            self.ends[name] = await self._end(name, before)

    async def _become(self, name, new_phase):
        for each in (await self.of(PODS, name)).values():
            meta = each["metadata"]
            if meta["labels"]["volcano.sh/task-spec"] != "worker" and new_phase(1) != ("Running", 0):
                continue
            if (event := new_phase(int(meta["labels"]["volcano.sh/task-index"]))) is None:
                continue
            phase, code = event
            state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": code}}
            container_status = {
                "name": "main",
                "state": state,
                "ready": True,
                "restartCount": 0,
                "image": "",
                "imageID": "",
            }
            path = f"{PODS.format(self.namespace)}/{meta['name']}/status"
            await self.api.patch(path, {"status": {"phase": phase, "containerStatuses": [container_status]}})

    async def _phase(self, name, phase, restarted=False):
        def jobs_have_phase(jobs):
            found = [each.get("status") or {} for each in jobs if each["metadata"]["name"] == name]
            return any(
                each.get("state", {}).get("phase") == phase and bool(each.get("retryCount")) >= restarted
                for each in found
            )

        await self.api.until(JOBS.format(self.namespace), lambda jobs: jobs_have_phase(jobs) or None, 30)

    async def _end(self, name, before):
        """Wait until nothing more changes; the pods that are left, which of them are new, and the counts."""
        newest_phase = None
        for _ in range(40):
            pods = await self.of(PODS, name)
            (raw,) = [each for each in await self.listed(JOBS) if each["metadata"]["name"] == name]
            now = (
                {pod: (each["status"]["phase"], _uid(each) == _uid(before.get(pod))) for pod, each in pods.items()},
                {key: raw["status"].get(key, 0) for key in _told_of(raw)},
            )
            if now == newest_phase:
                return now
            newest_phase = now
            await asyncio.sleep(0.5)
        return newest_phase


def _told_of(job):
    """Volcano forgets the counts of pods that stay behind when it ends a job; ours are those that are left."""
    lives = job["status"]["state"]["phase"] in ("Pending", "Running")
    return ("retryCount", "minAvailable", *(("succeeded", "failed") if lives else ()))


def _uid(pod):
    return pod and pod["metadata"]["uid"]


def _owner(each):
    return next((owner["name"] for owner in each["metadata"].get("ownerReferences", ())), None)


def as_ours(path, found, raw):
    """Turn the children of a job into what can be compared, one named difference after another."""
    return {_plain(name, raw): _child(path, each, raw) for name, each in found.items()}


def _plain(text, raw):
    meta = raw["metadata"]
    return text.replace(meta["uid"], "UID").replace(f"job-namespace: {meta['namespace']}", "job-namespace: NAMESPACE")


def _child(path, each, raw):
    each = yaml.safe_load(_plain(yaml.safe_dump(each), raw))
    meta = compared.meta(each)
    if path != PODS:
        meta.pop("labels", None) if path in (MAPS, SERVICES) else None  # ours have the job's name, for their watch
        spec = {key: each.get("spec", {}).get(key) for key in ("clusterIP", "selector", "publishNotReadyAddresses")}
        return meta, each.get("data") if path == MAPS else spec if path == SERVICES else _group(each["spec"])
    keys = ("hostname", "subdomain", "volumes", "schedulerName", "restartPolicy", "initContainers")
    spec = {key: each["spec"].get(key) for key in keys}
    volumes = [_volume(volume) for volume in spec["volumes"] or () if "projected" not in volume]
    spec["volumes"] = sorted(volumes, key=str)  # plugins come in the random order of a Go map
    containers = [_container(one) for one in (*each["spec"]["containers"], *(spec.pop("initContainers") or ()))]
    return meta, spec, containers


def _group(spec):
    """Volcano counts the least resources in the words of quotas, too: pods, count/pods and requests.NAME."""
    minimum = {key: each for key, each in spec["minResources"].items() if key != "pods" and not _of_quotas(key)}
    return {**spec, "minResources": minimum}


def _of_quotas(key):
    return key.startswith(("count/", "requests.", "limits."))


def _volume(volume):
    """Keys lie in a Secret with the job's uid in its name here: it is never read, so nobody's may be taken for it."""
    return volume["name"], {**volume.get("secret", {}), "secretName": ""} if "secret" in volume else volume


def _container(one):
    """Variables by name: those of svc are references there, and values here."""
    env = {
        each["name"]: None if each["name"].startswith("VC_") and "INDEX" not in each["name"] else each.get("value")
        for each in one.get("env") or ()
    }
    mounts = [(each["mountPath"], each.get("subPath")) for each in one.get("volumeMounts") or ()]
    return one["name"], env, sorted(mounts, key=str), one.get("ports")


async def _transcript(api, namespace):
    played = Played(api, namespace)
    admitting = asyncio.create_task(played.admit())
    try:
        await played.play()
    finally:
        admitting.cancel()
    return played


def _commands(plane):
    health, metrics = free_ports(2)
    command = [str(peer("vc-controller-manager")), "--kubeconfig", str(plane.kubeconfig), "--leader-elect=false"]
    return [*command, f"--healthz-address=127.0.0.1:{health}", f"--listen-address=127.0.0.1:{metrics}"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(module_plane):
    async with module_plane.api() as api:
        files = sorted((ROOT / "tests/crds/volcano").glob("*.yaml"))
        await api.create_all([yaml.safe_load(file.read_text()) for file in files])
        await api.until(DEFINITIONS, lambda all_: (len(all_) >= len(files) and all(map(_served, all_))) or None, 30)
        for name in ("root", "default"):
            queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
            await api.call("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", {**queue, "spec": {"weight": 1}})
        for namespace in (THEIRS, OURS):
            await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        module_plane.start_program("volcano-controllers", _commands(module_plane))
        theirs = await _transcript(api, THEIRS)
        module_plane.stop_program("volcano-controllers")
        await install(module_plane, api, "--gang=volcano", "--namespace", OURS, kinds="VolcanoJob")
        yield theirs, await _transcript(api, OURS)


def _served(definition):
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.mark.parametrize("name", SHAPES)
async def test_a_jobs_children_are_those_of_volcanos_controller(both, name):
    theirs, ours = (each.children[name] for each in both)
    assert theirs[PODS]
    assert ours == theirs


@pytest.mark.contract("VE-27")
@pytest.mark.parametrize("name", STORIES)
async def test_a_job_comes_to_the_same_end_whatever_becomes_of_its_pods(both, name):
    theirs, ours = (each.ends[name] for each in both)
    assert ours == theirs
