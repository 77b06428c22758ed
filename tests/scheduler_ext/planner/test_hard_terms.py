"""No plan breaks a term that its gang requires, whatever other words its pods carry, and whoever leaves or returns.

The judge knows nothing of the planner: it reads leaves and blocks from the names of the nodes, and the terms from what
the test has written. Each case also checks that the planner's own check refused no plan: it has nothing to refuse.
"""

import os
from collections import Counter, defaultdict

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.gang import Dialect
from turnout.jobs.wishes import kueue, sets
from turnout.kube import labels

PART = "volcano.sh/partition-id"
SLICES = {"1": "rack", "2": "block"}
KEYS = (labels.HOSTNAME, "rack", "block")
LONG = int(os.environ.get("TURNOUT_LONG_CASES", "100000"))

# What one gang requires, by dialect: (tier of the gang, tier of its groups, size and tier of its slices, multiple).
terms = st.fixed_dictionaries(
    {
        "size": st.integers(1, 8),
        "gpus": st.sampled_from([1, 2, 4, 8]),
        "minimum": st.integers(1, 8),
        "tier": st.sampled_from([None, None, 0, 1, 2]),
        "group_tier": st.sampled_from([None, None, 0, 1, 2]),
        "groups": st.integers(1, 3),
        "slice_tier": st.sampled_from([None, None, 1, 2]),
        "slice_size": st.sampled_from([2, 4]),
        "multiple": st.sampled_from([1, 1, 1, 2, 4]),
        "dialect": st.sampled_from(["volcano", "kai", "lws", "native", "native", "ours"]),
        "tree": st.sampled_from([None, (None, 2), (1, 2), (2, 1), (2, 2), (2, None)]),
        "soft": st.sampled_from(
            [{}, {}, {labels.BALANCED: "true"}, {labels.TOPOLOGY: "preferred"}, {labels.TOPOLOGY: "unconstrained"},
             {kueue.PREFERRED: "rack"}, {labels.MESH: "dp=4,tp=2"}]
        ),
    }
)  # fmt: skip
events = st.lists(
    st.tuples(st.sampled_from(["ask", "leave", "return", "cordon", "uncordon"]), st.integers(0, 40)), max_size=8
)
fabrics = st.lists(st.integers(0, 4), min_size=2, max_size=4)


