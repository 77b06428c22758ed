"""The job under turnout-run, in pods of the embedded local cluster."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from hack.bench.recovery.acts import PLAN, RecoveryEvent
from hack.chaos.fault_schedule import Fault, FaultEvent
from hack.chaos.history import Record
from hack.chaos.testbed import manifests
from hack.chaos.testbed.fault_injectors import FaultInjectors
from hack.chaos.testbed.manifests import JOB, Clocks
from hack.chaos.testbed.testbed import JOBS, Testbed, stage
from turnout.jobs.kinds.volcanojob import resize

_LAST = 0.99  # of those that can be hit
_LOST_S = 3600.0


class TurnoutJob:
    """A Volcano Job on a local cluster, resized as the autoscaler does it."""

    def __init__(self, found: Testbed, injectors: FaultInjectors) -> None:
        self._stage, self._injectors = found, injectors

    @property
    def records(self) -> Sequence[Record]:
        """Read what its processes have written."""
        return self._stage.records

    async def strike(self, act: RecoveryEvent) -> float:
        """Cause the event `act` in the job, and return when, in monotonic seconds.

        KILLED hits the last training process that is found, FIRST_NODE_LOST the node of the coordinator, NODE_LOST the
        last other node. The other events write the number of workers `act.after` into the job.
        """
        if act is RecoveryEvent.KILLED:
            return (await self._injectors.do(FaultEvent(Fault.PROCESS, _LAST, 0.0, 0.0))).at_s
        if act in (RecoveryEvent.NODE_LOST, RecoveryEvent.FIRST_NODE_LOST):
            coordinator = await self._stage.coordinator()
            names = [pod["metadata"]["name"] for pod in self._stage.workers]
            of_coordinator = act is RecoveryEvent.FIRST_NODE_LOST
            hit = max(at for at, name in enumerate(names) if (name == coordinator) is of_coordinator)
            return (await self._injectors.do(FaultEvent(Fault.NODE, (hit + 0.5) / len(names), 0.0, _LOST_S))).at_s
        api = self._stage.cluster.api
        change = resize(await api.call("GET", f"{JOBS}/{JOB}"), act.after)
        at_s = time.monotonic()
        await api.call(change.method, change.path, change.body, change.media_type)
        return at_s


@asynccontextmanager
async def start_job(workers: int, clocks: Clocks) -> AsyncIterator[TurnoutJob]:
    """Yield a new job with `workers` workers on a local cluster of its own. Both end with the block.

    clocks: of the job's launcher. Raises ChildFailed if a program does not start.
    """
    trainer = partial(manifests.trainer, workers=workers, clocks=clocks)
    with tempfile.TemporaryDirectory(prefix="turnout-story-") as folder:
        async with stage(Path(folder) / "home", PLAN, autoscalers=0, trainer=trainer) as found:
            injectors = FaultInjectors(found)
            try:
                yield TurnoutJob(found, injectors)
            finally:
                await injectors.stop()
