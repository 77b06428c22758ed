"""The cluster as the scheduler extender sees it, listed once: nodes, pods, gangs and the topology map."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from turnout.autoscaler.settings import Settings
from turnout.cli.verb_support.listing import ListOnce, Lists
from turnout.jobs.gang import COMPOSITE_GROUP_PATH, POD_GROUP_PATHS
from turnout.kube.errors import CallError, NotFound
from turnout.kube.objects import ConfigMap, Node, Owner, Pod, PodGroup, Struct
from turnout.kube.status import UNREADABLE, decode_answer
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.topology.fabric import EMPTY, Fabric
from turnout.topology.map_update import MAX_FAULTS_SHOWN, draft_map

OWNERS = {"Job": "/apis/batch/v1/jobs", "StatefulSet": "/apis/apps/v1/statefulsets"}
UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
T = TypeVar("T")


class _Page(Struct):
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


_page_decoder = msgspec.json.Decoder(_Page)


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """The objects that were listed, and the extender's cache of them."""

    gangs: ClusterView  # without PodGroups and owners if `sizes` of `look` is False
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    fabric: Fabric  # with the map's own names of hosts
    map_fault: str  # why `fabric` is empty, or ""
    # Resources that may not be listed in the whole cluster, and without which placements are unknown.
    missing: tuple[str, ...]
    unseen: tuple[str, ...]  # resources without which only the sizes of some gangs are unknown


async def look(client: Lists, settings: Settings, namespace: str, *, sizes: bool = True) -> SchedulerView:
    """List once all objects that the extender watches, and return its view of them.

    namespace: listed alone if the user may not list the whole cluster. sizes: also list PodGroups and owners, which
    give the sizes of gangs; False lists only nodes, pods and the map. Raises CannotSee if the list of nodes, of pods or
    of the map's namespace failed for a reason other than missing rights. A failed list of PodGroups or owners counts as
    empty.
    """
    once, aside = ListOnce(client, namespace), ListOnce(client, namespace)
    gangs = ClusterView(settings.gpu_resource)
    nodes: list[Node] = []
    pods: list[Pod] = []
    maps: list[ConfigMap] = []
    where, name = settings.configmap.split("/", 1)
    groups = POD_GROUP_PATHS if sizes else {}
    composites = (COMPOSITE_GROUP_PATH,) if sizes else ()
    owners = OWNERS if sizes else {}
    works = [
        _take(once, "/api/v1/nodes", Node, nodes.append),
        _take(once, "/api/v1/pods", Pod, pods.append, UNFINISHED),
        _take(
            once,
            f"/api/v1/namespaces/{where}/configmaps",
            ConfigMap,
            maps.append,
            {"fieldSelector": f"metadata.name={name}"},
        ),
        *(_take(aside, path, PodGroup, partial(gangs.groups.put_group, dialect)) for dialect, path in groups.items()),
        *(_take(aside, path, PodGroup, gangs.groups.put_composite) for path in composites),
        *(_take(aside, path, Owner, partial(gangs.groups.put_owner, kind)) for kind, path in owners.items()),
    ]
    await asyncio.gather(*works)
    once.check()
    fabric, fault = _map(maps, settings.configmap, bool(once.unreadable_configmaps))
    gangs.layout.set_map(fabric)
    for node in nodes:
        gangs.layout.put_node(node)
    for pod in pods:
        gangs.put_pod(pod)
    return SchedulerView(gangs, tuple(nodes), tuple(pods), fabric, fault, once.missing(), aside.missing())


async def _take(once: ListOnce, path: str, kind: type[T], put: Any, params: Mapping[str, Any] | None = None) -> None:
    """Read a list and pass each readable object to `put`.

    A kind that is not served has no objects. A failure is recorded in `once`. path, params: of the list. kind: the type
    to decode; objects that are not of this type are skipped.
    """
    try:
        async for item in _objects(once, path, params):
            try:
                put(msgspec.json.decode(item, type=kind))
            except UNREADABLE:
                continue
    except NotFound:
        return
    except CallError as error:
        once.faults.setdefault(path, error)


async def _objects(once: ListOnce, path: str, params: Mapping[str, Any] | None) -> AsyncIterator[msgspec.Raw]:
    async for page in once.pages(path, params):
        for item in decode_answer(_page_decoder, "GET", path, page).items:
            yield item


def _map(maps: list[ConfigMap], name: str, refused: bool) -> tuple[Fabric, str]:
    """Return the fabric and "", or an empty fabric and why it is empty.

    maps: the ConfigMaps that were read. name: NAMESPACE/NAME of the map. refused: the ConfigMap may not be read.
    """
    if refused:
        return EMPTY, f"you may not read the ConfigMap {name}, the map of switches"
    if not maps:
        return EMPTY, f"there is no ConfigMap {name}, the map of switches"
    drawn = draft_map(maps[0].data or {})
    if drawn.fabric is None:
        fault_text = "; ".join(f"line {each.line}: {each.text}" for each in drawn.faults[:MAX_FAULTS_SHOWN])
        return EMPTY, f"the map of switches in {name} cannot be used: {fault_text}"
    return drawn.fabric, "" if drawn.fabric.mapped_count else f"the map of switches in {name} names no host"
