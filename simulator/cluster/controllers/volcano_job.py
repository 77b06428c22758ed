"""Control Volcano Jobs (batch.volcano.sh/v1alpha1): pods by task and index, a PodGroup with the min, a table of phases.

A pod that is deleted raises PodEvicted, also when the job itself has shrunk. So jobs that restart on it restart then,
as in a cluster. Source: docs/facts/job-kinds.md 1.5 and docs/facts/schedulers.md 3.2 (Volcano's job controller).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from turnout.kube.times import rfc3339, since_1970
from turnout.simulator.cluster.controllers.model import (
    Create,
    Look,
    Object,
    Remove,
    Tell,
    Write,
    from_template,
    is_leaving,
    is_over,
    owned,
    phase,
    with_env,
)
from turnout.simulator.cluster.controllers.volcano_plugins import extras, in_pod
from turnout.simulator.cluster.controllers.volcano_sums import least_resources

JOBS = "jobs.batch.volcano.sh"
GROUPS = "podgroups.scheduling.volcano.sh"
GROUP, JOB, TASK, INDEX = (
    "scheduling.k8s.io/group-name",
    "volcano.sh/job-name",
    "volcano.sh/task-spec",
    "volcano.sh/task-index",
)
# What an action makes of a job, and what that becomes once its pods have ended.
ACTIONS = {
    "RestartJob": "Restarting",
    "RestartTask": "Restarting",  # the whole job: this local cluster restarts no single task
    "AbortJob": "Aborting",
    "TerminateJob": "Terminating",
    "CompleteJob": "Completing",
}
NEXT = {"Restarting": "Pending", "Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}
ENDS = ("Aborted", "Terminated", "Completed", "Failed")


@dataclass(frozen=True, slots=True)
class _Observed:
    job: Object
    pods: Sequence[Object]
    group: Object | None
    now_s: float

    @property
    def phase(self) -> str:
        return str((((self.job.get("status") or {}).get("state")) or {}).get("phase") or "Pending")

    @property
    def active(self) -> list[Object]:
        return [pod for pod in self.pods if not is_over(pod)]


def look(job: Object, pods: Sequence[Object], group: Object | None, now_s: float) -> Look:
    """Return the writes that a job needs.

    pods: those that it owns. group: its PodGroup, None while there is none.
    """
    observed = _Observed(job, pods, group, now_s)
    if observed.phase in ENDS:
        return _after(observed)
    if observed.phase in NEXT:
        return _winding_down(observed)
    if action := _action(observed):
        return Look(_told(observed, ACTIONS[action[0]], action[1]))
    if end := _end(observed):
        return Look(_told(observed, *end))
    # The PodGroup last: once it is there, so is everything else that is made only once.
    writes = [*(extras(job) if group is None else ()), *_group(observed)]
    if group is not None and (group.get("status") or {}).get("phase", "Pending") != "Pending":
        writes += _pods(observed)
    return Look([*writes, *_told(observed, _running(observed))])


def group_name(job: Object) -> str:
    """Return the name of a job's PodGroup."""
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


def wanted_pods(job: Object) -> Iterator[tuple[Object, int]]:
    """Yield every (task, index) that should exist, in order."""
    for task in job["spec"].get("tasks") or ():
        for index in range(task.get("replicas", 0)):
            yield task, index


def pod_name(job: Object, task: Object, index: int) -> str:
    """Return the name of a job's pod."""
    return f"{job['metadata']['name']}-{task['name']}-{index}"


def _pods(observed: _Observed) -> Iterator[Write]:
    """Create missing pods, and delete those with an index beyond the replicas, the highest first."""
    job = observed.job
    there = {pod["metadata"]["name"]: pod for pod in observed.pods}
    wanted = {pod_name(job, task, index): (task, index) for task, index in wanted_pods(job)}
    for name, (task, index) in wanted.items():
        if name not in there:
            yield Create("pods", _pod(job, task, index))
    surplus = [pod for name, pod in there.items() if name not in wanted and not is_leaving(pod)]
    yield from (Remove("pods", pod) for pod in sorted(surplus, key=_index, reverse=True))


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, 0))


