"""Which members of a gang are one group, by the rules of its PodGroup and the labels and indexes of its pods."""

import dataclasses

import pytest

from tests.kit import world
from turnout.jobs.wishes.model import GroupRule
from turnout.scheduler_ext.cluster.gang import GangGroup, group_members
from turnout.scheduler_ext.cluster.member import member_of

WORKER, CHIEF = (("role", "worker"),), (("role", "chief"),)
RED, BLUE = (("role", "worker"), ("color", "red")), (("role", "worker"), ("color", "blue"))


def members(*marks, ranks=None):
    """Members with these labels, named p0 and so on, of the ranks given or else of their order."""
    new_members = []
    for at, each in enumerate(marks):
        member = member_of(world.pod(f"p{at}", 8))
        belongs = dataclasses.replace(member.membership, group_labels=each, rank=at if ranks is None else ranks[at])
        new_members.append(dataclasses.replace(member, membership=belongs))
    return new_members


def parted(rules, found):
    """{pod: (rule, name)} of the members that are in a group."""
    parts = group_members(rules, found, lambda level: {"rack": 1, "block": 2}[level])
    return {uid.removeprefix("uid-"): (part.rule, *part.label_values) for uid, part in parts.items()}


@pytest.mark.parametrize(("rules", "marks", "found"), [
    pytest.param([GroupRule(match_labels=WORKER)], [WORKER, CHIEF, WORKER], {"p0": (0,), "p2": (0,)}, id="by a label"),
    pytest.param([GroupRule(match_labels=RED)], [RED, BLUE, WORKER], {"p0": (0,)}, id="by two labels at once"),
    pytest.param(
        [GroupRule(keys=("color",))], [RED, BLUE, RED, CHIEF],
        {"p0": (0, "red"), "p1": (0, "blue"), "p2": (0, "red")}, id="a group for each value, without whoever has none",
    ),
    pytest.param([GroupRule(keys=("role", "color"))], [RED, CHIEF], {"p0": (0, "worker", "red")}, id="all keys"),
    pytest.param(
        [GroupRule(match_labels=CHIEF), GroupRule(keys=("role",))], [CHIEF, WORKER],
        {"p0": (0,), "p1": (1, "worker")}, id="the first rule that fits counts",
    ),
    pytest.param([GroupRule(one_of=CHIEF)], [WORKER, CHIEF], {"p1": (0,)}, id="one of some labels"),
    pytest.param(
        [GroupRule(size=2)], [(), (), (), ()], {"p0": (0, "0"), "p1": (0, "0"), "p2": (0, "1"), "p3": (0, "1")},
        id="runs of two",
    ),
    pytest.param(
        [GroupRule(keys=("color",), size=2)], [RED, RED, RED], dict.fromkeys(("p0", "p1", "p2"), (0, "red")),
        id="keys and no runs, where both are said",
    ),
])  # fmt: skip
def test_who_is_in_which_group(rules, marks, found):
    assert parted(rules, members(*marks)) == found


def test_runs_follow_the_index_and_where_there_is_none_the_order():
    runs = [GroupRule(size=2)]
    assert parted(runs, members((), (), ranks=(1, 2))) == {"p0": (0, "0"), "p1": (0, "1")}
    unknown = members((), (), (), ranks=(None, None, None))
    assert parted(runs, unknown) == {"p0": (0, "0"), "p1": (0, "0"), "p2": (0, "1")}


def test_runs_count_the_members_of_their_own_rule_alone():
    rules = [GroupRule(match_labels=CHIEF), GroupRule(size=2)]
    found = parted(rules, members(CHIEF, WORKER, WORKER, WORKER, ranks=(None,) * 4))
    assert found == {"p0": (0,), "p1": (1, "0"), "p2": (1, "0"), "p3": (1, "1")}


def test_a_group_has_the_tier_and_the_words_of_its_rule():
    rule = GroupRule(level="block", exclusive=True, all_or_nothing=False)
    (part,) = group_members([rule], members(()), lambda level: {"block": 2}[level]).values()
    assert part == GangGroup(0, (), 2, exclusive=True, all_or_nothing=False)
    (plain,) = group_members([GroupRule()], members(()), lambda level: 1).values()
    assert plain == GangGroup(0, (), None, exclusive=False, all_or_nothing=True)
    assert GangGroup(0, ("red",)) == GangGroup(0, ("red",), None, exclusive=False, all_or_nothing=True)
