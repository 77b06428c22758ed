"""A gang that the planner refuses has no place: a search through every assignment of its pods finds none.

The judge knows nothing of the planner. It reads leaves and blocks from the names of the nodes.
"""

import os
from collections import Counter

import msgspec
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.wishes import kueue
from turnout.kube import labels

PART = "volcano.sh/partition-id"
GPUS = 8  # of each node
LONG = int(os.environ.get("TURNOUT_LONG_CASES", "20000"))

fabrics = st.lists(st.lists(st.integers(0, GPUS), min_size=1, max_size=4), min_size=1, max_size=4).filter(
    lambda leaves: sum(map(len, leaves)) <= 12
)  # the free GPUs of each node, by leaf
tiers = st.sampled_from([None, 0, 1, 2])
gangs = st.fixed_dictionaries(
    {
        "gpus": st.lists(st.integers(1, GPUS), min_size=1, max_size=4).flatmap(
            lambda shapes: st.lists(st.sampled_from(shapes), min_size=1, max_size=8)
        ),  # of each pod
        "minimum": st.integers(1, 8),
        "tier": tiers,
        # (tier, size) of its runs of ranks, (tier, count) of its groups, or the multiple on a host
        "kind": st.one_of(
            st.just(("plain", 0, 0)),
            st.tuples(st.just("slices"), st.sampled_from([1, 2]), st.sampled_from([2, 4])),
            st.tuples(st.just("groups"), st.sampled_from([0, 1, 2]), st.integers(1, 3)),
            st.tuples(st.just("multiple"), st.just(0), st.sampled_from([2, 4])),
        ),
    }
)


