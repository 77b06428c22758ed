"""The check before a round: who measures with whom, who is left out, and that nobody trains unchecked."""

import pytest

from tests.launcher.rendezvous.story import Joined, Lost, Story, member, replace
from turnout.launcher.coordinator_messages import Finish, Formed, Judged, LastWorld, Probe, Probed
from turnout.launcher.health.model import NodeCheckState, ProbePolicy
from turnout.launcher.model import Exit


class Checked(Story):
    """A job whose members are checked. dead: whose network fails; broken: alone; slow: how much slower alone.

    cut: pairs that do not reach one another.
    """

    def __init__(
        self, nnodes, *, leaves_slow=False, together=False, dead="", broken="", slow="", unfit="", cut=(), **more
    ):
        super().__init__(nnodes, **{"last_call_s": 0, **more})
        self.state = replace(self.state, checking=NodeCheckState(leaves_slow=leaves_slow, all_together=together))
        self.dead, self.broken, self.slow, self.unfit, self.cut = dead, broken, slow, unfit, cut
        self.answered, self.groups = set(), []

    def orders(self):
        """Those of the groups that measure now, of everybody who has not answered."""
        number = self.state.checking.number
        newest = {name: self.last(name, Probe) for name in self.ids}
        return {
            name: order
            for name, order in newest.items()
            if order and order.number == number and (name, number) not in self.answered
        }

    def measure(self, silent=""):
        """One round of groups: all who were told to have measured."""
        for name, order in self.orders().items():
            if name not in silent:
                self.answered.add((name, order.number))
                group = {*self.group(name)}
                failed = not group.isdisjoint(self.dead + self.broken) or any({*link} <= group for link in self.cut)
                alone_s = None if name in self.broken else 3.0 if name in self.slow else 1.0
                together_s = None if failed or order.members == 1 else 1.0
                unfit = "a broken switchbox" if name in self.unfit else ""
                self.say(name, Probed(order.number, 7, alone_s, together_s, unfit, "", 4_000))
        return self

    def group(self, name):
        checking = self.state.checking
        return next("".join(id_[0] for id_ in group) for group in checking.groups if self.ids[name] in group)

    def measure_all(self):
        while self.phase == "checking":
            self.groups.append(["".join(id_[0] for id_ in group) for group in self.state.checking.groups])
            self.measure()
        return self

    def left_out(self):
        return {name: self.last(name, Finish) for name in self.ids if self.last(name, Finish)}


def test_nobody_trains_before_the_check_has_ended():
    story = Checked("4").join(*"abcd")
    assert story.phase == "checking"
    assert not story.world
    assert story.measure_all().world == "abcd"
    assert story.groups == [["ab", "cd"]]
    assert [fields["rounds"] for _, fields in story.events("check_ended")] == [1]


def test_a_group_meets_at_its_first_member_with_as_many_processes_each():
    story = Checked("3").join("a", address="10.0.0.1", processes=4).join("b", "c", processes=2)
    orders = story.orders()
    assert {order.address for order in orders.values()} == {"10.0.0.1"}
    assert [(orders[name].rank, orders[name].processes, orders[name].members) for name in "abc"] == [
        (0, 6, 3), (2, 6, 3), (4, 6, 3),
    ]  # fmt: skip


def test_each_answer_names_the_port_of_the_next_meeting():
    story = Checked("4", broken="b").join(*"abcd").measure()
    assert story.phase == "checking", "b's partner is tried with another one"
    assert {order.port for order in story.orders().values()} == {7}


@pytest.mark.contract("DL-31")
@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        pytest.param({"dead": "c"}, "node_faulty", id="who fails with each of the others"),
        pytest.param({"broken": "c"}, "node_faulty", id="who fails alone"),
        pytest.param({"unfit": "c"}, "node_faulty", id="who says itself that it must not train"),
        pytest.param(
            {"slow": "c", "leaves_slow": True}, "node_slow", id="who is slow, where those are left out: DL-31"
        ),
    ],
)
def test_who_is_left_out_and_the_others_train(faults, reason):
    story = Checked("2:4", **faults).join(*"abcd").measure_all()
    left = story.left_out()
    assert {name: (finish.exit, finish.reason) for name, finish in left.items()} == {"c": (Exit.FAULTY, reason)}
    assert left["c"].detail
    assert story.world == "abd"


