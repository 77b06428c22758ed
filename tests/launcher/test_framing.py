"""How messages follow one another on a stream: each is cut out whole, however the bytes come, and bounds hold."""

import asyncio
import io
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnout.launcher import coordinator_messages, framing
from turnout.launcher.checkpoint.format import daemon_messages as checkpoint_wire
from turnout.launcher.checkpoint.replication import peer_connection
from turnout.launcher.errors import BadFrame, BadMember
from turnout.launcher.framing import FrameSplitter, body_bytes, frame, read_frame
from turnout.launcher.rendezvous.transport.frame_connection import FrameConnection, next_frame
from turnout.launcher.workers.forkserver import messages as processes_wire

MAX = 300
bodies = st.lists(st.binary(min_size=1, max_size=MAX), max_size=8)


def pieces_of(stream, cuts):
    """The stream cut at these places."""
    places = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


async def all_of(stream):
    """Give what asyncio's streams read, and how they end."""
    reader = asyncio.StreamReader()
    reader.feed_data(stream)
    reader.feed_eof()
    found = []
    try:
        while True:
            found.append(await next_frame(reader, MAX))
    except (asyncio.IncompleteReadError, BadFrame) as error:
        return found, type(error)


@pytest.mark.parametrize(
    ("encoded", "sent"),
    [
        pytest.param(frame(b"body"), b"\0\0\0\4body", id="a length, big endian, and the body"),
        pytest.param(frame(b"x" * 258)[:5], b"\0\0\1\2x", id="a length of more than one byte"),
        pytest.param(frame(b"body", b"12345678"), b"\0\0\0\x0412345678body", id="a checksum is not counted"),
        pytest.param(
            frame(coordinator_messages.encode(coordinator_messages.GetRoster())),
            b"\0\0\0\2\x91\x11",
            id="from a member",
        ),
        pytest.param(checkpoint_wire.encode(checkpoint_wire.End(True)), b"\0\0\0\3\x92\x08\xc3", id="to a daemon"),
        pytest.param(
            peer_connection.encode(peer_connection.Follow()),
            b"\0\0\0\2" + peer_connection.sum_of(b"\x91\5").to_bytes(8, "little") + b"\x91\5",
            id="between daemons",
        ),
        pytest.param(
            processes_wire.encode(processes_wire.StopTasks(9, 1.0)),
            b"\0\0\0\x24\x83\xa4type\xa4stop\xa6signal\x09\xa7grace_s\xcb\x3f\xf0" + bytes(6),
            id="to a parent of processes",
        ),
    ],
)
def test_what_a_frame_looks_like(encoded, sent):
    assert encoded == sent


@pytest.mark.parametrize(
    ("maximum", "bound"),
    [
        pytest.param(coordinator_messages.MAX_BYTES, 4 << 20, id="between agents"),
        pytest.param(coordinator_messages.MAX_JOIN_BYTES, 24 << 10, id="from a stranger"),
        pytest.param(checkpoint_wire.MAX_BYTES, 1 << 20, id="at a daemon"),
        pytest.param(peer_connection.MAX_BYTES, 64 << 10, id="between daemons"),
        pytest.param(processes_wire.MAX_BYTES, 64 << 20, id="at a parent of processes"),
    ],
)
def test_a_body_has_a_byte_at_least_and_as_many_as_its_kind_may_at_most(maximum, bound):
    assert [body_bytes(size.to_bytes(4, "big") + bytes(8), maximum) for size in (1, bound)] == [1, bound]
    for size in (0, bound + 1):
        with pytest.raises(BadFrame, match=rf"^a frame of {size} bytes: 1 to {bound} are taken$"):
            body_bytes(size.to_bytes(4, "big"), maximum)


@given(bodies=bodies, cuts=st.lists(st.integers(0, 10_000), max_size=20), left=st.integers(0, 12))
@example(bodies=[b"a", b"b"], cuts=[1, 2, 3, 4, 5], left=3)
def test_whole_bodies_are_cut_from_pieces_of_any_size_and_the_rest_kept(bodies, cuts, left):
    last, splitter, found = frame(b"more to come"), FrameSplitter(MAX), []
    stream = b"".join(map(frame, bodies)) + last[:left]
    for piece in pieces_of(stream, cuts):
        found += splitter.split(piece)
    assert found == bodies
    assert list(splitter.split(last[left:])) == [b"more to come"]


