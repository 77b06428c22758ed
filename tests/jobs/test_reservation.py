"""The ConfigMap by which nodes are reserved: what is written is read again, and what cannot be read bars nobody."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.lint.code_blocks import run_by
from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.reservation import (
    MAX_BYTES,
    MAX_RESERVATION_S,
    MAX_RESERVATIONS,
    PUBLISHED_REASONS,
    Reservation,
    ReservationReason,
    data_key,
    read_reservation,
    read_reservations,
    reservation_text,
)

NOW_S = 1_800_000_000.0
HOLDER = GangKey("team-a", "train", Dialect.VOLCANO.value)
MOVE = Reservation(HOLDER, ("a0", "a1"), ReservationReason.REPAIR, 7, NOW_S + 600)

gangs = st.builds(GangKey, st.text(max_size=63), st.text(max_size=253), st.sampled_from([d.value for d in Dialect]))


def text_of(**changes):
    """The value of MOVE. changes: of its fields."""
    return msgspec.json.encode({**msgspec.json.decode(reservation_text(MOVE)), **changes}).decode()


@given(
    gangs,
    st.lists(st.text(min_size=1, max_size=20), max_size=5, unique=True),
    st.sampled_from(PUBLISHED_REASONS),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(1, MAX_RESERVATION_S),
)
def test_what_is_written_is_read_again(holder, nodes, reason, priority, seconds):
    reservation = Reservation(holder, tuple(nodes), reason, priority, NOW_S + seconds)
    assert read_reservation(data_key(holder), reservation_text(reservation), NOW_S) == reservation


def test_the_value_of_the_docs_is_read():
    (block,) = run_by("tests/jobs/test_reservation.py::test_the_value_of_the_docs_is_read")
    holder = GangKey("team-a", "train", Dialect.VOLCANO.value)
    shown = read_reservation(data_key(holder), block.text, NOW_S)
    assert (shown.holder, shown.nodes, shown.reason) == (holder, ("gpu-7", "gpu-8"), ReservationReason.REPAIR)


@given(gangs, gangs)
def test_two_gangs_have_two_keys_that_a_configmap_takes(one, other):
    assert (data_key(one) == data_key(other)) is (one == other)
    assert data_key(one).replace("-", "").isalnum()


@pytest.mark.parametrize("text", [
    pytest.param("", id="nothing"),
    pytest.param("{", id="no JSON"),
    pytest.param("[" * 10_000, id="lists within lists without end"),
    pytest.param("x" * (MAX_BYTES + 1), id="too many characters"),
    pytest.param(text_of(nodes="a0"), id="nodes that are no list"),
    pytest.param(text_of(priority=1.5), id="a priority that is no whole number"),
    pytest.param(text_of(reason="Whim"), id="a reason that nobody knows"),
    pytest.param(text_of(reason="StrictOrder"), id="strict order, which each program computes"),
    pytest.param(text_of(extra=1), id="a field of a newer version, which may restrict it"),
    pytest.param(text_of(holder={"namespace": "b", "name": "c", "dialect": "owner"}), id="the key of another gang"),
    pytest.param(text_of(holder={"namespace": "b", "name": "c", "dialect": "slang"}), id="a dialect that nobody knows"),
    pytest.param(text_of(until="tomorrow"), id="no time at which it ends"),
])  # fmt: skip
def test_a_value_that_cannot_be_read_bars_nobody_and_the_others_count(text):
    other = Reservation(GangKey("b", "other", "owner"), ("a2",), ReservationReason.PREEMPTION, 0, NOW_S + 60)
    data = {data_key(HOLDER): text, data_key(other.holder): reservation_text(other)}
    found, faults = read_reservations(data, NOW_S)
    assert list(found.values()) == [other]
    assert list(faults) == [data_key(HOLDER)]
    assert 0 < len(faults[data_key(HOLDER)]) < 500


def test_a_reservation_of_a_day_ends_within_the_hour():
    day = text_of(until="2027-01-16T08:00:00Z")
    assert read_reservation(data_key(HOLDER), day, NOW_S).until_s == NOW_S + MAX_RESERVATION_S


def test_of_too_many_keys_only_the_first_are_read():
    data = {f"gang-{at:05d}": "" for at in range(MAX_RESERVATIONS + 5)}
    found, faults = read_reservations(data, NOW_S)
    assert (len(found), len(faults), max(faults)) == (0, MAX_RESERVATIONS, f"gang-{MAX_RESERVATIONS - 1:05d}")


def test_nodes_that_one_value_cannot_hold_are_not_published():
    nodes = tuple(f"{at:0253d}" for at in range(2_000))
    assert reservation_text(Reservation(HOLDER, nodes, ReservationReason.REPAIR, 0, NOW_S + 600)) is None


def test_a_reservation_says_for_whom_nodes_are_reserved_and_until_when():
    until = "until 2027-01-15T08:10:00Z (Repair)"
    assert MOVE.text_for("team-a") == f"2 hosts are reserved for team-a/train {until}"
    assert MOVE.text_for("team-b") == f"2 hosts are reserved for a gang of another namespace {until}"
    reservation = Reservation(HOLDER, ("a0",), ReservationReason.STRICT_ORDER, place_text="at root/spine0")
    assert (
        reservation.text_for("team-b")
        == "room at root/spine0 is kept for team-a/train, the oldest that waits in this queue"
    )
    assert reservation.until_s == math.inf
