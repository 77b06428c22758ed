"""Cut a gang's waiting members into groups that are placed one after another, and seat each member of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.parts import GangGroup
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.planner.placing.model import GangRequest, Seat, counts_for_tier
from turnout.scheduler_ext.planner.placing.ranks import missing_ranks, seating_order
from turnout.topology.fabric import Fabric
from turnout.topology.layers.mesh import is_complete
from turnout.topology.layers.mesh_order import cheapest_order
from turnout.topology.layers.mesh_repair import Pulls, leaves_in_mesh, pulls_of
from turnout.topology.plan import beyond
from turnout.topology.rank_order import assign
from turnout.topology.rank_order import ranks as ranks_along


@dataclass(frozen=True, slots=True)
class PodBatch:
    """The waiting members of one shape, of one part of the gang where it has parts."""

    shape: PodShape
    members: tuple[Member, ...]
    missing_pods: int  # members still to be created; counted with the heaviest shape
    gang_group: GangGroup | None = None
    ranks_a_pod: int = 1  # its accelerators
    span: tuple[int, int] | None = None  # the host ids [first, end) that are its own

    @property
    def pods(self) -> int:
        """How many pods are to be placed."""
        return len(self.members) + self.missing_pods


def split_into_batches(request: GangRequest) -> list[PodBatch]:
    """Return the groups in the order of placing: parts that have begun, then large ones, in each heavy shapes first."""
    parts = request.gang.groups_by_uid()
    by_key: dict[tuple[GangGroup | None, PodShape], list[Member]] = {}
    for member in request.waiting:
        by_key.setdefault((parts.get(member.uid), member.shape), []).append(member)
    gpus = {m.shape: m.gpus for m in (*request.waiting, *(m for m, _ in request.placed_members))}
    if not by_key and request.missing_pods and gpus:
        by_key = {(None, max(gpus, key=lambda s: (gpus[s], s.requests))): []}
    size = Counter[GangGroup | None]()
    for (part, shape), members in by_key.items():
        size[part] += max(gpus[shape], 1) * len(members) if part is not None else 0
    begun = {part for member, _ in request.placed_members if (part := parts.get(member.uid)) is not None}

    def turn(key: tuple[GangGroup | None, PodShape]) -> tuple[object, ...]:
        part, shape = key
        return part not in begun, -size[part], repr(part), -gpus[shape], -len(by_key[key]), shape.requests

    ordered = sorted(by_key, key=turn)
    return [
        PodBatch(shape, tuple(by_key[part, shape]), 0 if at else request.missing_pods, part, max(gpus[shape], 1))
        for at, (part, shape) in enumerate(ordered)
    ]


def nominations_leave_level(fabric: Fabric, request: GangRequest) -> bool:
    """True if nominations, with the hosts that members hold, leave the level of the gang or of one of its parts.

    The level may have been stated, or the map changed, after the nominations were written.
    """
    gang, parts = request.gang, request.gang.groups_by_uid()
    hosts = {member.uid: host for member, host in request.placed_members if counts_for_tier(member, gang)} | dict(
        request.nominated_hosts
    )
    of_part: dict[GangGroup, list[int]] = {}
    for uid, host in hosts.items():
        if (part := parts.get(uid)) is not None:
            of_part.setdefault(part, []).append(host)
    return beyond(fabric, gang.tier, list(hosts.values())) is not None or any(
        beyond(fabric, part.tier, theirs) is not None for part, theirs in of_part.items()
    )


def take_nominated_hosts(request: GangRequest, group: PodBatch, room: Rows) -> dict[str, int]:
    """Return the members that keep the host to which they were sent. Takes their room from `room`, which it changes."""
    nominated: dict[str, int] = {}
    for member in group.members:
        host = request.nominated_hosts.get(member.uid)
        if host is not None and room[host] > 0:
            room[host] -= 1
            nominated[member.uid] = host
    return nominated


def seat_batch(
    fabric: Fabric, request: GangRequest, group: PodBatch, slots: Sequence[int], ranks: Mapping[str, int]
) -> tuple[dict[str, int], list[Seat]]:
    """Decide which member gets which slot: wishes first, then neighbours in rank become neighbours in the fabric."""
    seats: dict[str, int] = {}
    free = Counter(slots)
    for member in group.members:
        host = request.nominated_hosts.get(member.uid)
        if host is not None and free[host] > 0:
            free[host] -= 1
            seats[member.uid] = host
    fixed = {ranks[m.uid]: host for m, host in request.placed_members if m.uid in ranks}
    fixed.update({ranks[uid]: host for uid, host in seats.items()})
    seated_members = [member for member, _ in request.placed_members] + [m for m in group.members if m.uid in seats]
    unseated = seating_order([m for m in group.members if m.uid not in seats], request.gang.min_by_role, seated_members)
    waiting_ranks = sorted(ranks[m.uid] for m in unseated[: free.total()])
    to_come = missing_ranks(ranks, min(group.missing_pods, free.total() - len(waiting_ranks)))
    numbers = sorted([*waiting_ranks, *to_come])
    host_of_rank = _seat_whole_mesh(fabric, request, group, slots, numbers) if not fixed else None
    if host_of_rank is None and fixed and (pulls := mesh_pulls(request.gang, group)) is not None:
        host_of_rank = _join_mesh(fabric, +free, numbers, fixed, pulls)
    if host_of_rank is None:
        host_of_rank = assign(fabric, sorted((+free).items()), numbers, fixed)
    seats.update(
        {
            m.uid: host_of_rank[ranks[m.uid]]
            for m in group.members
            if m.uid not in seats and ranks[m.uid] in host_of_rank
        }
    )
    return seats, [Seat(host_of_rank[rank], group.shape, rank) for rank in to_come if rank in host_of_rank]


def mesh_pulls(gang: Gang, group: PodBatch) -> Pulls | None:
    """Return what the pods of a gang that is a mesh exchange; None for another gang."""
    if not gang.mesh or not is_complete(gang.mesh, gang.total, group.ranks_a_pod):
        return None
    return pulls_of(gang.mesh, group.ranks_a_pod)


def _join_mesh(
    fabric: Fabric, free: Counter[int], numbers: Sequence[int], fixed: Mapping[int, int], pulls: Pulls
) -> dict[int, int] | None:
    """Return rank -> host for members that join a mesh; None where some of them have no number in it."""
    if any(rank >= len(pulls) for rank in (*numbers, *fixed)):
        return None
    leaf_of = fabric.switch_of[1]
    holes = Counter[int]()
    for host, pods in free.items():
        holes[int(leaf_of[host])] += pods
    chosen = leaves_in_mesh(pulls, numbers, {rank: int(leaf_of[host]) for rank, host in fixed.items()}, holes)
    slots = sorted(free.elements())
    host_of_rank: dict[int, int] = {}
    for rank in sorted(numbers, key=lambda rank: (rank not in chosen, rank)):
        slot = next((host for host in slots if chosen.get(rank, int(leaf_of[host])) == int(leaf_of[host])), None)
        if slot is not None:
            slots.remove(slot)
            host_of_rank[rank] = slot
    return host_of_rank


def _seat_whole_mesh(
    fabric: Fabric, request: GangRequest, group: PodBatch, slots: Sequence[int], numbers: Sequence[int]
) -> dict[int, int] | None:
    """Return rank -> host where a whole mesh is seated at once: in the order that sends least; None for no mesh."""
    mesh = request.gang.mesh
    if not mesh or not is_complete(mesh, len(slots), group.ranks_a_pod) or len(numbers) < len(slots):
        return None
    along = [host for host, pods in ranks_along(fabric, Counter(slots).items()) for _ in range(pods)]
    laid = cheapest_order(fabric, mesh, along, group.ranks_a_pod)[1]
    return dict(zip(numbers, laid, strict=True))
