"""The cluster as the autoscaler sees it: listed once with the autoscaler's informers, as far as the user's rights
allow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.model import UNKNOWN_NODE, Observation
from turnout.autoscaler.reporting.why import UnmanagedGang
from turnout.autoscaler.settings import Settings
from turnout.cli.verb_support.listing import CannotSee, ListOnce, Lists
from turnout.jobs.gang import membership
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.kube.client.clock import RealClock
from turnout.kube.objects import Node

LIST_S = 60.0  # for everything
_LOOK_S = 0.005
_PODS = "/api/v1/pods"
_OVER = ("Succeeded", "Failed")


class GpuPod(NamedTuple):
    """A pod that requests GPUs."""

    name: str
    owner: JobKey  # its job; its gang if no job of a known kind owns it
    queue: str
    node: str  # "" until it has one
    gpus: int


class AutoscalerView(Cache):
    """The autoscaler's cache that also shows the pods that request GPUs, and gangs that no job owns."""

    def __init__(self, gpu_resources: tuple[str, ...]) -> None:
        super().__init__(KINDS, gpu_resources)
        self._gpu_resources = gpu_resources

    def bare_gangs(self) -> dict[JobKey, UnmanagedGang]:
        """Return the gangs of GPU pods, running or waiting, that no job of a known kind owns.

        A lone pod is a gang of one.
        """
        found = {}
        for key, group, members in self.unmanaged.all_gangs():
            on = ((self.nodes.row(pod.spec.node_name), shape) for pod, shape in members if pod.spec.node_name)
            placed_pods = tuple((UNKNOWN_NODE if row is None else row, shape) for row, shape in on)
            found[key] = UnmanagedGang(key, self.usage.queue_of_gang(members[0][0], group), len(members), placed_pods)
        return found

    def gpu_pods(self) -> Iterator[GpuPod]:
        """Yield every pod that requests GPUs and has not ended, also those that are being deleted."""
        gangs = {(key.namespace, key.name): (key, gang.queue) for key, gang in self.bare_gangs().items()}
        for uid, pod in self.pods.by_uid.items():
            gpus = self.pods.shapes[uid].gpus(self._gpu_resources)
            if not gpus or pod.status.phase in _OVER:
                continue
            meta = pod.metadata
            job = self.pods.job_of(uid)
            if job is not None:
                owner, queue = job.key, self.usage.resolve(job.key.namespace, job.queue)
            else:
                own = JobKey("Pod", meta.namespace, meta.name), self.usage.queue_of(pod)
                owner, queue = gangs.get((meta.namespace, membership(pod).key.name), own)
            yield GpuPod(meta.name, owner, queue, pod.spec.node_name, gpus)


@dataclass(frozen=True, slots=True)
class AutoscalerSnapshot:
    """All that was listed."""

    view: AutoscalerView
    nodes: tuple[Node, ...]
    unknown: tuple[str, ...]  # paths that may not be listed, and without which a decision is possible
    missing: tuple[str, ...]  # resources that may not be listed in the whole cluster; then nothing can be decided
    faults: Mapping[JobKey, str]  # why a job cannot be read
    now_s: float  # time of `observation`, since 1970
    observation: Observation
    gangs: Mapping[JobKey, UnmanagedGang]  # those that no job of a known kind owns


def _late_paths(informers: AutoscalerInformers, faults: Container[str] = ()) -> list[str]:
    """Return the paths that are not listed yet, without those in `faults`."""
    unsynced = [each.path for each in informers.reflectors.values() if not each.has_synced]
    return [path for path in unsynced if path not in faults]


async def look(client: Lists, settings: Settings, namespace: str) -> AutoscalerSnapshot:
    """List once all objects that the autoscaler watches, and return its view of them.

    namespace: listed alone if the user may not list the whole cluster; `missing` of the result then names what is
    unknown. Raises CannotSee if a list failed for another reason or all lists together took longer than LIST_S seconds.
    """
    once, view = ListOnce(client, namespace, last=_PODS), AutoscalerView(settings.gpu_resource)
    maps = settings.configmaps()
    informers = AutoscalerInformers(view, once, KINDS, RealClock(), random.Random(), maps)
    watching = asyncio.create_task(informers.run())
    try:
        async with asyncio.timeout(LIST_S):
            while late := _late_paths(informers, once.faults) or (
                [] if informers.map.follower.has_synced or once.faults else [settings.configmap]
            ):
                if late == [_PODS]:
                    once.others_listed.set()
                if watching.done():
                    await watching
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        late = sorted({*_late_paths(informers)})
        raise CannotSee(f"the API server did not list {', '.join(late)} within {LIST_S:.0f} s") from None
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    once.check()
    nodes = tuple(view.nodes.by_name.values())
    now_s = time.time()
    observation, gangs = view.observation(now_s), view.bare_gangs()
    return AutoscalerSnapshot(
        view,
        nodes,
        tuple(once.unreadable_configmaps),
        once.missing(),
        dict(view.reader.faults),
        now_s,
        observation,
        gangs,
    )
