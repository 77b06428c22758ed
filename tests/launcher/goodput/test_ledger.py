"""The kinds of a job's time: every nanosecond is counted once, and what was preserved stays preserved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.goodput import ledger as ledgers
from turnout.launcher.goodput.job_time import (
    KINDS,
    MAX_TOTALS,
    NS,
    BadTotals,
    JobTime,
    RankZero,
    TimeKind,
    read_totals,
    write_totals,
)

S = NS


class Story:
    """A job's ledger, told in seconds."""

    def __init__(self, record=None, begun_s=1_000.0):
        self.now, self.ledger = 0, ledgers.new_ledger("w0/1", round(begun_s * S), 0, record)

    def pauses(self, seconds, kind=None, gpus=0):
        self.now += round(seconds * S)
        self.ledger = ledgers.count_pause(self.ledger, self.now, kind or self.ledger.pause, gpus)
        return self

    def forms(self, gpus=8):
        self.ledger = ledgers.form(self.ledger, gpus)
        return self

    def trains(self, seconds, step=None, since_s=0.0, hung=False, first=None, first_s=0.0, **phases):
        self.now += round(seconds * S)
        spent = RankZero(1, -1, **{f"{name}_ns": round(amount * S) for name, amount in phases.items()})
        self.ledger = ledgers.count_training(self.ledger, self.now, spent, hung=hung)
        if step is not None:
            self.ledger = ledgers.begin_steps(self.ledger, step if first is None else first, round(first_s * S))
            self.ledger = ledgers.advance(self.ledger, step, round(since_s * S))
        return self

    def saves(self, step):
        self.ledger = ledgers.preserve(self.ledger, step)
        return self

    def stops(self, tail=TimeKind.WASTED, pause=TimeKind.RECOVERY):
        self.ledger = replace(ledgers.stop(self.ledger, tail), pause=pause)
        return self

    def finishes(self, success=True):
        self.ledger = ledgers.finish(self.ledger, success=success)
        return self

    @property
    def record(self):
        return ledgers.record_of(self.ledger)

    @property
    def seconds(self):
        return {kind: amount for kind, amount in self.record.seconds().items() if amount}


def started():
    """A job of eight GPUs, ten seconds old, whose first step is done."""
    return Story().pauses(3).forms().trains(7, step=0)


@pytest.mark.parametrize(("story", "seconds", "undecided_s"), [
    pytest.param(Story().pauses(3), {"rendezvous": 3}, 0, id="before the first world"),
    pytest.param(Story().pauses(3).forms().trains(5), {"rendezvous": 3}, 5, id="a start is undecided"),
    pytest.param(started(), {"rendezvous": 3, "startup": 7}, 0, id="the first step ends the start"),
    pytest.param(
        Story().forms().trains(9, 0, restore=4), {"startup": 5, "restore": 4}, 0, id="a restore is no start"
    ),
    pytest.param(
        Story().forms().trains(9, 0, other=4), {"startup": 9}, 0, id="compiling before the first step is a start"
    ),
    pytest.param(
        Story().forms().trains(9, 10, since_s=1, first=4, first_s=3).saves(7), {"startup": 6, "productive": 1}, 2,
        id="the first step was done before it was reported",
    ),
    pytest.param(started().trains(10, 10), {"rendezvous": 3, "startup": 7}, 10, id="steps are undecided"),
    pytest.param(
        started().trains(10, 10).saves(10), {"rendezvous": 3, "startup": 7, "productive": 10}, 0, id="a save decides"
    ),
    pytest.param(
        started().trains(10, 10).saves(4), {"rendezvous": 3, "startup": 7, "productive": 4}, 6,
        id="steps after the saved one stay undecided",
    ),
    pytest.param(
        started().trains(10, 10, since_s=2).saves(10), {"rendezvous": 3, "startup": 7, "productive": 8}, 2,
        id="the step in progress stays undecided",
    ),
    pytest.param(
        started().trains(10, 10, save=2, data=1).saves(10),
        {"rendezvous": 3, "startup": 7, "productive": 7, "save": 2, "data_stall": 1}, 0, id="phases are no steps",
    ),
    pytest.param(
        started().trains(10, 10, save=12).trains(10, 20, save=12).saves(20),
        {"rendezvous": 3, "startup": 7, "productive": 8, "save": 12}, 0, id="a phase of late reports is counted once",
    ),
    pytest.param(
        started().trains(10, 10).saves(5).trains(20, hung=True),
        {"rendezvous": 3, "startup": 7, "productive": 5, "hang": 20}, 5, id="a hang",
    ),
    pytest.param(
        started().trains(10, 10).trains(4).trains(6, hung=True),
        {"rendezvous": 3, "startup": 7, "hang": 10}, 10, id="a hang began with the newest step",
    ),
    pytest.param(
        started().trains(10, 10).saves(4).trains(1).stops().pauses(5).forms(),
        {"rendezvous": 3, "startup": 7, "productive": 4, "wasted": 7, "recovery": 5}, 0, id="a fault wastes",
    ),
    pytest.param(
        started().trains(10, 10).trains(1).saves(10).stops(TimeKind.ELASTIC_SHRINK, TimeKind.ELASTIC_SHRINK).pauses(5)
        .forms(4).trains(6, 11),
        {"rendezvous": 3, "startup": 7, "productive": 10, "elastic_shrink": 6, "reinit": 6}, 0, id="a shrink",
    ),
    pytest.param(
        started().trains(10, 10).saves(10).stops().forms().trains(6, 5).trains(10, 15).saves(15),
        {"rendezvous": 3, "startup": 7, "productive": 15, "wasted": 5, "reinit": 6}, 0,
        id="steps that were preserved before are wasted",
    ),
    pytest.param(
        started().trains(10, 10).saves(12).trains(10, 20),
        {"rendezvous": 3, "startup": 7, "productive": 10}, 10, id="a save is reported before its step",
    ),
    pytest.param(
        started().trains(10, 10).stops(TimeKind.OTHER).finishes(),
        {"rendezvous": 3, "startup": 7, "productive": 10}, 0, id="success preserves everything",
    ),
    pytest.param(
        started().trains(10, 10).stops().finishes(success=False),
        {"rendezvous": 3, "startup": 7, "wasted": 10}, 0, id="failure wastes what was not saved",
    ),
    pytest.param(
        Story().forms().trains(50).stops().finishes(), {"other": 50}, 0, id="a job without steps has no goodput"
    ),
    pytest.param(
        Story().forms().trains(3_601), {"other": 3_601}, 0, id="a start of more than an hour without a step is none"
    ),
])  # fmt: skip
def test_kinds(story, seconds, undecided_s):
    assert story.seconds == pytest.approx(seconds)
    assert story.record.undecided_ns == pytest.approx(undecided_s * S)
    assert story.record.wall_ns == story.now


