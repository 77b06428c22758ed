"""A process hangs: all members are asked for stacks, once a hang, and the round is dealt with by policy."""

import pytest

from tests.launcher.rendezvous.story import StepDown, Story, replace
from turnout.launcher.coordinator_messages import Finish, Formed, Hung, LastWorld, ShowStacks, Stacks, Stop
from turnout.launcher.health.hang_detector import HangAction
from turnout.launcher.model import Exit
from turnout.launcher.rendezvous.diagnosis.hang_collection import GATHER_S, MAX_BYTES, MAX_WORLD_BYTES, max_stack_bytes
from turnout.launcher.rendezvous.state import HangState, MergeStacks, StacksMerged

WHY = "no progress for 6.0 s"


class Hangs(Story):
    """A job of which processes hang: each member has two of them. act: what becomes of the round."""

    def __init__(self, nnodes, act=HangAction.ASK, **more):
        super().__init__(nnodes, last_call_s=0, **more)
        self.state = replace(self.state, hanging=HangState(act))

    def hang(self, names, local_rank=0):
        return self.say(names, Hung(self.round, local_rank, WHY))

    def move(self, names, local_rank=0):
        return self.say(names, Hung(self.round, local_rank))

    @property
    def number(self):
        return self.last("a", ShowStacks).number

    def show(self, names, local_ranks=(0, 1), packed=b"stacks", why=""):
        for local_rank in local_ranks:
            self.say(names, Stacks(self.number, local_rank, packed, why))
        return self

    def fold(self, *outliers):
        return self.happens(StacksMerged(self.of(MergeStacks)[-1].number, outliers, f"ranks {outliers} stand apart"))

    def fold_number(self, number):
        """Give the state after an answer to an order that was never given."""
        return self.happens(StacksMerged(number, (2,), "rank 2 stands apart"))

    def asked(self, name):
        return [each for each in self.told.get(name, ()) if isinstance(each, ShowStacks)]

    def goes(self, name):
        return (finish := self.last(name, Finish)) and (finish.exit, finish.reason)


def three(act=HangAction.ASK, **more):
    return Hangs("2:3", act, **more).join(*"abc", processes=2)


def hung(act=HangAction.ASK, **more):
    """Three who hang and have shown their stacks."""
    return three(act, **more).hang("abc").show("abc")


def test_all_of_the_world_are_asked_and_spares_are_not():
    story = three().join("d", processes=2).hang("b")
    assert [len(story.asked(name)) for name in "abcd"] == [1, 1, 1, 0]
    assert story.world == "abc"


def test_the_stacks_of_all_ranks_are_folded_once_all_have_come():
    story = three().hang("b").show("ab").show("c", [0])
    assert story.of(MergeStacks) == []
    (merge,) = story.show("c", [1]).of(MergeStacks)
    assert (merge.world, sorted(merge.stacks), merge.why) == (6, [0, 1, 2, 3, 4, 5], {})


def test_who_does_not_answer_in_time_is_left_out_and_told():
    story = three().hang("b").show("ab").wait(GATHER_S - 1)
    assert story.of(MergeStacks) == []
    (merge,) = story.wait(1).of(MergeStacks)
    assert (sorted(merge.stacks), merge.why) == ([0, 1, 2, 3], {4: "it did not answer", 5: "it did not answer"})


def test_who_cannot_show_them_says_why_and_is_not_waited_for():
    (merge,) = three().hang("b").show("ab").show("c", packed=b"", why="they are too large").of(MergeStacks)
    assert merge.why == {4: "they are too large", 5: "they are too large"}


def test_one_hang_is_asked_about_once_however_many_find_it():
    story = hung().fold(2).hang("abc", 1).wait(GATHER_S)
    assert len(story.asked("a")) == len(story.of(MergeStacks)) == len(story.events("hang_asked")) == 1


@pytest.mark.parametrize(
    ("outliers", "workers"),
    [
        pytest.param((3,), ["b"], id="the worker of the rank that stands apart"),
        pytest.param((0, 5), ["a", "c"], id="several"),
        pytest.param((), [], id="nobody where nobody stands apart"),
    ],
)
def test_where_a_person_is_asked_nothing_ends_and_the_workers_are_named(outliers, workers):
    story = hung().fold(*outliers)
    ((reason, fields),) = story.events("hang_asked")
    assert (reason, fields["workers"], story.world) == ("process_hung", workers, "abc")
    assert fields["detail"].startswith(f"a, rank 0: {WHY}; ranks")


def test_a_hang_is_over_when_all_go_on_and_the_next_one_is_asked_anew():
    story = hung().fold(2).move("ab")
    assert not story.events("hang_over")
    story.move("c")
    assert len(story.events("hang_over")) == 1
    story.hang("c")
    assert len(story.asked("a")) == 2


