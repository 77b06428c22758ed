"""Simulates a full queue in memory, in which elastic jobs borrow GPUs and return them to rigid jobs that wait.

The autoscaler's real modules decide. Three honest tenants have an elastic job each, the tenant `greedy` has one too,
and rigid jobs come and go. Pods start and end at once; all times are simulated. At LEADS_S the leader is killed, and
another one begins with what was written for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.decide import decide, decide_safely
from turnout.autoscaler.memory import Memory, encode, read
from turnout.autoscaler.model import Policy, Step
from turnout.autoscaler.observe import unmanaged_gangs
from turnout.autoscaler.observe.room_history import IdleRoom, Promises, UnusedRoom
from turnout.autoscaler.scaling.resize_cost import resize_annotations
from turnout.jobs.gang import Dialect
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.jobs.queues.model import QueueSpec
from turnout.kube import labels
from turnout.kube.objects import Node, Pod
from turnout.kube.times import rfc3339

GPU, NODES, PER_NODE = "nvidia.com/gpu", 8, 8
TENANTS, GREEDY = ("vision", "speech", "search"), "greedy"
LOOK_S, BEGINS_S, LEADS_S = 5, 600, 1_200
START_S = 1_767_225_600.0
Raw = dict[str, Any]


@dataclass(slots=True)
class LendingMeasurements:
    """The measurements of the tenants' jobs in one run."""

    size_s: dict[str, float] = field(default_factory=dict)  # worker seconds of the elastic job, by tenant
    wait_s: list[float] = field(default_factory=list)  # of each honest rigid job, from its creation to its start
    faults: int = 0  # jobs without a decision, summed over all decisions


@dataclass(slots=True)
class SimulatedJob:
    """One job of the simulation."""

    raw: Raw
    minimum: int  # workers
    came_s: float  # when it was created, in seconds of the simulation
    lasts_s: float = 0.0  # running time of a rigid job, 0 for an elastic one
    ends_s: float = 0.0  # when it ends, in seconds of the simulation
    pods: dict[int, str] = field(default_factory=dict)  # index -> node, "" while it waits

    @property
    def size(self) -> int:
        """Return the number of workers in the object's spec."""
        return int(self.raw["spec"]["parallelism"])