def test_gpu_seconds_follow_the_world():
    story = Story().pauses(2, gpus=3).forms(8).trains(5, 0).trains(10, 10).saves(10)
    story.stops(TimeKind.ELASTIC_SHRINK).pauses(1).forms(4).trains(2, 11)
    gpu_s = {kind: amount for kind, amount in story.record.gpu_seconds().items() if amount}
    assert gpu_s == {"rendezvous": 6, "startup": 40, "productive": 80, "recovery": 8, "reinit": 8}


def test_a_successor_keeps_the_totals():
    """The time without a coordinator is recovery, and the undecided steps wait for the next world."""
    old = started().trains(10, 10).saves(5)
    story = Story(replace(old.record, issuer="w1/1", pause=TimeKind.RECOVERY), begun_s=1_000 + 20 + 4)
    assert story.seconds == {"rendezvous": 3, "startup": 7, "productive": 5, "recovery": 4}
    story.pauses(1)
    assert story.record.undecided_ns == 5 * S
    assert story.saves(7).record.undecided_ns == 5 * S  # another member may bring newer totals of the same steps
    saved = story.saves(10).forms().seconds
    assert saved == {"rendezvous": 3, "startup": 7, "productive": 10, "recovery": 5}
    assert story.record.wall_ns == story.record.until_ns - story.record.origin_ns == 25 * S


@pytest.mark.parametrize(("record", "adopts"), [
    pytest.param(JobTime("w1/1", 0, 500 * S), True, id="an earlier coordinator's"),
    pytest.param(JobTime("w0/1", 0, 1_005 * S), False, id="its own"),
    pytest.param(JobTime("w0/1", 0, 500 * S), True, id="of an earlier time in which this member led"),
    pytest.param(JobTime("w2/1", 0, 300 * S), False, id="older than the known one"),
])  # fmt: skip
def test_records_that_members_bring(record, adopts):
    ledger = ledgers.new_ledger("w0/1", 1_000 * S, 0, JobTime("w3/1", 0, 400 * S))
    assert (ledgers.inherit(ledger, record).inherited is record) == adopts


def test_a_record_that_comes_after_the_first_world_is_added():
    old = started().trains(10, 10).saves(5)
    story = Story(begun_s=1_025).forms(2).trains(5, 11)
    story.ledger = ledgers.inherit(story.ledger, replace(old.record, issuer="w1/1", pause=TimeKind.RECOVERY))
    assert story.seconds == {"rendezvous": 3, "startup": 12, "productive": 5, "wasted": 5, "recovery": 5}


def test_a_second_record_with_more_of_the_same_steps_counts_none_twice():
    old = started().trains(10, 10)
    early = old.record
    late = old.trains(2, 12).record
    story = Story(replace(early, issuer="w1/1"), begun_s=1_000 + 22 + 4).saves(8).pauses(1)
    story.ledger = ledgers.inherit(story.ledger, replace(late, issuer="w1/1", pause=TimeKind.RECOVERY))
    assert story.forms().seconds == {"rendezvous": 3, "startup": 7, "productive": 8, "wasted": 4, "recovery": 5}
    assert story.record.wall_ns == 27 * S