@pytest.mark.parametrize(
    ("nnodes", "faults", "found"),
    [
        pytest.param("4", {}, {"a": "fine", "b": "fine", "c": "fine", "d": "fine"}, id="who is fine is told so"),
        pytest.param("2:4", {"dead": "c"}, {"a": "fine", "c": "faulty"}, id="who fails with each of the others"),
        pytest.param("2:4", {"broken": "a"}, {"a": "faulty", "b": "fine"}, id="the coordinator is told, too"),
        pytest.param("2:4", {"unfit": "c"}, {"a": "fine", "c": "faulty"}, id="a broken switchbox: DL-97"),
        pytest.param("4", {"slow": "c"}, {"a": "fine", "c": "slow"}, id="who is slow, though it trains"),
        pytest.param("2", {"dead": "b"}, {"a": None, "b": None}, id="where no test can tell nothing is said"),
    ],
)
def test_each_node_is_told_what_was_found_of_it(nnodes, faults, found):
    story = Checked(nnodes, **faults).join(*"abcd"[: int(nnodes[-1])]).measure_all()
    judged_by_name = {name: story.last(name, Judged) for name in found}
    assert {name: each and each.result.value for name, each in judged_by_name.items()} == found
    for each in filter(None, judged_by_name.values()):
        assert (each.round, each.by, each.run, each.members) == (1, "a", "job", int(nnodes[-1]))
        assert (each.cause == "") is (each.result.value == "fine")


def test_slow_nodes_train_where_they_are_not_left_out():
    story = Checked("4", slow="c").join(*"abcd").measure_all()
    assert story.world == "abcd"
    assert [fields["member"] for _, fields in story.events("node_slow")] == ["c"]


@pytest.mark.contract("DL-83")
def test_a_world_that_got_too_small_waits_and_is_checked_with_the_newcomer():
    """DL-83"""
    story = Checked("4", dead="c").join(*"abcd").measure_all()
    assert (story.phase, story.world) == ("gathering", "")
    story.lose("c").join("e")
    assert story.phase == "checking"
    assert {*story.orders()} == {*"abde"}
    assert story.measure_all().world == "abde"


def test_each_start_has_a_check_of_its_own():
    """DL-85"""
    story = Checked("2").join(*"ab").measure_all()
    assert story.world == "ab"
    story.fail("b").ready("ab")
    assert story.phase == "checking"
    assert story.measure_all().world == "ab"
    assert len(story.events("check_started")) == 2


@pytest.mark.parametrize("at_once", [False, True], ids=["", "and its loss is heard in the same moment"])
def test_of_one_with_a_new_connection_orders_and_answers_may_be_lost(at_once):
    """All begin anew: else it would count as one that is stuck."""
    story = Checked("2:4").join(*"abcd").measure(silent="d")
    old = story.last("d", Probe).number
    story.happens(*[Lost(story.ids["d"])][: int(at_once)], Joined(member("d"), story.terms))
    assert story.events("check_given_up")
    assert story.last("d", Probe).number > old
    assert story.measure_all().world == "abcd"


@pytest.mark.parametrize("how", ["lost", "leaves", "comes back"])
def test_one_who_goes_ends_the_check_and_the_others_are_checked_anew(how):
    story = Checked("2:4").join(*"abcd")
    match how:
        case "lost":
            story.lose("d")
        case "leaves":
            story.leave("d")
        case "comes back":
            story.join("d", incarnation=1)
    assert story.events("check_given_up")
    assert story.phase == "checking"
    assert story.measure_all().world == ("abcd" if how == "comes back" else "abc")


def test_answers_to_a_check_that_is_over_count_for_nothing():
    story = Checked("2:4").join(*"abcd")
    old = story.last("a", Probe).number
    story.lose("d")
    story.say("abc", Probed(old, 7, None, None))
    assert story.phase == "checking"
    assert story.measure_all().world == "abc"


def test_who_comes_late_is_checked_before_it_may_grow_the_world():
    story = Checked("2:4").join(*"ab")
    story.join("c")
    assert story.phase == "checking"
    story.measure_all()
    assert story.world == "abc"
    assert [fields["members"] for _, fields in story.events("check_started")] == [2, 3]


def test_a_faulty_coordinator_is_replaced_and_left_out_by_the_next():
    story = Checked("2:4", dead="a").join(*"abcd").measure_all()
    assert story.phase == "over"
    assert [effect.to.coordinator for effect in story.effects if hasattr(effect, "to")] == ["b/0"]
    assert not story.left_out()


def test_where_all_are_at_fault_the_job_ends_and_says_so():
    story = Checked("1:2", broken="ab").join(*"ab").measure_all()
    assert {finish.exit for finish in story.left_out().values()} == {Exit.FAULTY}


def test_who_is_too_late_for_a_check_that_all_failed_goes_on_without_them():
    story = Checked("1:3", broken="ab").join(*"ab").join("c").measure_all()
    assert story.phase == "over"
    assert {name: finish.exit for name, finish in story.left_out().items()} == {"b": Exit.FAULTY}
    assert [effect.to.coordinator for effect in story.effects if hasattr(effect, "to")] == ["c/0"]


