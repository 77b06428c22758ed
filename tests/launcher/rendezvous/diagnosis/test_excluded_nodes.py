"""A member that was left out comes back in the same place: a kubelet restarts it again and again, and nobody stops."""

import pytest

from tests.launcher.rendezvous.diagnosis.test_node_check import Checked
from tests.launcher.rendezvous.story import member, replace
from turnout.launcher.coordinator_messages import Judged, Waiting
from turnout.launcher.health.model import ExcludedNode
from turnout.launcher.model import Exit, Reason

HOUR_S = 3600.0
BACK_OFF_S = 300.0  # the longest of a kubelet


def left_out(nnodes="2:4", dead="c", **more):
    """One of four was left out, and its agent has ended; the others train."""
    story = Checked(nnodes, dead=dead, **more).join(*"abcd").measure_all()
    assert story.world == "abd"
    return story.lose("c")


def rejoin(story, name="c"):
    """The kubelet starts it in the same pod."""
    return story.join(name, incarnation=int(story.ids[name].partition("/")[2]) + 1)


def checks(story):
    return [fields["members"] for _, fields in story.events("check_started")]


def grown(story):
    """The round has been stopped to grow: a check of all comes before the next."""
    return story.ready("".join(each.member.name for each in story.state.members.values() if each.busy)).measure_all()


def test_it_stops_no_world_that_trains():
    story = rejoin(left_out()).wait(60)
    assert (story.world, checks(story)) == ("abd", [4])


def test_it_waits_and_is_told_why_and_for_how_long():
    story = left_out()
    story.wait(600)
    message = rejoin(story).last("c", Waiting)
    assert (message.round, message.reason) == (1, "node_faulty")
    assert "network_failed" in message.detail
    assert "3000 s" in message.detail
    assert story.left_out()["c"].exit == Exit.FAULTY, "of its last life"
    ((reason, fields),) = story.events("node_kept_out")
    assert (reason, fields["member"], fields["again_s"]) == ("node_faulty", "c", 3000.0)
    assert [fields["again_s"] for _, fields in story.events("node_left_out")] == [HOUR_S]


def test_a_day_of_back_offs_costs_a_handful_of_checks():
    """After one hour, two, four, eight: as long as the autoscaler taints a node."""
    story = left_out()
    for _ in range(int(24 * HOUR_S / BACK_OFF_S)):
        if "c/" not in "".join(story.state.members):
            rejoin(story)
        story.wait(BACK_OFF_S)
        if story.phase != "training":
            grown(story).lose("c")
        assert story.world == "abd"
    assert checks(story) == [4] * 5
    assert [fields["again_s"] for _, fields in story.events("node_left_out")] == [HOUR_S * 2**at for at in range(5)]


def test_one_left_out_is_tested_in_time_and_trains_if_it_passes():
    story = rejoin(left_out())
    story.dead = ""
    assert story.wait(HOUR_S - 1).world == "abd"
    assert grown(story.wait(1)).world == "abcd"
    assert checks(story) == [4, 4]
    story.lose("c").ready("abd").measure_all()
    assert grown(rejoin(story).wait(5)).world == "abcd", "nothing is held against it any more"


@pytest.mark.parametrize("how", ["a failure", "growth"])
def test_a_round_that_begins_anyway_does_without_it_before_its_time(how):
    story = rejoin(left_out("2:5"))
    if how == "growth":
        story.join("e").wait(5).ready("abd").measure_all()
    else:
        story.fail("b").ready("abd").measure_all()
    assert story.world == ("abde" if how == "growth" else "abd")
    assert checks(story) == [4, 4 if how == "growth" else 3]
    assert story.last("c", Waiting).reason == "node_faulty"


def test_it_is_tested_at_once_where_too_few_are_there_without_it():
    story = rejoin(left_out("3:4"))
    story.dead = ""
    story.lose("d").ready("ab")
    assert (story.phase, checks(story)) == ("checking", [4, 3])
    assert story.measure_all().world == "abc"


def test_where_no_test_can_tell_one_that_was_proven_faulty_is_not_believed():
    story = rejoin(left_out("2:4"))
    story.lose("bd").ready("a")
    assert (story.phase, checks(story)) == ("checking", [4, 2])
    story.measure_all()
    assert (story.phase, story.world) == ("gathering", "")
    assert story.left_out()["c"].exit == Exit.FAULTY
    assert story.last("c", Judged).result.value == "faulty", "of the check before: this one could not tell"
    assert [fields["again_s"] for _, fields in story.events("node_left_out")] == [HOUR_S, 2 * HOUR_S]