class Gang:
    """A gang with what it requires, as its pods and its PodGroup say."""

    def __init__(self, w, name, request):
        self.name, self.asked = name, request
        self.tier, self.group_tier, self.slices = request["tier"], None, None
        self.multiple, self.in_tree = request["multiple"], False
        notes, self.group_of, self.pods = dict(request["soft"]), {}, []
        if self.multiple > 1:
            notes[labels.PODS_PER_HOST_MULTIPLE] = str(self.multiple)
        if request["slice_tier"] is not None and request["dialect"] in ("ours", "volcano"):
            self.slices = request["slice_tier"], request["slice_size"]
            notes[kueue.SLICE_LEVEL], notes[kueue.SLICE_SIZE] = SLICES[str(self.slices[0])], str(self.slices[1])
        marks = getattr(self, f"_{request['dialect']}")(w, notes)
        for at in range(request["size"]):
            meta = {"owner": f"StatefulSet/{name}-0"} if request["dialect"] == "lws" else {}
            own = {labels.RANK: str(at)} if request["dialect"] != "lws" else {}
            self.pods.append(
                world.pod(f"{name}-{at}", request["gpus"], notes={**notes, **own}, marks=marks(at), created=at, **meta)
            )
            if request["dialect"] == "native":
                self.pods[-1].spec.scheduling_group = {"podGroupName": name}

    def _part(self, at):
        return at * self.asked["groups"] // self.asked["size"]

    def _groups(self):
        """Take the groups: their level, and the group of each pod. Slices are not stated beside groups."""
        self.group_tier = self.asked["group_tier"]
        self.group_of = {f"{self.name}-{at}": self._part(at) for at in range(self.asked["size"])}

    def _volcano(self, w, notes):
        spec = {} if self.tier is None else {"networkTopology": {"highestTierAllowed": self.tier}}
        if self.asked["group_tier"] is not None and self.slices is None:
            self._groups()
            own = {"networkTopology": {"highestTierAllowed": self.group_tier}}
            spec["subGroupPolicy"] = [{"name": "w", "matchLabelKeys": [PART], **own}]
        w.put_group(self.name, min(self.asked["minimum"], self.asked["size"]), **spec)
        notes[labels.VOLCANO_GROUP] = self.name
        return lambda at: {PART: str(self._part(at))}

    def _kai(self, w, notes):
        self._groups()

        def constraint(tier):
            return {} if tier is None else {"topologyConstraint": {"requiredTopologyLevel": str(tier)}}

        parts = sorted({*self.group_of.values()})
        subgroups = [{"name": f"s{part}", "minMember": 1, **constraint(self.group_tier)} for part in parts]
        minimum = min(self.asked["minimum"], self.asked["size"])
        w.put_group(self.name, minimum, Dialect.KAI, subGroups=subgroups, **constraint(self.tier))
        notes[labels.KAI_GROUP] = self.name
        return lambda at: {"kai.scheduler/subgroup-name": f"s{self._part(at)}"}

    def _lws(self, w, notes):
        self._groups()
        notes[labels.LWS_SIZE] = str(self.asked["size"])
        if self.tier is not None:
            notes[sets.LWS] = str(self.tier)
        if self.group_tier is not None:
            notes[sets.LWS_SUBGROUP] = str(self.group_tier)
        marks = {labels.LWS_NAME: self.name, labels.LWS_GROUP: "0"}
        return lambda at: {**marks, labels.LWS_WORKER: str(at), sets.LWS_SUBGROUP_INDEX: str(self._part(at))}

    def _native(self, w, notes):
        self.in_tree = self.asked["tree"] is not None
        spec = {"schedulingPolicy": {"gang": {"minCount": min(self.asked["minimum"], self.asked["size"])}}}
        if self.tier is not None:
            spec["schedulingConstraints"] = {"topology": [{"key": KEYS[self.tier]}]}
        if self.in_tree:
            spec["parentCompositePodGroupName"] = "tree"
        w.put_group(self.name, None, Dialect.NATIVE, **spec)
        return lambda at: {}

    def _ours(self, w, notes):
        if self.tier is not None:
            notes[labels.TOPOLOGY], notes[labels.TOPOLOGY_TIER] = "required", str(self.tier)
        notes[labels.MIN_WORKERS] = str(min(self.asked["minimum"], self.asked["size"]))
        w.put_group(self.name, min(self.asked["minimum"], self.asked["size"]))
        notes[labels.VOLCANO_GROUP] = self.name
        return lambda at: {}

    def faults(self, nodes):
        """What these places of the gang's pods break. nodes: name -> node, of the pods with a place."""
        spans = defaultdict(set)
        for name, node in nodes.items():
            if self.tier is not None:
                spans["gang"].add(domain(node, self.tier))
            if self.group_tier is not None:
                spans["group", self.group_of[name]].add(domain(node, self.group_tier))
            if self.slices is not None:
                spans["slice", int(name.rsplit("-", 1)[1]) // self.slices[1]].add(domain(node, self.slices[0]))
        return {term: domains for term, domains in spans.items() if len(domains) > 1}

    def odd_hosts(self, nodes):
        """Return by group how many hosts have a remainder of a multiple, where more of them have one than must.

        Groups without a level of their own do not count.
        """
        groups = {} if self.group_tier is None else self.group_of
        total = Counter(groups.get(pod.metadata.name) for pod in self.pods)
        counts = Counter((groups.get(name), node) for name, node in nodes.items())
        odd = Counter(group for (group, _), pods in counts.items() if pods % self.multiple)
        return {group: hosts for group, hosts in odd.items() if hosts > (total[group] % self.multiple > 0)}


def domain(node, tier):
    """The switch of a tier above a node such as c1: the node itself, leaf c, or the second block of two leaves."""
    return (node, node[0], (ord(node[0]) - ord("a")) // 2)[tier]


class Case:
    """One cluster with some gangs, and what happens to it."""

    def __init__(self, leaves, requests):
        self.w = World(*leaves, 1)
        self.gangs = [Gang(self.w, f"g{at}", each) for at, each in enumerate(requests)]
        self.trees = [gang.asked["tree"] for gang in self.gangs if gang.in_tree]
        if self.trees:
            tier, minimum = self.trees[0]
            spec = {"schedulingPolicy": {"basic": {}} if minimum is None else {"gang": {"minGroupCount": minimum}}}
            if tier is not None:
                spec["schedulingConstraints"] = {"topology": [{"key": KEYS[tier]}]}
            self.w.view.groups.put_composite(world.group("tree", None, **spec))
        self.nodes = {}
        self.pods = {pod.metadata.name: pod for gang in self.gangs for pod in gang.pods}
        self.present = set()

    def ask(self):
        """Show all pods that are not there, and ask about each that has no place."""
        names = [name for name in self.pods if name not in self.nodes]
        self.w.put(*(self.pods[name] for name in names if name not in self.present))
        self.present |= {*self.pods}
        self.nodes |= self.w.schedule(*(self.pods[name] for name in names))

    def leave(self, number):
        """Delete a pod."""
        name = sorted(self.pods)[number % len(self.pods)]
        self.w.view.drop_pod(self.pods[name].metadata.uid)
        self.nodes.pop(name, None)
        self.present.discard(name)

    def cordon(self, number, closed):
        """Close a node for new pods, or open it."""
        node = self.w.nodes[number % len(self.w.nodes)]
        node.spec.unschedulable = closed
        self.w.view.layout.put_node(node)

    def check(self):
        for gang in self.gangs:
            own = {name: node for name, node in self.nodes.items() if name.startswith(f"{gang.name}-")}
            assert gang.faults(own) == {}, gang.asked
        tier = self.trees[0][0] if self.trees else None
        in_tree = {gang.name for gang in self.gangs if gang.in_tree}
        shared = {domain(node, tier or 0) for name, node in self.nodes.items() if name.split("-")[0] in in_tree}
        assert tier is None or len(shared) < 2, self.trees
        used = Counter()
        for name, node in self.nodes.items():
            used[node] += int(dict(self.pods[name].spec.containers[0].resources.requests)["nvidia.com/gpu"])
        assert max(used.values(), default=0) <= 8
        assert self.w.plans.rejected_plans == {}

    def check_start(self):
        """Judge the first starts: of a tree as many gangs as must start together, and whole multiples on each host."""
        started = {name.split("-")[0] for name in self.nodes} & {gang.name for gang in self.gangs if gang.in_tree}
        assert not started or len(started) >= (self.trees[0][1] or 1), self.trees
        self.ask()  # those whose place depended on pods that were asked about after them
        for gang in self.gangs:
            own = {name: node for name, node in self.nodes.items() if name.startswith(f"{gang.name}-")}
            assert gang.odd_hosts(own) == {}, gang.asked


def play(leaves, requests, happenings):
    """Ask about some gangs, let things happen, and judge after each."""
    case = Case(leaves, requests)
    case.ask()
    case.check()
    case.check_start()
    for what, number in happenings:
        if what == "leave":
            case.leave(number)
        elif what in ("cordon", "uncordon"):
            case.cordon(number, what == "cordon")
        else:
            case.ask()
        case.check()
    case.ask()
    case.check()


gangs = st.lists(terms, min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(fabrics, gangs, events)
def test_no_plan_breaks_a_required_term(leaves, requests, happenings):
    play(leaves, requests, happenings)


def test_a_multiple_is_completed_by_pods_of_its_own_group():
    """Groups on one host each: the odd pod of one group drew a pod of another group to its host."""
    request = {"size": 7, "gpus": 4, "minimum": 1, "tier": None, "group_tier": 0, "groups": 3, "slice_tier": None,
             "slice_size": 2, "multiple": 2, "dialect": "kai", "tree": None, "soft": {}}  # fmt: skip
    play([0, 2], [request], [])


MULTIPLES = {
    "a gang of a tree keeps room for a whole multiple: an older gang took its second seat, and it could not start": (
        [0, 3],
        {"size": 7, "gpus": 2, "multiple": 1, "dialect": "native", "tree": (1, 2)},
        {"size": 2, "gpus": 4, "multiple": 2, "dialect": "native", "tree": (None, 2)},
    ),
    "a pod that completes a multiple stays in the plan of a gang that finds no more room in its level": (
        [0, 1],
        {"size": 6, "gpus": 2, "multiple": 2, "dialect": "volcano", "tier": 0},
    ),
    "a role that lacks its min finds its place in the search, though enough pods of other roles run": (
        [0, 3],
        {"size": 2, "gpus": 1, "multiple": 1, "dialect": "volcano"},
        {"size": 7, "gpus": 4, "multiple": 2, "dialect": "kai", "groups": 3, "group_tier": 1},
    ),
    "the pod that completes a multiple comes before a second remainder": (
        [0, 0],
        {"size": 8, "gpus": 2, "multiple": 2, "dialect": "kai", "groups": 3, "group_tier": 0},
    ),
    "the min of a gang that has started ends with a whole multiple: a gang of the same age took its last seat": (
        [0, 3],
        {"size": 8, "gpus": 2, "minimum": 5, "multiple": 2, "dialect": "native", "tree": (1, 2)},
        {"size": 5, "gpus": 2, "multiple": 2, "dialect": "volcano"},
        {"size": 1, "gpus": 1, "multiple": 1, "dialect": "native", "tree": (None, 2)},
    ),
    "a started gang completes the multiples of each role's min: another gang took the seats of their partners": (
        [0, 0],
        {"size": 1, "gpus": 4, "multiple": 1, "dialect": "native", "tree": (None, 2)},
        {"size": 6, "gpus": 1, "multiple": 2, "dialect": "kai", "groups": 3, "group_tier": 0},
    ),
    "a member whose partner lost its seat does not keep its own seat alone": (
        [0, 0],
        {"size": 5, "gpus": 2, "multiple": 2, "dialect": "kai", "groups": 2, "group_tier": 0},
        {"size": 1, "gpus": 1, "multiple": 1, "dialect": "volcano"},
    ),
}


@pytest.mark.parametrize("case", MULTIPLES)
def test_whole_multiples_start(case):
    leaves, *stated = MULTIPLES[case]
    usual = {"minimum": 1, "tier": None, "group_tier": None, "groups": 1, "slice_tier": None, "slice_size": 2,
             "tree": None, "soft": {}}  # fmt: skip
    play(leaves, [usual | each for each in stated], [])


def play_cases(number, count):
    """Play so many cases of one seed."""
    seed(number)(settings(max_examples=count, deadline=None)(given(fabrics, gangs, events)(play)))()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_no_plan_of_ten_thousand_cases_breaks_one(number):
    """In eight parts, which the workers of the run share."""
    play_cases(number, 1_250)


@pytest.mark.long
@pytest.mark.parametrize("number", range(100, 140))
def test_no_plan_of_a_hundred_thousand_cases_breaks_one(number):
    """In forty parts, which the workers of the run share."""
    play_cases(number, LONG // 40)
