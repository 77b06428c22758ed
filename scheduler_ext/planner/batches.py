"""Place the batches of a gang one after another, in the room of one domain or of the whole fabric.

The heaviest shape is placed first, the others near it. The room that earlier batches take is not free for later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from turnout.kube.node_capacity import Rows
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang, GangGroup
from turnout.scheduler_ext.planner.pack import keep_nominated_hosts
from turnout.scheduler_ext.planner.ranks import (
    MAX_ABSENT_RANKS,
    hosts_beside_neighbours,
    mesh_traffic,
    missing_ranks,
    ranks_of,
    seat_batch,
)
from turnout.scheduler_ext.planner.refusals import refuse_places, refuse_too_few_groups, refuse_too_many_shapes
from turnout.scheduler_ext.planner.request import (
    GangPlan,
    GangRequest,
    HostPreferences,
    PodBatch,
    RoomOf,
    Seat,
    limit_by_spread,
)
from turnout.topology.fabric import Fabric, common_tier
from turnout.topology.layers import place_in_layers
from turnout.topology.mesh import is_complete, place_mesh
from turnout.topology.model import Placement, PlacementRequest, Refusal, RefusalReason
from turnout.topology.place import (
    anchors_refusal,
    complete_multiples,
    place_balanced,
    place_in_multiples,
    place_in_smallest_holes,
)

QUESTION_STEPS = 15_000  # for the gangs ahead of the gang in question; add HOST_STEPS for each host
HOST_STEPS = 4
GANG_STEPS = 50_000  # for one gang; then no further domain and no further shape is tried
SHAPES_STEPS = 20_000  # for a gang of more than MAX_SHAPES_TOGETHER shapes; then no further domain is tried
ALL_STEPS = 1 << 60


@dataclass(slots=True)
class Work:
    """A number of steps of work to spend, each of about a microsecond.

    A part that has begun is finished, so that more steps may be spent than the limit.
    """

    max_steps: int = GANG_STEPS  # the limit, >= 0
    spent_steps: int = 0  # so far; may exceed the limit

    def limit(self, max_steps: int) -> None:
        """Lower the limit to `max_steps` steps in total. A lower limit stays."""
        self.max_steps = min(self.max_steps, max_steps)

    def spend(self, steps: int) -> None:
        """Count some steps."""
        self.spent_steps += steps

    @property
    def steps_left(self) -> int:
        """The number of steps left. At 0 or less no further part begins."""
        return self.max_steps - self.spent_steps


def place_shape(
    fabric: Fabric, room: Rows, shape_request: PlacementRequest, gang: Gang, ranks_per_pod: int
) -> Placement | Refusal:
    """Place the pods of one shape as their gang wishes: in holes, as a mesh, in runs of ranks, evenly or in multiples.

    room: pods of the shape that each host takes. shape_request: how many pods, and near which hosts. ranks_per_pod: the
    accelerators of one pod, >= 1. Returns a refusal if fewer pods than the min of `shape_request` find a host.
    """
    if gang.fills_holes:
        return place_in_smallest_holes(fabric, room, shape_request)
    if gang.mesh and not shape_request.anchors and is_complete(gang.mesh, shape_request.pods, ranks_per_pod):
        return place_mesh(fabric, room, replace(shape_request, layers=gang.layers), gang.mesh, ranks_per_pod)
    if gang.layers:
        return place_in_layers(fabric, room, replace(shape_request, layers=gang.layers))
    return (
        place_balanced(fabric, room, shape_request)
        if gang.terms.balanced
        else place_in_multiples(fabric, room, shape_request)
    )


MAX_SHAPES_TOGETHER = 8  # shapes that are placed at any number of steps
BATCH_STEPS = 200  # for one batch; its hosts and pods count in addition


@dataclass(slots=True)
class Progress:
    """The members of a gang that have a place so far."""

    placed_hosts: list[int]  # hosts of the members with a place, one entry for each member
    hosts_by_group: dict[GangGroup | None, list[int]]  # the same hosts by group; None: of members without a group
    roles: Counter[str]  # roles of members that hold a host, have a place or are not planned
    used_rooms: list[tuple[int, PodShape]] = field(default_factory=list)  # (host, shape) of each place of the plan
    hosts: dict[str, int] = field(default_factory=dict)  # uid -> host of the waiting members with a place
    open_seats: list[Seat] = field(default_factory=list)  # places of members that do not exist yet

    # how many shapes of a group found room for all pods
    full_batches: Counter[GangGroup | None] = field(default_factory=Counter)
    refusal: Refusal | None = None  # why members above the min found no place

    def copy(self) -> Progress:
        """Return an independent copy."""
        found = Progress([], {}, Counter())
        found.restore(self)
        return found

    def restore(self, earlier: Progress) -> None:
        """Take over copies of all values of an earlier state."""
        self.placed_hosts, self.used_rooms = list(earlier.placed_hosts), list(earlier.used_rooms)
        self.hosts_by_group = {group: list(hosts) for group, hosts in earlier.hosts_by_group.items()}
        self.roles, self.full_batches = earlier.roles.copy(), earlier.full_batches.copy()
        self.hosts, self.open_seats = dict(earlier.hosts), list(earlier.open_seats)
        self.refusal = earlier.refusal


def start_progress(request: GangRequest) -> Progress:
    """Return the progress of a plan in which only the members that hold a host have a place."""
    group_of, waiting = request.gang.groups_by_uid(), {member.uid for member in request.waiting}
    hosts_by_group: dict[GangGroup | None, list[int]] = {}
    for member, host in request.placed_members:
        hosts_by_group.setdefault(group_of.get(member.uid), []).append(host)
    roles = Counter(member.membership.role for member in request.gang.living() if member.uid not in waiting)
    return Progress([host for _, host in request.placed_members], hosts_by_group, roles)


def place_batches(
    fabric: Fabric, request: GangRequest, batches: Sequence[PodBatch], room_of: RoomOf, work: Work
) -> GangPlan:
    """Place the batches one after another, and return the plan. Later batches are placed near earlier ones.

    The plan has a refusal and no hosts if the min finds no place, if too few groups are whole, or if the places would
    split what running members have begun. room_of: the room that the gang may use. work: counts the steps; a gang of
    many shapes is refused when they are spent.
    """
    ranks, bases = ranks_of([*request.waiting, *(m for m, _ in request.placed_members)])
    progress = start_progress(request)
    refusal = _place_in_turn(fabric, request, batches, room_of, ranks, progress, work)
    refusal = refusal or (progress.refusal if len(progress.used_rooms) < count_needed(request, batches) else None)
    refusal = refusal or refuse_too_few_groups(request, batches, progress.full_batches)
    refusal = refusal or refuse_places(fabric, request, batches, progress.hosts, progress.open_seats, ranks)
    if refusal is not None:
        placed_hosts = tuple(dict.fromkeys(host for _, host in request.placed_members))
        return GangPlan(request.gang.key, refusal=refusal, used_hosts=placed_hosts)
    return finished_plan(fabric, request, progress, ranks, bases)


def count_needed(request: GangRequest, batches: Sequence[PodBatch]) -> int:
    """Return how many pods of these batches must find a host so that the gang reaches its min, at most all of them; 0
    if none.
    """
    gang = request.gang
    # Members that hold a host, or that are not planned.
    counted = len(gang.living()) - sum(len(batch.members) for batch in batches)
    return min(sum(batch.pods for batch in batches), max(0, gang.min_pods - counted))


def _place_in_turn(
    fabric: Fabric,
    request: GangRequest,
    batches: Sequence[PodBatch],
    room_of: RoomOf,
    ranks: Mapping[str, int],
    progress: Progress,
    work: Work,
) -> Refusal | None:
    """Place batch after batch, and add the places to `progress`; None if it went through all batches.

    Returns a refusal, and stops, if a batch that the min needs has no place, or if the steps for many shapes are spent.
    A batch above the min without a place is skipped, and its refusal noted in `progress`; of a whole group all batches
    are skipped. room_of: the room that the gang may use. ranks: uid -> rank in the gang.
    """
    pods_after, needed_pods = sum(batch.pods for batch in batches), count_needed(request, batches)
    incomplete_groups: set[GangGroup | None] = set()
    before_group = progress  # the progress before the first batch of the current group
    for at, batch in enumerate(batches):
        if at >= MAX_SHAPES_TOGETHER and work.steps_left <= 0:
            return refuse_too_many_shapes(batches, at)
        work.spend(BATCH_STEPS + len(fabric.hosts) // 4 + 4 * (len(progress.used_rooms) + len(batch.members)))
        pods_after -= batch.pods
        if batch.is_whole and (at == 0 or batches[at - 1].gang_group != batch.gang_group):
            before_group = progress.copy()
        if batch.is_whole and batch.gang_group in incomplete_groups:
            continue
        min_pods = min(batch.pods, max(0, needed_pods - len(progress.used_rooms) - pods_after))
        min_pods = max(min_pods, _min_for_roles(request, batch, progress.roles))
        slots = _place_batch(fabric, request, batch, min_pods, progress, room_of, ranks)
        if isinstance(slots, Refusal):
            if min_pods:
                return slots
            if batch.is_whole:  # its other shapes give their places back
                progress.restore(before_group)
            progress.refusal = progress.refusal or slots
            incomplete_groups.add(batch.gang_group)
            continue
        work.spend(8 * len(slots))
        _seat_members(fabric, request, batch, slots, ranks, progress)
    return None


def finished_plan(
    fabric: Fabric,
    request: GangRequest,
    progress: Progress,
    ranks: Mapping[str, int],
    bases: Mapping[str, int],
) -> GangPlan:
    """Return the plan of all members that found a place.

    ranks: uid -> rank. bases: role -> rank of its index 0. progress: the members that hold a host or found a place.
    """
    hosts = progress.hosts
    return GangPlan(
        request.gang.key,
        hosts,
        tuple(progress.open_seats),
        tuple(dict.fromkeys(progress.placed_hosts)),
        common_tier(fabric, progress.placed_hosts),
        progress.refusal,
        shapes={m.uid: m.shape for m in request.waiting if m.uid in hosts},
        ranks={uid: ranks[uid] for uid in hosts},
        bases=bases,
    )


def _seat_members(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    slots: Sequence[int],
    ranks: Mapping[str, int],
    progress: Progress,
) -> None:
    """Assign the members of a batch to its slots, and add them to `progress`, with a refusal if there are too few
    slots.

    slots: a host for each pod that found room. ranks: uid -> rank.
    """
    if len(slots) < batch.pods:
        detail = f"{len(slots)} of {batch.pods} pods find room"
        progress.refusal = progress.refusal or Refusal(RefusalReason.NO_ROOM, detail, len(slots))
    progress.full_batches[batch.gang_group] += len(slots) == batch.pods
    progress.used_rooms.extend((host, batch.shape) for host in slots)
    seated, seats = seat_batch(fabric, request, batch, slots, ranks)
    progress.hosts.update(seated)
    progress.open_seats.extend(seats)
    progress.placed_hosts.extend(slots)
    progress.hosts_by_group.setdefault(batch.gang_group, []).extend(slots)
    progress.roles.update(member.membership.role for member in batch.members if member.uid in seated)


def _min_for_roles(request: GangRequest, batch: PodBatch, present_roles: Counter[str]) -> int:
    """Return how many members of a batch must find a host so that each of their roles reaches its min.

    Of each role at most as many as the batch has. 0 without mins of roles. present_roles: pods of each role that have a
    place already.
    """
    if not request.gang.min_by_role:
        return 0
    own = Counter(member.membership.role for member in batch.members)
    return sum(min(own[role], max(0, min_pods - present_roles[role])) for role, min_pods in request.gang.min_by_role)


def _place_batch(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    min_pods: int,
    progress: Progress,
    room_of: RoomOf,
    ranks: Mapping[str, int],
) -> list[int] | Refusal:
    """Return hosts for one batch, one entry for each pod that finds a host; a refusal if fewer than needed find one.

    min_pods: pods that must find a host. progress: the places of earlier batches; it is not changed. room_of: the room
    that the gang may use. ranks: uid -> rank. Nominated members keep their host if it has room. A group is placed whole
    or not at all, unless its rule allows less.
    """
    placed_hosts = (
        progress.placed_hosts if batch.gang_group is None else progress.hosts_by_group.get(batch.gang_group, [])
    )
    room = limit_by_spread(request, batch, placed_hosts, room_of(batch.shape, progress.used_rooms))
    _exclude_for_group(fabric, request, batch, progress, room)
    nominated = keep_nominated_hosts(request, batch, room)
    first = list(nominated.values())
    host_preferences = request.host_preferences_of(batch.shape, progress.used_rooms) if len(first) < batch.pods else ()
    if len(first) < batch.pods:
        first += _hosts_beside_members(fabric, request, batch, nominated, room, ranks, host_preferences)
    pods = batch.pods - len(first)
    if pods == 0:
        return first
    min_pods = pods if batch.is_whole else max(0, min_pods - len(first))
    shape_request = replace(
        _shape_request(request, batch, pods, min_pods, [*placed_hosts, *first]), host_preferences=host_preferences
    )
    found = place_shape(fabric, room, shape_request, request.gang, batch.ranks_per_pod)
    if isinstance(found, Refusal):
        # The others have no place. Those that complete what has begun have one, if it is within the required level.
        are_within = anchors_refusal(fabric, shape_request.widest_tier, [*placed_hosts, *first]) is None
        return first if first and are_within and not min_pods else found
    return [*first, *(host for host, count in found.slots for _ in range(count))]


def _hosts_beside_members(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    nominated: Mapping[str, int],
    room: Rows,
    ranks: Mapping[str, int],
    host_preferences: HostPreferences,
) -> list[int]:
    """Return hosts that complete a multiple, or that are under the leaf of neighbours: one for each pod that finds such
    a host.

    Their room is subtracted from `room`. nominated: uid -> host of the members that have a place in the batch already.
    ranks: uid -> rank. host_preferences: arrays that decide between equally good hosts.
    """
    if request.gang.multiple == 1:
        return _hosts_beside_neighbours(fabric, request, batch, nominated, room, ranks, host_preferences)
    group_of = request.gang.groups_by_uid()
    running = [
        host
        for member, host in request.placed_members
        if member.shape == batch.shape and group_of.get(member.uid) == batch.gang_group
    ]
    pods = batch.pods - len(nominated)
    return complete_multiples([*running, *nominated.values()], request.gang.multiple, pods, room)


def _shape_request(
    request: GangRequest, batch: PodBatch, pods: int, min_pods: int, near_hosts: Sequence[int]
) -> PlacementRequest:
    """Return the packing request for some pods of a batch.

    pods: to be placed. min_pods: pods that must find a place. near_hosts: hosts of the members that the pods stay
    near, one entry for each member.
    """
    gang, anchors = request.gang, tuple(sorted(Counter(near_hosts).items()))
    max_pods = pods
    if not anchors or min_pods:  # a gang whose min runs already needs no domain with room to grow
        max_pods += max(0, gang.max_pods - len(gang.living()) - request.absent.missing)
    group_tier = None if batch.gang_group is None else batch.gang_group.tier
    widest = min((tier for tier in (gang.tier, group_tier) if tier is not None), default=None)
    return PlacementRequest(pods, min_pods, max_pods, gang.multiple, widest, anchors, request.distance_rule)


def _exclude_for_group(fabric: Fabric, request: GangRequest, batch: PodBatch, progress: Progress, room: Rows) -> None:
    """Set `room` to 0 where a group may not go: outside its span or level, and in domains that an exclusive group
    shares with none.

    room: by host id, changed in place. progress: the places of other groups so far.
    """
    group = batch.gang_group
    if batch.span is not None:
        room[: batch.span[0]] = room[batch.span[1] :] = 0
    if group is None:
        return
    if (mask := request.rows_outside_level.get(group.rule)) is not None:
        room[mask] = 0
    for other, hosts in progress.hosts_by_group.items():
        if other is None or other == group or not (group.exclusive or other.exclusive):
            continue
        tier = min(separating_tier(group, other), fabric.tiers)
        for switch in {int(fabric.switch_of[tier][host]) for host in hosts}:
            room[slice(*fabric.span(tier, switch))] = 0


def separating_tier(one: GangGroup, other: GangGroup) -> int:
    """Return the tier in whose domains two groups may not meet: the highest tier of those of them that are exclusive.

    At least one of them must be exclusive and have a tier.
    """
    return max(each.tier for each in (one, other) if each.exclusive and each.tier is not None)


def _hosts_beside_neighbours(
    fabric: Fabric,
    request: GangRequest,
    batch: PodBatch,
    nominated: Mapping[str, int],
    room: Rows,
    ranks: Mapping[str, int],
    host_preferences: HostPreferences,
) -> list[int]:
    """Return hosts for the pods of a batch that find room under the leaf of their neighbours in the ring or mesh.

    One entry for each such pod, which is subtracted from `room`. [] if the request has given it up
    (`beside_neighbours`), if the gang fills holes or has runs of ranks, if the batch is of a group, or if no member
    holds a host or is in `nominated`. nominated: uid -> host of members that have a place in the batch already. ranks:
    uid -> rank. host_preferences: arrays that decide between equally good hosts.
    """
    gang = request.gang
    if not request.beside_neighbours or gang.fills_holes or gang.layers or batch.gang_group is not None:
        return []
    host_of_rank = {ranks[member.uid]: host for member, host in request.placed_members}
    host_of_rank.update({ranks[uid]: host for uid, host in nominated.items()})
    if not host_of_rank:
        return []
    waiting_ranks = [ranks[member.uid] for member in batch.members if member.uid not in nominated]
    to_come = missing_ranks(ranks, min(max(batch.missing_pods, gang.total - len(ranks)), MAX_ABSENT_RANKS))
    others = [ranks[member.uid] for member in request.waiting if member.shape != batch.shape]
    seats = [*waiting_ranks, *to_come[: batch.missing_pods]]
    traffic = mesh_traffic(gang, batch)
    return hosts_beside_neighbours(
        fabric, room, seats, [*to_come, *others], host_of_rank, gang.tier, traffic, host_preferences
    )
