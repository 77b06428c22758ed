"""The nodes at fault for groups that failed or were slow: exactly those, or nobody and the reason why."""

from itertools import chain, combinations
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hack.bench.health.simulated_nodes import SimulatedNodes, numbers
from tests.kit.hypothesis_examples import scaled
from turnout.launcher.errors import BadCheck
from turnout.launcher.health.judge_nodes import Evidence, GroupOutcomes, max_searches, next_groups_or_verdict
from turnout.launcher.health.model import Check, FaultCause, Measured, SlowRule, StragglerLimits, Verdict

ROBUST = StragglerLimits(rule=SlowRule.MEDIAN)
NETWORK, COMPUTE = FaultCause.NETWORK_SLOW, FaultCause.COMPUTE_SLOW


def some(*found):
    return frozenset(found)


def true(floor, rounds):
    """Give what can be found: faulty nodes, and bad links that a first-round group tried without another fault."""
    dead = floor.failing_networks | floor.failing_computations
    group_sets = [{int(name[1:]) for name in group} for group in rounds[0]]

    def passes_of(links, others):
        return sorted(link for link in links if any({*link} <= group and not group & others for group in group_sets))

    return (
        sorted((number,) for number in dead),
        passes_of(floor.failing_links, dead),
        sorted((number,) for number in floor.slow_computations),
        sorted((number,) for number in floor.slow_networks),
        passes_of(floor.slow_links, dead | floor.slow_networks),
    )


def verdicts_told(verdict, floor, rounds):
    """Give the faults that a verdict names; bad links that happened to be tried later are left out."""
    truth = true(floor, rounds)
    return (
        numbers(verdict.bad_nodes),
        [link for link in numbers(verdict.bad_links) if link in truth[1] or link not in floor.failing_links],
        numbers(verdict.slow_nodes, COMPUTE),
        numbers(verdict.slow_nodes, NETWORK),
        [link for link in numbers(verdict.slow_links) if link in truth[4] or link not in floor.slow_links],
    )


@pytest.mark.contract("DL-80")
@pytest.mark.parametrize(
    ("nodes", "groups"),
    [
        pytest.param(1, [[0]], id="one alone measures only itself"),
        pytest.param(2, [[0, 1]], id="two"),
        pytest.param(3, [[0, 1, 2]], id="three together: nobody is left alone, DL-80"),
        pytest.param(4, [[0, 1], [2, 3]], id="neighbours in pairs, DL-80"),
        pytest.param(7, [[0, 1], [2, 3], [4, 5, 6]], id="of an odd number the last three, DL-80"),
    ],
)
def test_the_first_round(nodes, groups):
    names = [tuple(f"n{number}" for number in group) for group in groups]
    assert next_groups_or_verdict(Check(SimulatedNodes(nodes).names)) == tuple(names)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 64])
def test_a_round_that_finds_nothing_is_the_only_one(nodes):
    verdict, rounds = SimulatedNodes(nodes).check()
    assert verdict.is_clean
    assert len(rounds) == 1


# Who is found in how many rounds. Where DLRover's verdict differs: docs/facts/dlrover.md 2.3
FOUND = [
    pytest.param(SimulatedNodes(4, failing_networks=some(1)), [1], 2, id="one of four"),
    pytest.param(
        SimulatedNodes(6, failing_networks=some(5)), [5], 2, id="the sixth of six, mixed with good ones: DL-81"
    ),
    pytest.param(SimulatedNodes(6, failing_networks=some(0, 1)), [0, 1], 3, id="both of a pair"),
    pytest.param(
        SimulatedNodes(8, failing_networks=some(0, 2, 4)),
        [0, 2, 4],
        3,
        id="three of eight: DLRover blames 1 and 3 as well",
    ),
    pytest.param(SimulatedNodes(6, failing_networks=some(0, 2, 4)), [0, 2, 4], 4, id="half of six: DLRover blames all"),
    pytest.param(SimulatedNodes(3, failing_networks=some(1)), [1], 4, id="one of three: DLRover blames all"),
    pytest.param(
        SimulatedNodes(3, failing_computations=some(1)), [1], 2, id="one of three whose own computation failed"
    ),
    pytest.param(SimulatedNodes(2, failing_computations=some(1)), [1], 2, id="one of two whose own computation failed"),
    pytest.param(SimulatedNodes(1, failing_computations=some(0)), [0], 1, id="one alone whose own computation failed"),
]


