"""When a process hangs: soon after it stands still, once, and never while it goes on as it used to."""

import math
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.launcher.health.hang_detector import (
    BUCKETS,
    MAX_COUNTED,
    SHORTEST_S,
    WIDTH,
    Hang,
    HangLimits,
    Progress,
    ProgressWatch,
    Resumed,
    bucket_of,
    edge_s,
    halve_counts,
    hang_limit_s,
    observe,
    quantile_s,
)

LIMITS = HangLimits()
LONG_S = edge_s(BUCKETS - 1)


def counts_of(times_s):
    counts = [0] * BUCKETS
    for took_s in times_s:
        counts[bucket_of(took_s)] += 1
    return counts


def steps_of(took_s, count):
    """A process which has done so many steps of this length, at time 0."""
    return Progress(count, 0.0, marked=True, counts=counts_of([took_s] * count))


def changes_until(seen_at, until_s, limits=LIMITS, *, away=()):
    """Give what a watch tells, as (when, what). seen_at: the process at a time; away: spans in which nobody looks."""
    watch, news, now_s = ProgressWatch(), [], 0.0
    while now_s <= until_s:
        if not any(start_s < now_s < end_s for start_s, end_s in away):
            watch, change = observe(watch, seen_at(now_s), limits, now_s)
            if change is not None:
                news.append((now_s, change))
        now_s += limits.look_s
    return news


def is_standing(progress):
    return lambda now_s: progress


@pytest.mark.contract("DL-113")
@pytest.mark.parametrize(
    ("progress", "limits", "is_s"),
    [
        pytest.param(Progress(), LIMITS, 1_800, id="before the first step"),
        pytest.param(steps_of(10.0, 19), LIMITS, 1_800, id="with few steps"),
        pytest.param(steps_of(10.0, 1_000), LIMITS, 25, id="two and a half times a usual step"),
        pytest.param(steps_of(10.0, 250), LIMITS, 50, id="twice that, as a quarter of the steps is known"),
        pytest.param(steps_of(0.01, 9_000), LIMITS, 5, id="not less than the floor"),
        pytest.param(
            Progress(50, marked=False, counts=counts_of([0.1] * 50)), LIMITS, 300, id="steps that are guessed"
        ),
        pytest.param(steps_of(3_000.0, 20), LIMITS, 7_500, id="steps of an hour"),
        pytest.param(steps_of(200.0, 20), LIMITS, 1_800, id="what is not known well is no more than patience"),
        pytest.param(Progress(5_000, phase="saving", counts=counts_of([1] * 5_000)), LIMITS, 1_800, id="in a phase"),
        pytest.param(steps_of(10.0, 1_000), HangLimits(at_most_s=2), 2, id="no more than the user says"),
        pytest.param(steps_of(10.0, 3), HangLimits(at_most_s=2), 2, id="also while few steps are known"),
        pytest.param(Progress(), HangLimits(at_most_s=2), 1_800, id="but a start is no step"),
        pytest.param(Progress(9, phase="saving"), HangLimits(at_most_s=2), 1_800, id="and a phase is none"),
    ],
)
def test_the_limit(progress, limits, is_s):
    assert is_s <= hang_limit_s(progress, limits) <= is_s * WIDTH


def test_a_process_that_stands_still_is_told_once_with_the_reason():
    ((at_s, hang),) = changes_until(is_standing(steps_of(4.0, 1_000)), 100.0)
    assert isinstance(hang, Hang)
    assert 10.0 < at_s <= 10.0 * WIDTH + 0.25
    assert str(hang) == "no progress for 10.2 s in one step, the limit is 10.0 s"


def test_one_that_goes_on_is_told_too_and_may_hang_again():
    before, after = steps_of(2.0, 1_000), Progress(1_001, 60.0, marked=True, counts=counts_of([2.0] * 1_000 + [60.0]))
    news = changes_until(lambda now_s: before if now_s < 60 else after, 70.0)
    assert [type(change) for _, change in news] == [Hang, Resumed, Hang]
    assert news[1][1].after_s == pytest.approx(60.0, abs=0.5)


