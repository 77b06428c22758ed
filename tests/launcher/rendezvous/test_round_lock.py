"""Claims of a round: who may make one, what it writes, and that the record is read again whole or not at all."""

import hashlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.rendezvous.locks.world import held, record
from turnout.launcher.model import RestartBudget, RoundRecord
from turnout.launcher.rendezvous.arbiter import (
    MAX_BYTES,
    MAX_ROUND,
    BadRecord,
    ClaimReason,
    HolderObservation,
    StaleRound,
    may_claim,
    next_round,
    record_to_write,
    same_grant,
    seal,
    unseal,
)

numbers = st.integers(0, 9_999_999_999)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
budgets = st.builds(RestartBudget, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-1, 10**12))
records = st.builds(RoundRecord, words, numbers, words, words, st.integers(0, 65_535), budgets, words)


@pytest.mark.parametrize(
    ("view", "dead", "may", "why", "wait_s"),
    [
        pytest.param(held(), False, True, ClaimReason.NOBODY, 0, id="nobody ever claimed"),
        pytest.param(
            held(record(run="gpt")), False, True, ClaimReason.NOBODY, 0, id="a record of another run is no record"
        ),
        pytest.param(held(record(coordinator="me")), False, True, ClaimReason.MINE, 0, id="my own"),
        pytest.param(held(record()), False, False, ClaimReason.HOLDER_ALIVE, 15, id="somebody else's, just renewed"),
        pytest.param(held(record()), True, True, ClaimReason.HOLDER_DEAD, 0, id="somebody's who is known to be dead"),
        pytest.param(held(record(), 14.0), False, False, ClaimReason.HOLDER_ALIVE, 1, id="quiet, not yet for long"),
        pytest.param(
            held(record(), 15.0), False, False, ClaimReason.HOLDER_ALIVE, 0, id="quiet for the hold and no longer"
        ),
        pytest.param(
            held(record(), 15.1), False, True, ClaimReason.HOLDER_QUIET, 0, id="quiet for longer than the hold"
        ),
        pytest.param(
            held(record(coordinator="")), False, False, ClaimReason.HOLDER_ALIVE, 15, id="of a holder without a name"
        ),
    ],
)
def test_who_may_claim(view, dead, may, why, wait_s):
    verdict = may_claim(view, "bert", "me", dead=dead)
    assert (verdict.allowed, verdict.reason, verdict.wait_s) == (may, why, wait_s)


def test_the_hold_is_the_callers():
    assert may_claim(held(record(), 3.0), "bert", "me", hold_s=2.0).reason == ClaimReason.HOLDER_QUIET


@pytest.mark.parametrize(
    ("view", "known", "expected"),
    [
        pytest.param(held(), 0, 1, id="the first"),
        pytest.param(held(record(7), newest_round=7), 0, 8, id="after the newest"),
        pytest.param(held(newest_round=7), 0, 8, id="after that of another run: older ones are refused"),
        pytest.param(held(record(7), newest_round=7), 9, 10, id="after one that was heard of elsewhere"),
    ],
)
def test_the_next_round_was_never_granted(view, known, expected):
    assert next_round(view, known) == expected


@pytest.mark.parametrize("round_", [1, 6, 7])
def test_a_round_is_granted_once(round_):
    with pytest.raises(StaleRound, match=f"round {round_} is claimed, and round 7 was granted before"):
        record_to_write(record(round_, "bob"), held(record(7)))


@given(budgets, budgets)
def test_the_budget_of_a_claim_never_goes_back(before, claimed):
    new_record = record_to_write(record(8, "bob", budget=claimed), held(record(7, budget=before)))
    assert new_record.budget == before.newer_of(claimed)
    assert new_record.budget.total >= before.total
    assert (new_record.round, new_record.coordinator) == (8, "bob")


def test_the_budget_of_another_run_is_not_ours():
    ours = record(1, budget=RestartBudget())
    assert record_to_write(ours, held(record(7, run="gpt"))) == ours
    assert record_to_write(ours, held()) == ours


@given(records, st.integers(0, 2**40))
def test_what_is_written_is_read_again(one, beat):
    text = seal(one, beat)
    assert unseal(text) == one
    assert b"\n" not in text


@given(records, st.data())
def test_one_changed_byte_is_told(one, data):
    text = bytearray(seal(one))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadRecord):
        unseal(bytes(text))


@given(records, st.data())
def test_half_a_record_is_none(one, data):
    text = seal(one)
    with pytest.raises(BadRecord):
        unseal(text[: data.draw(st.integers(0, len(text) - 1))])


@given(st.binary(max_size=200))
def test_noise_is_no_record(noise):
    with pytest.raises(BadRecord):
        unseal(noise)


@pytest.mark.parametrize("bound", [{"round": 0}, {"round": MAX_ROUND}, {"port": 0}, {"port": 65_535}], ids=str)
def test_the_last_record_that_is_written(bound):
    assert unseal(seal(replace(record(), **bound))) == replace(record(), **bound)


@pytest.mark.parametrize(
    "bound",
    [{"round": -1}, {"round": MAX_ROUND + 1}, {"port": -1}, {"port": 65_536}, {"coordinator": "a" * MAX_BYTES}],
    ids=lambda bound: str(bound)[:30],
)
def test_the_first_record_that_is_not(bound):
    with pytest.raises(BadRecord):
        seal(replace(record(), **bound))


def test_as_many_bytes_as_a_record_may_have_are_read():
    assert unseal(seal(record()).ljust(MAX_BYTES)) == record()
    with pytest.raises(BadRecord, match=f"at most {MAX_BYTES}"):
        unseal(seal(record()).ljust(MAX_BYTES + 1))


@pytest.mark.parametrize("budget", [
    pytest.param({"used": -1, "total": 0, "saved_step": -1}, id="restarts below nothing"),
    pytest.param({"used": 0, "total": 0, "saved_step": -2}, id="a step before none"),
])  # fmt: skip
def test_a_budget_out_of_bounds_is_no_record(budget):
    plain = msgspec.json.encode(msgspec.to_builtins(record()) | {"budget": budget})
    seals = hashlib.sha256(b"0\n" + plain).hexdigest()
    with pytest.raises(BadRecord, match="budget"):
        unseal(msgspec.json.encode({"sum": seals, "beat": 0, "record": msgspec.Raw(plain)}))


def test_each_renewal_is_another_text():
    assert len({seal(record(), beat) for beat in range(9)}) == 9


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param(record(7, budget=RestartBudget(0, 9, 200)), True, id="the budget has moved on"),
        pytest.param(record(8), False, id="another round"),
        pytest.param(record(7, "bob"), False, id="another holder"),
        pytest.param(record(7, run="gpt"), False, id="another run"),
    ],
)
def test_a_grant_is_a_round_of_a_holder(other, same):
    assert same_grant(record(7), other) == same


def test_a_sighting_begins_anew_with_each_change():
    first = HolderObservation("a", 1.0)
    assert first.observe("a", 5.0) == first
    assert first.observe("b", 5.0) == HolderObservation("b", 5.0)
