"""Number the members of a gang and seat them, so that neighbours in the ring or mesh are near each other.

Members that come back or come late are seated under the leaf of their neighbours while that leaf has room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from turnout.kube.node_capacity import Rows
from turnout.scheduler_ext.cluster.gang import Gang, rank_sort_key
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.planner.request import GangRequest, HostPreferences, PodBatch, Seat
from turnout.topology.fabric import Fabric, common_tier
from turnout.topology.mesh import PodTraffic, cheapest_order, is_complete, leaves_in_mesh, pod_traffic
from turnout.topology.packing import DomainPacker, RoomByTier
from turnout.topology.rank_order import assign_ranks, leaves_of_neighbours
from turnout.topology.rank_order import in_rank_order as ranks_along


def ranks_of(members: Sequence[GangMember]) -> tuple[dict[str, int], dict[str, int]]:
    """Return (uid -> rank in the whole gang, role -> rank of its index 0).

    members: of one gang, those that wait and those that hold a host. A member's rank is its own index after all indexes
    of the roles before its own. If an index is unknown or given twice, the rank is the place in rank order, and the
    second mapping is empty.
    """
    top = Counter[str]()
    for member in members:
        if member.membership.rank is not None:
            top[member.membership.role] = max(top[member.membership.role], member.membership.rank + 1)
    bases: dict[str, int] = {}
    for role in sorted(top):
        bases[role] = sum(top[other] for other in bases)
    own = {(m.membership.role, m.membership.rank) for m in members if m.membership.rank is not None}
    if len(own) == len(members):
        return {m.uid: bases[m.membership.role] + (m.membership.rank or 0) for m in members}, bases
    return {m.uid: at for at, m in enumerate(sorted(members, key=rank_sort_key))}, {}


def missing_ranks(ranks: Mapping[str, int], missing: int) -> list[int]:
    """Return the `missing` lowest ranks that no member has, ascending, for members that do not exist yet."""
    had = set(ranks.values())
    found: list[int] = []
    at = 0
    while len(found) < missing:
        if at not in had:
            found.append(at)
        at += 1
    return found


def seating_order(
    members: Sequence[GangMember], min_by_role: Sequence[tuple[str, int]], present: Iterable[GangMember]
) -> list[GangMember]:
    """Return members in the order in which they get seats: of each role first as many as must start, then the rest by
    rank.

    min_by_role: (role, how many of its pods must start). present: members that have a place, which count in their
    roles.
    """
    min_pods, counts = dict(min_by_role), Counter(member.membership.role for member in present)
    first: list[GangMember] = []
    rest: list[GangMember] = []
    for member in sorted(members, key=rank_sort_key):
        role = member.membership.role
        counts[role] += 1
        (first if counts[role] <= min_pods.get(role, 0) else rest).append(member)
    return [*first, *rest]


MAX_ABSENT_RANKS = 1_024  # ranks without a member that are considered


def hosts_beside_neighbours(
    fabric: Fabric,
    room: Rows,
    ranks: Sequence[int],
    absent: Sequence[int],
    host_of_rank: Mapping[int, int],
    tier: int | None,
    traffic: PodTraffic | None = None,
    host_preferences: HostPreferences = (),
) -> list[int]:
    """Return the hosts of the pods that fit under a leaf of a neighbour, one entry a pod, in no order.

    ranks: of the pods to place. absent: other ranks without a place. host_of_rank: rank -> host of placed members.
    tier: widest allowed; None for any. traffic: of the mesh; None for a ring. host_preferences: arrays by row that
    decide between equally good rows. Subtracts the pods from `room`. [] without placed members, if no pod finds such a
    host, for tier 0, and if placed members are off the map, or in no common domain of the tier.
    """
    placed_hosts = sorted(set(host_of_rank.values()))
    if not host_of_rank or not ranks or tier == 0 or placed_hosts[-1] >= fabric.mapped_count:
        return []
    if tier is not None and common_tier(fabric, placed_hosts) > tier:
        return []
    leaf_of = fabric.switch_of[1]
    spans = {leaf: fabric.span(1, leaf) for leaf in np.unique(leaf_of[placed_hosts]).tolist()}
    holes = {leaf: int(room[first:end].sum()) for leaf, (first, end) in spans.items()}
    free = sorted({*ranks, *absent} - host_of_rank.keys())
    leaf_of_rank = {rank: int(leaf_of[host]) for rank, host in host_of_rank.items()}
    chosen = (
        leaves_of_neighbours(free, leaf_of_rank, holes)
        if traffic is None
        else leaves_in_mesh(traffic, free, leaf_of_rank, holes)
    )
    counts = Counter(chosen[rank] for rank in ranks if rank in chosen)
    if not counts:
        return []
    packer = DomainPacker(RoomByTier(fabric, room, host_preferences), placed_hosts)
    slots = [slot for leaf, pods in sorted(counts.items()) for slot in packer.fill(1, leaf, pods)]
    for host, pods in slots:
        room[host] -= pods
    return [host for host, pods in slots for _ in range(pods)]


def seat_batch(
    fabric: Fabric, request: GangRequest, batch: PodBatch, slots: Sequence[int], ranks: Mapping[str, int]
) -> tuple[dict[str, int], list[Seat]]:
    """Decide which member gets which slot: nominated hosts first, then neighbours in rank become neighbours in the map.

    slots: a host for each pod that found room. ranks: uid -> rank. Returns (uid -> host of the members, the seats of
    members that do not exist yet). Members without a slot are absent.
    """
    free = Counter(slots)
    seats = _nominated_seats(request, batch, free)
    placed_ranks = {ranks[m.uid]: host for m, host in request.placed_members if m.uid in ranks}
    fixed = placed_ranks | {ranks[uid]: host for uid, host in seats.items()}
    unseated = [m for m in batch.members if m.uid not in seats]
    seated_members = [member for member, _ in request.placed_members] + [m for m in batch.members if m.uid in seats]
    in_order = seating_order(unseated, request.gang.min_by_role, seated_members)
    waiting_ranks = sorted(ranks[m.uid] for m in in_order[: free.total()])
    open_ranks = missing_ranks(ranks, min(batch.missing_pods, free.total() - len(waiting_ranks)))
    numbers = sorted([*waiting_ranks, *open_ranks])
    host_of_rank = _hosts_of_ranks(fabric, request, batch, slots, +free, numbers, fixed)
    seats |= {m.uid: host_of_rank[ranks[m.uid]] for m in unseated if ranks[m.uid] in host_of_rank}
    return seats, [Seat(host_of_rank[rank], batch.shape, rank) for rank in open_ranks if rank in host_of_rank]


def _nominated_seats(request: GangRequest, batch: PodBatch, free: Counter[int]) -> dict[str, int]:
    """Return uid -> host of the members whose nominated host is free.

    Subtracts them from `free` (host -> free slots).
    """
    seats: dict[str, int] = {}
    for member in batch.members:
        host = request.nominated_hosts.get(member.uid)
        if host is not None and free[host] > 0:
            free[host] -= 1
            seats[member.uid] = host
    return seats


def _hosts_of_ranks(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    slots: Sequence[int],
    free: Counter[int],
    numbers: Sequence[int],
    fixed: Mapping[int, int],
) -> Mapping[int, int]:
    """Return rank -> host for the ranks in `numbers`: in a mesh by its traffic, else along the ring.

    slots: a host for each pod. free: host -> its unused slots. fixed: rank -> host of seated members.
    """
    host_of_rank: Mapping[int, int] | None = None
    if not fixed:
        host_of_rank = _seat_whole_mesh(fabric, request, batch, slots, numbers)
    elif (traffic := mesh_traffic(request.gang, batch)) is not None:
        host_of_rank = _join_mesh(fabric, free, numbers, fixed, traffic)
    return assign_ranks(fabric, sorted(free.items()), numbers, fixed) if host_of_rank is None else host_of_rank


def mesh_traffic(gang: Gang, batch: PodBatch) -> PodTraffic | None:
    """Return how many GB each two pods of a gang exchange in a step: shape (pods, pods), by their ranks.

    batch: any batch of the gang; only its ranks_per_pod is read. None for a gang without a mesh, if its pods do not
    fill the mesh, and for one pod or more than MOST_PODS.
    """
    if not gang.mesh or not is_complete(gang.mesh, gang.total, batch.ranks_per_pod):
        return None
    return pod_traffic(gang.mesh, batch.ranks_per_pod)


def _join_mesh(
    fabric: Fabric, free: Counter[int], numbers: Sequence[int], fixed: Mapping[int, int], traffic: PodTraffic
) -> dict[int, int] | None:
    """Return rank -> host for members that join a mesh; None if a rank is outside of the mesh.

    free: host -> its unused slots. numbers: the ranks to place. fixed: rank -> host of seated members. traffic: the
    traffic between the pods of the mesh. A rank that exchanges data with members under a leaf gets a slot under that
    leaf; if none is free there, it is absent. Other ranks get any free slot, and are absent if none is left.
    """
    if any(rank >= len(traffic) for rank in (*numbers, *fixed)):
        return None
    leaf_of = fabric.switch_of[1]
    holes = Counter[int]()
    for host, pods in free.items():
        holes[int(leaf_of[host])] += pods
    chosen = leaves_in_mesh(traffic, numbers, {rank: int(leaf_of[host]) for rank, host in fixed.items()}, holes)
    slots = sorted(free.elements())
    host_of_rank: dict[int, int] = {}
    for rank in sorted(numbers, key=lambda rank: (rank not in chosen, rank)):
        slot = next((host for host in slots if chosen.get(rank, int(leaf_of[host])) == int(leaf_of[host])), None)
        if slot is not None:
            slots.remove(slot)
            host_of_rank[rank] = slot
    return host_of_rank


def _seat_whole_mesh(
    fabric: Fabric, request: GangRequest, batch: PodBatch, slots: Sequence[int], numbers: Sequence[int]
) -> dict[int, int] | None:
    """Return rank -> host of a mesh that is seated at once, in the order that sends least over the switches.

    None if the gang is no mesh, or not all of it is seated now. slots: a host for each pod. numbers: the ranks.
    """
    mesh = request.gang.mesh
    if not mesh or not is_complete(mesh, len(slots), batch.ranks_per_pod) or len(numbers) < len(slots):
        return None
    along = [host for host, pods in ranks_along(fabric, Counter(slots).items()) for _ in range(pods)]
    laid = cheapest_order(fabric, mesh, along, batch.ranks_per_pod)[1]
    return dict(zip(numbers, laid, strict=True))
