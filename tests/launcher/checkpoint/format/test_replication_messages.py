"""Frames between daemons: what is written is read again, and one wrong bit anywhere is a BadFrame."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.shard_file import sum_of
from turnout.launcher.checkpoint.replication import peer_connection
from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import FrameAuth, NotProven, body_bytes

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
counts, newest, ranks = st.integers(0, 1 << 60), st.integers(-1, 1 << 60), st.integers(0, (1 << 20) - 1)
proofs, packed, sums = st.binary(max_size=64), st.binary(min_size=64, max_size=64), st.binary(min_size=8, max_size=8)
generations = st.integers(1, peer_connection.MAX_GENERATIONS)
goes = st.none() | st.builds(Save, st.integers(0, 6), counts, counts, words)

KINDS = {
    peer_connection.PeerHello: (counts, proofs),
    peer_connection.PeerChallenge: (words, words, counts, proofs, proofs),
    peer_connection.PeerProven: (proofs,),
    peer_connection.PeerRefusal: (words, words),
    peer_connection.Follow: (),
    peer_connection.Copy: (counts, newest),
    peer_connection.Copied: (counts, st.sampled_from(["kept", "without", "failed"])),
    peer_connection.Offer: (ranks, generations, packed, sums, newest, goes),
    peer_connection.SendShard: (),
    peer_connection.ShardKept: (),
    peer_connection.Fetch: (counts, counts, ranks, counts),
    peer_connection.ShardGiven: (generations, packed, sums, goes),
}
messages = st.one_of(*(st.builds(kind, *fields) for kind, fields in KINDS.items()))
OFFER = peer_connection.Offer(
    1, 3, peer_connection.pack_record(ShardRecord(5, 7, 2, 1, 4, PAGE_BYTES, 99)), b"12345678", 6
)


def read(frame):
    """Read a frame as from a socket: the head tells how much follows."""
    head, body = frame[: peer_connection.HEAD_BYTES], frame[peer_connection.HEAD_BYTES :]
    if len(head) < peer_connection.HEAD_BYTES or body_bytes(head, peer_connection.MAX_BYTES) != len(body):
        raise BadFrame("so much does not come")
    return peer_connection.read(head, body)


def test_every_message_has_its_examples():
    assert set(KINDS) == set(peer_connection.Message.__args__)


@given(message=messages)
def test_what_is_said_is_read_again(message):
    assert read(peer_connection.encode(message)) == message


def test_with_a_secret_only_frames_of_who_knows_it_are_read():
    def end(token, listens):
        return FrameAuth(token, "run", b"caller", b"listener", listens=listens)

    frame = peer_connection.encode(OFFER, end(b"secret", listens=False))
    head, body = frame[: peer_connection.HEAD_BYTES], frame[peer_connection.HEAD_BYTES :]
    assert peer_connection.read(head, body, end(b"secret", listens=True)) == OFFER
    with pytest.raises(NotProven):
        peer_connection.read(head, body, end(b"another", listens=True))
    plain = peer_connection.encode(OFFER)
    with pytest.raises(NotProven):
        peer_connection.read(
            plain[: peer_connection.HEAD_BYTES], plain[peer_connection.HEAD_BYTES :], end(b"secret", listens=True)
        )


def test_a_flipped_bit_is_found_wherever_it_is():
    frame = peer_connection.encode(OFFER)
    for at in range(len(frame)):
        for bit in range(8):
            broken = bytearray(frame)
            broken[at] ^= 1 << bit
            with pytest.raises(BadFrame):
                read(broken)


@given(body=st.binary(max_size=200))
@example(body=b"\x80\x04\x95")  # a pickle
@example(body=b"\x91" * 10_000)  # arrays in arrays in arrays
@example(body=b"\xdd\xff\xff\xff\xff")
def test_random_bytes_raise_nothing_else(body):
    frame = len(body).to_bytes(4, "big") + sum_of(body).to_bytes(8, "little") + body
    try:
        message = read(frame)
    except BadFrame:
        return
    assert read(peer_connection.encode(message)) == message


@pytest.mark.parametrize("fields", [
    pytest.param([99], id="an unknown number"),
    pytest.param([8, 1 << 20, 3, b"r" * 64, b"s" * 8, 1], id="a local rank that there is not"),
    pytest.param([8, 1, 8, b"r" * 64, b"s" * 8, 1], id="too many generations"),
    pytest.param([8, 1, 3, b"r" * 63, b"s" * 8, 1], id="a record too short"),
    pytest.param([8, 1, 3, b"r" * 64, b"s" * 9, 1], id="a sum too long"),
    pytest.param([8, 1, 3, b"r" * 64, b"s" * 8, -2], id="a step below none"),
    pytest.param([7, 1, "maybe"], id="an answer that there is not"),
])  # fmt: skip
def test_what_is_no_message_is_refused(fields):
    body = msgspec.msgpack.encode(fields)
    with pytest.raises(BadFrame):
        read(len(body).to_bytes(4, "big") + sum_of(body).to_bytes(8, "little") + body)


@pytest.mark.parametrize(
    "head", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"GET ", (peer_connection.MAX_BYTES + 1).to_bytes(4, "big")]
)
def test_how_much_is_read_is_bounded(head):
    with pytest.raises(BadFrame):
        body_bytes(head + b"\0" * 8, peer_connection.MAX_BYTES)


def test_a_record_travels_with_its_sum():
    record = ShardRecord(5, 7, 2, 1, 4, PAGE_BYTES, 99)
    assert peer_connection.unpack_record(peer_connection.pack_record(record)) == record
    with pytest.raises(BadFrame):
        peer_connection.unpack_record(b"x" * 64)
