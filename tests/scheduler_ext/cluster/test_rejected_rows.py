"""Rows that the scheduler leaves out are believed to be refused once they were missing twice, and not for ever."""

import numpy as np

from tests.kit import world
from turnout.jobs.gang import GangKey
from turnout.kube.pod_shape import shape_of
from turnout.scheduler_ext.cluster.request_hints import CONFIRM_S, FORGET_S, MAX_OBSERVATIONS, RejectedHosts

GPU8, GPU4 = shape_of(world.pod("p", 8)), shape_of(world.pod("p", 4))


def key(name="bert"):
    return GangKey("default", name, "scheduling.volcano.sh")


def rows(*missing):
    marks = np.zeros(4, np.bool_)
    marks[list(missing)] = True
    return marks


def note(left_out, *missing, now_s=0.0, name="bert", shape=GPU8):
    """Note rows that were missing, and list those that are believed to be refused."""
    return left_out.note_missing(key(name), shape, rows(*missing), now_s).nonzero()[0].tolist()


def believed(left_out, name="bert"):
    return {shape: marks.nonzero()[0].tolist() for shape, marks in left_out.rows_by_shape(key(name)).items()}


def test_a_row_is_believed_to_be_refused_once_it_was_missing_twice():
    left_out = RejectedHosts()
    assert note(left_out, 1, 2) == []
    assert note(left_out, 1, 2, now_s=CONFIRM_S - 0.1) == []
    assert (believed(left_out), left_out.has_observation(key(), GPU8)) == ({}, True)
    assert note(left_out, 2, 3, now_s=CONFIRM_S) == [2]
    assert note(left_out, 2, 3, now_s=2 * CONFIRM_S - 0.1) == [2]
    assert note(left_out, 2, 3, now_s=2 * CONFIRM_S) == [2, 3]
    assert note(left_out, 3, now_s=3 * CONFIRM_S) == [3]
    assert believed(left_out) == {GPU8: [3]}


def test_each_gang_and_shape_is_remembered_by_itself():
    left_out = RejectedHosts()
    for now_s in (0.0, CONFIRM_S):
        note(left_out, 1, now_s=now_s)
        note(left_out, 2, now_s=now_s, shape=GPU4)
        note(left_out, 3, now_s=now_s, name="gpt")
    assert (believed(left_out), believed(left_out, "gpt")) == ({GPU8: [1], GPU4: [2]}, {GPU8: [3]})
    left_out.drop(key())
    assert (believed(left_out), believed(left_out, "gpt")) == ({}, {GPU8: [3]})
    left_out.clear()
    assert believed(left_out, "gpt") == {}


def test_a_row_that_is_named_again_is_refused_no_more():
    left_out = RejectedHosts()
    note(left_out, 1, 2)
    note(left_out, 1, 2, now_s=CONFIRM_S)
    assert not left_out.note_offered(key(), GPU8, [3])
    assert left_out.note_offered(key(), GPU8, [1, 3])
    assert believed(left_out) == {GPU8: [2]}
    assert left_out.note_offered(key(), GPU8, [2])
    assert (believed(left_out), left_out.has_observation(key(), GPU8)) == ({}, False)
    assert not left_out.note_offered(key(), GPU8, [2])


def test_what_was_not_seen_for_long_is_forgotten_and_told_if_believed():
    left_out = RejectedHosts()
    note(left_out, 1)
    note(left_out, 1, now_s=CONFIRM_S)
    note(left_out, 1, now_s=CONFIRM_S, name="gpt")
    assert left_out.expire(FORGET_S + CONFIRM_S - 0.1) == []
    assert left_out.expire(FORGET_S + CONFIRM_S) == [key()]
    assert not left_out.has_observation(key("gpt"), GPU8)


def test_so_many_gangs_are_remembered_and_the_oldest_is_forgotten_first():
    left_out = RejectedHosts()
    for at in range(MAX_OBSERVATIONS):
        note(left_out, 1, name=f"g{at}")
    assert left_out.has_observation(key("g0"), GPU8)
    note(left_out, 1, name="g0")
    note(left_out, 1, name="one more")
    assert [left_out.has_observation(key(name), GPU8) for name in ("g0", "g1", "g2")] == [True, False, True]
