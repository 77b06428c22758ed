"""Schedules of faults: the same for ever from one seed, varied, and within their bounds."""

from hypothesis import given
from hypothesis import strategies as st

from hack.chaos.fault_schedule import Fault, schedule

seeds = st.integers(0, 10_000)


@given(seeds, st.integers(0, 40))
def test_a_seed_gives_one_schedule(seed, faults):
    assert schedule(seed, faults) == schedule(seed, faults)
    assert len(schedule(seed, faults)) == faults


@given(seeds, st.integers(1, 30))
def test_every_kind_comes_before_one_comes_again(seed, faults):
    kinds = [event.fault for event in schedule(seed, faults)]
    maximum = [kinds.count(kind) for kind in Fault]
    assert max(maximum) - min(maximum) <= 1


@given(seeds)
def test_the_first_fault_waits_until_the_job_trains(seed):
    assert not schedule(seed, 5)[0].during_recovery


@given(seeds, st.lists(st.sampled_from(Fault), min_size=1, unique=True))
def test_only_the_kinds_that_are_named_come(seed, kinds):
    events = schedule(seed, 20, kinds)
    assert {event.fault for event in events} <= set(kinds)
    assert all(0 <= event.aim < 1 and event.after_s >= 0 and 1 <= event.lasts_s <= 4 for event in events)


def test_a_seed_that_is_written_down_stays_what_it_was():
    """docs/chaos-tests.md names seeds: Python keeps the dice of a seed, and we the order in which they are cast."""
    found = [
        (
            event.fault.name,
            round(event.aim, 6),
            event.after_s,
            event.lasts_s,
            event.during_recovery,
        )
        for event in schedule(2, 3)
    ]
    assert found == [
        ("AGENT", 0.598053, 0.307, 3.041, False),
        ("API", 0.739207, 0.839, 2.112, False),
        ("CUT", 0.452407, 1.301, 2.187, False),
    ]
