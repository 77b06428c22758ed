"""The Training Operator and ours get the same jobs on one API server, each in a namespace of its own.

No kubelet runs: the test says what becomes of pods, the same in both. What differs is named in compared.py.
"""

import asyncio

import pytest
import pytest_asyncio

from tests.e2e.controllers.installed import install
from tests.e2e.controllers.shared import compared
from tests.e2e.controllers.shared.jobs import CHANGES, SHAPES, STORIES

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

THEIRS, OURS = "theirs", "ours"
JOBS = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"
PODS, SERVICES = "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/services"
HPAS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"


def size(job):
    """How many pods a job has, once it has them all."""
    if (job["spec"].get("runPolicy") or {}).get("suspend"):
        return 0
    return sum(role.get("replicas", 1) for role in job["spec"]["pytorchReplicaSpecs"].values())


class Both:
    """The two namespaces, what lies in each by job, and which conditions each job has had there, one after another."""

    def __init__(self, api):
        self.api = api
        self._had = {THEIRS: {}, OURS: {}}
        self._news = asyncio.Condition()

    async def follow(self, namespace):
        """Write down each set of conditions that differs from the one before, until cancelled."""
        had = self._had[namespace]
        async for jobs in self.api.watch(JOBS.format(namespace)):
            for job in jobs:
                now, history = compared.conditions(job), had.setdefault(job["metadata"]["name"], [])
                if now and (not history or history[-1] != now):
                    history.append(now)
            async with self._news:
                self._news.notify_all()

    async def transitions(self, name, come):
        """Return the conditions that a job has had in both, once the newest of both answer true."""
        async with asyncio.timeout(30.0), self._news:
            await self._news.wait_for(lambda: all(come(had.get(name, [()])[-1]) for had in self._had.values()))
        return [had[name] for had in self._had.values()]

    async def listed(self, path, job):
        found = []
        for namespace in (THEIRS, OURS):
            items = (await self.api.get(path.format(namespace)))["items"]
            mine = [each for each in items if _of(each, job)]
            found.append({each["metadata"]["name"]: each for each in mine})
        return found

    async def job(self, name):
        return [await self.api.get(f"{JOBS.format(namespace)}/{name}") for namespace in (THEIRS, OURS)]

    async def until(self, path, condition, within_s=180.0):
        for namespace in (THEIRS, OURS):
            await self.api.until(path.format(namespace), condition, within_s)

    async def become(self, phase, code=0, **where):
        """Give pods this phase in both, those with these labels."""
        for namespace in (THEIRS, OURS):
            for each in (await self.api.get(PODS.format(namespace)))["items"]:
                labels = each["metadata"]["labels"]
                if all(labels[f"training.kubeflow.org/{key.replace('_', '-')}"] == text for key, text in where.items()):
                    await self._tell(namespace, each, phase, code)

    async def _tell(self, namespace, pod, phase, code):
        state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": code}}
        container_status = {
            "name": "pytorch",
            "state": state,
            "ready": False,
            "restartCount": 0,
            "image": "",
            "imageID": "",
        }
        path = f"{PODS.format(namespace)}/{pod['metadata']['name']}/status"
        await self.api.patch(path, {"status": {"phase": phase, "containerStatuses": [container_status]}})


