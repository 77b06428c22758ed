"""Ranks that block a collective are found by the numbers of their calls: late ones are named, waiting ones never."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.health.flight_recorder.analysis import By, judge
from turnout.launcher.health.flight_recorder.model import Call, Group, Record
from turnout.launcher.health.flight_recorder.report import lines, named, unknown
from turnout.launcher.health.rank_sets import folded, set_of, unfolded

WAITED_S = 30.0


def calls(done, *waits, op="all_reduce"):
    """So many are done, and it waits in these."""
    ended = tuple(Call(number, op) for number in range(max(1, done - 3), done + 1))
    return ended + tuple(Call(number, op, WAITED_S) for number in waits)


def group(calls, name="0", ranks="0-3", backend="nccl"):
    return Group(name, "", backend, ranks, calls)


def world(*records, size=4):
    """Ranks 0, 1, ...: each a sequence of groups, a reason, or a whole Record."""
    made = {}
    for rank, each in enumerate(records):
        if isinstance(each, str):
            made[rank] = Record(why=each)
        elif each is not None:
            made[rank] = each if isinstance(each, Record) else Record(rank, size, True, tuple(each))
    return made


HERE, LATE, GONE_ON = [group(calls(4, 5))], [group(calls(4))], [group(calls(5))]
OTHER = [group((*calls(4), Call(5, "barrier", WAITED_S)))]
PAIR, PAIRED = group(calls(6, 7), "7", "2-3"), group(calls(6), "7", "2-3")
NONE = "it has none"
FIVE, LATE_FIVE = [group(calls(4, 5), ranks="0-4")], [group(calls(4), ranks="0-4")]
FIVE_OTHERS = [group((*calls(4), Call(5, "barrier", WAITED_S)), ranks="0-4")]
SIX, LATE_SIX = [group(calls(4, 5), ranks="0-5")], [group(calls(4), ranks="0-5")]
ALL_BUT_2 = group(calls(1, 2), "9", "0-1/3")


def trio(name, ranks, op):
    return [group((*calls(4), Call(5, op, WAITED_S)), name, ranks)]


@pytest.mark.parametrize(
    ("ranks", "apart", "by", "says"),
    [
        pytest.param([HERE, HERE, LATE, HERE], "2", By.BEHIND,
                     "rank 2 has not begun call 5 of group 0 (nccl), all_reduce, in which ranks 0-1/3 wait",
                     id="who has not begun what the others wait in"),
        pytest.param([HERE, LATE, LATE, LATE], "1-3", By.BEHIND, "ranks 1-3 have not begun", id="be it most of them"),
        pytest.param([HERE, HERE, [], HERE], "2", By.BEHIND, "rank 2 has not begun", id="who has called nothing yet"),
        pytest.param([HERE, HERE, Record(2, 4), HERE], "", None, "it is not known whether rank 2 has begun it",
                     id="not one whose record does not go back as far"),
        pytest.param([HERE, HERE, NONE, HERE], "", None, "it is not known whether rank 2 has begun it",
                     id="nor one that has no record"),
        pytest.param([HERE, HERE, None, HERE], "", None, "it is not known whether rank 2 has begun it",
                     id="nor one that showed nothing at all"),
        pytest.param([HERE] * 4, "", None, "ranks 0-3 wait in call 5 of group 0 (nccl), all_reduce, which all of its "
                     "ranks have begun", id="nobody where all have begun it"),
        pytest.param([GONE_ON, GONE_ON, LATE, GONE_ON], "", None, "", id="nobody where nobody waits"),
        pytest.param([HERE, HERE, [*LATE, PAIR], [group(calls(6), "7", "2-3")]], "3", By.BEHIND,
                     "rank 3 has not begun call 7 of group 7 (nccl)", id="not who waits for another that is late"),
        pytest.param([HERE, HERE, [*LATE, PAIR], [*HERE, group(calls(6), "7", "2-3")]], "2", By.CROSSED,
                     "in which ranks 0-1/3 wait, but waits too", id="who waits for one that waits for it"),
        pytest.param([HERE, LATE, [*LATE, PAIR], [*HERE, group(calls(6), "7", "2-3")]], "1", By.BEHIND,
                     "ranks 0/3 wait", id="though one that waits nowhere comes first"),
        pytest.param([[*LATE, group(calls(0, 1), "9", "0-1")], [*HERE], [*HERE, group(calls(6), "7", "2-3")],
                      [*LATE, PAIR]], "", None, "but waits too", id="nobody where most do not wait in one call"),
        pytest.param([HERE, HERE, Record(2, 4, True, tuple(LATE), "recv 0<-1"), HERE], "", None, "but waits too",
                     id="not who waits for what is sent"),
        pytest.param([HERE, OTHER, HERE, HERE], "1", By.DIFFERS,
                     "is not the same to all: all_reduce to ranks 0/2-3, barrier to rank 1",
                     id="who calls something else under the same number"),
        pytest.param([HERE, OTHER, OTHER, HERE], "", None, "is not the same to all", id="nobody where half of them do"),
        pytest.param([HERE, [group((Call(5, "broadcast"), Call(6, "all_reduce", WAITED_S)))], HERE, HERE], "1",
                     By.DIFFERS, "broadcast to rank 1", id="though that one was done with it"),
        pytest.param([[group(calls(4, 5, 6, 7))], [group(calls(4, 5))], LATE, [group(calls(4, 5, 6))]], "2",
                     By.BEHIND, "in which ranks 0-1/3 wait", id="not who only did not call ahead as far as others"),
        pytest.param([[group(calls(0, 3, 9))], [group(calls(9))], [group(calls(8))], [group(calls(9))]], "2",
                     By.BEHIND, "rank 2 has not begun call 9", id="whatever was never told to be done"),
        pytest.param([[group((Call(5, "all_reduce", 0.5),))], LATE, LATE, LATE], "", None, "",
                     id="nobody where the call is under way"),
        pytest.param([HERE, HERE, [*LATE, group(calls(9), backend="gloo")], HERE], "2", By.BEHIND,
                     "rank 2 has not begun call 5 of group 0 (nccl)", id="numbers of two backends are not one row"),
        pytest.param([HERE, HERE, Record(0, 1, True, tuple(LATE)), HERE], "", None,
                     "rank 2: no calls on record: its torch.distributed has rank 0 of 1",
                     id="nobody by what is said of another world"),
        pytest.param([[group(calls(4, 5), ranks="0-1")], [group(calls(5), ranks="0-1")],
                      [group(calls(1), ranks="2-3")], [group(calls(1, 2), ranks="2-3")]], "2", By.BEHIND,
                     "rank 2 has not begun call 2", id="groups of one name and other ranks are two"),
        pytest.param([[group(calls(4, 5), ranks="")], [group(calls(4), ranks="")], [], []], "1", By.BEHIND,
                     "rank 1 has not begun", id="of a group of unknown ranks those that have called in it"),
        pytest.param([[group(calls(4, 5), ranks="1-2")], LATE, LATE, LATE], "", None, "",
                     id="nobody by a group that a rank is not of itself"),
        pytest.param([NONE] * 4, "", None, "ranks 0-3: no calls on record: it has none", id="nobody without records"),
        pytest.param([[group(calls(1), "x", "2-3"), *HERE], HERE, LATE, HERE], "2", By.BEHIND, "ranks 0-1/3 wait",
                     id="also by what stands beside a group that a rank is not of"),
        pytest.param([[group((Call(5, "all_reduce", 1.0),), ranks="0-1")], [group(calls(4), ranks="0-1")]], "1",
                     By.BEHIND, "rank 1 has not begun call 5", id="who waits for a second waits"),
        pytest.param([[group(calls(4, 5), "a", "0-1")], [group(calls(4), "a", "0-1")], [group(calls(4, 5), "b", "2-3")],
                      [group(calls(4), "b", "2-3")]], "1/3", By.BEHIND, "rank 3 has not begun call 5 of group b",
                     id="of two groups one of each"),
        pytest.param([trio("a", "0-2", "all_reduce"), trio("a", "0-2", "barrier"), trio("a", "0-2", "all_reduce"),
                      trio("b", "3-5", "all_reduce"), trio("b", "3-5", "all_reduce"), trio("b", "3-5", "barrier")],
                     "1/5", By.DIFFERS, "barrier to rank 1", id="of two groups one who calls something else in each"),
        pytest.param([FIVE, FIVE, FIVE, FIVE_OTHERS, FIVE_OTHERS], "", None, "is not the same to all",
                     id="nobody where three of five are of one mind"),
        pytest.param([SIX, SIX, [*LATE_SIX, PAIR], [*SIX, PAIRED],
                      [*LATE_SIX, group(calls(6, 7), "8", "4-5")], [*SIX, group(calls(6), "8", "4-5")]], "2/4",
                     By.CROSSED, "but wait too", id="two of six who wait for one each that waits for them"),
        pytest.param([SIX, SIX, [*LATE_SIX, PAIR], [*SIX, PAIRED],
                      [*SIX], Record(5, 6, True, tuple(LATE_SIX), "recv 5<-1")], "", None, "but wait too",
                     id="nobody where another one waits for what has no number"),
        pytest.param([Record(0, 6, True, tuple(LATE_SIX), "recv 0<-1"), SIX, [*LATE_SIX, PAIR],
                      [*SIX, PAIRED], SIX, SIX], "", None, "but wait too", id="be it the first one"),
        pytest.param([FIVE, FIVE, [*LATE_FIVE, PAIR], [*FIVE, PAIRED],
                      []], "4", By.BEHIND, "rank 4 has not begun", id="one that waits nowhere before one that does"),
        pytest.param([FIVE, FIVE, [*LATE_FIVE, PAIR], [*FIVE, PAIRED],
                      [*LATE_FIVE, group(calls(1, 2), "9", "4")]], "", None, "but wait too",
                     id="nobody where three of five wait in one call"),
        pytest.param([[*HERE, ALL_BUT_2], [*HERE, ALL_BUT_2], [*LATE, PAIR], [*HERE, ALL_BUT_2, PAIRED]],
                     "2", By.CROSSED, "but waits too", id="who waits elsewhere, though the others wait twice"),
        pytest.param([HERE, HERE, [*LATE, group(calls(6, 7), "7", "2-4")], [*HERE, group(calls(6), "7", "2-4")], NONE],
                     "", None, "but waits too", id="nor who waits for one of whom nothing is known"),
    ],
)  # fmt: skip
def test_who_is_named(ranks, apart, by, says):
    found = judge(world(*ranks, size=max(4, len(ranks))), max(4, len(ranks)))
    assert (folded(found.apart), found.by) == (apart, by), found
    assert says in "; ".join([*lines(found), *unknown(found)])


def test_of_those_that_wait_elsewhere_who_waits_for_a_third_is_not_named():
    """Rank 4 waits for 5, and 5 for 0, which waits for both: what 5 does first is what is wrong."""
    everybody = group(calls(4, 5), ranks="0-5")
    late, pair, wrong = group(calls(4), ranks="0-5"), group(calls(1, 2), "a", "4-5"), group(calls(1, 2), "b", "0/5")
    first = [everybody, group(calls(1), "b", "0/5")]
    ranks = [first, *[[everybody]] * 3, [late, pair], [late, group(calls(1), "a", "4-5"), wrong]]
    found = judge(world(*ranks, size=6), 6)
    assert (folded(found.apart), found.by) == ("5", By.CROSSED)


def test_who_stands_in_torchs_own_code_is_taken_to_wait():
    ranks = world(HERE, HERE, LATE, HERE)
    assert judge(ranks, 4, set_of([2])).apart == 0
    assert judge(ranks, 4, set_of([0, 1, 3])).apart == set_of([2])


def test_what_says_most_is_told_first():
    found = judge(
        world([*HERE, group(calls(1, 2), "a", "0-1")], [*HERE, group(calls(1, 2), "a", "0-1")], LATE, HERE), 4
    )
    assert lines(found)[0].startswith("rank 2 has not begun call 5")
    assert (
        lines(found)[1] == "ranks 0-1 wait in call 2 of group a (nccl), all_reduce, which all of its ranks have begun"
    )
    assert named(found) == ["by its calls rank 2 stands apart: the others wait in a call that is not begun there"]


@st.composite
def trainings(draw):
    """A world, the calls that its program has in their order, and a rank that stops before one of them."""
    size = draw(st.integers(2, 7))
    ranks = st.sets(st.integers(0, size - 1), min_size=2)
    groups = draw(st.lists(ranks, min_size=1, max_size=4))
    program = draw(st.lists(st.sampled_from(range(len(groups))), min_size=1, max_size=24))
    return size, [frozenset(each) for each in groups], program, draw(st.integers(0, size - 1)), draw(st.integers(0, 24))


def stopped(size, groups, program, late, at, ahead=0):
    """Give each rank's record once nobody moves. ahead: how many calls a host is ahead of its device."""
    todo = [[(each, number) for number, each in numbered(program) if rank in groups[each]] for rank in range(size)]
    todo[late] = todo[late][:at]
    begun, done, moved = [0] * size, set(), True
    while moved:
        moved = False
        for rank in range(size):
            open_ = sum((call not in done) for call in todo[rank][: begun[rank]])
            if begun[rank] < len(todo[rank]) and open_ <= ahead:
                begun[rank], moved = begun[rank] + 1, True
        for rank in range(size):
            for call in set(todo[rank][: begun[rank]]) - done:
                if all(call in todo[each][: begun[each]] for each in groups[call[0]]):
                    done.add(call)
                    moved = True
    return [record(rank, size, groups, todo[rank][: begun[rank]], done) for rank in range(size)]