def test_who_comes_while_a_job_of_faulty_nodes_ends_is_not_called_faulty():
    story = Checked("1:2", broken="ab").join(*"ab").measure_all().join("c")
    assert story.state.phase.value == "finishing"
    assert {*story.left_out()} == {*"ab"}


def test_two_who_fail_together_train_on_and_it_is_told():
    story = Checked("2", dead="b").join(*"ab").measure_all()
    assert story.world == "ab"
    assert [fields["members"] for _, fields in story.events("check_undecided")] == ["a, b"]


def test_one_who_never_answers_is_as_one_that_is_stuck_alone():
    story = Checked("2:4").join(*"abcd").measure(silent="d")
    assert story.phase == "checking"
    story.wait(ProbePolicy().round_s)
    assert story.measure_all().world == "abc"


def test_nobody_waits_for_those_who_wait_for_a_broken_one():
    story = Checked("2:4", broken="d").join(*"abcd").measure(silent="c")
    assert story.phase == "checking"
    assert {*story.orders()} >= {"c"}, "it is tried again, with another one"
    assert story.measure_all().world == "abc"


def test_a_job_that_checks_nothing_orders_nothing():
    story = Story("2").join(*"ab")
    assert story.world == "ab"
    assert story.last("a", Probe) is None
    assert story.last("a", Formed).base == LastWorld().round


LINKS = {
    "of a pair": (("cd",), "d"),
    "with the coordinator, which stays": (("ab",), "b"),
    "and another of the same node, which is its own fault": (("cd", "bc"), "c"),
}


@pytest.mark.parametrize(("cut", "goes"), LINKS.values(), ids=LINKS)
def test_of_two_good_nodes_that_do_not_reach_one_another_one_goes(cut, goes):
    story = Checked("2:6", cut=cut).join(*"abcdef").measure_all()
    left = story.left_out()
    assert [(name, finish.exit) for name, finish in left.items()] == [(goes, Exit.FAULTY)]
    assert left[goes].reason == ("link_faulty" if len(cut) == 1 else "node_faulty")
    assert story.world == "".join(name for name in "abcdef" if name != goes)


def test_where_all_are_needed_both_ends_of_a_bad_link_train_and_it_is_told():
    story = Checked("4", cut=("cd",)).join(*"abcd").measure_all()
    assert not story.left_out()
    assert story.world == "abcd"
    assert story.events("link_faulty")


def test_how_fast_all_who_passed_are_together_is_told():
    story = Checked("2:4", dead="d", together=True).join(*"abcd").measure_all()
    assert story.groups[-1] == ["abc"]
    assert story.world == "abc"
    ((_, speed),) = story.events("network_speed")
    assert speed["ranks"] == 3
    assert speed["algorithm_bytes_s"] == 4_000
    assert speed["bus_bytes_s"] == round(4_000 * 4 / 3)


def test_nobody_is_judged_by_what_all_can_do_together():
    story = Checked("4", cut=("ad",), together=True).join(*"abcd").measure_all()
    assert story.world == "abcd"
    ((_, speed),) = story.events("network_speed")
    assert "detail" in speed


@pytest.mark.parametrize(
    ("orders", "groups"),
    [
        pytest.param([3, 2, 1, 0], ["dc", "ba"], id="by their index"),
        pytest.param([None, 0, 1, 2], ["ab", "cd"], id="who has none comes first"),
        pytest.param([None] * 4, ["ab", "cd"], id="else by name"),
    ],
)
def test_neighbours_measure_together(orders, groups):
    story = Checked("4")
    for name, order in zip("abcd", orders, strict=True):
        story.join(name, index=order)
    assert story.measure_all().groups == [groups]


def test_orders_are_numbered_in_sequence_and_apart_for_each_coordinator():
    """An answer to a coordinator that is gone may come to the next one."""

    def orders(coordinator):
        story = Checked("2:4", broken="b")
        story.state = replace(
            story.state, job=replace(story.state.job, member=replace(story.state.job.member, id=coordinator))
        )
        story.join(*"abcd").measure_all()
        return sorted({each.number for messages in story.told.values() for each in messages if isinstance(each, Probe)})

    one, other = orders("a/0"), orders("c/0")
    assert one == [one[0], one[0] + 1]
    assert one[0] != other[0]