def test_the_last_call_of_a_first_world_is_not_for_it():
    story = Checked("2:4", dead="c", last_call_s=30, worker_count=4).join(*"abcd").measure_all()
    assert story.phase == "gathering", "a replacement may come"
    story.lose("c").wait(10)
    rejoin(story).wait(20)
    assert (story.world, checks(story)) == ("abd", [4])


def test_one_end_of_a_bad_link_is_kept_out_while_the_other_is_there():
    story = Checked("2:6", cut=("cd",)).join(*"abcdef").measure_all()
    assert story.world == "abcef"
    rejoin(story.lose("d"), "d").wait(60)
    assert story.world == "abcef"
    assert story.last("d", Waiting).reason == "link_faulty"
    story.lose("c").ready("abef").measure_all()
    assert story.world == "abdef"


def test_who_comes_in_its_place_elsewhere_is_tested_at_once():
    """DL-83"""
    story = left_out()
    story.dead = ""
    story.join("c", incarnation=1, address="10.0.0.9")
    assert grown(story.wait(5)).world == "abcd"


NODE = {"name": "bert-2-x7k9p", "host": "gpu-7", "address": "10.0.0.2", "index": 2}
POD = {"name": "bert-2-x7k9p", "host": "bert-2", "address": "10.0.0.2", "index": 2}


@pytest.mark.parametrize(
    ("was", "comes", "same"),
    [
        pytest.param(NODE, {}, True, id="the same pod"),
        pytest.param(NODE, {"address": "10.0.0.3", "name": "bert-2-bbbbb"}, True, id="its next pod on the same node"),
        pytest.param(NODE, {"host": "gpu-8"}, False, id="on another node"),
        pytest.param(NODE, {"name": "bert-3-ccccc", "index": 3}, False, id="another worker on the same node"),
        pytest.param(POD, {}, True, id="the same pod, and no node has a name"),
        pytest.param(POD, {"address": "10.0.0.3"}, False, id="its next pod, nobody knows where"),
    ],
)
def test_whether_it_is_the_same_worker_in_the_same_place(was, comes, same):
    def of(name, **more):
        return replace(member("c"), id=f"{name}/0", name=name, **more)

    left = ExcludedNode(of(**was), Reason.NODE_FAULTY, "", 0.0)
    assert left.is_of(of(**was | comes)) is same


WEEK_S = 7 * 24 * HOUR_S


@pytest.mark.parametrize(
    ("after_s", "again_s"),
    [
        pytest.param(HOUR_S + WEEK_S - 1, 2 * HOUR_S, id="for a week after its time is up"),
        pytest.param(HOUR_S + WEEK_S, HOUR_S, id="and no longer"),
    ],
)
def test_that_it_was_left_out_is_remembered(after_s, again_s):
    story = left_out().wait(after_s)
    story.fail("b").ready("abd").measure_all()
    grown(rejoin(story).wait(5))
    assert [fields["again_s"] for _, fields in story.events("node_left_out")] == [HOUR_S, again_s]


def test_it_is_never_kept_out_for_more_than_a_week():
    story = left_out()
    for _ in range(9):
        rejoin(story)
        left = story.state.checking.excluded[0]
        grown(story.wait(left.until_s - story.now_s)).lose("c")
    waits_s = [fields["again_s"] for _, fields in story.events("node_left_out")]
    assert waits_s == [min(HOUR_S * 2**at, WEEK_S) for at in range(10)]


def test_for_how_long_it_is_kept_out_is_told_to_the_millisecond():
    story = rejoin(left_out().wait(599.9996))
    assert [fields["again_s"] for _, fields in story.events("node_kept_out")] == [3000.0]


def test_one_that_is_kept_out_is_not_among_those_that_are_enough():
    story = rejoin(Checked("5:6", dead="f").join(*"abcdef").measure_all().lose("f"), "f")
    story.cut = ("cd",)
    assert story.fail("b").ready("abcde").measure_all().world == "abcde"


def test_where_no_test_can_tell_one_left_out_for_a_link_is_believed():
    story = Checked("2:6", cut=("cd",), only=True).join(*"abcdef").measure_all()
    rejoin(story.lose("d"), "d")
    story.cut = ("cd", "ad")
    story.lose("bcef").ready("a")
    assert story.phase == "checking"
    assert story.measure_all().world == "ad"


@pytest.mark.parametrize(
    ("importing_s", "why"),
    [
        pytest.param(
            60.0,
            "it still imports modules; a training world is stopped for it only after that",
            id="which still imports",
        ),
        pytest.param(0.0, "", id="which is ready"),
    ],
)
def test_a_spare_that_was_never_left_out_is_told_what_it_waits_for(importing_s, why):
    story = Checked("2:2").join(*"ab").measure_all().join("c", importing_s=importing_s)
    assert (story.last("c", Waiting).reason, story.last("c", Waiting).detail) == ("spare", why)