def numbered(program):
    """Each call, and its number in its group."""
    counts = dict.fromkeys(program, 0)
    for each in program:
        counts[each] += 1
        yield counts[each], each


def record(rank, size, groups, called, done):
    held = []
    for each in sorted({each for each, _ in called}):
        ours = [
            Call(number, "all_reduce", None if (each, number) in done else WAITED_S)
            for each_, number in called
            if each_ == each
        ]
        held.append(Group(str(each), "", "nccl", folded(set_of(groups[each])), tuple(ours)))
    return Record(rank, size, True, tuple(held))


def waits(record):
    return any(call.open_s for each in record.groups for call in each.calls)


@given(trainings())
def test_one_that_does_not_come_is_named_if_awaited_and_nobody_else_is(training):
    size, groups, program, late, at = training
    records = stopped(size, groups, program, late, at)
    found = judge(dict(enumerate(records)), size)
    assert found.apart == (set_of([late]) if any(map(waits, records)) else 0)


@given(trainings(), st.integers(1, 5), st.data())
def test_no_innocent_is_named_be_hosts_ahead_and_records_lost_or_short(training, ahead, data):
    size, groups, program, late, at = training
    records = dict(enumerate(stopped(size, groups, program, late, at, ahead)))
    lost = data.draw(st.sets(st.integers(0, size - 1)))
    short = data.draw(st.sets(st.integers(0, size - 1)))
    for rank in lost:
        del records[rank]
    for rank in short & records.keys():
        each = records[rank]
        records[rank] = Record(each.rank, each.world, False, each.groups[1:])
    assert judge(records, size).apart & ~set_of([late]) == 0


@given(st.sets(st.integers(0, 90)))
def test_a_set_is_read_as_it_is_written(ranks):
    assert unfolded(folded(set_of(ranks)), 91) == set_of(ranks)


@pytest.mark.parametrize("words", ["0-4", "4", "3-1", "-1", "1-", "a", "0,1", "²", "0-99999999999999", "0-3/x", "//"])
def test_a_set_that_is_none_has_nobody(words):
    assert unfolded(words, 4) == 0


@given(st.permutations(range(4)), st.data())
def test_the_order_of_ranks_makes_no_difference(order, data):
    pool = [HERE, LATE, GONE_ON, OTHER, [*LATE, PAIR], NONE]
    ranks = world(*(data.draw(st.sampled_from(pool)) for _ in range(4)))
    assert judge({rank: ranks[rank] for rank in order}, 4) == judge(ranks, 4)