def domain(node, tier):
    """The switch of a tier above a node such as c1: the node itself, leaf c, or the second block of two leaves."""
    return (node, node[0], (ord(node[0]) - ord("a")) // 2)[tier]


class Question:
    """A gang, the nodes with their free GPUs, and the search for a place that keeps what the gang requires."""

    def __init__(self, free, gang_request, fixed=None):
        """free: node -> free GPUs. fixed: number -> node, of the pods that hold a node already."""
        fixed = fixed or {}
        self.nodes, self.free = [*free], [*free.values()]
        self.tier, (self.kind, self.unit_tier, self.number) = gang_request["tier"], gang_request["kind"]
        self.minimum = min(gang_request["minimum"], len(gang_request["gpus"])) - len(fixed)
        pods = [(self.unit(at, len(gang_request["gpus"])), gpus) for at, gpus in enumerate(gang_request["gpus"])]
        waiting = [pod for at, pod in enumerate(pods) if at not in fixed]
        self.pods = sorted(waiting, key=lambda pod: (pod[0], -pod[1]))  # (run or group, GPUs)
        self.sizes = Counter(gang_request["gpus"])
        self.running = [(*pods[at], node) for at, node in fixed.items()]  # (run or group, GPUs, node)
        self.span_of_unit = {unit: domain(node, self.unit_tier) for unit, _, node in self.running}
        self.known = set()  # states from which no place was found

    def unit(self, at, size):
        """The run or group of a pod."""
        return {"slices": at // (self.number or 1), "groups": at * self.number // size}.get(self.kind, 0)

    def has_place(self):
        """Whether any assignment keeps all terms."""
        nodes = [node for _, _, node in self.running] or self.nodes
        spans = {None if self.tier is None else domain(node, self.tier) for node in nodes}
        for span in spans:
            self.known.clear()
            allowed = [span is None or domain(node, self.tier) == span for node in self.nodes]
            if self.search(0, [], allowed, None):
                return True
        return False

    def search(self, at, chosen, allowed, span):
        """Try every host for the pod `at`, and none. chosen: the hosts of the pods before it, None for none."""
        host_count = sum(host is not None for host in chosen)
        if host_count + len(self.pods) - at < self.minimum:
            return False
        if at == len(self.pods):
            return self.is_in_multiples(chosen)
        unit, gpus = self.pods[at]
        is_first = at == 0 or self.pods[at - 1][0] != unit
        same = not is_first and self.pods[at - 1] == self.pods[at]
        span = None if is_first else span
        state = (at, *self.free, host_count, span, chosen[-1] if same else -1, self.counts(chosen))
        if state in self.known:
            return False
        for host in self.hosts(chosen, allowed, span, same, gpus):
            self.free[host] -= gpus
            inside = domain(self.nodes[host], self.unit_tier)
            if self.search(at + 1, [*chosen, host], allowed, inside if self.kind in ("slices", "groups") else None):
                return True
            self.free[host] += gpus
        if self.may_skip(at, chosen, is_first) and self.search(at + 1, [*chosen, None], allowed, span):
            return True
        self.known.add(state)
        return False

    def hosts(self, chosen, allowed, span, same, gpus):
        """The hosts that a pod may have. Of equal pods the later one has no lower host."""
        if same and chosen[-1] is None:
            return
        if span is None and self.kind in ("slices", "groups"):
            span = self.span_of_unit.get(self.pods[len(chosen)][0])
        for host in range(chosen[-1] if same else 0, len(self.nodes)):
            inside = span is None or domain(self.nodes[host], self.unit_tier) == span
            if allowed[host] and inside and self.free[host] >= gpus and not self.is_begun_without(chosen):
                yield host

    def is_begun_without(self, chosen):
        """Whether the group of the next pod was left out, which is whole or not there."""
        at = len(chosen)
        return self.kind == "groups" and any(
            host is None for pod, host in zip(self.pods, chosen, strict=False) if pod[0] == self.pods[at][0]
        )

    def may_skip(self, at, chosen, is_first):
        """Whether a pod may be left out: of a group all or none."""
        return self.kind != "groups" or is_first or chosen[-1] is None

    def counts(self, chosen):
        """What decides about multiples: the pods of each shape on each host."""
        if self.kind != "multiple":
            return ()
        pods = Counter((self.pods[at][1], host) for at, host in enumerate(chosen) if host is not None)
        pods += Counter((gpus, self.nodes.index(node)) for _, gpus, node in self.running)
        return tuple(sorted(pods.items()))

    def is_in_multiples(self, chosen):
        """Whether of each shape at most one host has a remainder: that of all its pods."""
        if self.kind != "multiple":
            return True
        odd = Counter()
        for (gpus, _), pods in self.counts(chosen):
            if pods % self.number not in (0, self.sizes[gpus] % self.number):
                return False
            odd[gpus] += pods % self.number != 0
        return max(odd.values(), default=0) <= 1


def put_gang(w, gang_request):
    """Show a gang of Volcano to a world, and return its pods."""
    kind, unit_tier, number = gang_request["kind"]
    size, notes, spec = len(gang_request["gpus"]), {labels.VOLCANO_GROUP: "g"}, {}
    if gang_request["tier"] is not None:
        spec["networkTopology"] = {"highestTierAllowed": gang_request["tier"]}
    if kind == "slices":
        notes |= {kueue.SLICE_LEVEL: ("host", "rack", "block")[unit_tier], kueue.SLICE_SIZE: str(number)}
    if kind == "multiple":
        notes[labels.PODS_PER_HOST_MULTIPLE] = str(number)
    if kind == "groups":
        level = {"networkTopology": {"highestTierAllowed": unit_tier}}
        spec["subGroupPolicy"] = [{"name": "w", "matchLabelKeys": [PART], **level}]
    w.put_group("g", min(gang_request["minimum"], size), **spec)
    return [
        world.pod(f"g-{at}", gpus, notes={**notes, labels.RANK: str(at)}, marks={PART: str(at * number // size)})
        for at, gpus in enumerate(gang_request["gpus"])
    ]


def play(leaves, gang_request):
    """Ask about a gang on partly used nodes. If it is refused, look for a place."""
    w = World(*map(len, leaves))
    free = dict(zip(w.names, (gpus for leaf in leaves for gpus in leaf), strict=True))
    w.put(*(world.pod(f"busy-{node}", GPUS - gpus, node) for node, gpus in free.items() if gpus < GPUS))
    pods = put_gang(w, gang_request)
    w.put(*pods)
    plan = w.plan(pods[0])
    assert w.plans.rejected_plans == {}
    if not plan:
        assert not Question(free, gang_request).has_place()


def asks(*gpus, minimum=8, tier=None, kind=("plain", 0, 0)):
    """What a gang asks."""
    return {"gpus": [*gpus], "minimum": minimum, "tier": tier, "kind": kind}


@pytest.mark.parametrize(
    ("leaves", "gang_request"),
    [
        pytest.param([[3, 3, 6]], asks(1, 2, tier=0), id="two shapes on one host"),
        pytest.param([[5, 7, 6]], asks(5, 3, 3, 3, 2, 2, tier=1), id="three shapes that fill the hosts of a leaf"),
        pytest.param([[8, 4]], asks(4, 2, tier=0, kind=("slices", 1, 2)), id="a run of two shapes on one host"),
        pytest.param(
            [[3, 8], [7, 8, 0, 3], [8]], asks(4, 4, 4, 4, 4, kind=("slices", 1, 2)), id="runs, the last one short"
        ),
        pytest.param([[3, 0, 5, 8]], asks(3, 2, 2, tier=2, kind=("groups", 0, 2)), id="a group of two shapes"),
        pytest.param(
            [[8, 2], [4, 0]], asks(3, 6, 3, 3, 3, minimum=2, kind=("groups", 1, 3)), id="one of three groups, whole"
        ),
        pytest.param(
            [[0, 7, 1]], asks(4, 4, 2, 2, 2, 4, 4, minimum=3, tier=2), id="the min, not with the heaviest pods"
        ),
        pytest.param([[0], [5, 6, 4]], asks(1, 4, tier=0, kind=("multiple", 0, 2)), id="remainders of two shapes"),
    ],
)
def test_a_gang_that_was_refused_has_a_place(leaves, gang_request):
    play(leaves, gang_request)


@settings(max_examples=100, deadline=None)
@given(fabrics, gangs)
def test_a_refused_gang_has_no_place(leaves, gang_request):
    play(leaves, gang_request)


lost_pods = st.sets(st.integers(0, 7), min_size=1, max_size=7)
others = st.lists(st.integers(0, GPUS), min_size=12, max_size=12)


def play_return(leaves, gang_request, lost, busy):
    """Start a gang, lose some of its pods and let others take GPUs of each node. Ask about the pods that come back."""
    w = World(*map(len, leaves))
    free = dict(zip(w.names, (gpus for leaf in leaves for gpus in leaf), strict=True))
    w.put(*(world.pod(f"busy-{node}", GPUS - gpus, node) for node, gpus in free.items() if gpus < GPUS))
    pods = put_gang(w, {**gang_request, "minimum": 8})
    nodes = w.schedule(*pods)
    lost = {at for at in lost if at < len(pods)}
    if len(nodes) < len(pods) or len(lost) in (0, len(pods)):
        return
    for at, pod in enumerate(pods):
        if at in lost:
            w.view.drop_pod(pod.metadata.uid)
        else:
            free[nodes[pod.metadata.name]] -= gang_request["gpus"][at]
    w.plans.plan_all(w.now_s)
    for (node, gpus), maximum in zip(free.items(), busy, strict=False):
        if min(gpus, maximum) > 0:
            w.put(world.pod(f"new-{node}", min(gpus, maximum), node))
            free[node] -= min(gpus, maximum)
    back = [world.see(msgspec.to_builtins(pods[at]), uid=f"again-{at}") for at in sorted(lost)]
    w.put(*back)
    plan = w.plan(back[0])
    assert w.plans.rejected_plans == {}
    if not plan:
        fixed = {at: nodes[pod.metadata.name] for at, pod in enumerate(pods) if at not in lost}
        assert not Question(free, {**gang_request, "minimum": 8}, fixed).has_place()


@settings(max_examples=100, deadline=None)
@given(fabrics, gangs, lost_pods, others)
def test_returning_pods_that_are_refused_have_no_place(leaves, gang_request, lost, busy):
    play_return(leaves, gang_request, lost, busy)


def play_cases(number, count):
    """Play so many cases of one seed: half of them with a gang that has lost pods."""
    for case, stories in ((play, (fabrics, gangs)), (play_return, (fabrics, gangs, lost_pods, others))):
        seed(number)(settings(max_examples=count // 2, deadline=None)(given(*stories)(case)))()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_no_refused_gang_of_thousands_has_a_place(number):
    play_cases(number, 1_250)


@pytest.mark.long
@pytest.mark.parametrize("number", range(100, 110))
def test_no_refused_gang_of_twenty_thousand_has_a_place(number):
    play_cases(number, LONG // 10)


@pytest.mark.parametrize(
    ("gang_request", "free", "expected"),
    [
        pytest.param({"tier": 1}, {"a0": 1, "a1": 1, "b0": 1}, True, id="two pods find a leaf with two hosts"),
        pytest.param({"tier": 0}, {"a0": 1, "a1": 1, "b0": 1}, False, id="two pods find no host for both"),
        pytest.param({"kind": ("slices", 1, 2)}, {"a0": 1, "b0": 1}, False, id="a run does not lie over two leaves"),
        pytest.param({"kind": ("slices", 1, 2)}, {"a0": 1, "a1": 1}, True, id="a run lies under one leaf"),
        pytest.param({"kind": ("groups", 1, 1), "minimum": 1}, {"a0": 1, "b0": 1}, False, id="a group starts whole"),
        pytest.param({"kind": ("multiple", 0, 2)}, {"a0": 1, "b0": 1}, False, id="a pair shares a host"),
        pytest.param({"kind": ("multiple", 0, 2), "gpus": [1] * 3}, {"a0": 2, "b0": 1}, True, id="one is left over"),
    ],
)
def test_the_judge_knows_what_has_a_place(gang_request, free, expected):
    default = {"gpus": [1, 1], "minimum": 2, "tier": None, "kind": ("plain", 0, 0)}
    assert Question(free, {**default, **gang_request}).has_place() is expected
