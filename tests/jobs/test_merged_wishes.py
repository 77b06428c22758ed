"""What a pod says in several dialects is merged term by term: each pair of statements, in both orders.

A hard term is in the result, or a sentence names it and the statement that it gave way to.
"""

from itertools import product

import pytest

from turnout.jobs.wishes import kai, koordinator, kueue, sets
from turnout.jobs.wishes import volcano as volcano_words
from turnout.jobs.wishes.merge import wish_of_pod, wish_of_pod_group
from turnout.jobs.wishes.merge_table import MAX_MULTIPLE, merge_terms
from turnout.jobs.wishes.model import MAX_LAYERS, GroupRule, Layer, Mode, Wish, nested
from turnout.kube import labels

KOORDINATOR = '{"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]}'
IN_FOURS = '{"gatherStrategy": [{"layer": "NodeTopologyLayer", "podCountMultiple": 4}]}'
STATEMENTS = {
    "ours required": {labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: "2"},
    "ours preferred": {labels.TOPOLOGY: "preferred"},
    "ours unconstrained": {labels.TOPOLOGY: "unconstrained"},
    "ours in multiples": {labels.PODS_PER_HOST_MULTIPLE: "6"},
    "ours as a mesh": {labels.MESH: "dp=4,tp=2"},
    "ours balanced": {labels.BALANCED: "true"},
    "ours apart": {labels.APART: "rack", labels.APART_SET: "set"},
    "ours together": {labels.TOGETHER: "set"},
    "Kueue required": {kueue.REQUIRED: "rack"},
    "Kueue preferred": {kueue.PREFERRED: "rack"},
    "Kueue slices": {kueue.SLICE_LEVEL: "rack", kueue.SLICE_SIZE: "4"},
    "Volcano required": {volcano_words.HIGHEST_TIER: "1"},
    "Volcano soft": {volcano_words.MODE: "soft"},
    "koordinator required": {koordinator.SPEC: KOORDINATOR},
    "koordinator in multiples": {koordinator.SPEC: IN_FOURS},
    "JobSet": {sets.JOBSET: "rack"},
    "LeaderWorkerSet": {sets.LWS: "block"},
    "subgroups of LeaderWorkerSet": {sets.LWS_SUBGROUP: "rack"},
    "KAI required": {kai.REQUIRED: "rack"},
    "KAI preferred": {kai.PREFERRED: "rack"},
}
PAIRS = [
    pytest.param(one, other, id=f"{one_name}, {other_name}")
    for (one_name, one), (other_name, other) in product(STATEMENTS.items(), repeat=2)
    if one_name.split()[0] != other_name.split()[0] and one_name < other_name
]


def read(notes):
    faults = []
    wish = wish_of_pod(notes, faults)
    assert faults == []
    return wish


def lost(single, merged):
    """The hard terms of one statement that the merged terms do not contain, by name."""
    sentences = " ".join(merged.ignored)
    terms = {
        "levels": {*single.levels} <= {*merged.levels},
        "multiple": merged.multiple % single.multiple == 0,
        "layers": {*single.layers} <= {*merged.layers},
        "groups": not single.groups or single.groups == merged.groups,
        "exclusive": single.exclusion.level in (None, merged.exclusion.level),
        "together": single.together in ("", merged.together),
    }
    return [term for term, is_kept in terms.items() if not is_kept and single.source not in sentences]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_hard_term_of_two_statements_is_lost_in_silence(one, other):
    merged = read({**one, **other})
    assert lost(read(one), merged) == []
    assert lost(read(other), merged) == []


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_preference_that_is_lost_is_told(one, other):
    """Nearness, the smallest holes, a mesh or balance that the other statement overrides."""
    merged = read({**one, **other})
    for single in (read(one), read(other)):
        is_kept = single.mode in (Mode.NEAR, merged.mode) and single.mesh in ((), merged.mesh)
        is_kept &= merged.balanced or not single.balanced
        is_kept &= not single.only_prefers or merged.source == single.source
        assert is_kept or single.source in " ".join(merged.ignored)


