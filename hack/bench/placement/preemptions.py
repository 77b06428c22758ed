"""Two shapes in one gang, and the price of a preemption, each against everything that could be done.

In a cluster of a few leaves a gang of two sizes of pods is spread only where no leaf holds all of it. A gang that
preempts takes the leaf and the pods by which others lose the fewest GPU-seconds; the optimum tries every choice. The
same holds for a gang whose pods on one host come in multiples.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hack.bench.placement.simulated import GPUS, SimulatedCluster, leaves, pod
from hack.bench.support.outcome import Outcome, Target
from turnout.jobs.wishes import kueue
from turnout.kube import labels
from turnout.scheduler_ext.planner.plan_preemption import plan_with_preemption

_SIZES = ((8, 4), (4, 1), (8, 1), (4, 2), (3, 2), (5, 3))
Lost = dict[str, list[tuple[str, int, int]]]  # by gang: host, GPUs and GPU-seconds of each pod
_NEVER = 10  # times the optimum: the price of a preemption that could be and was refused
_NOW_S = 1767225600.0 + 36_000  # ten hours into 2026, in seconds since 1970


def measure(count: int) -> Outcome:
    """Place gangs on `count` random clusters of each kind, and return the targets.

    Raises ValueError if no preemption is planned.
    """
    shapes = [is_spread(seed) for seed in range(count)]
    prices = [preemption_cost(seed) for seed in range(count)]
    known = [(paid, minimum) for paid, minimum in prices if minimum]
    both = [(paid, minimum) for paid, minimum in known if paid is not None]
    paid, minimum = (sum(column) for column in zip(*both, strict=True))
    in_multiples = [preemption_cost(seed, multiple) for seed in range(count // 4 + 1) for multiple in (2, 4)]
    in_slices = [preemption_cost_in_slices(seed) for seed in range(count // 4 + 1)]
    able = [each for each in shapes if each is not None]
    more: dict[str, float] = {"two shapes, clusters where one leaf holds all": len(able), "preemptions": len(both)}
    more["preemption, worst to the optimum's"] = max(one / other for one, other in both)
    return Outcome(
        "preemptions",
        (),
        [
            Target("two shapes spread where one leaf holds all", sum(able), "<=", 0),
            Target("preemption: GPU-seconds lost to the optimum's", paid / max(minimum, 1), "<=", 1.05),
            Target(
                "preemption in multiples of pods: GPU-seconds lost to the optimum's",
                _to_least(in_multiples),
                "<=",
                1.05,
            ),
            Target("preemption in slices of pods: GPU-seconds lost to the optimum's", _to_least(in_slices), "<=", 1.05),
            Target("preemptions that could be and were refused", len(known) - len(both), "<=", 0),
        ],
        more=more,
    )


def _to_least(prices: Sequence[tuple[int | None, int]]) -> float:
    """Return the sum of what was paid / the sum of the least prices; a sum of 0 counts as 1.

    prices: (paid price, None for a refusal, least price). A refusal counts as _NEVER times its least price.
    """
    paid = sum(_NEVER * minimum if price is None else price for price, minimum in prices)
    return paid / max(sum(minimum for _, minimum in prices), 1)


def is_spread(seed: int) -> bool | None:
    """Place a gang with two shapes of pods. Return True if its pods are on several leaves, or only some are placed.

    False if all are on one leaf, and also if none is placed. None if no leaf can hold the gang. seed: of the cluster
    and the gang.
    """
    rng = random.Random(seed)
    cluster = SimulatedCluster(leaves([rng.randint(2, 5) for _ in range(rng.randint(2, 5))]))
    free = {name: GPUS - rng.randint(0, GPUS) for name in cluster.leaf_of}
    large, small = rng.choice(_SIZES)
    counts = {large: rng.randint(1, 4), small: rng.randint(1, 6)}
    able = any(_holds(tuple(free[name] for name in hosts), counts) for hosts in _by_leaf(cluster))
    if not able:
        return None
    for name, left in free.items():
        if left < GPUS:
            cluster.show(pod(f"s-{name}", GPUS - left, at=name))
    asks = [gpus for gpus, pods in counts.items() for _ in range(pods)]
    gang = [pod(f"g-{at}", gpus, "g", len(asks)) for at, gpus in enumerate(asks)]
    for each in gang:
        cluster.show(each)
    return len({cluster.leaf_of.get(name) for name in _places(cluster, gang, asks, free)}) > 1


def _places(
    cluster: SimulatedCluster, gang: Sequence[Mapping[str, Any]], asks: Sequence[int], free: dict[str, int]
) -> Iterator[str]:
    """Place a gang's pods one after the other by the extender, and yield the node of each; "" if it names not exactly
    one.

    asks: GPUs of each pod. free: free GPUs by node, which is updated.
    """
    for each, gpus in zip(gang, asks, strict=True):
        feasible = cluster.filter(each, [name for name, left in free.items() if left >= gpus])
        yield (node := feasible[0] if len(feasible) == 1 else "")
        if node:
            free[node] -= gpus
            cluster.show({**each, "spec": {**each["spec"], "nodeName": node}})


def preemption_cost(seed: int, multiple: int = 1) -> tuple[int | None, int]:
    """Return the GPU-seconds that our preemption loses (None if refused), and the least possible number.

    (0, 0) if no preemption is needed, or if none would make room. seed: of the cluster, its running pods and the gang.
    multiple: the number of pods on one host is a multiple of this.
    """
    rng = random.Random(seed)
    cluster = SimulatedCluster(leaves([rng.randint(2, 4) for _ in range(rng.randint(2, 4))]))
    free = dict.fromkeys(cluster.leaf_of, GPUS)
    lost = _place_running_gangs(cluster, rng, free)
    multiples, gpus = rng.randint(1, 3), rng.choice((8, 8, 4))  # GPUs of each multiple together
    pods, notes = multiples * multiple, {labels.PODS_PER_HOST_MULTIPLE: str(multiple)} if multiple > 1 else {}
    gang = [pod(f"high-{at}", gpus // multiple, "high", pods, priority=100, notes=notes) for at in range(pods)]
    for each in gang:
        cluster.show(each)
    in_leaf = [_least_loss(free, lost, {}, hosts, multiples, gpus) for hosts in _by_leaf(cluster)]
    minimum = min(in_leaf, key=_or_never)
    if not minimum:
        return 0, 0
    plans = cluster.extender.plans
    plans.sync(0.0)
    view = plans.view
    member = view.pods["high-0"]
    plan = plan_with_preemption(plans, view.gangs[member.membership.key], member, _NOW_S)
    if plan.refusal is not None:
        return None, minimum
    by_host = Counter(view.fabric.hosts[host] for host in plan.hosts.values())
    chosen = {host: count // multiple for host, count in by_host.items()}
    return _least_loss(free, lost, chosen, list(chosen), multiples, gpus), minimum


def preemption_cost_in_slices(seed: int, size: int = 2) -> tuple[int | None, int]:
    """Return what `preemption_cost` returns, for a gang of whole nodes in slices of `size` pods under one leaf each.

    The whole gang lies under one leaf if that can be. seed: of the cluster, its running pods and the gang.
    """
    rng = random.Random(seed)
    cluster = SimulatedCluster(leaves([rng.randint(2, 4) for _ in range(rng.randint(2, 4))]))
    free = dict.fromkeys(cluster.leaf_of, GPUS)
    lost = _place_running_gangs(cluster, rng, free)
    slices = rng.randint(1, 3)
    notes = {kueue.SLICE_LEVEL: "cloud.provider.com/topology-rack", kueue.SLICE_SIZE: str(size)}
    pods = slices * size
    for at in range(pods):
        cluster.show(pod(f"high-{at}", GPUS, "high", pods, priority=100, notes=notes))
    by_leaf = _by_leaf(cluster)
    in_leaf = [_least_loss_in_slices(free, lost, [hosts], slices, size) for hosts in by_leaf]
    known = [price for price in in_leaf if price is not None]
    minimum = min(known) if known else _least_loss_in_slices(free, lost, by_leaf, slices, size)
    if not minimum:
        return 0, 0
    plans = cluster.extender.plans
    plans.sync(0.0)
    member = plans.view.pods["high-0"]
    plan = plan_with_preemption(plans, plans.view.gangs[member.membership.key], member, _NOW_S)
    if plan.refusal is not None:
        return None, minimum
    chosen = Counter(plans.view.fabric.hosts[host] for host in plan.hosts.values())
    return _least_loss(free, lost, chosen, list(chosen), pods, GPUS), minimum


def _least_loss_in_slices(
    free: Mapping[str, int], lost: Lost, by_leaf: Sequence[Sequence[str]], slices: int, size: int
) -> int | None:
    """Return the least GPU-seconds to lose for this many slices of whole nodes under the leaves; None if impossible.

    free: free GPUs by host. lost: by gang. by_leaf: hosts of each leaf. size: nodes of a slice, all under one leaf.
    """

    def count_slices(freed_gpus: Mapping[str, int]) -> int:
        return sum(sum((free[host] + freed_gpus[host]) // GPUS for host in hosts) // size for hosts in by_leaf)

    hosts = [host for leaf in by_leaf for host in leaf]
    return min(
        (price for price, freed_gpus in _choices(lost, hosts) if count_slices(freed_gpus) >= slices), default=None
    )


def _place_running_gangs(cluster: SimulatedCluster, rng: random.Random, free: dict[str, int]) -> Lost:
    """Place gangs of low priority, with random sizes and ages, on random nodes. Return what each loses if it is
    preempted.

    free: free GPUs by node, which is updated.
    """
    lost: Lost = {}
    for number in range(rng.randint(3, 8)):
        gpus, hours = rng.choice((2, 4, 8, 8)), rng.randint(1, 9)
        room = [name for name, left in free.items() if left >= gpus for _ in range(left // gpus)]
        hosts = rng.sample(room, min(len(room), rng.randint(1, 4)))
        lost[f"low{number}"] = [(host, gpus, gpus * hours * 3_600) for host in hosts]
        for at, host in enumerate(hosts):
            free[host] -= gpus
            created = f"2026-01-01T{10 - hours:02d}:00:00Z"
            cluster.show(pod(f"low{number}-{at}", gpus, f"low{number}", len(hosts), host, created=created, priority=0))
    return lost


def _or_never(price: int | None) -> float:
    return float("inf") if price is None else price


def _least_loss(
    free: Mapping[str, int],
    lost: Lost,
    min_pods_by_host: Mapping[str, int],
    hosts: Sequence[str],
    pods: int,
    gpus_per_pod: int,
) -> int | None:
    """Return the least GPU-seconds to lose so that the hosts hold the gang; None if no choice of victims is enough.

    free: free GPUs by host. lost: what each gang loses. min_pods_by_host: pods that a host has to hold at least. hosts:
    that may be used. pods: of the gang. gpus_per_pod: of each of its pods.
    """

    def holds(freed_gpus: Mapping[str, int]) -> bool:
        room = {host: (free[host] + freed_gpus[host]) // gpus_per_pod for host in hosts}
        return sum(room.values()) >= pods and all(room[host] >= count for host, count in min_pods_by_host.items())

    return min((price for price, freed_gpus in _choices(lost, hosts) if holds(freed_gpus)), default=None)


def _choices(lost: Lost, hosts: Sequence[str]) -> Iterator[tuple[int, Counter[str]]]:
    """Yield (GPU-seconds lost, GPUs freed by host) for every choice of gangs that have a pod on these hosts.

    A gang that loses a pod loses all of its GPU-seconds.
    """
    victims = [pods for pods in lost.values() if any(host in hosts for host, _, _ in pods)]
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(victims, size) for size in range(len(victims) + 1)
    ):
        freed_gpus = Counter[str]()
        for host, gpus, _ in itertools.chain.from_iterable(chosen):
            freed_gpus[host] += gpus
        yield sum(worth for _, _, worth in itertools.chain.from_iterable(chosen)), freed_gpus


def _by_leaf(cluster: SimulatedCluster) -> list[list[str]]:
    leaves = sorted(set(cluster.leaf_of.values()))
    return [[name for name, at in cluster.leaf_of.items() if at == leaf] for leaf in leaves]


def _holds(free: tuple[int, ...], counts: Mapping[int, int]) -> bool:
    """Return True if hosts with these numbers of free GPUs can hold all pods together, by trying every distribution.

    counts: number of pods by GPUs of a pod; exactly two entries, the larger first.
    """
    (large, large_count), (small, small_count) = counts.items()

    @cache
    def most_small(at: int, left: int) -> int:
        """Return the most pods of the small size that fit besides `left` pods of the large size, on hosts from index
        `at` on.

        Below 0 if the large pods do not fit.
        """
        if at == len(free):
            return 0 if left == 0 else -1_000
        ways = range(min(left, free[at] // large) + 1)
        return max((free[at] - each * large) // small + most_small(at + 1, left - each) for each in ways)

    return most_small(0, large_count) >= small_count
