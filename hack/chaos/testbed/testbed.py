"""One local cluster with the job on it: what it shows, its history as it is written, and what injectors need."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path

from hack.chaos.history import Record
from hack.chaos.testbed import manifests
from hack.chaos.testbed.history_tail import HistoryTail
from hack.chaos.testbed.manifests import NAMESPACE, Plan, Raw
from hack.chaos.testbed.programs import Programs
from hack.chaos.testbed.storage import Storage
from turnout.cli.local_cluster.daemon import NO_NAMESPACES
from turnout.simulator.cluster.controllers.volcano_job import ENDS
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.runtime.clients import ApiError, ExtenderClient
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.cluster.scheduler import ExtenderSettings
from turnout.simulator.local_cluster import LocalCluster, local_cluster
from turnout.simulator.processes.runtime.container_init import can_isolate

JOBS = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{NAMESPACE}/jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
PACE = Pace(pull_s=0.05, stop_s=0.1, restart_s=0.05, backoff_s=(0.2, 1.0))
_LOOK_S = 0.03


class NoIsolation(Exception):
    """A machine that cannot isolate pods. Run as root, or allow user namespaces, and try again."""


class NoProgress(Exception):
    """Something that the job had to do did not happen within its time."""


class Testbed:
    """The job on a local cluster, and what it wrote.

    home: the folder that all workers see. pods: of the namespace, by name, as last seen. records: the history.
    """

    def __init__(self, cluster: LocalCluster, home: Path, programs: Programs, storage: Storage) -> None:
        self.cluster, self.home, self.programs, self.storage = cluster, home, programs, storage
        self.pods: dict[str, Raw] = {}
        self.records: list[Record] = []
        self.on_record: Callable[[Record], None] = lambda record: None
        self._history = HistoryTail(home / "history")
        self._committed: set[int] = set()
        self._began_s = time.monotonic()

    async def set_up(self) -> None:
        """Create namespaces, nodes, the map, the queue and the Lease, and start the job controller."""
        api = self.cluster.api
        for name in (NAMESPACE, manifests.MAP_NAMESPACE):
            await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        await api.call("POST", f"/api/v1/namespaces/{manifests.MAP_NAMESPACE}/configmaps", manifests.topology_map())
        await self.cluster.add_nodes(manifests.node_places(), 1)
        await self.cluster.run_jobs()
        await api.call("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", manifests.queue())
        await api.call("POST", LEASES, manifests.lease())

    async def watch(self) -> None:
        """Keep `pods` equal to the pods of the namespace, until cancelled."""
        async for word, pod in self.cluster.api.changes(PODS):
            if word == "DELETED":
                self.pods.pop(pod.obj["metadata"]["name"], None)
            elif word != "SYNCED":
                self.pods[pod.obj["metadata"]["name"]] = pod.obj

    async def listen(self) -> None:
        """Append the new lines of all history files, and a record of each new commit in the storage, until
        cancelled.
        """
        while True:
            for record in await asyncio.to_thread(lambda: list(self._history.look())):
                self._hear(record)
            for step in sorted(await asyncio.to_thread(self.storage.committed_steps) - self._committed):
                self._committed.add(step)
                self.note(Record("committed", time.monotonic(), step=step))
            await asyncio.sleep(_LOOK_S)

    def _hear(self, record: Record) -> None:
        self.records.append(record)
        self.on_record(record)

    def note(self, record: Record) -> None:
        """Append a record about an event that no training process records, also to the file runner.jsonl."""
        default = asdict(Record("", 0.0))
        fields = {key: value for key, value in asdict(record).items() if value != default[key]}
        with (self.home / "runner.jsonl").open("a") as file:
            file.write(json.dumps(fields) + "\n")
        self._hear(record)

    @property
    def workers(self) -> list[Raw]:
        """Return the elastic job's pods that run and are not being deleted, sorted by name."""
        found = [pod for name, pod in sorted(self.pods.items()) if name.startswith(f"{manifests.JOB}-worker-")]
        return [
            pod
            for pod in found
            if not pod["metadata"].get("deletionTimestamp") and (pod.get("status") or {}).get("phase") == "Running"
        ]

    @property
    def round(self) -> int:
        """Return the newest round of which a process has written a record; 0 for none."""
        return max((record.round for record in self.records), default=0)

    @property
    def is_complete(self) -> bool:
        """Return True if the newest round has all workers that the job may have."""
        newest = self.round
        return any(
            record.round == newest and record.world == manifests.MAX_WORKERS for record in reversed(self.records)
        )

    def steps_since(self, at_s: float, after_round: int = 0) -> int:
        """Return the number of steps that the newest round made since `at_s`; 0 if its number is not above
        `after_round`.
        """
        newest = self.round
        if newest <= after_round:
            return 0
        return len({r.step for r in self.records if r.event == "stepped" and r.round == newest and r.at_s > at_s})

    async def coordinator(self) -> str:
        """Return the name of the coordinator's pod, as the Lease has it; "" for none. Raises ApiError if the API server
        refuses.
        """
        found = await self.cluster.api.call("GET", f"{LEASES}/{manifests.LEASE}")
        return str((found.get("spec") or {}).get("holderIdentity") or "").partition("/")[0]

    async def until(self, happens: Callable[[], bool], what: str, patience_s: float) -> None:
        """Wait until `happens()` is true. what: the expectation, for the error message.

        Raises NoProgress after `patience_s`.
        """
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    if happens():
                        return
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise NoProgress(f"this was not so within {patience_s:g} s: {what}") from error

    async def phase(self, job: str) -> str:
        """Return the phase of a job; "" if it has none yet, does not exist, or if the API server refuses."""
        with suppress(ApiError):
            found = await self.cluster.api.call("GET", f"{JOBS}/{job}")
            return str(((found.get("status") or {}).get("state") or {}).get("phase") or "")
        return ""

    async def wait_for_end(self, job: str, patience_s: float) -> str:
        """Wait until a job has ended. Return its phase; "" as soon as `phase` returns "", such as for a deleted job.

        Raises NoProgress after `patience_s` seconds.
        """
        end_s = time.monotonic() + patience_s
        while True:
            if (phase := await self.phase(job)) in (*ENDS, ""):
                return phase
            if time.monotonic() > end_s:
                raise NoProgress(f"{job} is {phase} after {patience_s:g} s, and was to end")
            await asyncio.sleep(_LOOK_S)

    async def kill_pod(self, name: str) -> None:
        """Delete a pod without grace, so that its processes and its memory are lost at once.

        A missing pod is no error.
        """
        try:
            await self.cluster.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise


@asynccontextmanager
async def stage(
    home: Path,
    plan: Plan,
    autoscalers: int = 2,
    trainer: Callable[[Path], Raw] = manifests.trainer,
    extender_s: float = 5.0,
) -> AsyncIterator[Testbed]:
    """Run the local cluster, the programs and the submitted job; everything ends with the block.

    home: a folder that does not exist yet; what is written stays. autoscalers: replicas. trainer: makes the job for
    this home. extender_s: for which the scheduler waits for the extender. Raises ChildFailed if a program is not ready
    in time, and NoIsolation if the kernel allows no namespaces, because the job's pods have volumes.
    """
    if not can_isolate():
        raise NoIsolation(NO_NAMESPACES)
    for name in ("history", "logs", "pods"):
        (home / name).mkdir(parents=True)
    (home / "plan.json").write_text(json.dumps(asdict(plan)))
    storage, config = Storage(home / "storage"), home / "kubeconfig"
    async with AsyncExitStack() as ends:
        ends.callback(storage.close)
        cluster = await ends.enter_async_context(local_cluster(config, pace=PACE, processes=home / "pods"))
        programs = Programs(cluster.api, cluster.session, config, home / "logs")
        ends.callback(programs.end)
        found = Testbed(cluster, home, programs, storage)
        await found.set_up()
        await programs.begin(autoscalers)
        cluster.schedule(
            SchedulerSettings(extender=ExtenderSettings(weight=121)),
            ExtenderClient(cluster.session, programs.url, extender_s),
        )
        for each in (found.watch(), found.listen()):
            cluster.background.start(each)
        await cluster.api.call("POST", JOBS, trainer(home))
        yield found