def _of(each, job):
    return any(owner["name"] == job for owner in each["metadata"].get("ownerReferences", ()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(module_plane):
    plane = module_plane
    await asyncio.to_thread(plane.start_training_operator, None, ("--namespace", THEIRS))
    async with plane.api() as api:
        for namespace in (THEIRS, OURS):
            await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        await install(plane, api, "--namespace", OURS)
        both = Both(api)
        following = [asyncio.create_task(both.follow(namespace)) for namespace in (THEIRS, OURS)]
        jobs = [*SHAPES.values(), *(each[0] for each in (*STORIES.values(), *CHANGES.values()))]
        for namespace in (THEIRS, OURS):
            await api.create_all(jobs, namespace)
        pods_total = sum(map(size, jobs))
        await both.until(PODS, lambda pods: len(pods) >= pods_total)
        await both.become("Running")
        busy = sum(size(job) > 0 for job in jobs)
        await both.until(JOBS, lambda now: sum(_is(each, "Running") for each in now) >= busy)
        yield both
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def hold_transitions(both, name):
    """Hold what conditions the job has had, in order, to the Training Operator's. Returns those that were true."""
    now = compared.conditions((await both.job(name))[1])
    theirs, ours = await both.transitions(name, lambda newest: newest == now)
    assert ours == theirs
    return [{type_ for type_, status_value, _ in each if status_value == "True"} for each in ours]


def _is(job, type_):
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


@pytest.mark.parametrize("job", SHAPES.values(), ids=SHAPES)
async def test_a_jobs_children_and_status_are_those_of_the_training_operator(both, job):
    name = job["metadata"]["name"]
    theirs, ours = await both.listed(PODS, name)
    assert list(ours) == list(theirs)
    for pod_name in theirs:
        theirs_compared, ours_compared = (
            compared.as_ours(compared.pod(theirs[pod_name]), job),
            compared.sorted_env(compared.pod(ours[pod_name])),
        )
        if job["spec"].get("elasticPolicy") is not None and "Master" not in job["spec"]["pytorchReplicaSpecs"]:
            assert compared.waits_for_worker_0(ours_compared) is not pod_name.endswith("-worker-0")
            ours_compared["spec"]["initContainers"] = theirs_compared["spec"]["initContainers"]
        assert ours_compared == theirs_compared
    for path, plain in ((SERVICES, compared.service), (HPAS, compared.other)):
        theirs, ours = await both.listed(path, name)
        for service in theirs.values() if path == SERVICES and job["spec"].get("elasticPolicy") is not None else ():
            for port in service["spec"]["ports"]:  # SD-14
                if "worker" in service["metadata"]["name"] and port["port"] == 23456:
                    port["port"] = 29400
        assert {key: plain(each) for key, each in ours.items()} == {key: plain(each) for key, each in theirs.items()}
    theirs, ours = map(compared.status, await both.job(name))
    assert ours == theirs
    await hold_transitions(both, name)


@pytest.mark.parametrize(("job", "events", "comes_to", "left"), STORIES.values(), ids=STORIES)
async def test_a_job_comes_to_the_same_end_whatever_becomes_of_its_pods(both, job, events, comes_to, left):
    name = job["metadata"]["name"]
    before = [sorted(each["metadata"]["uid"] for each in found.values()) for found in await both.listed(PODS, name)]
    for role, index, phase, code in events:
        await both.become(phase, code, job_name=name, replica_type=role, replica_index=str(index))
    recreates = any(phase == "Failed" for _, _, phase, _ in events) and comes_to == "Running"
    if recreates:
        for namespace, uids in zip((THEIRS, OURS), before, strict=True):
            await both.api.until(PODS.format(namespace), lambda now, uids=uids: _are_new(now, name, uids, left), 30)
        await both.become("Running", job_name=name)
    if comes_to:
        await both.until(JOBS, lambda now: any(_is(each, comes_to) for each in now if each["metadata"]["name"] == name))
    else:
        await both.until(JOBS, lambda now: all(each["metadata"]["name"] != name for each in now) or None)
        theirs, ours = await both.transitions(name, lambda newest: "Succeeded" in [type_ for type_, *_ in newest])
        assert ours == theirs
        return
    await both.until(PODS, lambda now: _left(now, name) == left)
    if comes_to != "Running":  # both count what was active as succeeded, or as nothing, in a look of its own
        await both.until(JOBS, lambda now: any(_settled(each) for each in now if each["metadata"]["name"] == name))
    ended = [{pod: each["status"]["phase"] for pod, each in found.items()} for found in await both.listed(PODS, name)]
    assert ended[1] == ended[0]
    services = [sorted(found) for found in await both.listed(SERVICES, name)]
    assert services[1] == services[0]
    theirs, ours = map(compared.status, await both.job(name))
    if any(role["restartPolicy"] == "ExitCode" for role in job["spec"]["pytorchReplicaSpecs"].values()):
        theirs["completionTime"] = ours["completionTime"]  # upstream forgets it there, so that no TTL ends such a job
    if comes_to == "Succeeded" and "Master" in theirs["replicaStatuses"]:
        # Upstream leaves once the Master has succeeded: in the random order of a Go map, before it comes to the Worker.
        theirs["replicaStatuses"]["Worker"]["selector"] = ours["replicaStatuses"]["Worker"]["selector"]
    assert ours == theirs
    had = await hold_transitions(both, name)
    assert any("Restarting" in each for each in had) == recreates


@pytest.mark.parametrize(("job", "steps"), CHANGES.values(), ids=CHANGES)
async def test_a_job_comes_to_the_same_when_its_owner_changes_it(both, job, steps):
    name = job["metadata"]["name"]
    for patch, comes_to, left in steps:
        for namespace in (THEIRS, OURS):
            await both.api.patch(f"{JOBS.format(namespace)}/{name}", {"spec": patch})
        await both.until(PODS, lambda now, left=left: _left(now, name) == left)
        if comes_to == "Running":
            await both.become("Running", job_name=name)
        await both.until(
            JOBS, lambda now, to=comes_to: any(_is(each, to) for each in now if each["metadata"]["name"] == name)
        )
    for path in (PODS, SERVICES):
        theirs, ours = await both.listed(path, name)
        assert list(ours) == list(theirs)
    theirs, ours = map(compared.status, await both.job(name))
    assert ours == theirs
    await hold_transitions(both, name)


def _settled(job):
    """True for a job that has failed, or whose status counts no pod as active any more."""
    return _is(job, "Failed") or not any(each.get("active") for each in job["status"]["replicaStatuses"].values())


def _are_new(pods, job, uids, count):
    mine = [each["metadata"]["uid"] for each in pods if _of(each, job)]
    return len(mine) == count and sorted(mine) != uids


def _left(pods, job):
    return sum(_of(each, job) and "deletionTimestamp" not in each["metadata"] for each in pods)