def _pod(job: Object, task: Object, index: int) -> Object:
    meta, spec = job["metadata"], job["spec"]
    marks = {
        JOB: meta["name"],
        TASK: task["name"],
        INDEX: str(index),
        "volcano.sh/job-namespace": meta["namespace"],
        "volcano.sh/queue-name": spec["queue"],
    }
    name = {"name": pod_name(job, task, index)}
    pod = from_template(task["template"], name, meta["namespace"], marks, {**marks, GROUP: group_name(job)})
    pod["metadata"]["ownerReferences"] = owned(job, "batch.volcano.sh/v1alpha1", "Job")
    added, env = in_pod(job, task, index)
    pod["spec"] = with_env({"schedulerName": spec["schedulerName"], **pod["spec"], **added}, env)
    if spec.get("priorityClassName"):
        pod["spec"].setdefault("priorityClassName", spec["priorityClassName"])
    return pod


def _group(observed: _Observed) -> Iterator[Write]:
    """Create the PodGroup or bring it up to date with the job."""
    job, spec = observed.job, observed.job["spec"]
    wanted: Object = {
        "minMember": spec["minAvailable"],
        "minTaskMember": {task["name"]: task["minAvailable"] for task in spec.get("tasks") or ()},
        "queue": spec["queue"],
        "minResources": least_resources(spec),
    }
    for key in ("priorityClassName", "networkTopology"):
        if spec.get(key):
            wanted[key] = spec[key]
    if observed.group is None:
        meta = {"name": group_name(job), "namespace": job["metadata"]["namespace"]}
        meta["annotations"] = dict(job["metadata"].get("annotations") or {})
        meta["ownerReferences"] = owned(job, "batch.volcano.sh/v1alpha1", "Job")
        head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
        yield Create(GROUPS, {**head, "metadata": meta, "spec": wanted, "status": {"phase": "Pending"}})
    elif any(observed.group["spec"].get(key) != value for key, value in wanted.items()):
        yield Tell(GROUPS, observed.group, {"spec": wanted}, part="")


# Phases.


def _running(observed: _Observed) -> str:
    begun = sum(phase(pod) in ("Running", "Succeeded", "Failed") for pod in observed.pods)
    enough = begun >= observed.job["spec"]["minAvailable"]
    return "Running" if observed.phase == "Running" or (enough and begun) else "Pending"


def _end(observed: _Observed) -> tuple[str, str] | None:
    """Return the phase that the pods' results lead to, and why; None when the job goes on."""
    spec, total = observed.job["spec"], sum(1 for _ in wanted_pods(observed.job))
    staying = [
        phase(pod) for pod in observed.pods if not is_leaving(pod)
    ]  # how a pod ends that was told to go is its own
    good, bad = staying.count("Succeeded"), staying.count("Failed")
    least = spec.get("minSuccess")
    if least and good >= least:
        return "Completing", "enough pods have succeeded"
    if observed.phase != "Running" or good + bad < total or not total:
        return None
    if good >= (least or spec["minAvailable"]):
        return "Completed", "all pods have ended"
    return "Failed", f"{good} pods succeeded, fewer than {least or spec['minAvailable']}"


def _action(observed: _Observed) -> tuple[str, str] | None:
    """Return the action that a policy asks for and why; None for none. A task's policies come before the job's."""
    for pod in observed.pods:
        task = (pod["metadata"].get("annotations") or {}).get(TASK)
        for event, code in _events(observed, pod):
            for policy in _policies(observed.job, task):
                if _meets(policy, event, code) and policy.get("action") in ACTIONS:
                    return policy["action"], f"{event} of {pod['metadata']['name']}"
    return None


