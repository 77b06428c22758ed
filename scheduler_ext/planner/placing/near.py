"""Place the pods of one shape as their gang wishes: in layers, as a mesh, evenly, in multiples, or in gaps."""

from __future__ import annotations

from dataclasses import replace

from turnout.kube.node_capacity import Rows
from turnout.scheduler_ext.cache.gang import Gang
from turnout.topology.fabric import Fabric
from turnout.topology.layers.balanced import balanced
from turnout.topology.layers.mesh import is_complete
from turnout.topology.layers.mesh_plan import place_mesh
from turnout.topology.layers.nested import in_layers
from turnout.topology.model import Ask, Placement, Refusal
from turnout.topology.multiples import in_multiples
from turnout.topology.packing.smallest_holes import smallest_holes


def place_shape(fabric: Fabric, room: Rows, ask: Ask, gang: Gang, ranks_a_pod: int) -> Placement | Refusal:
    """Place pods, or give the reason why not. room: as for topology.plan. ranks_a_pod: its accelerators."""
    if gang.fills_holes:
        return smallest_holes(fabric, room, ask)
    if gang.mesh and not ask.anchors and is_complete(gang.mesh, ask.pods, ranks_a_pod):
        return place_mesh(fabric, room, replace(ask, layers=gang.layers), gang.mesh, ranks_a_pod)
    if gang.layers:
        return in_layers(fabric, room, replace(ask, layers=gang.layers))
    return balanced(fabric, room, ask) if gang.balanced else in_multiples(fabric, room, ask)
