"""The restatement of kube-scheduler's default judgement, against numbers worked out by hand from its rules."""

import math
import random

import pytest

from tests.simulator.world import UNRACED, cluster, node, pod_info
from turnout.kube.labels import FAULTY
from turnout.kube.node_health import TAINT_EFFECT
from turnout.kube.objects import Toleration
from turnout.simulator.cluster.scheduler import Cursor, choose_node, feasible_nodes, node_scores, nodes_to_find

NEUTRAL = 300  # TaintToleration: 100 for everybody, times 3


def names(node_infos):
    return [node_info.name for node_info in node_infos]


@pytest.mark.parametrize(
    ("nodes", "percentage", "enough"),
    [
        # the row of docs/facts/extender.md 1.4
        *[
            pytest.param(n, 0, k, id=f"{n} nodes")
            for n, k in [
                (50, 50),
                (100, 100),
                (256, 122),
                (500, 230),
                (1000, 420),
                (2000, 680),
                (3125, 781),
                (5000, 500),
                (10000, 500),
                (15000, 750),
            ]
        ],
        pytest.param(1000, 100, 1000, id="all are asked for"),
        pytest.param(1000, 1, 100, id="never fewer than 100"),
    ],
)
def test_how_many_feasible_nodes_are_enough(nodes, percentage, enough):
    assert nodes_to_find(nodes, percentage) == enough


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        pytest.param(pod_info("p", gpus=8), ["free"], id="eight GPUs fit where none is taken"),
        pytest.param(pod_info("p", gpus=7), ["free", "taken"], id="seven fit beside one"),
        pytest.param(pod_info("p", cpu="17", gpus=0), [], id="no node has the CPU"),
        pytest.param(
            pod_info("p", tolerations=[Toleration(key="gone", operator="Exists")]),
            ["free", "taken", "tainted"],
            id="a taint is tolerated",
        ),
        pytest.param(pod_info("p", node_selector={"pool": "a"}), ["free"], id="a selector narrows"),
    ],
)
def test_filters(pod, fits):
    state = cluster(
        node("free", labels={"pool": "a"}),
        "taken",
        node("tainted", taints=[("gone", "NoSchedule")]),
        node("cordoned", unschedulable=True),
        node("faulty", taints=[(FAULTY, TAINT_EFFECT)]),
        bound_pods=[(pod_info("other"), "taken")],
    )
    assert names(feasible_nodes(state, pod, Cursor(), UNRACED)) == fits


def test_nominated_pods_of_equal_or_higher_priority_take_room():
    state = cluster("n")
    state.nominate(pod_info("other", gpus=8, nominated="n", priority=5))
    assert feasible_nodes(state, pod_info("low", priority=5), Cursor(), UNRACED) == []
    assert names(feasible_nodes(state, pod_info("high", priority=6), Cursor(), UNRACED)) == ["n"]


def test_the_search_stops_when_it_has_enough_and_goes_on_there_next_time():
    state = cluster(*[f"n{i:03d}" for i in range(250)])  # 48 % of 250 are 120
    cursor = Cursor()
    first = names(feasible_nodes(state, pod_info("a"), cursor, UNRACED))
    second = names(feasible_nodes(state, pod_info("b"), cursor, UNRACED))
    assert first == [f"n{i:03d}" for i in range(120)]
    assert second == [f"n{i:03d}" for i in range(120, 240)]
    assert cursor.start == 240


def test_workers_race_by_chunks_which_decides_only_the_order():
    state = cluster(*[f"n{i:02d}" for i in range(20)])  # 16 workers take two nodes at a time
    found = names(feasible_nodes(state, pod_info("a"), Cursor(), random.Random(1)))
    pairs = [tuple(found[i : i + 2]) for i in range(0, 20, 2)]
    assert sorted(pairs) == [(f"n{i:02d}", f"n{i + 1:02d}") for i in range(0, 20, 2)]
    assert pairs != sorted(pairs)


def test_zones_take_turns():
    zones = [node(f"{zone}{i}", labels={"topology.kubernetes.io/zone": zone}) for zone in "ab" for i in range(2)]
    state = cluster(*zones, node("c0", labels={"topology.kubernetes.io/zone": "c"}))
    assert names(feasible_nodes(state, pod_info("p"), Cursor(), UNRACED)) == ["a0", "b0", "c0", "a1", "b1"]


