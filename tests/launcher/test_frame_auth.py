"""Codes of frames: what one end sealed the other opens, in that order and once; all else is found."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import MAC_BYTES, FrameAuth, NotProven

TOKEN, RUN, CALLER, LISTENER = b"correct horse battery", "job", b"c" * 16, b"l" * 16
bodies = st.lists(st.binary(min_size=1, max_size=64), min_size=1, max_size=8)


def ends(token=TOKEN, run=RUN, caller=CALLER, listener=LISTENER):
    return tuple(FrameAuth(token, run, caller, listener, listens=listens) for listens in (False, True))


def sealed(auth, sent):
    return [auth.seal(body) for body in sent]


@given(bodies, bodies)
def test_both_ends_read_what_the_other_sent(requests, answered):
    caller, listener = ends()
    assert [listener.open(each) for each in sealed(caller, requests)] == requests
    assert [caller.open(each) for each in sealed(listener, answered)] == answered


@given(bodies, st.data())
def test_a_changed_byte_is_found(sent, data):
    caller, listener = ends()
    frames = sealed(caller, sent)
    at = data.draw(st.integers(0, len(frames) - 1))
    spot = data.draw(st.integers(0, len(frames[at]) - 1))
    flipped = bytearray(frames[at])
    flipped[spot] ^= data.draw(st.integers(1, 255))
    for frame in frames[:at]:
        listener.open(frame)
    with pytest.raises(NotProven):
        listener.open(bytes(flipped))


@pytest.mark.parametrize(
    "order",
    [
        pytest.param((0, 0), id="a frame that comes twice"),
        pytest.param((1,), id="a frame before it is left out"),
        pytest.param((1, 2), id="two after one that is left out"),
    ],
)
def test_frames_count_in_their_order_alone(order):
    caller, listener = ends()
    frames = sealed(caller, [b"a", b"b", b"c"])
    for at in order[:-1]:
        with suppress(NotProven):
            listener.open(frames[at])
    with pytest.raises(NotProven):
        listener.open(frames[order[-1]])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"token": b"another token"}, id="another token"),
        pytest.param({"token": b""}, id="no token"),
        pytest.param({"run": "other"}, id="another run"),
        pytest.param({"caller": b"x" * 16}, id="another nonce of the caller"),
        pytest.param({"listener": b"x" * 16}, id="another nonce of the listener"),
        pytest.param({"run": "jo", "caller": b"b" + CALLER}, id="the same letters, divided otherwise"),
    ],
)
def test_a_key_is_of_one_connection(other):
    (caller, _), (_, listener) = ends(**other), ends()
    with pytest.raises(NotProven):
        listener.open(caller.seal(b"body"))


def test_what_one_end_sent_cannot_be_sent_back_to_it():
    caller, _ = ends()
    with pytest.raises(NotProven):
        caller.open(caller.seal(b"body"))


@pytest.mark.parametrize("size", [0, 1, MAC_BYTES - 1, MAC_BYTES])
def test_what_is_too_short_for_a_code_is_refused(size):
    _, listener = ends()
    with pytest.raises(BadFrame):
        listener.open(bytes(size))