def test_who_goes_on_before_the_stacks_are_folded_is_not_ended():
    story = hung(HangAction.RESTART).move("abc").fold(2)
    assert story.world == "abc"
    assert len(story.events("hang_over")) == 1


def test_a_restart_is_charged_once():
    story = hung(HangAction.RESTART).fold(2)
    assert isinstance(story.last("c"), Stop)
    story.ready("abc")
    assert (story.world, story.state.budget.total, story.last("a", Formed).reason) == ("abc", 1, "process_hung")
    assert story.hang("a").asked("a")[-1].round == 2, "and a hang of the next round is another one"


@pytest.mark.parametrize("act", [HangAction.RESTART, HangAction.REPLACE], ids=str)
def test_who_is_known_to_hang_is_given_no_time_to_end(act):
    """Its process does not react to SIGTERM, nor do those that wait for it."""
    story = hung(act).fold(2)
    assert [story.last(name, Stop).grace_s for name in "abc"] == [0.0, 0.0, 0.0]


def test_restarts_end_with_their_budget():
    story = hung(HangAction.RESTART, max_restarts=0).fold(2).ready("abc")
    ((reason, fields),) = story.events("job_ended")
    assert reason == "budget_spent"
    assert WHY in fields["detail"]


def test_the_suspect_ranks_worker_is_replaced_and_the_others_train():
    story = hung(HangAction.REPLACE).fold(2).ready("abc")
    assert story.goes("b") == (Exit.FAULTY, "node_faulty")
    assert (story.world, story.state.budget.total) == ("ac", 1)
    assert [fields["member"] for _, fields in story.events("node_left_out")] == ["b"]
    story.lose("b").join("b", incarnation=1, processes=2).wait(5).ready("ac")
    assert story.world == "abc", "who comes in its place trains"


def test_a_coordinator_to_be_replaced_passes_the_lead_on_and_goes():
    story = hung(HangAction.REPLACE).fold(0).ready("abc")
    assert story.goes("a") == (Exit.FAULTY, "node_faulty")
    assert story.of(StepDown)[-1].to.coordinator == "b/0"


@pytest.mark.parametrize("outliers", [(), (0, 2, 4)], ids=["where nobody stands apart", "where everybody does"])
def test_nobody_is_replaced(outliers):
    story = hung(HangAction.REPLACE).fold(*outliers).ready("abc")
    assert (story.world, story.state.budget.total) == ("abc", 1)
    assert story.goes("b") is None


@pytest.mark.parametrize("act", list(HangAction))
def test_a_round_that_ends_meanwhile_merges_what_came_and_charges_nobody(act):
    story = three(act).hang("b").show("a").lose("c")
    (merge,) = story.of(MergeStacks)
    assert sorted(merge.stacks) == [0, 1]
    assert story.ready("ab").fold(2).world == "ab"
    assert story.state.budget.total == 0


def test_a_member_with_a_new_connection_is_asked_and_names_the_hung_again():
    story = three(HangAction.RESTART).hang("b").show("ac")
    story.join("b", base=LastWorld(1, 3, True, True), processes=2)
    assert len(story.asked("b")) == 2
    story.show("b").fold(2)
    assert story.world == "abc", "it has not said that it still hangs"
    story.hang("b")
    assert len(story.asked("a")) == 2


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Hung(0, 0, WHY), id="a hang of another round"),
        pytest.param(Stacks(7, 0, b"stacks"), id="stacks that nobody asked for"),
        pytest.param(Hung(1, 0), id="one goes on that has not hung"),
    ],
)
def test_what_belongs_to_nothing_changes_nothing(message):
    story = three().say("b", message)
    assert not story.of(MergeStacks)
    assert not story.asked("a")
    assert story.world == "abc"


@pytest.mark.parametrize(
    ("local_rank", "packed"),
    [
        pytest.param(2, b"s", id="of a process that it has not"),
        pytest.param(0, bytes(max_stack_bytes(6) + 1), id="too many"),
    ],
)
def test_stacks_are_not_taken(local_rank, packed):
    (merge,) = three().hang("b").show("b", [local_rank], packed).wait(GATHER_S).of(MergeStacks)
    assert not merge.stacks


def test_the_stacks_of_any_world_fit_into_the_coordinators_memory():
    assert max_stack_bytes(1_024) == MAX_BYTES
    assert all(max_stack_bytes(ranks) * ranks <= MAX_WORLD_BYTES for ranks in (1, 1_024, 20_000, 160_000))


def test_the_first_that_hangs_is_told_by_its_rank():
    story = three().hang("b", 1).hang("c")
    ((_, fields),) = story.events("stacks_asked")
    assert (fields["detail"], fields["members"], fields["round"]) == (f"b, rank 3: {WHY}", 3, 1)