class LendingStory:
    """The cluster with its scheduler and job controller, and the autoscaler.

    seconds: of the run. attack: called before each decision from BEGINS_S on. gap_s: seconds between two rigid jobs.
    seed: of their sizes and lengths.
    """

    def __init__(self, seconds: int, attack: Callable[[LendingStory, int], None], gap_s: int, seed: int = 5) -> None:
        self._seconds, self._attack, self._gap_s = seconds, attack, gap_s
        self._rng, self._policy = random.Random(seed), Policy(restart_s=10.0, cooldown_s=60.0)
        self.jobs: dict[tuple[str, str], SimulatedJob] = {}
        self.strays: dict[str, Raw] = {}  # pods of nobody's job, by uid; with a node or without
        self.groups: list[unmanaged_gangs.PodGroupState] = []  # PodGroups of nobody's job
        self._free = {f"n{at}": PER_NODE for at in range(NODES)}
        self.results, self.second, self._version = LendingMeasurements(), 0, 0
        self._lead(Memory())

    def _lead(self, memory: Memory) -> None:
        """Start an autoscaler with an empty cache, what the API server shows, and what the last leader wrote
        (`memory`).
        """
        self._view, policy = Cache(KINDS), self._policy
        self._parts = IdleRoom(policy.idle_before_growth_s), Promises(policy.promise_s)
        self._unused = UnusedRoom(policy.bind_s, self._view.starts.has_started)
        for name in self._free:
            offers = {GPU: str(PER_NODE), "pods": "110", "cpu": "96"}
            status = {"allocatable": offers, "conditions": [{"type": "Ready", "status": "True"}]}
            self._view.put_node(msgspec.convert({"metadata": {"name": name}, "status": status}, Node))
        self._view.queues.put(QueueSpec("q"))
        for job in self.jobs.values():
            self._show(job)
        for stray in self.strays.values():
            self._view.put_pod(msgspec.convert(stray, Pod))
        for group in self.groups:
            self._view.unmanaged.put_group(group)
        self._view.reader.restore_terms(memory.terms)
        self._unused.restore_strikes(memory.strikes, float(self.second))

    def run(self) -> LendingMeasurements:
        """Run the simulation and return its measurements. Jobs that still wait at the end count with their wait so
        far.
        """
        for who in (*TENANTS, GREEDY):
            self.create_job(who, "elastic", 2, 24)
        for second in range(0, self._seconds, LOOK_S):
            self.second = second
            self._turn()
            for who in (*TENANTS, GREEDY):
                bound = sum(bool(on) for on in self.jobs[who, "elastic"].pods.values())
                self.results.size_s[who] = self.results.size_s.get(who, 0.0) + bound * LOOK_S
        late = [job for (who, _), job in self.jobs.items() if job.lasts_s and not job.ends_s and who != GREEDY]
        self.results.wait_s += [self._seconds - job.came_s for job in late]
        return self.results

    def _turn(self) -> None:
        """Advance by LOOK_S: jobs come and end, the attack acts, the leader dies at LEADS_S, then schedule, decide,
        schedule.
        """
        if self.second % self._gap_s == 0:
            self._arrive()
        for key in [key for key, job in self.jobs.items() if job.ends_s and job.ends_s <= self.second]:
            self._end(key)
        if self.second >= BEGINS_S:
            self._attack(self, self.second - BEGINS_S)
        if self.second == LEADS_S:
            memory = Memory(self._view.reader.lent_terms([]), self._unused.strikes(float(self.second)))
            self._lead(read(encode(memory, self._now_s), self._now_s))
        self._schedule()
        self._look()
        self._schedule()

    # What tenants do.

    def create_job(
        self, namespace: str, name: str, minimum: int, maximum: int, annotations: dict[str, str] | None = None
    ) -> SimulatedJob:
        """Create an Indexed Job of one-GPU workers and show it to the autoscaler; return it.

        The job starts with `minimum` workers. If that is also `maximum`, the job is rigid, and the caller sets its
        lasts_s. annotations: further ones.
        """
        sizes = {labels.MIN_WORKERS: str(minimum), labels.MAX_WORKERS: str(maximum)}
        notes = {**sizes, labels.QUEUE: "q", **(annotations or {})}
        limits = {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
        spec = {"parallelism": minimum, "completions": minimum, "completionMode": "Indexed"}
        meta = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "annotations": notes}
        meta["creationTimestamp"] = rfc3339(self._now_s)
        template = {"spec": {"containers": [{"name": "m", "resources": limits}]}}
        job = self.jobs[namespace, name] = SimulatedJob(
            {"metadata": meta, "spec": {**spec, "template": template}}, minimum, self.second
        )
        self._show(job)
        return job

    def annotate(self, who: str, name: str, annotations: dict[str, str | None]) -> None:
        """Change annotations of a job and show it to the autoscaler. who: namespace. A value of None removes the
        annotation.
        """
        job = self.jobs[who, name]
        merged = {**job.raw["metadata"]["annotations"], **annotations}
        job.raw["metadata"]["annotations"] = {key: text for key, text in merged.items() if text is not None}
        self._show(job)

    def create_ownerless_pod(self, uid: str, spec: Raw, meta: Raw | None = None, gpus: int = 6) -> None:
        """Create a pod that no job owns, unless one of this uid exists.

        spec, meta: further fields of its spec and its metadata. gpus: that it requests, 0 for none.
        """
        if uid in self.strays:
            return
        asks = {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}} if gpus else {}
        own = {"name": uid, "namespace": GREEDY, "uid": uid, "creationTimestamp": rfc3339(self._now_s)}
        stray = {
            "metadata": {**own, **(meta or {})},
            "spec": {"containers": [{"name": "m", "resources": asks}], **spec},
        }
        self.strays[uid] = stray
        self._view.put_pod(msgspec.convert(stray, Pod))

    def create_group(self, name: str, members: int) -> None:
        """Create a PodGroup of Volcano without pods, with an owner that does not exist, in the phase Inqueue.

        members: its min; each member asks for one GPU.
        """
        meta: Raw = {"name": name, "namespace": GREEDY, "uid": name, "creationTimestamp": rfc3339(self._now_s)}
        meta["ownerReferences"] = [{"kind": "Job", "name": name, "uid": f"{name}-owner", "controller": True}]
        spec = {"minMember": members, "queue": "q", "minResources": {GPU: str(members)}}
        raw = {"metadata": meta, "spec": spec, "status": {"phase": "Inqueue"}}
        self.groups.append(unmanaged_gangs.read_pod_group(Dialect.VOLCANO, raw))
        self._view.unmanaged.put_group(self.groups[-1])

    def drop(self, uid: str) -> None:
        """Delete the ownerless pod `uid`; do nothing if it does not exist."""
        if self.strays.pop(uid, None) is not None:
            self._view.drop_pod(uid)

    # What the cluster does.

    @property
    def _now_s(self) -> float:
        return START_S + self.second

    def _arrive(self) -> None:
        """Submit a rigid job of the next honest tenant, of random size and length."""
        who = TENANTS[self.second // self._gap_s % len(TENANTS)]
        minimum = self._rng.choice((2, 4, 8, 12))
        job = self.create_job(who, f"job{self.second}", minimum, minimum)
        job.lasts_s = float(self._rng.randint(20, 40) * LOOK_S)

    def _end(self, key: tuple[str, str]) -> None:
        """Delete a job and its pods. key: (namespace, name)."""
        job = self.jobs.pop(key)
        for index, on in job.pods.items():
            self._remove_pod(job, index, on)
        self._view.drop_job(job.raw["metadata"]["uid"])

    def _remove_pod(self, job: SimulatedJob, index: int, on: str) -> None:
        """Remove the pod `index` of a job from the autoscaler's cache, and free its GPU. on: its node, "" while it
        waits.
        """
        if on:
            self._free[on] += 1
        self._view.drop_pod(f"{job.raw['metadata']['uid']}-{index}")

    def _show(self, job: SimulatedJob) -> None:
        """Show a job and its pods to the autoscaler, as a watch does."""
        self._version += 1
        job.raw["metadata"]["resourceVersion"] = str(self._version)
        self._view.put_job("Job", msgspec.json.decode(msgspec.json.encode(job.raw)))
        for index in job.pods:
            self._show_pod(job, index)

    def _show_pod(self, job: SimulatedJob, index: int) -> None:
        """Show a pod of a job to the autoscaler's cache. index: of the pod in the job."""
        meta, on = job.raw["metadata"], job.pods[index]
        owner = {"kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        metadata = {
            "name": f"{meta['name']}-{index}",
            "namespace": meta["namespace"],
            "uid": f"{meta['uid']}-{index}",
            "creationTimestamp": rfc3339(self._now_s),
            "annotations": {labels.JOB_INDEX: str(index)},
            "ownerReferences": [owner],
        }
        container = {"resources": {"requests": {GPU: "1"}, "limits": {GPU: "1"}}}
        status = {"phase": "Running" if on else "Pending"}
        shown = {"metadata": metadata, "spec": {"nodeName": on, "containers": [container]}, "status": status}
        self._view.put_pod(msgspec.convert(shown, Pod))

    def _schedule(self) -> None:
        """Create, delete and bind pods as job controller and scheduler do, for the oldest job first.

        A job below its min gets nodes only if its whole min can run then; beyond its min it gets what is free.
        A rigid job whose pods are all bound starts; its wait is recorded.
        """
        for job in sorted(self.jobs.values(), key=lambda each: each.came_s):
            self._resize(job)
        for job in sorted(self.jobs.values(), key=lambda each: each.came_s):
            lacking = [index for index, on in sorted(job.pods.items()) if not on]
            bound = len(job.pods) - len(lacking)
            if bound < job.minimum and sum(self._free.values()) < job.minimum - bound:
                continue
            for index in lacking:
                self._bind(job, index)
            if job.lasts_s and not job.ends_s and all(job.pods.values()):
                job.ends_s = self.second + job.lasts_s
                self.results.wait_s.append(self.second - job.came_s)

    def _resize(self, job: SimulatedJob) -> None:
        """Create and delete pods of a job until it has as many as its object asks for."""
        for index in [index for index in job.pods if index >= job.size]:
            self._remove_pod(job, index, job.pods.pop(index))
        for index in range(job.size):
            if index not in job.pods:
                job.pods[index] = ""
                self._show_pod(job, index)

    def _bind(self, job: SimulatedJob, index: int) -> None:
        """Bind a pod to the first node with a free GPU; do nothing if there is none. index: of the pod in the job."""
        if (on := next((name for name, free in self._free.items() if free), "")) and on:
            self._free[on] -= 1
            job.pods[index] = on
            self._show_pod(job, index)

    def _look(self) -> None:
        """Run the autoscaler's decision once and write its steps to the jobs. Jobs without a decision are counted as
        faults.
        """
        steady_s = float(self.second)
        observed = self._view.observation(self._now_s, monotonic_s=steady_s)
        for part in (*self._parts, self._unused):
            observed = part.update(observed, steady_s)
        steps, undecided = decide_safely(decide, observed, self._policy, self._now_s)
        self.results.faults += len(undecided)
        self._unused.record_decision(observed, steps, steady_s)
        states = {each.job.key: each.job for each in observed.jobs}
        self._carry_out((step for step in steps if step.changes), states)

    def _carry_out(self, steps: Iterable[Step], states: dict[JobKey, Any]) -> None:
        """Write the new sizes to the jobs. states: the observed jobs by key. steps: that change a size."""
        for step in steps:
            job = self.jobs[step.key.namespace, step.key.name]
            notes = {**resize_annotations(states[step.key], step, self._policy, self._now_s), labels.TERM: "1"}
            job.raw["spec"].update(parallelism=step.target, completions=step.target)
            job.raw["metadata"]["annotations"].update(notes)
            self._view.reader.store_written_annotations(step.key, notes)
            self._show(job)