@pytest.mark.parametrize(
    ("first", "other", "expected", "is_told"),
    [
        pytest.param(4, 6, 12, False, id="the least common multiple"),
        pytest.param(4, 8, 8, False, id="one divides the other"),
        pytest.param(1, 5, 5, False, id="only one is stated"),
        pytest.param(1_000, 999, 1_000, True, id="too many pods for a host: the first"),
    ],
)
def test_multiples(first, other, expected, is_told):
    merged = merge_terms(Wish("a", multiple=first), Wish("b", multiple=other))
    assert (merged.multiple, bool(merged.ignored)) == (expected, is_told)
    assert merged.multiple <= MAX_MULTIPLE
    assert all("a" in sentence and "b" in sentence for sentence in merged.ignored)


LOW, HIGH = (GroupRule("w", keys=("role",), level=level) for level in ("rack", "block"))


@pytest.mark.parametrize(
    ("first", "other", "expected", "is_told"),
    [
        pytest.param((HIGH,), (LOW,), (LOW,), False, id="equal groups: the lower level"),
        pytest.param((LOW,), (HIGH,), (LOW,), False, id="in either order"),
        pytest.param((LOW,), (), (LOW,), False, id="only one states groups"),
        pytest.param((LOW,), (GroupRule("w", keys=("part",), level=0),), (LOW,), True, id="other groups: the first"),
    ],
)
def test_groups(first, other, expected, is_told):
    merged = merge_terms(Wish("a", groups=first), Wish("b", groups=other, multiple=2))
    assert (merged.groups, bool(merged.ignored)) == (expected, is_told)


@pytest.mark.parametrize(
    ("first", "other", "expected", "is_told"),
    [
        pytest.param([(1, 4)], [(2, 8)], [(2, 8), (1, 4)], False, id="runs within runs"),
        pytest.param([(1, 4)], [(2, 6)], [(2, 6)], True, id="sizes that do not divide: the larger"),
        pytest.param([(1, 4)], [(1, 4)], [(1, 4)], False, id="the same"),
    ],
)
def test_runs_of_ranks(first, other, expected, is_told):
    one, two = (tuple(Layer(*each) for each in layers) for layers in (first, other))
    merged = merge_terms(Wish("a", layers=one), Wish("b", layers=two))
    assert ([(each.level, each.size) for each in merged.layers], bool(merged.ignored)) == (expected, is_told)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        pytest.param([8, 6], "of 6 is not kept: it does not divide 8", id="sizes that do not divide"),
        pytest.param([32, 16, 8, 4, 2], f"of 2 is not kept: at most {MAX_LAYERS} layers are kept", id="one too many"),
    ],
)
def test_a_sentence_says_why_a_layer_is_ignored(sizes, reason):
    ignored = []
    assert [each.size for each in nested("source", [Layer(1, size) for size in sizes], ignored)] == sizes[:-1]
    assert [sentence.partition(" 1 ")[2] for sentence in ignored] == [reason]


@pytest.mark.parametrize("field", ["matchLabels", "matchLabelKeys"])
def test_a_group_rule_with_too_many_labels_is_ignored_and_reported(field):
    names = {f"example.com/{number}": "x" for number in range(12)}
    policy = {"labelSelector": {field: names}} if field == "matchLabels" else {field: [*names]}
    wish = wish_of_pod_group(None, [{"name": "workers", **policy}], None, {})
    assert wish.groups == ()
    assert wish.ignored == (f"spec.subGroupPolicy workers is not kept: it has 12 {field}, at most 8 are read",)


def test_an_unreadable_parent_of_a_subgroup_is_reported():
    subgroups = [{"name": "a"}, {"name": "b", "parent": "a b!"}]
    (sentence,) = kai.read_pod_group(None, None, subgroups, None).wish.ignored
    assert "parent is 'a b!'" in sentence