@given(bodies=bodies, left=st.integers(1, 15))
def test_all_who_read_cut_alike(bodies, left):
    stream = b"".join(map(frame, bodies))
    file = io.BytesIO(stream)
    assert [read_frame(file.read, MAX) for _ in range(len(bodies) + 1)] == [*bodies, None]
    assert asyncio.run(all_of(stream)) == (bodies, asyncio.IncompleteReadError)
    assert asyncio.run(all_of(stream + frame(b"more to come")[:left])) == (bodies, asyncio.IncompleteReadError)


@pytest.mark.parametrize(
    "end", [pytest.param(b"", id="between two frames"), pytest.param(b"\0\0", id="within a length")]
)
def test_a_file_that_ends_gives_no_more_frames(end):
    assert read_frame(io.BytesIO(end).read, MAX) is None


def test_a_file_that_ends_within_a_body_gives_what_there_is_of_it():
    assert read_frame(io.BytesIO(frame(b"body")[:-1]).read, MAX) == b"bod"


@pytest.mark.parametrize("head", [pytest.param(bytes(4), id="nothing"), pytest.param(b"GET ", id="a browser")])
def test_a_length_out_of_bounds_ends_it_after_the_frames_before_it(head):
    stream = frame(b"good") + head + frame(b"never")
    bodies = FrameSplitter(MAX).split(stream)
    assert next(bodies) == b"good"
    with pytest.raises(BadFrame):
        next(bodies)
    assert asyncio.run(all_of(stream)) == ([b"good"], BadFrame)
    with pytest.raises(BadFrame):
        read_frame(io.BytesIO(head).read, MAX)


def test_a_bound_that_is_changed_between_two_frames_is_that_of_the_second():
    splitter, long = FrameSplitter(4), b"after the greeting"
    found = []
    for body in splitter.split(frame(b"join") + frame(long)):
        found.append(body)
        splitter.max_bytes = MAX
    assert found == [b"join", long]


def test_who_stops_in_the_middle_goes_on_behind_what_he_was_given():
    splitter = FrameSplitter(MAX)
    first = splitter.split(frame(b"one") + frame(b"two"))
    assert next(first) == b"one"
    first.close()
    assert list(splitter.split(frame(b"three"))) == [b"two", b"three"]


class Closes(FrameConnection):
    """Closes at the first frame."""

    def on_open(self):
        self.bodies, self.faults = [], []

    def on_frame(self, body):
        self.bodies.append(body)
        if body == b"close":
            self.close()

    def on_bad_frame(self, fault):
        self.faults.append(fault)


class Wire(asyncio.Transport):
    """Counts what is done to it."""

    ended = ""

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_extra_info(self, name, default=None):
        return default

    def is_closing(self):
        return bool(self.ended)

    def close(self):
        self.ended = "closed"

    def abort(self):
        self.ended = "aborted"


@pytest.mark.parametrize(
    ("data", "bodies", "faults", "ended"),
    [
        pytest.param(frame(b"a") + frame(b"b"), [b"a", b"b"], [], "", id="each frame is told"),
        pytest.param(frame(b"close") + frame(b"b"), [b"close"], [], "closed", id="none is told once it is closed"),
        pytest.param(
            frame(b"a") + bytes(4) + frame(b"b"),
            [b"a"],
            [f"a frame of 0 bytes: 1 to {coordinator_messages.MAX_BYTES} are taken"],
            "aborted",
            id="who sends what is no frame is cut off",
        ),
    ],
)
def test_a_connection_that_carries_frames(data, bodies, faults, ended):
    frames, transport = Closes(), Wire()
    frames.connection_made(transport)
    for at in range(len(data)):
        if not transport.is_closing():
            frames.data_received(data[at : at + 1])
    assert (frames.bodies, frames.faults, transport.ended) == (bodies, faults, ended)
    together, transport = Closes(), Wire()
    together.connection_made(transport)
    together.data_received(data)
    assert (together.bodies, together.faults, transport.ended) == (bodies, faults, ended)


class Refuses(msgspec.Struct, array_like=True):
    """Values may be fine one by one and no message together."""

    name: str

    def __post_init__(self):
        raise BadMember(self.name, "no")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param(int, b"\xc1", id="what is no msgpack"),
        pytest.param(int, b"\x01\x01", id="more than one message"),
        pytest.param(int, msgspec.msgpack.encode("one"), id="a value of another type"),
        pytest.param(str, b"\xa1\xff", id="a text that is none"),
        pytest.param(msgspec.Raw, b"\x91" * 100_000, id="arrays in arrays in arrays"),
        pytest.param(Refuses, msgspec.msgpack.encode(["w0"]), id="a message that its own kind refuses"),
    ],
)
def test_what_is_no_message_is_a_bad_frame(kind, body):
    with pytest.raises(BadFrame):
        framing.decode(msgspec.msgpack.Decoder(kind), body)
