"""No plan breaks a required level of a gang or of its groups, whatever groups, words and room there are.

The checker reads leaves and blocks from the names of the nodes and knows nothing of the planner.
"""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.gang import Dialect
from turnout.jobs.wishes import kai, kueue, sets
from turnout.kube import labels

PART = "volcano.sh/partition-id"
WORDS = [
    {}, {labels.BALANCED: "true"}, {labels.TOPOLOGY: "preferred"}, {labels.TOPOLOGY: "unconstrained"},
    {labels.MESH: "dp=4,tp=8"}, {kueue.PREFERRED: "rack"}, {kai.TREE: "tree"}, {labels.TOGETHER: "set"},
]  # fmt: skip
tiers = st.sampled_from([None, 0, 1, 2])
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def domain(node, tier):
    """The switch of a tier above a node such as c1: the node itself, leaf c, or the second block of two leaves."""
    return (node, node[0], (ord(node[0]) - ord("a")) // 2)[tier]


def broken(node_by_pod, group_of, gang_tier, group_tier):
    """The levels that some placed pods leave: {name: node} and {name: group}."""
    spans = defaultdict(set)
    for name, node in node_by_pod.items():
        if gang_tier is not None:
            spans["gang"].add(domain(node, gang_tier))
        if group_tier is not None:
            spans[group_of[name]].add(domain(node, group_tier))
    return {name: found for name, found in spans.items() if len(found) > 1}


def volcano(w, parts, gang_tier, group_tier, words, minimum):
    hard = {} if gang_tier is None else {"networkTopology": {"highestTierAllowed": gang_tier}}
    own = {} if group_tier is None else {"networkTopology": {"highestTierAllowed": group_tier}}
    rule = {"name": "w", "matchLabelKeys": [PART], "subGroupSize": 1, **own}
    w.put_group("g", minimum, subGroupPolicy=[rule], **hard)
    return [({labels.VOLCANO_GROUP: "g", **words}, {PART: str(part)}) for part in parts], {}


def kai_subgroups(w, parts, gang_tier, group_tier, words, minimum):
    def constraint(tier):
        return {} if tier is None else {"topologyConstraint": {"requiredTopologyLevel": str(tier)}}

    each = [{"name": f"s{part}", "minMember": 1, **constraint(group_tier)} for part in sorted(set(parts))]
    w.put_group("g", minimum, Dialect.KAI, subGroups=each, **constraint(gang_tier))
    return [({labels.KAI_GROUP: "g", **words}, {kai.SUBGROUP: f"s{part}"}) for part in parts], {}


def lws(w, parts, gang_tier, group_tier, words, minimum):
    notes = {labels.LWS_SIZE: str(len(parts)), **words}
    notes |= {} if gang_tier is None else {sets.LWS: str(gang_tier)}
    notes |= {} if group_tier is None else {sets.LWS_SUBGROUP: str(group_tier)}
    marks = {labels.LWS_NAME: "s", labels.LWS_GROUP: "0"}
    pods = [(notes, {**marks, labels.LWS_WORKER: str(at), sets.LWS_SUBGROUP_INDEX: str(part)})
            for at, part in enumerate(parts)]  # fmt: skip
    return pods, {"owner": "StatefulSet/s-0"}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=6), sizes, tiers, tiers, st.sampled_from(WORDS),
       st.sampled_from([volcano, kai_subgroups, lws]), st.sampled_from([2, 4, 8]), st.integers(1, 12),
       st.lists(st.integers(0, 20), max_size=4))  # fmt: skip
def test_no_plan_leaves_a_required_level(leaves, groups, gang_tier, group_tier, words, dialect, gpus, minimum, lost):
    w = World(*leaves, 1)
    parts = [part for part, size in enumerate(groups) for _ in range(size)]
    gang_pods, meta = dialect(w, parts, gang_tier, group_tier, words, min(minimum, len(parts)))
    pods = [
        world.pod(f"p{at:02}", gpus, notes=notes, marks=marks, **meta) for at, (notes, marks) in enumerate(gang_pods)
    ]
    group_of = {f"p{at:02}": part for at, part in enumerate(parts)}
    nodes = w.put(*pods).schedule(*pods)
    assert broken(nodes, group_of, gang_tier, group_tier) == {}
    for at in {each % len(pods) for each in lost}:
        w.view.drop_pod(pods[at].metadata.uid)
        nodes.pop(pods[at].metadata.name, None)
    w.put(*(back := [pods[at] for at in sorted({each % len(pods) for each in lost})]))
    nodes |= w.schedule(*back)
    assert broken(nodes, group_of, gang_tier, group_tier) == {}