@pytest.mark.contract("DL-81")
@pytest.mark.parametrize(("floor", "bad", "rounds"), FOUND)
def test_bad_nodes(floor, bad, rounds):
    verdict, ran = floor.check()
    assert numbers(verdict.bad_nodes) == [(number,) for number in bad]
    assert not verdict.bad_links + verdict.slow_nodes
    assert len(ran) <= rounds


@pytest.mark.parametrize(
    ("floor", "found"),
    [
        pytest.param(
            SimulatedNodes(4, failing_links=some((0, 1))),
            (FaultCause.LINK_FAILED, 0, 1),
            id="a pair of good nodes: DLRover finds none",
        ),
        pytest.param(
            SimulatedNodes(5, failing_links=some((2, 4))),
            (FaultCause.LINK_FAILED, 2, 4),
            id="inside of a group of three",
        ),
        pytest.param(
            SimulatedNodes(3, failing_links=some((0, 2))), (FaultCause.LINK_FAILED, 0, 2), id="between two of three"
        ),
        pytest.param(SimulatedNodes(6, slow_links=some((2, 3))), (FaultCause.LINK_SLOW, 2, 3), id="a slow one"),
    ],
)
def test_bad_links(floor, found):
    verdict, _ = floor.check()
    (finding,) = verdict.bad_links + verdict.slow_links
    assert (finding.cause, *(int(name[1:]) for name in finding.nodes)) == found
    assert not verdict.bad_nodes + verdict.slow_nodes + verdict.undecided


@pytest.mark.parametrize(
    ("floor", "limits", "slow"),
    [
        pytest.param(SimulatedNodes(6, slow_computations=some(1)), StragglerLimits(), [(COMPUTE, 1)], id="slow alone"),
        pytest.param(
            SimulatedNodes(6, slow_networks=some(1)),
            StragglerLimits(),
            [(NETWORK, 1)],
            id="slow with each of the others",
        ),
        pytest.param(
            SimulatedNodes(6, slow_networks=some(1), slow_computations=some(1)),
            StragglerLimits(),
            [(COMPUTE, 1), (NETWORK, 1)],
            id="both, told apart",
        ),
        pytest.param(
            SimulatedNodes(6, slow_networks=some(1), slow_computations=some(4)),
            StragglerLimits(),
            [(COMPUTE, 4), (NETWORK, 1)],
            id="two nodes",
        ),
        pytest.param(
            SimulatedNodes(4, slow_computations=some(1, 3)),
            StragglerLimits(),
            [],
            id="half of four: the mean of the others is raised",
        ),
        pytest.param(
            SimulatedNodes(6, slow_networks=some(1, 2)),
            ROBUST,
            [(NETWORK, 1), (NETWORK, 2)],
            id="a third, beside the median",
        ),
        pytest.param(
            SimulatedNodes(2, slow_computations=some(1)),
            StragglerLimits(),
            [(COMPUTE, 1)],
            id="one of two: the other is the mean",
        ),
        pytest.param(
            SimulatedNodes(1, factor=9, slow_computations=some(0)),
            StragglerLimits(),
            [],
            id="one alone, whom nobody can be compared with",
        ),
        pytest.param(
            SimulatedNodes(1, slow_computations=some(0)),
            StragglerLimits(compute_s=2),
            [(COMPUTE, 0)],
            id="one alone, above the floor",
        ),
        pytest.param(
            SimulatedNodes(3, slow_networks=some(1)),
            StragglerLimits(collective_s=2),
            [(NETWORK, 1)],
            id="one of three, above the floor",
        ),
        pytest.param(
            SimulatedNodes(4, factor=1.4, slow_networks=some(0)),
            StragglerLimits(rule=SlowRule.SPREAD),
            [(NETWORK, 0)],
            id="by less than twice, by spread",
        ),
    ],
)
def test_slow_nodes(floor, limits, slow):
    verdict, _ = floor.check(limits)
    assert [(each.cause, *(int(name[1:]) for name in each.nodes)) for each in verdict.slow_nodes] == slow
    assert not verdict.bad_nodes + verdict.bad_links + verdict.slow_links + verdict.undecided


