"""Each fault as something done to the local cluster, and taken back after its time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from hack.chaos.fault_schedule import Fault, FaultEvent
from hack.chaos.history import Record
from hack.chaos.testbed import manifests
from hack.chaos.testbed.pod_processes import Process, of_pods
from hack.chaos.testbed.testbed import JOBS, Testbed
from turnout.simulator.cluster.runtime.clients import ApiError

PATIENCE_S = 60.0  # of a rigid job that waits for its GPUs
_AGENT = 1
Thing = TypeVar("Thing")


class FaultInjectors:
    """Injects the faults of a testbed and ends them later. pending: tasks that `settle` has not awaited yet."""

    def __init__(self, stage: Testbed) -> None:
        self._stage = stage
        self.pending: set[asyncio.Task[None]] = set()
        self._rigid_jobs = 0
        self._injectors: dict[Fault, Callable[[FaultEvent], Awaitable[str]]] = {
            Fault.PROCESS: self._kill_process,
            Fault.AGENT: self._kill_agent,
            Fault.POD: self._kill_pod,
            Fault.COORDINATOR: self._kill_coordinator,
            Fault.NODE: self._delete_node,
            Fault.STOPPED: self._suspend_process,
            Fault.RIVAL: self._submit_rigid_job,
            Fault.API: self._restart_api,
            Fault.EXTENDER: self._restart_extender,
            Fault.AUTOSCALER: self._kill_autoscaler,
            Fault.CUT: self._cut_storage,
            Fault.FULL: self._fill_storage,
        }

    async def do(self, event: FaultEvent) -> Record:
        """Inject one fault. Return its record; `who` names what was hit, "" if there was nothing to hit."""
        at_s = time.monotonic()
        who = await self._injectors[event.fault](event)
        record = Record("fault", at_s, kind=event.fault.name, who=who, round=self._stage.round)
        self._stage.note(record)
        return record

    async def settle(self) -> None:
        """Wait until all faults have ended. Raises the error of a task that failed, also before this call."""
        while self.pending:
            tasks = tuple(self.pending)
            try:
                await asyncio.gather(*tasks)
            finally:
                self.pending.difference_update(task for task in tasks if task.done())

    async def stop(self) -> None:
        """Cancel the pending ends of faults: faults that are active stay active."""
        for task in self.pending:
            task.cancel()
        await asyncio.gather(*self.pending, return_exceptions=True)

    def _start_task(self, work: Awaitable[None]) -> None:
        """Run an awaitable as a task that `settle` waits for."""
        self.pending.add(asyncio.ensure_future(work))

    def _undo_later(self, after_s: float, undo: Callable[[], Awaitable[None] | None]) -> None:
        """Call `undo`, which may be async, after `after_s` seconds in a task that `settle` waits for."""

        async def wait() -> None:
            await asyncio.sleep(after_s)
            if (undone := undo()) is not None:
                await undone

        self._start_task(wait())

    # Processes.

    async def _trainers(self) -> list[Process]:
        """Return the training processes of the newest round that are alive, by rank."""
        begun = {
            (r.home, r.pid): r.rank for r in self._stage.records if r.event == "begun" and r.round == self._stage.round
        }
        alive = [each for each in await asyncio.to_thread(lambda: list(of_pods())) if (each.home, each.inner) in begun]
        return sorted(alive, key=lambda each: begun[each.home, each.inner])

    async def _kill_process(self, event: FaultEvent) -> str:
        """Kill the training process at the aim of `event`. Return the UID of its pod, "" without a hit."""
        return _signal(_target_of(await self._trainers(), event), signal.SIGKILL)

    async def _suspend_process(self, event: FaultEvent) -> str:
        """Suspend one training process for the event's time. Return the UID of its pod, "" without a hit.

        event: its aim chooses the process.
        """
        target = _target_of(await self._trainers(), event)
        self._undo_later(event.lasts_s, lambda: _continue_process(target))
        return _signal(target, signal.SIGSTOP)

    async def _kill_agent(self, event: FaultEvent) -> str:
        """Kill one agent of the job. Return the UID of its pod, "" without a hit. event: its aim chooses the agent."""
        ours = {pod["metadata"]["uid"] for pod in self._stage.workers}  # others may play on this machine, too
        candidates = await asyncio.to_thread(lambda: list(of_pods()))
        agents = [each for each in candidates if each.inner == _AGENT and each.home in ours]
        return _signal(_target_of(sorted(agents, key=lambda each: each.home), event), signal.SIGKILL)

    # Pods and nodes.

    async def _kill_pod(self, event: FaultEvent) -> str:
        """Kill one pod of the job. Return its UID, "" without a hit. event: its aim chooses the pod."""
        target = _target_of(self._stage.workers, event)
        if target is None:
            return ""
        await self._stage.kill_pod(target["metadata"]["name"])
        return str(target["metadata"]["uid"])

    async def _kill_coordinator(self, event: FaultEvent) -> str:
        """Kill the pod of the coordinator. Return its name, "" if there is none."""
        name = await self._stage.coordinator()
        if name:
            await self._stage.kill_pod(name)
        return name

    async def _delete_node(self, event: FaultEvent) -> str:
        """Delete the node of one of the job's pods and kill all its pods; add it again after the event's time.

        Returns its name, "" without a hit.
        """
        target = _target_of(self._stage.workers, event)
        if target is None:
            return ""
        node = target["spec"]["nodeName"]
        with suppress(ApiError):
            await self._stage.cluster.api.call("DELETE", f"/api/v1/nodes/{node}")
        for name, pod in list(self._stage.pods.items()):
            if pod["spec"].get("nodeName") == node:
                await self._stage.kill_pod(name)
        place = next(each for each in manifests.node_places() if each.name == node)
        self._undo_later(event.lasts_s, lambda: self._stage.cluster.add_nodes([place], 1))
        return str(node)

    # Others, and programs.

    async def _submit_rigid_job(self, event: FaultEvent) -> str:
        """Submit a rigid job that runs for the event's time, with one worker, or two if the aim is above a half. Return
        its name.

        A task of `pending` waits for its end and deletes it.
        """
        self._rigid_jobs += 1
        job = manifests.rival(self._rigid_jobs, 1 + (event.aim > 0.5), event.lasts_s)
        name = job["metadata"]["name"]
        await self._stage.cluster.api.call("POST", JOBS, job)
        self._start_task(self._await_rigid_job(name))
        return str(name)

    async def _await_rigid_job(self, name: str) -> None:
        """Record "served" when all pods of the rigid job `name` run or have succeeded. Await its end, then delete it.

        Raises NoProgress if either takes longer than PATIENCE_S.
        """
        stage = self._stage
        pods = f"{name}-worker-"

        def has_started() -> bool:
            phases = [(p.get("status") or {}).get("phase") for n, p in stage.pods.items() if n.startswith(pods)]
            return bool(phases) and all(phase in ("Running", "Succeeded") for phase in phases)

        await stage.until(has_started, f"{name} has started", PATIENCE_S)
        stage.note(Record("served", time.monotonic(), who=name))
        await stage.wait_for_end(name, PATIENCE_S)
        with suppress(ApiError):
            await stage.cluster.api.call("DELETE", f"{JOBS}/{name}")

    async def _restart_api(self, event: FaultEvent) -> str:
        """Restart the API server in a task; it does not answer for the event's time. Return its address."""
        served = self._stage.cluster.served
        assert served is not None  # the local cluster is our own
        self._start_task(served.restart(event.lasts_s))
        return served.address

    async def _restart_extender(self, event: FaultEvent) -> str:
        """Kill the extender and start it again after the event's time. Return "extender"."""
        programs = self._stage.programs
        programs.kill_extender()
        self._undo_later(event.lasts_s, programs.start_extender)
        return "extender"

    async def _kill_autoscaler(self, event: FaultEvent) -> str:
        """Kill the leading autoscaler; another replica is started. Return its pid as text, "" without a leader."""
        return str(await self._stage.programs.kill_leader() or "")

    # Storage.

    async def _cut_storage(self, event: FaultEvent) -> str:
        """Make the storage unreachable for the event's time. Return "storage"."""
        self._stage.storage.mend()
        self._stage.storage.cut()
        self._undo_later(event.lasts_s, self._stage.storage.mend)
        return "storage"

    async def _fill_storage(self, event: FaultEvent) -> str:
        """Fill the storage for the event's time. Return "storage"; "" if the storage has no limit."""
        if not self._stage.storage.small:
            return ""
        self._stage.storage.mend()
        await asyncio.to_thread(self._stage.storage.fill)
        self._undo_later(event.lasts_s, self._stage.storage.mend)
        return "storage"


def _target_of(candidates: list[Thing], event: FaultEvent) -> Thing | None:
    """Return the element of `candidates` at the event's aim, a share of the list in [0, 1); None for an empty list."""
    return candidates[int(event.aim * len(candidates))] if candidates else None


def _signal(target: Process | None, number: signal.Signals) -> str:
    """Send a signal to a process. Return the UID of its pod, "" for None. target: None for no process."""
    if target is None:
        return ""
    with suppress(ProcessLookupError):
        os.kill(target.pid, number)
    return target.home


def _continue_process(target: Process | None) -> None:
    """Let the suspended process `target` continue; do nothing for None."""
    _signal(target, signal.SIGCONT)
