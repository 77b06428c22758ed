"""Place the pods of one shape as their gang wishes: in layers, as a mesh, evenly, in multiples, or in gaps."""

from __future__ import annotations

from dataclasses import replace

from turnout.kube.node_capacity import Rows
from turnout.scheduler_ext.cache.gang import Gang
from turnout.topology.fabric import Fabric
from turnout.topology.layers.balanced import balanced
from turnout.topology.layers.mesh import crossing_gb, layouts, switches_of_ranks, whole
from turnout.topology.layers.nested import in_layers
from turnout.topology.model import Ask, Placement, Reason, Refusal
from turnout.topology.multiples import in_multiples
from turnout.topology.packing.smallest_holes import smallest_holes


def answer(fabric: Fabric, room: Rows, ask: Ask, gang: Gang, ranks_a_pod: int) -> Placement | Refusal:
    """Place pods, or give the reason why not. room: as for topology.plan. ranks_a_pod: its accelerators."""
    if gang.fills:
        return smallest_holes(fabric, room, ask)
    if gang.mesh and not ask.anchors and whole(gang.mesh, ask.pods, ranks_a_pod):
        return _laid_out(fabric, room, ask, gang, ranks_a_pod)
    if gang.layers:
        return in_layers(fabric, room, replace(ask, layers=gang.layers))
    return balanced(fabric, room, ask) if gang.balanced else in_multiples(fabric, room, ask)


def _laid_out(fabric: Fabric, room: Rows, ask: Ask, gang: Gang, ranks_a_pod: int) -> Placement | Refusal:
    """Place a mesh in the way that sends least between leaves, then least between higher switches."""
    best: Placement | None = None
    least: tuple[float, ...] = ()
    found: Placement | Refusal = Refusal(Reason.NO_ROOM)
    for multiple, layers in layouts(gang.mesh, ranks_a_pod, ask.pods, int(room.max(initial=0)), fabric.tiers):
        way = replace(ask, multiple=max(multiple, ask.multiple), layers=layers or gang.layers)
        found = in_layers(fabric, room, way)
        if isinstance(found, Refusal) or found.placed < ask.pods:
            continue
        hosts = [host for host, pods in found.slots for _ in range(pods)]
        price = tuple(
            crossing_gb(gang.mesh, switches_of_ranks(fabric.switch_of[tier], hosts, ranks_a_pod))
            for tier in range(1, fabric.tiers)
        )
        if best is None or price < least:
            best, least = found, price
    return best or found
