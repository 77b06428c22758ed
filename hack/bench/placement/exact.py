"""The exact optimum by CP-SAT: the least ring crossings that any choice of hosts and any rank order can reach.

A ring over k > 1 switches of a tier leaves each at least once, and an order that walks the fabric leaves each exactly
once at every tier. So only the sets of switches count: the price of a tier is k, or nothing for k = 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from hack.bench.placement.baselines import Room
from turnout.topology.fabric import Fabric


def optimum(
    fabric: Fabric, room: Room, pods: int, limit_s: float, layers: Sequence[tuple[int, int]] = ()
) -> int | None:
    """Return the lowest cost; None if CP-SAT did not prove it within `limit_s`, or if the gang does not fit.

    layers: (tier, size); the number of pods under each switch of the tier is a multiple of the size.
    """
    leaf_room = np.add.reduceat(room, fabric.starts[1]).tolist()
    model = cp_model.CpModel()
    used = [[model.new_bool_var(f"{tier}/{at}") for at in range(len(fabric.starts[tier]))] for tier in _tiers(fabric)]
    leaf_pods = [model.new_int_var(0, min(pods, maximum), f"leaf{at}") for at, maximum in enumerate(leaf_room)]
    model.add(sum(leaf_pods) == pods)
    for leaf, pods_here in enumerate(leaf_pods):
        model.add(pods_here <= min(pods, leaf_room[leaf]) * used[0][leaf])
    for tier in _tiers(fabric)[:-1]:
        for switch, host in enumerate(fabric.starts[tier].tolist()):
            model.add_implication(used[tier - 1][switch], used[tier][int(fabric.switch_of[tier + 1, host])])
    for tier, size in layers:
        for switch in range(len(fabric.starts[tier])):
            first, end = fabric.span(tier, switch)
            under = leaf_pods[fabric.switch_of[1, first] : fabric.switch_of[1, end - 1] + 1]
            model.add(sum(under) == size * model.new_int_var(0, pods // size, ""))
    single = []
    for row in used:
        is_one_switch = model.new_bool_var("")
        model.add(sum(row) <= 1).only_enforce_if(is_one_switch)
        single.append(is_one_switch)
    model.minimize(sum(sum(row) for row in used) - sum(single))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    return round(solver.objective_value) if solver.solve(model) == cp_model.OPTIMAL else None


def _tiers(fabric: Fabric) -> range:
    return range(1, fabric.tiers + 1)