@pytest.mark.parametrize(("nnodes", "broken", "speeds"), [("2", "", 1), ("1:2", "b", 0)], ids=["two", "one alone"])
def test_how_fast_they_are_together_is_measured_of_two_or_more(nnodes, broken, speeds):
    story = Checked(nnodes, together=True, broken=broken).join(*"ab").measure_all()
    assert len(story.events("network_speed")) == speeds
    assert story.world == ("ab" if speeds else "a")


def test_the_end_of_a_check_waits_for_answers_as_long_as_a_round_may_take():
    story = Checked("2:4").join(*"abcd").measure(silent="d").wait(ProbePolicy().round_s - 0.01)
    assert story.last("d", Probe).number == story.state.checking.number, "its group has no other order yet"
    story.wait(0.01)
    assert story.last("c", Probe).number == story.state.checking.number > story.last("a", Probe).number


def test_who_has_answered_is_not_waited_for():
    story = Checked("2:4").join(*"abcd").wait(100.25).measure()
    assert story.world == "abcd"
    assert [fields["took_s"] for _, fields in story.events("check_ended")] == [100.25]


def test_how_long_a_check_took_is_told_to_the_millisecond():
    story = Checked("2").join(*"ab").wait(2.00049).measure()
    assert [fields["took_s"] for _, fields in story.events("check_ended")] == [2.0]


@pytest.mark.parametrize("checked", [True, False], ids=["after a check", "where nothing is checked"])
def test_an_answer_that_nobody_waits_for_changes_nothing(checked):
    story = Checked("2").join(*"ab").measure_all() if checked else Story("2").join(*"ab")
    before = story.state
    number = story.state.checking.number if checked else 1
    assert story.say("a", Probed(number, 4_444, None, None)).state == before


def speed(answers, processes=1):
    """Give the speed of two that have measured together. answers: time and bytes of each, and what went wrong."""
    story = Checked("2", together=True).join("a", processes=processes).join("b", processes=processes + 1).measure()
    for name, (took_s, bytes_, fault) in zip("ab", answers, strict=True):
        story.say(name, Probed(story.state.checking.number, 7, 1.0, took_s, "", fault, bytes_))
    ((_, fields),) = story.events("network_speed")
    assert story.world == "ab"
    return fields


def test_the_speed_of_all_is_the_slowest_bus_bandwidth_as_in_nccl_tests():
    """The ranks are as many of each as the one with the fewest has."""
    assert speed([(0.25, 8_000, ""), (0.5, 6_000, "")], processes=4) == {
        "members": 2, "ranks": 8, "collective_s": 0.5, "bytes": 8_000, "algorithm_bytes_s": 16_000,
        "bus_bytes_s": 16_000 * 2 * 7 // 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "detail"),
    [
        pytest.param(("", ""), "not all have answered", id="nobody says why"),
        pytest.param(("the ring is broken", "a cable"), "a cable; the ring is broken", id="each says why"),
        pytest.param(("w" * 900, "x" * 900), f"{'w' * 900}; {'x' * 122}", id="no more than anybody reads"),
    ],
)
def test_why_their_speed_is_not_known(faults, detail):
    assert speed([(0.5, 8_000, faults[0]), (None, 8_000, faults[1])]) == {"members": 2, "detail": detail}


@pytest.mark.parametrize(
    ("nnodes", "faults", "world"),
    [
        pytest.param("4:5", {}, "abce", id="as many as are needed are left without it"),
        pytest.param("5:5", {}, "abcde", id="one too few would be left"),
        pytest.param("4:5", {"dead": "b"}, "acde", id="another one goes: then both ends are needed"),
        pytest.param("3:5", {"dead": "b"}, "ace", id="another one goes, and enough are left"),
    ],
)
def test_an_end_of_a_bad_link_goes_only_where_enough_are_left(nnodes, faults, world):
    assert Checked(nnodes, cut=("cd",), **faults).join(*"abcde").measure_all().world == world


def test_that_a_link_is_bad_is_told_to_both_its_ends_where_both_train():
    story = Checked("4", cut=("cd",)).join(*"abcd").measure_all()
    assert {name: story.last(name, Judged).result.value for name in "abcd"} == {
        "a": "fine", "b": "fine", "c": "link", "d": "link",
    }  # fmt: skip


def test_a_member_that_passed_is_checked_with_a_new_one_only_where_needed():
    story = Checked("2:3").join(*"ab").measure_all()
    assert (story.world, len(story.events("check_started"))) == ("ab", 1)
    story.fail("b").lose("b").join("c").ready("a")
    assert {*story.orders()} == {"a", "c"}


def test_the_round_after_the_first_is_the_one_that_a_check_is_told_for():
    story = Checked("2").join(*"ab").measure_all().fail("b").ready("ab").measure_all()
    assert [each.round for each in story.told["a"] if isinstance(each, Judged)] == [1, 2]