@pytest.mark.parametrize(
    ("floor", "limits", "why"),
    [
        pytest.param(
            SimulatedNodes(2, failing_networks=some(0)),
            StragglerLimits(),
            "no group was fine",
            id="one of two: nobody is there to tell",
        ),
        pytest.param(
            SimulatedNodes(2, failing_links=some((0, 1))),
            StragglerLimits(),
            "no group was fine",
            id="their link: it looks the same",
        ),
        pytest.param(
            SimulatedNodes(3, failing_networks=some(0, 1)), StragglerLimits(), "no group was fine", id="two of three"
        ),
        pytest.param(
            SimulatedNodes(5, failing_networks=some(0, 1, 2)),
            StragglerLimits(),
            "no group was fine",
            id="three of five, in the rounds there are",
        ),
        pytest.param(
            SimulatedNodes(8, failing_networks=some(*range(8))),
            StragglerLimits(),
            "no group was fine",
            id="all: then it is no node's fault",
        ),
        pytest.param(
            SimulatedNodes(4, slow_networks=some(*range(4))),
            StragglerLimits(collective_s=2),
            "no group was fine",
            id="all below the floor",
        ),
    ],
)
def test_nobody_is_blamed_where_no_test_can_tell(floor, limits, why):
    verdict, rounds = floor.check(limits)
    assert not verdict.bad_nodes + verdict.bad_links + verdict.slow_nodes + verdict.slow_links
    assert verdict.undecided
    assert all(why in each.why for each in verdict.undecided)
    assert len(rounds) <= 1 + max(3, ceil(log2(floor.nodes)))


@pytest.mark.parametrize(
    ("floor", "limits", "how"),
    [
        pytest.param(
            SimulatedNodes(2, failing_networks=some(0)),
            StragglerLimits(),
            "this group failed, and no group was fine",
            id="it failed",
        ),
        pytest.param(
            SimulatedNodes(2, slow_networks=some(0)),
            StragglerLimits(collective_s=2),
            "this group was slow, and no",
            id="it was slow",
        ),
    ],
)
def test_how_a_group_ended_of_which_nothing_is_proven_is_told(floor, limits, how):
    verdict, _ = floor.check(limits)
    assert [each.nodes for each in verdict.undecided] == [("n0", "n1")]
    assert verdict.undecided[0].why.startswith(how)


@pytest.mark.parametrize(
    ("floor", "how"),
    [
        pytest.param(SimulatedNodes(4, failing_links=some((0, 1))), "it fails each time", id="a bad one"),
        pytest.param(SimulatedNodes(6, slow_links=some((2, 3))), "it is slow each time", id="a slow one"),
    ],
)
def test_what_is_wrong_with_a_link_is_told(floor, how):
    (finding,) = (verdict := floor.check()[0]).bad_links + verdict.slow_links
    assert finding.why.startswith(how)


def ran(nodes, *rounds):
    """A check whose pairs have ended so: `01 2x3` is a pair that was fine and one that failed."""
    check = Check(SimulatedNodes(nodes).names)
    for groups in rounds:
        pairs = [(f"n{group[0]}", f"n{group[-1]}", None if "x" in group else 1.0) for group in groups.split()]
        check = check.add_round(tuple(Measured((one, other), (1.0, 1.0), time_s) for one, other, time_s in pairs))
    return check


def test_with_whom_a_bad_node_failed_is_told_by_two_of_them():
    verdict = next_groups_or_verdict(ran(6, "0x1 23 45", "0x2 13", "0x4 15"))
    assert [(each.nodes, each.why.split(", ")[0]) for each in verdict.bad_nodes] == [
        (("n0",), "failed with n1 and with n2")
    ]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(["0x1 23 45", "0x2 13", "04"], id="another link of its one end failed once"),
        pytest.param(["0x1 23 45", "1x3 02", "15"], id="another link of its other end did"),
    ],
)
def test_a_link_that_failed_once_is_not_bad_whatever_else_failed(rounds):
    check = ran(6, *rounds)
    assert Evidence(check).links == {}
    assert ("n0", "n1") in next_groups_or_verdict(check)


