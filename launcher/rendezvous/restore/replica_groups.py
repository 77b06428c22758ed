"""Names the daemons that a member's daemon works with in a world: the one that leads replication, and its replica
holders.
"""

from __future__ import annotations

from turnout.launcher.model import World
from turnout.launcher.rendezvous.checkpoint_messages import MOST_COPIES, ReplicaGroup
from turnout.launcher.rendezvous.restore.replica_placement import replica_holders
from turnout.launcher.rendezvous.restore.restore_plan import endpoint_of
from turnout.launcher.rendezvous.state import Rings


def replica_groups(world: World, before: Rings = ()) -> tuple[dict[str, ReplicaGroup], Rings]:
    """Return the replica groups by member id, and the rings that say who keeps whose replicas.

    Empty if the world has one member, or one whose daemon takes no replicas. before: rings of the last world; after a
    replacement as few replica holders as possible change.
    """
    endpoints = {member.id: endpoint for member in world.members if (endpoint := endpoint_of(member)) is not None}
    if len(endpoints) < max(len(world.members), 2):
        return {}, ()
    places = [(member.id, member.path) for member in world.members]
    counts = range(1, min(MOST_COPIES, len(places) - 1) + 1)
    rings = tuple(
        replica_holders(places, copies, before[copies - 1] if copies <= len(before) else None) for copies in counts
    )
    first, size = endpoints[world.members[0].id], len(places)
    groups = {
        id_: ReplicaGroup(first, size, tuple(tuple(endpoints[other] for other in each[id_]) for each in rings))
        for id_ in endpoints
    }
    return groups, rings
