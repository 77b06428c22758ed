"""Frames to and from a daemon: what is written is read again, whatever else comes is a BadFrame."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format import daemon_messages
from turnout.launcher.coordinator_messages import (
    MAX_LOCATIONS,
    AdoptShards,
    DaemonEndpoint,
    HeldStep,
    ReplicaGroup,
    ShardLocation,
)
from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import body_bytes
from turnout.launcher.model import SaveOutcome, SaveTier

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
counts, steps, newest = st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.integers(-1, 1 << 60)
ranks, sizes = st.integers(0, 1 << 24), st.integers(0, 1 << 40)
slots, generations = (
    st.integers(0, daemon_messages.MAX_GENERATIONS - 1),
    st.integers(1, daemon_messages.MAX_GENERATIONS),
)
kinds = st.sampled_from(["shards", "torch"])
held_steps = st.lists(st.builds(HeldStep, newest, sizes, sizes, sizes, sizes, st.booleans()), max_size=16).map(tuple)
endpoints = st.lists(st.builds(DaemonEndpoint, words, words, words, st.integers(0, 65_535)), max_size=8).map(tuple)
replica_groups = st.builds(
    ReplicaGroup,
    endpoints.map(lambda some: (some or (DaemonEndpoint("a", "a", "", 1),))[0]),
    sizes,
    st.tuples(endpoints),
)
an_endpoint = st.builds(DaemonEndpoint, words, words, words, st.integers(0, 65_535))
locations = st.lists(st.builds(ShardLocation, sizes, sizes, an_endpoint), max_size=8).map(tuple)
takes = st.lists(st.builds(AdoptShards, words, sizes, sizes, endpoints), max_size=8).map(tuple)
seats = st.builds(
    daemon_messages.RestorePlace,
    sizes,
    ranks,
    ranks,
    ranks,
    sizes,
    st.booleans(),
    endpoints,
    st.none() | replica_groups,
    sizes,
    locations,
)

TO_DAEMON = {
    daemon_messages.Hello: (
        words,
        words,
        ranks,
        ranks,
        ranks,
        counts,
        counts,
        words,
        st.integers(0, 3),
        st.booleans(),
        words,
    ),
    daemon_messages.ReserveMemory: (sizes, generations),
    daemon_messages.Save: (slots, counts, steps, words, kinds, words, counts, counts, st.booleans()),
    daemon_messages.Wait: (),
    daemon_messages.GetStats: (),
    daemon_messages.Bye: (),
    daemon_messages.GetHeldSteps: (ranks,),
    daemon_messages.End: (st.booleans(),),
    daemon_messages.Restore: (newest, st.none() | seats, newest),
    daemon_messages.Trust: (st.binary(max_size=64), newest, st.none() | seats),
    daemon_messages.DropOldestSave: (),
    daemon_messages.FindStored: (),
    daemon_messages.Adopt: (counts, steps, counts, ranks, st.floats(0, 1e7), takes),
    daemon_messages.FetchShard: (steps, counts, ranks, ranks),
}
TO_CLIENT = {
    daemon_messages.ArenaPath: (words, generations),
    daemon_messages.RequestRefused: (words, words),
    daemon_messages.Hashed: (steps,),
    daemon_messages.Persisted: (steps, words),
    daemon_messages.SaveFailed: (steps, words, words),
    daemon_messages.Done: (),
    daemon_messages.Stats: (*[newest] * 4, *[counts] * 4, newest, counts, counts),
    daemon_messages.HeldSteps: (held_steps,),
    daemon_messages.Pinned: (steps,),
    daemon_messages.SaveDropped: (newest,),
    daemon_messages.StoredStep: (words, newest),
    daemon_messages.ShardFetched: (words, slots, counts),
    daemon_messages.SaveEnded: (
        steps,
        counts,
        ranks,
        st.sampled_from(SaveTier),
        st.sampled_from(SaveOutcome),
        st.booleans(),
        st.floats(0, 1e12),
        st.floats(0, 1e12),
    ),
}
up = st.one_of(*(st.builds(kind, *fields) for kind, fields in TO_DAEMON.items()))
down = st.one_of(*(st.builds(kind, *fields) for kind, fields in TO_CLIENT.items()))
READERS = [daemon_messages.read_at_daemon, daemon_messages.read_at_client]
pack = msgspec.msgpack.encode


def body_of(frame):
    """Read the body, after as many bytes as the head tells."""
    assert body_bytes(frame, daemon_messages.MAX_BYTES) == len(frame) - 4
    return frame[4:]


def refuses(read, body):
    with pytest.raises(BadFrame):
        read(body)


def number(kind):
    return kind.__struct_config__.tag


def test_every_message_has_its_examples_and_a_number_of_its_own():
    assert {*TO_DAEMON} == {*daemon_messages.ToDaemon.__args__}
    assert {*TO_CLIENT} == {*daemon_messages.ToClient.__args__}
    kinds = [*TO_DAEMON, *TO_CLIENT]
    assert len({number(kind) for kind in kinds}) == len(kinds)
    assert all(len(fields) == len(kind.__struct_fields__) for kind, fields in {**TO_DAEMON, **TO_CLIENT}.items())


@given(message=up)
def test_what_a_client_says_is_read_again(message):
    assert daemon_messages.read_at_daemon(body_of(daemon_messages.encode(message))) == message
    assert daemon_messages.read_at_daemon(memoryview(body_of(daemon_messages.encode(message)))) == message
    refuses(daemon_messages.read_at_client, body_of(daemon_messages.encode(message)))


@given(message=down)
def test_messages_of_a_daemon_are_read_again(message):
    assert daemon_messages.read_at_client(body_of(daemon_messages.encode(message))) == message
    assert daemon_messages.read_at_client(memoryview(body_of(daemon_messages.encode(message)))) == message
    refuses(daemon_messages.read_at_daemon, body_of(daemon_messages.encode(message)))


@given(message=st.one_of(down, up), cut=st.integers(1, 400), tail=st.binary(min_size=1, max_size=8))
def test_a_torn_frame_is_a_bad_one_and_so_is_one_with_more_behind_it(message, cut, tail):
    body = body_of(daemon_messages.encode(message))
    for read in READERS:
        refuses(read, body[: max(len(body) - cut, 0)])
        refuses(read, body + tail)


@given(body=st.binary(max_size=200))
@example(body=b"")
@example(body=b"\x80\x04\x95")  # a pickle
@example(body=b"\x91" * 60_000)  # arrays in arrays in arrays
@example(body=b"\x92\x10" + b"\x91" * 60_000)
@example(body=b"\xdd\xff\xff\xff\xff")  # an array of four thousand million
@example(body=b"\xdb\xff\xff\xff\xff\x00")
@example(body=b"\xc1")
def test_random_bytes_raise_nothing_else(body):
    for read in READERS:
        try:
            message = read(body)
        except BadFrame:
            continue
        assert read(body_of(daemon_messages.encode(message))) == message


@given(message=st.one_of(down, up), at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_wrong_byte_raises_nothing_else(message, at, value):
    body = bytearray(body_of(daemon_messages.encode(message)))
    body[at % len(body)] = value
    test_random_bytes_raise_nothing_else.hypothesis.inner_test(bytes(body))


NEED, SEALED, SETTLE, END = (
    number(kind)
    for kind in (daemon_messages.ReserveMemory, daemon_messages.Save, daemon_messages.GetHeldSteps, daemon_messages.End)
)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pack(None), id="nothing"),
        pytest.param(pack({"bytes": 1}), id="a map"),
        pytest.param(pack([]), id="no number"),
        pytest.param(pack([99, 1]), id="an unknown number"),
        pytest.param(pack(["2", 1, 2]), id="a number as text"),
        pytest.param(pack([NEED, 1]), id="too few fields"),
        pytest.param(pack([NEED, -1, 2]), id="less than no bytes"),
        pytest.param(pack([NEED, (1 << 40) + 1, 2]), id="more bytes than a generation has"),
        pytest.param(pack([NEED, 1, 0]), id="no generation"),
        pytest.param(pack([NEED, 1, daemon_messages.MAX_GENERATIONS + 1]), id="too many generations"),
        pytest.param(pack([SEALED, daemon_messages.MAX_GENERATIONS, 1, 1]), id="a generation that there is not"),
        pytest.param(pack([SEALED, -1, 1, 1]), id="a generation below the first"),
        pytest.param(pack([SEALED, 0, 1, -1]), id="a step below none"),
        pytest.param(pack([SEALED, 0, 1, 1.5]), id="half a step"),
        pytest.param(pack([SEALED, 0, 1, 1, "x" * 4_097]), id="a target too long"),
        pytest.param(pack([SEALED, 0, 1, 1, "x", "pickle"]), id="a kind that there is not"),
        pytest.param(pack([SEALED, 0, 1, 1, "x", "shards", "", -1]), id="fewer than none to keep"),
        pytest.param(pack([SETTLE, (1 << 24) + 1]), id="too many ranks"),
        pytest.param(pack([END, 1]), id="a number for a yes"),
        pytest.param(bytes([0x95, SEALED, 0, 1, 1, 0xA2, 0xFF, 0xFE]), id="text that is no UTF-8"),
        pytest.param(pack(["turnout.launcher.checkpoint.format.daemon_messages.Ask"]), id="a class by its name"),
    ],
)
def test_what_is_no_message_is_refused(body):
    refuses(daemon_messages.read_at_daemon, body)


def test_what_an_agent_is_told_is_bounded():
    kind = number(daemon_messages.HeldSteps)
    assert daemon_messages.read_at_client(pack([kind, [[1, 0, 2]] * 256])).held_steps == (HeldStep(1, 0, 2),) * 256
    refuses(daemon_messages.read_at_client, pack([kind, [[1, 0, 2]] * 257]))
    refuses(daemon_messages.read_at_client, pack([kind, [[-2, 0, 2]]]))


def test_a_field_left_out_is_what_it_is_when_nobody_asks():
    """A generation without a target stays in memory, and what lies in storage is the user's to remove."""
    sealed = daemon_messages.read_at_daemon(pack([SEALED, 1, 5, 10]))
    assert (sealed.target, sealed.kind, sealed.keep, sealed.every) == ("", "shards", 0, 0)


