"""The second part of the demo draws, sums and tells what it saw, and checks that it is true."""

import json
import re
from dataclasses import replace

import pytest

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import (
    GpuSeat,
    LoggedDecision,
    MomentKind,
    Story,
    StoryMoment,
    missing_parts,
    sentence,
    sum_up,
    wait_of,
    wait_text,
)
from turnout.cli.demo.lending.screen import Bar, bars, chart, gpu_signs, line, runs
from turnout.cli.demo.lending.testbed import PLAYERS, decision

NODES = ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]


def at(at_s, word, letter="", decision=None, **holders):
    """A moment. held: GPUs by job, which sit from the first node on."""
    workers = [(job, index) for job, count in holders.items() for index in range(count)]
    seats = (GpuSeat(job, index, NODES[min(number // 4, 3)], True) for number, (job, index) in enumerate(workers))
    return StoryMoment(at_s, word, letter, tuple(seats), decision)


def says(at_s, letter, was, workers, reason, receiver="", detail="", **holders):
    decision = LoggedDecision(letter, was, workers, reason, detail, receiver, is_written=was != workers)
    return at(at_s, MomentKind.DECIDES, letter, decision, **holders)


AS_TOLD = (
    at(0.0, MomentKind.ARRIVES, "A"),
    says(0.5, "A", 2, 12, Reason.IDLE_ROOM, A=2),
    at(1.0, MomentKind.RUNS, "A", A=12),
    at(2.0, MomentKind.ARRIVES, "B", A=12),
    says(2.1, "A", 12, 10, Reason.MAKES_ROOM, "B", A=12),
    at(2.4, MomentKind.MOVES, A=10),
    at(2.6, MomentKind.RUNS, "B", A=10, B=6),
    at(3.0, MomentKind.ARRIVES, "C", A=10, B=6),
    says(3.1, "C", 12, 12, Reason.NEEDS_MORE, A=10, B=6),
    at(4.1, MomentKind.COOLDOWN_OVER, "C", A=10, B=6),
    at(5.0, MomentKind.LEAVES, "B", A=10, B=6),
    at(5.3, MomentKind.MOVES, A=10),
    says(5.4, "A", 10, 4, Reason.MAKES_ROOM, "C", A=10),
    at(5.7, MomentKind.MOVES, A=4),
    at(6.0, MomentKind.RUNS, "C", A=4, C=12),
    at(7.0, MomentKind.LEAVES, "C", A=4, C=12),
    at(7.3, MomentKind.MOVES, A=4),
    says(10.5, "A", 4, 12, Reason.IDLE_ROOM, A=4),
    at(11.0, MomentKind.RUNS, "A", A=12),
    at(12.0, MomentKind.ARRIVES, "D", A=12),
    says(12.1, "D", 1, 1, Reason.REFUSED, detail="it would restart", A=12),
    at(12.2, MomentKind.RUNS, "D", A=12, D=1),
    at(13.0, MomentKind.COOLDOWN_OVER, "D", A=12, D=1),
)


def story(moments=AS_TOLD):
    return Story(PLAYERS, 16, 5.0, tuple(moments))


def but(at_s, **changes):
    """The story in which one decision was another."""
    moved = changes.pop("moved", at_s)
    moments = [
        replace(m, at_s=moved, decision=replace(m.decision, **changes)) if m.at_s == at_s else m for m in AS_TOLD
    ]
    return story(sorted(moments, key=lambda moment: moment.at_s))


def also(*more):
    """The story in which something else happened besides."""
    return story(sorted((*AS_TOLD, *more), key=lambda moment: moment.at_s))


def without(at_s):
    return story(moment for moment in AS_TOLD if moment.at_s != at_s)


def faults(moments):
    return missing_parts(moments, lends="A", served="B", too_large="C", refused="D")


def test_a_story_as_it_is_told_lacks_nothing():
    assert faults(story()) == ()


@pytest.mark.parametrize(
    ("moments", "says_so"),
    [
        pytest.param(but(0.5, workers=11), "A did not grow to 12 at first", id="idle GPUs stayed idle"),
        pytest.param(but(0.5, reason=Reason.ROOM_TAKEN), "A did not grow to 12 at first", id="for another reason"),
        pytest.param(but(2.1, workers=9), "3 workers left for B, which was short of 2", id="more than enough"),
        pytest.param(but(2.1, receiver=""), "nobody made room for B", id="not for the one that waited"),
        pytest.param(without(2.6), "nobody made room for B, or it does not run", id="it never ran"),
        pytest.param(but(3.1, reason=Reason.OVER_QUOTA), "C was not told NeedsMore", id="another word"),
        pytest.param(
            also(says(3.5, "A", 10, 9, Reason.MAKES_ROOM, A=10, B=6)), "somebody was resized while C", id="in vain"
        ),
        pytest.param(
            story(replace(m, seats=m.seats[1:]) if m.at_s == 4.1 else m for m in AS_TOLD),
            "somebody lost or got GPUs while C waited in vain",
            id="a GPU lost in vain",
        ),
        pytest.param(but(5.4, workers=3), "7 workers left for C, which was short of 6", id="later, too"),
        pytest.param(but(10.5, moved=8.0), "A grew 2.6 s after its last change, within its cooldown of 5 s", id="soon"),
        pytest.param(but(10.5, workers=6), "A did not grow to 12 once it could again", id="not whole again"),
        pytest.param(but(12.1, detail=""), "D was not told AdapterRefused with a sentence", id="no sentence"),
        pytest.param(
            also(says(12.5, "D", 1, 4, Reason.IDLE_ROOM, A=12, D=1)),
            "D was resized, although",
            id="resized all the same",
        ),
        pytest.param(
            story(replace(m, seats=at(0, m.kind, A=15, D=1).seats) if m.at_s == 13.0 else m for m in AS_TOLD),
            "no GPU was idle beside D",
            id="nothing to refuse",
        ),
        pytest.param(also(at(1.5, MomentKind.MOVES, A=13)), "A had more than 12 workers", id="above its most"),
        pytest.param(also(at(1.5, MomentKind.MOVES, A=1)), "A had 1 workers, fewer than 2", id="below its least"),
    ],
)
def test_what_did_not_happen_is_named(moments, says_so):
    assert any(says_so in fault for fault in faults(moments)), faults(moments)


def test_gpu_seconds_are_what_was_held_for_how_long():
    moments = story(
        [
            at(0.0, MomentKind.ARRIVES, "A"),
            at(1.0, MomentKind.MOVES, A=12),
            at(3.0, MomentKind.MOVES, A=2, B=6),
            at(4.0, MomentKind.MOVES),
        ]
    )
    sums = sum_up(moments)
    assert (sums.own_gpu_s, sums.lent_gpu_s, sums.idle_gpu_s) == (2 * 2 + 8 * 1, 10 * 2, 16 * 4 - 32)
    assert sums.all_gpu_s == 64


def test_sums_count_changes_and_the_longest_wait():
    sums = sum_up(story())
    assert (sums.growths, sums.shrinks, sums.given) == (2, 2, 8)
    assert [wait.letter for wait in sums.waiting_times] == ["B", "C"]
    assert sums.longest.letter == "C"
    text = sentence(story(), sums)
    assert "B ran 0.60 s after its turn had come, C ran 1.00 s after" in text
    assert f"A used {sums.lent_gpu_s:.0f} GPU-seconds" in text


@pytest.mark.parametrize(
    ("letter", "parts"),
    [
        (
            "B",
            "0.60 s after it arrived: 0.10 s until A was told, 0.30 s until 2 of its workers had gone, 0.20 s to start",
        ),
        (
            "C",
            "1.00 s after B left: 0.30 s until B's pods had gone, 0.10 s until A was told, "
            "0.30 s until 6 of its workers had gone, 0.30 s to start",
        ),
    ],
)
def test_a_wait_is_told_in_its_parts(letter, parts):
    assert wait_text(wait_of(story(), letter)) == parts


def test_nobody_waited_where_nobody_gave():
    assert wait_of(story(), "D") is None
    quiet = story(AS_TOLD[:3])
    assert (
        sentence(quiet, sum_up(quiet)) == "A used 0 GPU-seconds that nobody else needed, and nobody needed them back."
    )
    assert sentence(story(AS_TOLD[:1]), sum_up(story(AS_TOLD[:1]))) == "Nothing was lent."


def test_a_leaf_shows_who_sits_where():
    seats = (*(GpuSeat("A", index, "gpu-1", True) for index in range(4)), GpuSeat("A", 4, "gpu-2", True))
    assert gpu_signs(seats, PLAYERS, ["gpu-1", "gpu-2"], 4) == "AAaaa···"
    assert bars(seats, PLAYERS)[:2] == [Bar("A", 2, 3), Bar("B", 0, 0)]
    assert runs("AAaa··") == ["AA", "aa", "··"]


def test_the_chart_shows_what_was_held_when():
    moments = story(
        [
            at(0.0, MomentKind.ARRIVES, "A"),
            at(1.0, MomentKind.ARRIVES, "B", A=4),
            at(2.0, MomentKind.LEAVES, "B", A=2, B=1),
            at(4, MomentKind.MOVES),
        ]
    )
    drawn = chart(moments, 4)
    assert drawn.rows[-4:] == ("·a··", "·aBB", "·AAA", "·AAA")
    assert set(drawn.rows[:-4]) == {"····"}
    assert (drawn.marks, drawn.column_s) == ("A+ B+ B-", 1.0)


@pytest.mark.parametrize(
    ("at_s", "text"),
    [
        (0.0, "A arrives: 2 to 12 workers"),
        (0.5, "A grows from 2 to 12"),
        (1.0, "A runs with 12 workers, 1.00 s after it arrived"),
        (2.4, ""),
        (3.0, "C arrives: 12 workers, no fewer"),
        (3.1, "C waits"),
        (4.1, "1.0 s later nothing has changed: A has 10, B has 6, no GPUs idle"),
        (5.0, "B is done and leaves"),
        (
            11.0,
            "A runs with 12 workers, 4.00 s after C left; its size changed 5.1 s after the last time, "
            "and 5 s is its cooldown",
        ),
        (12.0, "D arrives: 1 to 4 workers; its owner wants it restarted whenever a pod is evicted"),
        (12.1, "D stays at 1: it would restart"),
        (13.0, "0.9 s later this has changed: A has 12, D has 1, 3 GPUs idle"),
    ],
)
def test_each_moment_is_told_as_what_it_was(at_s, text):
    until = [moment for moment in AS_TOLD if moment.at_s <= at_s]
    assert line(story(until), until[-1]) == text


@pytest.mark.parametrize(
    ("text", "logged_decision"),
    [
        pytest.param({"event": "leading"}, None, id="not a decision"),
        pytest.param({"event": "not_resized", "job": "VolcanoJob/team/job-a"}, None, id="not carried out"),
        pytest.param(
            {"event": "decided", "job": "VolcanoJob/x/y", "workers_before": 1, "workers": 1, "reason": "Rigid"},
            None,
            id="another job",
        ),
        pytest.param(
            {
                "event": "decided",
                "job": "VolcanoJob/team/job-c",
                "workers_before": 12,
                "workers": 12,
                "reason": "NeedsMore",
            },
            LoggedDecision("C", 12, 12, Reason.NEEDS_MORE),
            id="left alone",
        ),
        pytest.param(
            {
                "event": "resized",
                "job": "VolcanoJob/team/job-a",
                "workers_before": 12,
                "workers": 10,
                "reason": "MakesRoom",
            }
            | {"detail": "2 workers leave", "for_job": "VolcanoJob/team/job-b"},
            LoggedDecision("A", 12, 10, Reason.MAKES_ROOM, "2 workers leave", "B", is_written=True),
            id="resized",
        ),
    ],
)
def test_the_autoscalers_log_is_heard(text, logged_decision):
    assert decision(json.dumps(text), PLAYERS) == logged_decision


def test_what_is_no_json_is_not_heard():
    assert decision("Traceback (most recent call last):", PLAYERS) is None
    assert decision("[]", PLAYERS) is None
    assert not re.search(r"\d", sentence(story(AS_TOLD[:1]), sum_up(story(AS_TOLD[:1]))))
