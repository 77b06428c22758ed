"""The pods that are tried together, and how many of them it takes."""

from turnout.jobs.gang import Dialect, GangKey, Membership
from turnout.simulator.cluster.scheduling_queue import Gangs

KEY = GangKey("ns", "g", Dialect.VOLCANO.value)


def gang(minimum, waiting, bound=()):
    gangs = Gangs()
    gangs.put_group(Dialect.VOLCANO, "ns", "g", minimum)
    for rank, uid in enumerate([*waiting, *bound]):
        gangs.put_pod(uid, Membership(KEY, rank=rank), uid in bound)
    return gangs


def test_all_that_wait_are_tried_together_in_rank_order():
    gangs = gang(3, ["c", "a", "b"])
    assert gangs.pods_to_try("b") == ["c", "a", "b"]
    assert gangs.missing_members("b") == 3


def test_what_is_bound_counts_and_the_last_one_is_tried_by_itself():
    assert gang(3, ["a"], ["b", "c"]).pods_to_try("a") == ["a"]
    gangs = gang(3, ["a", "b"], ["c"])
    assert gangs.missing_members("a") == 2
    gangs.bind("a", True)
    assert gangs.pods_to_try("b") == ["b"]
    gangs.bind("a", False)
    assert gangs.pods_to_try("b") == ["a", "b"]


def test_those_above_the_min_hold_nobody():
    gangs = gang(2, ["c", "d"], ["a", "b"])
    assert gangs.pods_to_try("d") == ["d"]


def test_a_pod_that_is_gone_counts_no_more():
    gangs = gang(2, ["a"], ["b"])
    gangs.drop_pod("b")
    assert gangs.missing_members("a") == 2


def test_a_pod_of_no_gang_is_tried_by_itself():
    gangs = Gangs()
    gangs.put_pod("x", Membership(GangKey("ns", "x", Dialect.ALONE.value)), bound=False)
    assert (gangs.pods_to_try("x"), gangs.missing_members("x")) == (["x"], 0)


def test_a_member_that_says_another_gang_now_is_no_more_of_the_old_one():
    gangs = gang(2, ["a", "b", "c"])
    gangs.put_pod("b", Membership(GangKey("ns", "other", Dialect.VOLCANO.value)), False)
    assert gangs.pods_to_try("a") == ["a", "c"]
    gangs.drop_pod("b")
    assert gangs.pods_to_try("a") == ["a", "c"]
