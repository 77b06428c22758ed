"""Decide which bound pod of a gang is to carry which switch path, so that its launcher can order ranks by the fabric.

Only the decision is made here; server/switch_path_writer.py writes it. Pods on a host that the map does not know keep
what they carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnout.jobs.gang import Dialect
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.topology.fabric import Fabric
from turnout.topology.switch_paths import Path, path_text


@dataclass(frozen=True, slots=True)
class PathAnnotation:
    """One annotation to write on a pod."""

    uid: str
    namespace: str
    name: str
    path: str  # root/.../leaf


def plan_annotations(
    view: ClusterView, current_paths: Mapping[str, str], uids: Iterable[str], now_s: float
) -> list[PathAnnotation]:
    """Decide what to write on some pods, in their order.

    current_paths: uid -> the path that the pod carries now, "" for none.
    """
    view.settle(now_s)
    annotations = []
    for uid in uids:
        member = view.pods.get(uid)
        if member is None or not _needs_path(member):
            continue
        path = path_above(view.fabric, member.node)
        if path and path != current_paths.get(uid, ""):
            annotations.append(PathAnnotation(uid, member.namespace, member.name, path))
    return annotations


def path_above(fabric: Fabric, node: str) -> str:
    """Return the switches above a node as root/.../leaf; "" when the map does not know the node."""
    host = fabric.index.get(node)
    if host is None or not fabric.mapped[host]:
        return ""
    return _leaf_path_text(fabric.names[1][fabric.switch_of[1][host]])


def _needs_path(member: Member) -> bool:
    """True if the pod is bound, belongs to a gang and may ask for GPUs; a database's pods do not count."""
    is_single = member.membership.key.dialect == Dialect.ALONE.value
    return bool(member.node) and not (member.terminating or is_single or member.no_opinion_reason == "NoGpu")


@lru_cache(maxsize=4_096)
def _leaf_path_text(leaf: Path) -> str:
    """Write the path of a leaf. Hosts beside switches have a nameless leaf of their own, which is left out."""
    return path_text(leaf if leaf[-1] else leaf[:-1])
