"""Laws of who leaves for a gang: it fits then, nobody leaves for nothing, and nobody is left of what cannot go on."""

import random

import pytest

from tests.kit.world import World, koordinator
from turnout.scheduler_ext.planner.victims import choose_victims

WALL_S = 1_770_000_000.0
HOSTS = [f"a{at}" for at in range(6)]


def crowded(rng):
    """Six hosts of eight GPUs, on which gangs of random sizes, minima and priorities stand; some of them leave."""
    w, free = World(6), dict.fromkeys(HOSTS, 8)
    for at in range(rng.randint(2, 7)):
        gpus, priority = rng.choice([1, 2, 4, 8]), rng.choice([0, 1, 5, 9])
        able = [host for host in HOSTS for _ in range(free[host] // gpus)]
        nodes = rng.sample(able, min(len(able), rng.randint(1, 5)))
        for node in nodes:
            free[node] -= gpus
        if nodes:
            minimum = rng.randint(1, len(nodes))
            leaving = rng.random() < 0.15
            w.put(*koordinator(f"g{at}", len(nodes), minimum, gpus, nodes, priority=priority, leaving=leaving))
    return w


def room(w, row, shape, out):
    """How many pods of a shape a host holds once some are gone."""
    snapshot = w.view.snapshot
    vector, free = snapshot.resources.pod_amounts(shape), snapshot.resources.free_at(row).copy()
    for uid in out:
        charge = snapshot.charges[uid]
        if snapshot.row_of[charge.node] == row:
            free += snapshot.resources.pod_amounts(charge.shape)
    return min(int(have // want) for have, want in zip(free, vector, strict=True) if want)


@pytest.mark.parametrize("seed", range(60))
def test_it_fits_then_and_nobody_leaves_for_nothing(seed):
    rng = random.Random(seed)
    w = crowded(rng)
    (mine,) = koordinator("mine", 1, gpus=rng.choice([2, 4, 8]), priority=5)
    w.put(mine)
    own = w.member(mine)
    w.view.settle(w.now_s)
    rows = rng.sample(range(6), rng.randint(1, 4))
    takes = [(row, own.shape) for row in rows]
    lower = {uid for uid, charge in w.view.snapshot.charges.items() if charge.priority < 5}
    leavers = {uid for uid in lower if w.view.pods[uid].terminating}
    chosen = choose_victims(w.view, own.membership.key, takes, 5, (), WALL_S)
    if chosen is None:
        assert any(room(w, row, own.shape, lower) < 1 for row in rows)
        return
    out = {member.uid for member in chosen}
    assert out <= lower - leavers
    assert all(room(w, row, own.shape, out | leavers) >= 1 for row in rows)
    for key in {member.membership.key for member in chosen}:
        members = w.view.gangs[key].members.values()
        left = [m for m in members if m.node and not m.terminating and m.uid not in out]
        assert not left or len(left) >= w.view.gangs[key].min_pods, "it is left in parts"
        rest = out - {m.uid for m in members}
        assert any(room(w, row, own.shape, rest | leavers) < 1 for row in rows), "it leaves for nothing"
    names = [HOSTS.index(member.node) in rows for member in chosen]
    assert names == sorted(names), "who stands elsewhere leaves first"