def test_a_phase_is_no_hang_until_patience_ends():
    running = steps_of(1.0, 1_000)
    saves = Progress(1_000, 0.0, "saving", 1, 3.0, True, running.counts)
    ((at_s, hang),) = changes_until(lambda now_s: running if now_s < 3 else saves, 3_000.0)
    assert 1_803 < at_s < 1_804
    assert str(hang).startswith("no progress for 1800.2 s in 'saving'")


def test_after_a_phase_a_step_has_its_whole_time():
    running, counts = steps_of(4.0, 1_000), counts_of([4.0] * 1_000)
    back = Progress(1_000, 0.0, "", 2, 600.0, True, counts)
    saves = Progress(1_000, 0.0, "saving", 1, 3.0, True, counts)
    ((at_s, _),) = changes_until(lambda now_s: running if now_s < 3 else saves if now_s < 600 else back, 700.0)
    assert 610 < at_s < 611


def test_a_machine_that_stood_still_accuses_nobody():
    """Frozen, moved to another host, or busy beyond measure: the agent did not look either."""
    ((at_s, _),) = changes_until(is_standing(steps_of(4.0, 1_000)), 10_020.0, away=[(2.0, 10_000.0)])
    assert at_s > 10_000 + 10 - 2 - 4 * LIMITS.look_s


lengths = st.floats(SHORTEST_S, LONG_S)


@given(lengths)
def test_a_bucket_is_as_wide_as_is_told(took_s):
    assert edge_s(bucket_of(took_s)) / WIDTH <= took_s * (1 + 1e-9)
    assert took_s <= edge_s(bucket_of(took_s)) * (1 + 1e-9)


@given(st.lists(lengths, min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.999]))
def test_a_quantile_is_too_long_by_no_more_than_a_bucket(times_s, share):
    exact_s = sorted(times_s)[math.ceil(share * len(times_s)) - 1]
    assert exact_s * (1 - 1e-9) <= quantile_s(counts_of(times_s), share) <= exact_s * WIDTH * (1 + 1e-9)


@given(st.lists(st.integers(0, MAX_COUNTED), min_size=BUCKETS, max_size=BUCKETS))
@settings(max_examples=scaled(10))
def test_with_age_no_kind_of_step_is_forgotten_and_the_usual_one_stays(counts):
    old = halve_counts(counts)
    assert [count > 0 for count in old] == [count > 0 for count in counts]
    assert all(count <= 2 * half <= count + 1 for count, half in zip(counts, old, strict=True))


def played(times_s, repeat=30):
    """A process that does these steps again and again and then stands still: the process at a time, and that time."""
    steps = [*times_s * repeat]
    ends_s = [0.0, *accumulate(steps)]
    counts, kept = [0] * BUCKETS, [tuple([0] * BUCKETS)]
    for took_s in steps:
        counts[bucket_of(took_s)] += 1
        kept.append(tuple(counts))
    at = 0

    def seen_at(now_s):
        nonlocal at
        while at + 1 < len(ends_s) and ends_s[at + 1] <= now_s:
            at += 1
        return Progress(at, ends_s[at], marked=True, counts=kept[at])

    return seen_at, ends_s[-1], sorted(steps)[math.ceil(0.999 * len(steps)) - 1]


@pytest.mark.slow
@pytest.mark.contract("DL-109")
@given(st.lists(st.floats(2.0, 4.0), min_size=34, max_size=40))
@settings(max_examples=scaled(15), deadline=None)
def test_a_hang_is_found_within_three_rare_steps_and_none_before_it(times_s):
    seen_at, end_s, rare_s = played(times_s)
    ((at_s, hang),) = changes_until(seen_at, end_s + 20.0)
    assert isinstance(hang, Hang)
    assert 0 < at_s - end_s <= 3 * rare_s


@given(st.lists(st.floats(0.001, 4.9), min_size=1, max_size=40), st.floats(0.001, 0.25))
@settings(max_examples=scaled(15), deadline=None)
def test_steps_below_the_floor_are_never_a_hang(times_s, look_s):
    seen_at, end_s, _ = played(times_s, 2)
    assert not changes_until(seen_at, end_s, HangLimits(look_s=look_s))
