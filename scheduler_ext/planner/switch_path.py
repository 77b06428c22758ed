"""Decide which bound pod of a gang is to carry which switch path, so that its launcher can order ranks by the fabric.

Only the decision is made here; server/switch_path_writer.py writes it. Pods on a host that the map does not know keep
what they carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnout.jobs.gang import Dialect
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.topology.fabric import Fabric
from turnout.topology.switch_paths import Path, path_text


@dataclass(frozen=True, slots=True)
class Mark:
    """One annotation to write on a pod."""

    uid: str
    namespace: str
    name: str
    path: str  # root/.../leaf


def marks(view: GangView, noted: Mapping[str, str], uids: Iterable[str], now_s: float) -> list[Mark]:
    """Decide what to write on some pods, in their order.

    noted: uid -> the path that the pod carries now, "" for none.
    """
    view.settle(now_s)
    found = []
    for uid in uids:
        member = view.pods.get(uid)
        if member is None or not _counts(member):
            continue
        path = path_above(view.fabric, member.node)
        if path and path != noted.get(uid, ""):
            found.append(Mark(uid, member.namespace, member.name, path))
    return found


def path_above(fabric: Fabric, node: str) -> str:
    """Return the switches above a node as root/.../leaf; "" when the map does not know the node."""
    host = fabric.index.get(node)
    if host is None or not fabric.mapped[host]:
        return ""
    return _written(fabric.names[1][fabric.switch_of[1][host]])


def _counts(member: Member) -> bool:
    """True if the pod is bound, belongs to a gang and may ask for GPUs; a database's pods do not count."""
    alone = member.belongs.key.dialect == Dialect.ALONE.value
    return bool(member.node) and not (member.leaving or alone or member.silence == "NoGpu")


@lru_cache(maxsize=4_096)
def _written(leaf: Path) -> str:
    """Write the path of a leaf. Hosts beside switches have a nameless leaf of their own, which is left out."""
    return path_text(leaf if leaf[-1] else leaf[:-1])
