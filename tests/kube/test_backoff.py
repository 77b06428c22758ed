"""Pauses after failures, and writes that the watch does not show yet."""

from __future__ import annotations

import pytest

from turnout.kube.backoff import Backoff, PendingWrites, RetryPauses


@pytest.fixture
def pauses():
    return RetryPauses[str](Backoff(first_s=1.0, max_s=3.0))


def test_a_key_without_a_failure_is_tried_at_once(pauses):
    assert pauses.may_try("a", 0.0)
    assert "a" not in pauses


@pytest.mark.parametrize(
    ("failed_at_s", "retry_after_s", "may_try_at_s"),
    [
        pytest.param([0.0], 0.0, 1.0, id="the first failure pauses a key for the first wait"),
        pytest.param([0.0, 1.0], 0.0, 3.0, id="the second one twice as long"),
        pytest.param([0.0, 1.0, 3.0, 6.0], 0.0, 9.0, id="no pause is longer than the bound"),
        pytest.param([0.0], 20.0, 20.0, id="unless the server asks for more"),
        pytest.param([0.0, 0.5, 0.9], 0.0, 1.0, id="of several writes that fail together the first counts"),
    ],
)
def test_how_long_a_key_pauses(pauses, failed_at_s, retry_after_s, may_try_at_s):
    for now_s in failed_at_s:
        pauses.note_failure("a", now_s, retry_after_s)
    assert not pauses.may_try("a", may_try_at_s - 0.01)
    assert pauses.may_try("a", may_try_at_s)
    assert pauses.may_try("b", 0.0)  # another key does not pause


@pytest.mark.parametrize(
    "forget",
    [
        pytest.param(lambda pauses: pauses.note_success("a"), id="after a success"),
        pytest.param(lambda pauses: pauses.forget(lambda key: key == "a"), id="when its object is deleted"),
        pytest.param(lambda pauses: pauses.forget_old(4.1), id="when it has not been tried for long"),
        pytest.param(lambda pauses: pauses.clear(), id="at the beginning of a term"),
    ],
)
def test_when_failures_are_forgotten(pauses, forget):
    pauses.note_failure("a", 0.0)
    pauses.forget_old(4.0)
    pauses.forget(lambda key: key == "b")
    assert "a" in pauses
    forget(pauses)
    assert "a" not in pauses


@pytest.mark.parametrize(
    ("value", "now_s", "is_pending"),
    [
        pytest.param("n1", 4.9, True, id="the same value is not written again while it is not shown"),
        pytest.param("n1", 5.0, False, id="until it is old"),
        pytest.param("n2", 0.0, False, id="another value is written at once"),
    ],
)
def test_a_write_is_not_repeated_before_it_is_shown(value, now_s, is_pending):
    writes = PendingWrites[str, str](repeat_after_s=5.0)
    writes.note("a", "n1", 0.0)
    assert writes.is_pending("a", value, now_s) is is_pending


def test_a_shown_write_is_forgotten_and_another_value_shows_nothing():
    writes = PendingWrites[str, str](repeat_after_s=5.0)
    writes.note("a", "n1", 0.0)
    assert not writes.confirm("a", "n2")
    assert not writes.confirm("b", "n1")
    assert writes.confirm("a", "n1")
    assert not writes.is_pending("a", "n1", 0.0)
