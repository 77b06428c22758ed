"""Which bound pod of a gang should carry which switch path, so that its launcher can number ranks by the fabric.

Only what is to be written is decided here; server/switch_path_writer.py writes it. A host that the map does not know
says nothing: what stands on its pods is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnout.jobs.gang import Dialect
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.topology.fabric import Fabric
from turnout.topology.switch_paths import Path, written


@dataclass(frozen=True, slots=True)
class Mark:
    """One annotation. path: root/.../leaf."""

    uid: str
    namespace: str
    name: str
    path: str


def marks(view: GangView, noted: Mapping[str, str], uids: Iterable[str], now_s: float) -> list[Mark]:
    """Say what to write on some pods, in their order. noted: uid -> the path that the pod carries, "" for none."""
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
    """Return the switches above a node, root/.../leaf; "" when the map does not know it."""
    host = fabric.index.get(node)
    if host is None or not fabric.mapped[host]:
        return ""
    return _written(fabric.names[1][fabric.switch_of[1][host]])


def _counts(member: Member) -> bool:
    """Bound, of a gang, and not the pod of a database."""
    alone = member.belongs.key.dialect == Dialect.ALONE.value
    return bool(member.node) and not (member.leaving or alone or member.silence == "NoGpu")


@lru_cache(maxsize=4_096)
def _written(leaf: Path) -> str:
    """Hosts beside switches have a nameless leaf of their own."""
    return written(leaf if leaf[-1] else leaf[:-1])