def number_of(coordinator):
    """That of the first order."""
    story = Hangs("1")
    story.state = replace(
        story.state, job=replace(story.state.job, member=replace(story.state.job.member, id=coordinator))
    )
    return story.join("a").hang("a").number


def test_orders_are_numbered_in_sequence_and_apart_for_each_coordinator():
    """An answer to a coordinator that is gone may come to the next one."""
    assert number_of("a/0") != number_of("b/0")
    story = hung().fold(2).move("abc").hang("c")
    first, second = (order.number for order in story.asked("a"))
    assert second == first + 1


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(lambda number: Stacks(number - 1, 0, b"old"), id="an answer to an older order"),
        pytest.param(lambda number: Stacks(number + 1, 0, b"new"), id="an answer to an order that was never given"),
    ],
)
def test_an_answer_to_another_order_is_none(message):
    story = three().hang("b").show("ac")
    assert not story.say("b", message(story.number)).of(MergeStacks)
    (merge,) = story.show("b").of(MergeStacks)
    assert {*merge.stacks.values()} == {b"stacks"}


def test_an_answer_of_who_was_not_asked_is_none():
    story = three().join("d", processes=2).hang("b").show("abd")
    assert not story.of(MergeStacks)


def test_an_answer_that_comes_too_late_changes_nothing():
    story = hung()
    before = story.state
    assert story.show("a").state == before


def test_as_many_bytes_of_a_rank_as_may_be_sent_are_taken():
    content = bytes(max_stack_bytes(6))
    (merge,) = three().hang("b").show("abc", packed=content).of(MergeStacks)
    assert merge.stacks == dict.fromkeys(range(6), content)
    assert max_stack_bytes(160_000) == MAX_WORLD_BYTES // 160_000


def test_before_the_first_world_nobody_hangs():
    story = Hangs("2:3").join("a").say("a", Hung(0, 0, WHY)).say("a", Stacks(0, 0, b"stacks")).fold_number(1)
    assert not story.of(MergeStacks)
    assert story.phase == "gathering"


def test_who_hangs_while_the_round_ends_is_not_asked_about():
    story = three().fail("c").hang("a")
    assert story.phase == "stopping"
    assert not story.asked("b")


def test_who_hangs_twice_and_goes_on_with_one_process_still_hangs():
    story = three().hang("b", 0).hang("b", 1).show("abc").fold(2).move("b", 0)
    assert not story.events("hang_over")
    assert story.move("b", 1).events("hang_over")


def test_while_stacks_are_awaited_the_end_of_a_hang_is_not_told():
    story = three(HangAction.RESTART).hang("b").move("b")
    assert not story.events("hang_over")
    story.show("abc").fold(2)
    assert (len(story.events("hang_over")), story.world) == (1, "abc")


def test_what_is_said_of_another_order_is_not_acted_upon():
    story = hung(HangAction.RESTART).fold_number(1)
    assert story.world == "abc"
    story.fold(2)
    assert story.phase == "stopping"
    assert story.fold(2).phase == "stopping", "nor twice"


def test_what_is_said_of_a_round_that_has_ended_is_not_acted_upon():
    story = hung(HangAction.RESTART).lose("c").ready("ab")
    assert (story.round, story.fold(2).world) == (2, "ab")
    assert not story.state.cause.fault


def test_a_reconnected_member_is_asked_again_only_while_stacks_are_awaited():
    join_fields = {"base": LastWorld(1, 3, True, True), "processes": 2}
    assert len(three().join("b", **join_fields).asked("b")) == 0
    assert len(hung().join("b", **join_fields).asked("b")) == 1
    story = three().join("d", processes=2).hang("b").join("d", base=LastWorld(1, 3, False), processes=2)
    assert not story.asked("d")


def test_after_a_new_connection_others_that_hang_still_do():
    story = hung().fold(2).join("b", base=LastWorld(1, 3, True, True), processes=2).move("a")
    assert not story.events("hang_over"), "c has not moved"
    assert story.move("c").events("hang_over")


@pytest.mark.parametrize("act", [HangAction.ASK, HangAction.REPLACE])
def test_what_is_said_may_be_long_and_is_told_as_far_as_anybody_reads(act):
    story = hung(act)
    story.happens(StacksMerged(story.of(MergeStacks)[-1].number, (2,), "s" * 9_999))
    what = "hang_asked" if act is HangAction.ASK else "node_left_out"
    ((_, fields),) = story.events(what)
    assert len(fields["detail"]) == 1_000


def test_of_many_workers_the_names_of_the_first_are_told():
    names = "abcdefghijklmnopqrs"
    story = Hangs(f"2:{len(names)}").join(*names).hang("a").show(names, [0]).fold(*range(18))
    ((_, fields),) = story.events("hang_asked")
    assert fields["workers"] == list(names[:16])