def _events(observed: _Observed, pod: Object) -> Iterator[tuple[str, int | None]]:
    if is_leaving(pod):
        yield "PodEvicted", None
    elif phase(pod) == "Failed":
        told = (pod.get("status") or {}).get("containerStatuses") or ()
        codes = [((each.get("state") or {}).get("terminated") or {}).get("exitCode", 0) for each in told]
        yield "PodFailed", next((code for code in codes if code), None)
    elif phase(pod) == "Succeeded":
        task = (pod["metadata"].get("annotations") or {}).get(TASK)
        of_task = [other for other in observed.pods if (other["metadata"].get("annotations") or {}).get(TASK) == task]
        if len(of_task) == _replicas(observed.job, task) and all(phase(other) == "Succeeded" for other in of_task):
            yield "TaskCompleted", None


def _replicas(job: Object, name: str | None) -> int:
    return sum(1 for task, _ in wanted_pods(job) if task["name"] == name)


def _policies(job: Object, task: str | None) -> Iterator[Object]:
    for each in job["spec"].get("tasks") or ():
        if each["name"] == task:
            yield from each.get("policies") or ()
    yield from job["spec"].get("policies") or ()


def _meets(policy: Object, event: str, code: int | None) -> bool:
    events = [policy.get("event"), *(policy.get("events") or ())]
    if policy.get("exitCode") is not None:
        return event == "PodFailed" and code == policy["exitCode"]
    return event in events or ("*" in events and event != "TaskCompleted")


def _winding_down(observed: _Observed) -> Look:
    """Delete the pods, and enter the next phase once none runs. A restart also deletes pods that have ended."""
    again = observed.phase == "Restarting"
    going = observed.pods if again else observed.active
    writes: list[Write] = [Remove("pods", pod) for pod in going if not is_leaving(pod)]
    if observed.active or (again and observed.pods):
        return Look([*writes, *_told(observed, observed.phase)])
    tried = (observed.job.get("status") or {}).get("retryCount", 0) + again
    if again and tried > observed.job["spec"].get("maxRetry", 3):
        return Look([*writes, *_told(observed, "Failed", "it was restarted too often")])
    return Look([*writes, *_told(observed, NEXT[observed.phase], tried=tried)])


def _after(observed: _Observed) -> Look:
    writes: list[Write] = [Remove("pods", pod) for pod in observed.active if not is_leaving(pod)]
    ttl_s = observed.job["spec"].get("ttlSecondsAfterFinished")
    state = (observed.job.get("status") or {}).get("state") or {}
    due_s = (since_1970(state.get("lastTransitionTime")) or 0.0) + (ttl_s or 0)
    if ttl_s is None:
        return Look(writes)
    return Look([*writes, Remove(JOBS, observed.job)]) if observed.now_s >= due_s else Look(writes, due_s)


def _told(observed: _Observed, word: str, why: str = "", tried: int | None = None) -> list[Write]:
    """Return the write of the status when it has changed."""
    before: Object = observed.job.get("status") or {}
    counts = Counter("terminating" if is_leaving(pod) else phase(pod).lower() for pod in observed.pods)
    told: Object = {
        "minAvailable": observed.job["spec"]["minAvailable"],
        **{key: counts[key] for key in ("pending", "running", "succeeded", "failed", "terminating")},
        "taskStatusCount": _by_task(observed.pods),
        "version": 1 + (before.get("retryCount") or 0),
        "retryCount": before.get("retryCount", 0) if tried is None else tried,
    }
    if word != (before.get("state") or {}).get("phase"):
        at = rfc3339(observed.now_s)
        told["state"] = {"phase": word, "lastTransitionTime": at} | ({"message": why} if why else {})
        told["conditions"] = [*(before.get("conditions") or ()), {"status": word, "lastTransitionTime": at}]
    changed = {key: value for key, value in told.items() if before.get(key) != value}
    return [Tell(JOBS, observed.job, {"status": changed})] if changed else []


def _by_task(pods: Iterable[Object]) -> Object:
    found: Object = {}
    for pod in pods:
        task = (pod["metadata"].get("annotations") or {}).get(TASK, "")
        phases = found.setdefault(task, {"phase": {}})["phase"]
        phases[phase(pod)] = phases.get(phase(pod), 0) + 1
    return found
