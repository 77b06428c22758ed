"""The pods that are tried together, and how many of them it takes."""

from turnout.jobs.gang import Dialect, GangKey, Membership
from turnout.simulator.cluster.scheduling_queue import Gangs

KEY = GangKey("ns", "g", Dialect.VOLCANO.value)


def gang(minimum, waiting, bound=()):
    made = Gangs()
    made.put_group(Dialect.VOLCANO, "ns", "g", minimum)
    for rank, uid in enumerate([*waiting, *bound]):
        made.put_pod(uid, Membership(KEY, rank=rank), uid in bound)
    return made


def test_all_that_wait_are_tried_together_in_rank_order():
    made = gang(3, ["c", "a", "b"])
    assert made.pods_to_try("b") == ["c", "a", "b"]
    assert made.missing_members("b") == 3


def test_what_is_bound_counts_and_the_last_one_is_tried_by_itself():
    assert gang(3, ["a"], ["b", "c"]).pods_to_try("a") == ["a"]
    made = gang(3, ["a", "b"], ["c"])
    assert made.missing_members("a") == 2
    made.bind("a", True)
    assert made.pods_to_try("b") == ["b"]
    made.bind("a", False)
    assert made.pods_to_try("b") == ["a", "b"]


def test_those_above_the_min_hold_nobody():
    made = gang(2, ["c", "d"], ["a", "b"])
    assert made.pods_to_try("d") == ["d"]


def test_a_pod_that_is_gone_counts_no_more():
    made = gang(2, ["a"], ["b"])
    made.drop_pod("b")
    assert made.missing_members("a") == 2


def test_a_pod_of_no_gang_is_tried_by_itself():
    made = Gangs()
    made.put_pod("x", Membership(GangKey("ns", "x", Dialect.ALONE.value)), bound=False)
    assert (made.pods_to_try("x"), made.missing_members("x")) == (["x"], 0)


def test_a_member_that_says_another_gang_now_is_no_more_of_the_old_one():
    made = gang(2, ["a", "b", "c"])
    made.put_pod("b", Membership(GangKey("ns", "other", Dialect.VOLCANO.value)), False)
    assert made.pods_to_try("a") == ["a", "c"]
    made.drop_pod("b")
    assert made.pods_to_try("a") == ["a", "c"]