def test_a_link_has_one_name_whoever_of_the_two_comes_first():
    assert [*GroupOutcomes(ran(4, "10 23", "01 32")).pairs] == [("n0", "n1"), ("n2", "n3")]


def test_two_that_failed_once_and_never_again_are_told_and_not_blamed():
    (undecided,) = next_groups_or_verdict(ran(2, "0x1", "01")).undecided
    assert "were fine when tried again" in undecided.why


@pytest.mark.parametrize(("nodes", "rounds"), [(1, 3), (8, 3), (9, 4), (16, 4), (17, 5), (64, 6), (65, 7)])
def test_for_how_many_rounds_suspects_are_mixed_among_themselves(nodes, rounds):
    assert max_searches(nodes) == rounds


def test_findings_stand_in_the_order_of_the_nodes():
    verdict, _ = SimulatedNodes(12, failing_links=some((0, 1), (6, 7), (10, 11))).check()
    assert numbers(verdict.bad_links) == [(0, 1), (6, 7), (10, 11)]


def test_what_passes_when_tried_again_is_told_and_nobody_is_blamed():
    floor, check = SimulatedNodes(4), Check(SimulatedNodes(4).names)
    once = Measured(("n0", "n1"), (1.0, 1.0), None)
    check = check.add_round((once, floor.measure(("n2", "n3"))))
    while not isinstance(answer := next_groups_or_verdict(check), Verdict):
        check = check.add_round(tuple(floor.measure(group) for group in answer))
    assert [(each.nodes, "once" in each.why) for each in answer.undecided] == [(("n0", "n1"), True)]
    assert not answer.bad_nodes + answer.bad_links


def test_a_node_of_which_nothing_was_heard_is_asked_again():
    floor, check = (
        SimulatedNodes(4),
        Check(SimulatedNodes(4).names).add_round((SimulatedNodes(4).measure(("n0", "n1")),)),
    )
    assert {"n2", "n3"} <= {*chain(*next_groups_or_verdict(check))}
    check = check.add_round((floor.measure(("n0", "n2")), floor.measure(("n1", "n3"))))
    assert next_groups_or_verdict(check) == Verdict()


def test_of_three_with_a_broken_one_the_others_are_tried_together():
    check = Check(SimulatedNodes(3).names).add_round((Measured(("n2",), (None,), None),))
    assert next_groups_or_verdict(check) == (("n0", "n1"),)


def test_of_two_with_a_broken_one_the_other_is_measured_alone():
    check = Check(SimulatedNodes(2).names).add_round((Measured(("n1",), (None,), None),))
    assert next_groups_or_verdict(check) == (("n0",),)
    verdict = next_groups_or_verdict(check.add_round((Measured(("n0",), (1.0,), None),)))
    assert numbers(verdict.bad_nodes) == [(1,)]
    assert [each.nodes for each in verdict.undecided] == [("n0",)], "nobody is left to try its network with"


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: Check(()), id="nobody"),
        pytest.param(lambda: Check(("n0", "n0")), id="a node twice"),
        pytest.param(lambda: Measured(("n0", "n1"), (1.0,), 1.0), id="a member without a time"),
        pytest.param(lambda: Measured(("n0",), (float("nan"),), None), id="a time that is none"),
        pytest.param(lambda: Check(("n0",)).add_round((Measured(("n1",), (1.0,), None),)), id="results of a stranger"),
        pytest.param(lambda: StragglerLimits(factor=1.0), id="each node would be slow"),
        pytest.param(lambda: StragglerLimits(compute_s=0.0), id="a floor of nothing"),
    ],
)
def test_what_cannot_be_is_refused(build):
    with pytest.raises(BadCheck):
        build()


# Laws. Faults of up to a third of the nodes, each node with one at most.