@pytest.mark.parametrize(
    ("head", "size"),
    [
        pytest.param(b"\0\0\0\1", 1, id="one byte"),
        pytest.param(b"\0\x10\0\0", daemon_messages.MAX_BYTES, id="as much as there may be"),
        pytest.param(b"\0\x10\0\1", None, id="one byte more"),
        pytest.param(b"\0\0\0\0", None, id="nothing"),
        pytest.param(b"\xff\xff\xff\xff", None, id="four gigabytes"),
        pytest.param(b"GET ", None, id="a browser"),
    ],
)
def test_how_much_is_read_is_bounded(head, size):
    if size is None:
        with pytest.raises(BadFrame):
            body_bytes(head, daemon_messages.MAX_BYTES)
    else:
        assert body_bytes(head, daemon_messages.MAX_BYTES) == size


def test_the_largest_messages_fit():
    longest, word = "\U0001f9e0" * 4_096, "\U0001f9e0" * 253
    endpoint = DaemonEndpoint(word, word, word, 65_535)
    replica_group = ReplicaGroup(endpoint, 1 << 40, ((endpoint,) * 8,) * 3)
    locations = (ShardLocation(1 << 40, 1 << 40, endpoint),) * MAX_LOCATIONS
    seat = daemon_messages.RestorePlace(*[1 << 40] * 5, True, (endpoint,) * 8, replica_group, 1 << 40, locations)
    for message in (
        daemon_messages.Save(
            daemon_messages.MAX_GENERATIONS - 1, 1 << 60, 1 << 60, longest, "shards", longest, 1 << 60, 1 << 60
        ),
        daemon_messages.SaveFailed(1 << 60, word, longest),
        daemon_messages.Restore(1 << 60, seat, 1 << 60),
    ):
        body_of(daemon_messages.encode(message))