@pytest.mark.parametrize(
    ("bound_pods", "pod", "points"),
    [
        # (16-2)/16 -> 87, (64-4)/64 -> 93: 90. Fractions 0.125 and 0.0625: 1 - 0.03125 -> 96
        pytest.param([], pod_info("p"), 90 + 96, id="an empty node"),
        # (16-4)/16 -> 75, (64-8)/64 -> 87: 81. Fractions 0.25 and 0.125: 1 - 0.0625 -> 93
        pytest.param([pod_info("a")], pod_info("p"), 81 + 93, id="a node with one pod like it"),
        # unsaid: 100m and 200 MiB count for the first score, nothing for the second, which is skipped
        pytest.param([], pod_info("p", cpu=None, memory=None), 99, id="a pod that asks for neither CPU nor memory"),
        # 0.5 of 16 -> 96, 8 of 64 -> 87: 91. Really requested: 0.4 of 16 and 8 of 64, 1 - 0.05 -> 95
        pytest.param(
            [pod_info("a", cpu=None)], pod_info("p", cpu="400m"), 91 + 95, id="unsaid CPU counts only for the first"
        ),
    ],
)
def test_scores_of_one_node(bound_pods, pod, points):
    state = cluster("n", bound_pods=[(each, "n") for each in bound_pods])
    assert node_scores(state, pod, list(state.node_infos.values())) == [points + NEUTRAL]


def test_gpus_do_not_count():
    state = cluster("n")
    one, eight = (node_scores(state, pod_info("p", gpus=gpus), list(state.node_infos.values())) for gpus in (1, 8))
    assert one == eight


def test_soft_taints_cost_in_proportion():
    soft = [("x", "PreferNoSchedule"), ("y", "PreferNoSchedule")]
    state = cluster("none", node("one", taints=soft[:1]), node("two", taints=soft))
    untainted, one, two = node_scores(state, pod_info("p"), list(state.node_infos.values()))
    assert (untainted - one, one - two) == (3 * 50, 3 * 50)


def test_pods_of_one_set_spread_and_others_do_not():
    kin = pod_info("kin", labels={"app": "web"}, gpus=0)
    state = cluster("busy", "free", bound_pods=[(kin, "busy")])
    # equal in resources, so that only spreading tells them apart
    state.place(pod_info("stranger", gpus=0), "free")
    node_infos = list(state.node_infos.values())
    spread = pod_info("p", labels={"app": "web"}, spread=(("app", "web"),))
    busy, free = node_scores(state, spread, node_infos)
    # raw: 1 x ln 4 + 2 -> 3, and 2 (nodes without a zone label have no zone term): 100 x (3 + 2 - raw) / 3
    assert round(math.log(4) + 2) == 3
    assert free - busy == 2 * (100 - 66)
    plain = node_scores(state, pod_info("p"), node_infos)
    assert plain[0] == plain[1]


def pick(plain, points, weight=1, seed=0, n=4):
    state = cluster(*[f"n{i}" for i in range(n)])
    return choose_node(list(state.node_infos.values()), plain, points, weight, random.Random(seed))


def test_a_point_of_the_extender_is_worth_ten_times_its_weight():
    assert pick([101, 0, 0, 0], {"n1": 5}, weight=2) == "n0"
    assert pick([99, 0, 0, 0], {"n1": 5}, weight=2) == "n1"
    assert pick([100, 0, 0, 0], {"stranger": 10}, weight=50) == "n0"


def test_a_listed_node_wins_a_tie_over_an_omitted_one():
    assert {pick([50, 50, 50, 50], {"n2": 0}, seed=seed) for seed in range(20)} == {"n2"}


def test_listed_nodes_throw_dice_and_a_seed_repeats_them():
    listed = {"n1": 3, "n2": 3, "n3": 3}
    thrown = [pick([0, 0, 0, 0], listed, seed=seed) for seed in range(60)]
    assert set(thrown) == {"n1", "n2", "n3"}
    assert thrown == [pick([0, 0, 0, 0], listed, seed=seed) for seed in range(60)]


@pytest.mark.parametrize("seed", range(30))
def test_without_points_the_root_of_the_heap_is_taken(seed):
    """Worked out beside it by sifting a heap in place, as container/heap does it."""
    dice = random.Random(seed)
    plain = [dice.randrange(3) for _ in range(dice.randrange(1, 40))]
    assert pick(plain, {}, n=len(plain)) == f"n{heap_root(plain)}"


def heap_root(plain):
    heap = [(score, index) for index, score in enumerate(plain)]
    for start in range(len(heap) // 2 - 1, -1, -1):
        at = start
        while True:
            child = 2 * at + 1
            if child >= len(heap):
                break
            if child + 1 < len(heap) and heap[child + 1][0] > heap[child][0]:
                child += 1
            if not heap[child][0] > heap[at][0]:
                break
            heap[at], heap[child] = heap[child], heap[at]
            at = child
    return heap[0][1]