def small_floors(nodes):
    """All of them, up to the limit, but for slow networks of three: there is no other group to compare with."""
    ends = [("failing_networks", some(at)) for at in range(nodes)] + [
        ("slow_networks", some(at)) for at in range(nodes) if nodes > 3
    ]
    links = [(kind, some(*pair)) for kind in ("failing_links", "slow_links") for pair in combinations(range(nodes), 2)]
    kinds = ends + [each for each in links if nodes > 3 or each[0] == "failing_links"]
    for count in range(nodes // 3 + 1):
        for faults in combinations(kinds, count):
            touched = [*chain(*(ends for _, ends in faults))]
            if len({*touched}) == len(touched):
                yield SimulatedNodes(nodes, **_by_kind(faults))


def _by_kind(faults):
    found = {}
    for kind, ends in faults:
        found.setdefault(kind, set()).add(tuple(sorted(ends)) if kind in ("failing_links", "slow_links") else min(ends))
    return {kind: frozenset(those) for kind, those in found.items()}


@pytest.mark.parametrize(("nodes", "maximum"), [(2, 2), (3, 4), (4, 3), (5, 4), (6, 4), (7, 5), (8, 4)])
def test_every_fault_of_few_nodes_is_found_exactly(nodes, maximum):
    """maximum: rounds. 1 + log2 of the nodes, rounded up; of three, whose pairs are all tried, of seven one more."""
    for floor in small_floors(nodes):
        verdict, rounds = floor.check(ROBUST, maximum)
        assert verdicts_told(verdict, floor, rounds) == true(floor, rounds), floor
        assert not verdict.undecided, floor


@st.composite
def floors(draw, share=3):
    """Four to seventy nodes, of which one in `share` has a fault at most. Half of the links are of the first round."""
    nodes = draw(st.integers(4, 70))
    left = draw(st.permutations(range(nodes)))
    faults = []
    kinds = (
        "failing_networks",
        "failing_computations",
        "slow_networks",
        "slow_computations",
        "failing_links",
        "slow_links",
    )
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=nodes // share)):
        if len(left) < 2:
            break
        host, *left = left
        if kind in ("failing_links", "slow_links"):
            other_host = host ^ 1 if host ^ 1 in left and draw(st.booleans()) else left[0]
            left = [other for other in left if other != other_host]
            faults.append((kind, some(host, other_host)))
        else:
            faults.append((kind, some(host)))
    return SimulatedNodes(nodes, seed=draw(st.integers(0, 99)), **_by_kind(faults))


@pytest.mark.contract("DL-81")
@settings(max_examples=scaled(60))
@given(floors(), st.sampled_from([SlowRule.MEDIAN, SlowRule.SPREAD]))
def test_up_to_a_third_is_found_exactly_in_at_most_five_rounds(floor, rule):
    verdict, rounds = floor.check(StragglerLimits(rule=rule), maximum=5)
    assert verdicts_told(verdict, floor, rounds) == true(floor, rounds)
    assert not verdict.undecided
    suspects = {node for group in rounds[0] for node in group if numbers_of(group) & touched(floor)}
    assert all(suspects & {*group} for later in rounds[1:] for group in later), "a group without a suspect"


def numbers_of(group):
    return {int(name[1:]) for name in group}


def touched(floor):
    return (
        floor.failing_networks
        | floor.failing_computations
        | floor.slow_networks
        | floor.slow_computations
        | {*chain(*floor.failing_links, *floor.slow_links)}
    )


@settings(max_examples=scaled(60))
@given(floors(share=1), st.sampled_from(list(SlowRule)))
def test_however_many_are_bad_no_innocent_is_called_bad(floor, rule):
    verdict, _ = floor.check(StragglerLimits(rule=rule))
    assert {*numbers(verdict.bad_nodes)} <= {
        (number,) for number in floor.failing_networks | floor.failing_computations
    }
    assert {*numbers(verdict.bad_links)} <= floor.failing_links


@settings(max_examples=scaled(60))
@given(floors(), st.sampled_from(list(SlowRule)))
def test_no_innocent_is_called_slow(floor, rule):
    verdict, _ = floor.check(StragglerLimits(rule=rule))
    assert {*numbers(verdict.slow_nodes, COMPUTE)} <= {(number,) for number in floor.slow_computations}
    assert {*numbers(verdict.slow_nodes, NETWORK)} <= {(number,) for number in floor.slow_networks}
    assert {*numbers(verdict.slow_links)} <= floor.slow_links