def test_a_member_that_leads_a_second_time_keeps_its_own_totals():
    story = Story(started().record, begun_s=1_010 + 4)
    assert story.seconds == {"rendezvous": 3, "startup": 7, "recovery": 4}


OLD, NEW = JobTime("w1/1", 0, 500 * S), JobTime("w2/1", 0, 600 * S, pause=TimeKind.ELASTIC_SHRINK)


@pytest.mark.parametrize(("own", "stored", "chosen"), [
    pytest.param(None, None, None, id="a new job"),
    pytest.param(OLD, None, OLD, id="only the agent knows totals"),
    pytest.param(NEW, OLD, NEW, id="the agent's are newer"),
    pytest.param(OLD, NEW, NEW, id="the stored ones are newer"),
    pytest.param(None, NEW, replace(NEW, pause=TimeKind.RECOVERY), id="no agent has survived: the pause is recovery"),
])  # fmt: skip
def test_the_totals_with_which_a_coordinator_begins(own, stored, chosen):
    assert ledgers.later_totals(own, stored) == chosen


LONGEST = JobTime(
    "w" * 253, 1 << 60, (1 << 60) + 26 * (1 << 55), (1 << 55,) * len(KINDS), (1 << 62,) * len(KINDS), 1 << 55,
    1 << 62, 1 << 60, 1 << 60, TimeKind.ELASTIC_SHRINK, True,
)  # fmt: skip


@pytest.mark.parametrize("record", [JobTime(), LONGEST, started().trains(10, 10).saves(4).record])
def test_totals_are_read_as_they_were_written(record):
    text = write_totals(record)
    assert len(text) <= MAX_TOTALS
    assert read_totals(text, record.until_ns) == record


def text(**changes):
    """Totals of ten measured seconds, with these fields changed, as text."""
    return write_totals(replace(JobTime("w0/1", 1_000 * S, 1_010 * S), **changes))


NOW_S = 2_000
DAY = 86_400


@pytest.mark.parametrize("stored", [
    pytest.param("{", id="torn text"),
    pytest.param("[]", id="another type"),
    pytest.param("\ud800", id="half a surrogate pair"),
    pytest.param("[" * 2_000, id="deep nesting"),
    pytest.param(text() + " " * MAX_TOTALS, id="too long"),
    pytest.param(text().replace('"recovery"', '"holiday"'), id="a kind that nobody knows"),
    pytest.param(text().replace("[0,", "[-5,"), id="a negative time"),
    pytest.param(text(until_ns=900 * S), id="an end before the begin"),
    pytest.param(text(until_ns=(NOW_S + DAY + 1) * S), id="an end in the future"),
    pytest.param(text(undecided_ns=(DAY + 11) * S), id="more time than was measured"),
    pytest.param(text(time_ns=(1,) * 14, gpu_us=(1,) * 14), id="more kinds than there are"),
    pytest.param(text(gpu_us=(1, 2)), id="kinds without GPU time"),
])  # fmt: skip
def test_stored_totals_that_cannot_be_true_are_refused(stored):
    with pytest.raises(BadTotals):
        read_totals(stored, NOW_S * S)


SECONDS = st.floats(0, 1e4)
EVENTS = st.one_of(
    st.tuples(st.just("pauses"), SECONDS),
    st.tuples(st.just("forms"), st.integers(1, 64)),
    st.tuples(
        st.just("trains"),
        SECONDS,
        st.none() | st.integers(0, 300),
        SECONDS,
        st.booleans(),
        st.none() | st.integers(0, 300),
        SECONDS,
    ),
    st.tuples(st.just("phases"), SECONDS, SECONDS, SECONDS),
    st.tuples(st.just("saves"), st.integers(-1, 300)),
    st.tuples(st.just("stops"), st.sampled_from(KINDS)),
    st.tuples(st.just("succeeds"), SECONDS),
    st.tuples(st.just("finishes"), st.booleans()),
)


@given(st.lists(EVENTS, max_size=40))
def test_all_kinds_are_the_wall_time_and_none_decreases(events):
    story, before = Story(), [0] * len(KINDS)
    number = 1
    for name, *facts in events:
        match name:
            case "phases":
                spent = dict(zip(("restore", "save", "other"), facts, strict=True))
                story.trains(facts[0], **spent)
            case "succeeds":  # another coordinator goes on
                number += 1
                record = story.record
                begun_ns = record.until_ns + round(facts[0] * S)
                story.ledger = ledgers.new_ledger(f"w{number}/1", begun_ns, 0, record)
                story.now = 0
            case _:
                getattr(story, name)(*facts)
        record = story.record
        assert record.wall_ns == record.until_ns - record.origin_ns
        assert all(one >= other for one, other in zip(record.time_ns, before, strict=True))
        before = record.time_ns
