"""The report on the numbers of calls, for people in lines and for tools in JSON."""

from dataclasses import replace

import pytest

from turnout.launcher.health.flight_recorder.analysis import By, Numbers, Waits
from turnout.launcher.health.flight_recorder.report import MOST_OPS, MOST_TOLD, as_json, lines, named, unknown
from turnout.launcher.health.rank_sets import set_of

HERE = Waits("0 (nccl)", 5, "all_reduce", set_of([0, 1]), 30.25)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({}, ["ranks 0-1 wait in call 5 of group 0 (nccl), all_reduce, which all of its ranks have begun"],
                     id="all are there"),
        pytest.param({"unknown": set_of([3])}, ["ranks 0-1 wait in call 5 of group 0 (nccl), all_reduce: it is not "
                     "known whether rank 3 has begun it"], id="of one it is not known"),
        pytest.param({"unknown": set_of([2, 3])}, ["ranks 0-1 wait in call 5 of group 0 (nccl), all_reduce: it is not "
                     "known whether ranks 2-3 have begun it"], id="nor of two"),
        pytest.param({"behind": 4, "unknown": 8}, ["rank 2 has not begun call 5 of group 0 (nccl), all_reduce, in "
                     "which ranks 0-1 wait"], id="one is late: of whom nothing is known makes no difference"),
        pytest.param({"behind": 12, "waiting": 1}, ["ranks 2-3 have not begun call 5 of group 0 (nccl), all_reduce, in "
                     "which rank 0 waits"], id="two are late, and one waits"),
        pytest.param({"behind": 4, "elsewhere": 4}, ["rank 2 has not begun call 5 of group 0 (nccl), all_reduce, in "
                     "which ranks 0-1 wait, but waits too"], id="one waits elsewhere"),
        pytest.param({"behind": 28, "elsewhere": 12}, ["rank 4 has not begun call 5 of group 0 (nccl), all_reduce, in "
                     "which ranks 0-1 wait", "ranks 2-3 have not begun call 5 of group 0 (nccl), all_reduce, in which "
                     "ranks 0-1 wait, but wait too"], id="one is late, and two wait elsewhere"),
        pytest.param({"ops": tuple((f"op{at}", 1 << at) for at in range(MOST_OPS + 1))},
                     ["call 5 of group 0 (nccl) is not the same to all: op0 to rank 0, op1 to rank 1, op2 to rank 2, "
                      "op3 to rank 3"], id="of many names a few are told"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_call_that_ranks_wait_in(more, said):
    assert lines(Numbers((replace(HERE, **more),))) == said


@pytest.mark.parametrize(("calls", "more"), [(MOST_TOLD, []), (MOST_TOLD + 2, ["and ranks wait in 2 more calls"])])
def test_of_many_calls_the_first_are_told_and_how_many_more_there_are(calls, more):
    told = lines(Numbers(tuple(replace(HERE, number=number) for number in range(calls))))
    assert (len(told), told[MOST_TOLD:]) == (MOST_TOLD + len(more), more)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        pytest.param(Numbers(), [], id="nobody"),
        pytest.param(
            Numbers(apart=4, by=By.BEHIND),
            ["by its calls rank 2 stands apart: the others wait in a call that is not begun there"],
            id="one",
        ),
        pytest.param(
            Numbers(apart=6, by=By.CROSSED),
            ["by its calls ranks 1-2 stand apart: each waits in another group for the others, and they for it"],
            id="two",
        ),
    ],
)
def test_who_is_named(numbers, said):
    assert named(numbers) == said


def test_of_whom_there_is_nothing_the_first_reasons_are_told():
    why = tuple((f"reason {rank}", 1 << rank) for rank in range(MOST_TOLD + 1))
    assert unknown(Numbers(why=why)) == [f"rank {rank}: no calls on record: reason {rank}" for rank in range(MOST_TOLD)]


def test_for_tools_everything_is_told():
    waits = Waits("0", 5, "barrier", 3, 30.26, 12, 4, 16, (("all_reduce", 1), ("barrier", 2)))
    assert as_json(Numbers((waits,), 8, By.DIFFERS, 15, (("it has none", 16),))) == {
        "apart": "3", "by": "differs", "known": "0-3", "why_unknown": {"it has none": "4"},
        "waits": [{
            "group": "0", "number": 5, "op": "barrier", "waiting": "0-1", "waited_s": 30.3, "behind": "2-3",
            "waits_elsewhere": "2", "unknown": "4", "ops": {"all_reduce": "0", "barrier": "1"},
        }],
    }  # fmt: skip
    assert as_json(Numbers())["by"] == ""
