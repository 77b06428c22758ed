"""Frames between agents: what is written is read again, whatever else comes is a BadFrame, and proofs prove."""

import math
import struct

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnout.launcher import coordinator_messages
from turnout.launcher.coordinator_messages import (
    MAX_HOLDS,
    AdoptShards,
    DaemonEndpoint,
    Hung,
    Judged,
    NodeResult,
    Probe,
    Probed,
    ReplicaGroup,
    ShardLocation,
    ShowStacks,
    Stacks,
)
from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import MAC_BYTES, body_bytes
from turnout.launcher.model import ElasticSpec, Member, RestartBudget

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
counts, steps = st.integers(0, 1 << 40), st.integers(-1, 1 << 60)
ports, seconds, proofs = st.integers(0, 65_535), st.floats(0, 1e7), st.binary(max_size=64)
budgets = st.builds(RestartBudget, st.integers(0, 1 << 30), st.integers(0, 1 << 30), steps)
paths = st.lists(words, max_size=16).map(tuple)
members = st.builds(
    Member, names, names, words, words, ports, st.integers(1, 1_024), paths, st.none() | st.integers(0, 9),
    st.floats(0, 1e12), ports, ports,
)  # fmt: skip
terms = st.builds(
    lambda minimum, more, unit: ElasticSpec(minimum, minimum + more + unit, unit), *[st.integers(1, 99)] * 3
)
bases = st.builds(coordinator_messages.LastWorld, counts, counts, st.booleans(), st.booleans())
holds = st.lists(
    st.builds(coordinator_messages.HeldStep, steps, counts, counts, counts, counts, st.booleans()), max_size=16
).map(tuple)
successors = st.lists(st.builds(coordinator_messages.Successor, words, words, ports), max_size=8).map(tuple)

endpoints = st.builds(DaemonEndpoint, words, words, words, ports)
several = st.lists(endpoints, max_size=8).map(tuple)
locations = st.lists(st.builds(ShardLocation, counts, counts, endpoints), max_size=8).map(tuple)
takes = st.lists(st.builds(AdoptShards, words, counts, counts, several), max_size=8).map(tuple)
replica_groups = st.builds(ReplicaGroup, endpoints, counts, st.lists(several, max_size=3).map(tuple))

TO_MEMBER = {
    coordinator_messages.Challenge: (counts, proofs),
    coordinator_messages.Welcome: (proofs, words, seconds, seconds, successors),
    coordinator_messages.Refused: (words, words),
    coordinator_messages.Redirect: (words, words, ports, counts),
    coordinator_messages.Waiting: (counts, counts, words, words, successors),
    coordinator_messages.Formed: (
        *[counts] * 6,
        words,
        ports,
        words,
        budgets,
        successors,
        steps,
        counts,
        st.booleans(),
        several,
        st.none() | replica_groups,
        steps,
        counts,
        locations,
        st.booleans(),
    ),
    coordinator_messages.Handover: (counts, steps, counts, counts, seconds, takes),
    coordinator_messages.StopAt: (counts, steps, st.booleans()),
    coordinator_messages.Stop: (counts, words, seconds),
    coordinator_messages.Finish: (st.integers(0, 255), words, words, steps),
    coordinator_messages.Heartbeat: (steps, steps, seconds),
    coordinator_messages.HeartbeatInterval: (seconds, seconds),
    Probe: (counts, st.integers(0, 11), st.just(12), st.sampled_from([1, 2, 3]), words, ports),
    Judged: (counts, st.sampled_from([*NodeResult]), words, words, st.integers(1, 1 << 40), words, words),
    ShowStacks: (counts, counts, counts),
    coordinator_messages.Roster: (counts, st.lists(members, max_size=4).map(tuple)),
    coordinator_messages.StoredStepReport: (counts, words, steps),
}
TO_COORDINATOR = {
    coordinator_messages.Join: (counts, words, proofs, proofs, members, terms, bases, budgets, counts, holds, seconds),
    coordinator_messages.Heartbeat: (steps, steps, seconds),
    coordinator_messages.Ready: (counts, ports, paths, holds),
    coordinator_messages.ProcessFailed: (counts, counts, words),
    coordinator_messages.Succeeded: (counts, holds),
    coordinator_messages.ShardsAdopted: (counts, holds),
    coordinator_messages.Leaving: (seconds, words),
    coordinator_messages.Reached: (counts, steps),
    coordinator_messages.GetRoster: (),
    coordinator_messages.StoredStepReport: (counts, words, steps),
    Hung: (counts, counts, words),
    Stacks: (counts, counts, st.binary(max_size=400), words),
    Probed: (counts, ports, st.none() | seconds, st.none() | seconds, words, words, counts),
}
down = st.one_of(*(st.builds(kind, *fields) for kind, fields in TO_MEMBER.items()))
up = st.one_of(*(st.builds(kind, *fields) for kind, fields in TO_COORDINATOR.items()))
JOIN = coordinator_messages.Join(
    1, "job", b"n", b"p", Member("a/0", "a"), ElasticSpec(1, 2), coordinator_messages.LastWorld(), RestartBudget()
)
READERS = [coordinator_messages.read_at_member, coordinator_messages.read_at_coordinator]
pack = msgspec.msgpack.encode


def body_of(body):
    """The body itself, which no reader refuses for its length."""
    assert 0 < len(body) <= coordinator_messages.MAX_BYTES
    return body


def refuses(read, body):
    with pytest.raises(BadFrame):
        read(body)


def test_every_message_has_its_examples():
    assert set(TO_MEMBER) | set(TO_COORDINATOR) == set(coordinator_messages.ToMember.__args__) | set(
        coordinator_messages.ToCoordinator.__args__
    )


@given(message=down)
def test_what_a_coordinator_says_is_read_again(message):
    assert coordinator_messages.read_at_member(body_of(coordinator_messages.encode(message))) == message
    assert coordinator_messages.read_at_member(memoryview(body_of(coordinator_messages.encode(message)))) == message


@given(message=up)
def test_what_a_member_says_is_read_again(message):
    assert coordinator_messages.read_at_coordinator(body_of(coordinator_messages.encode(message))) == message


FORMED = coordinator_messages.Formed(
    2, 1, 0, 1, 0, 1, "10.0.0.1", 5, "member_lost", RestartBudget(), check_storage=True
)


@pytest.mark.parametrize("known", [pytest.param(10, id="the first ones"), pytest.param(19, id="before `look`")])
def test_a_world_as_older_agents_tell_it_is_read(known):
    fields = msgspec.msgpack.decode(body_of(coordinator_messages.encode(FORMED)))
    assert coordinator_messages.read_at_member(pack(fields[: 1 + known])) == msgspec.structs.replace(
        FORMED, check_storage=False
    )


@given(message=st.one_of(down, up), cut=st.integers(1, 400))
def test_a_torn_frame_is_a_bad_one(message, cut):
    body = body_of(coordinator_messages.encode(message))
    for read in READERS:
        refuses(read, body[: max(len(body) - cut, 0)])


@given(message=st.one_of(down, up), tail=st.binary(min_size=1, max_size=8))
def test_so_is_one_with_more_behind_it(message, tail):
    for read in READERS:
        refuses(read, body_of(coordinator_messages.encode(message)) + tail)


@given(body=st.binary(max_size=200))
@example(body=b"")
@example(body=b"\x80\x04\x95")  # a pickle
@example(body=b"\x91" * 100_000)  # arrays in arrays in arrays
@example(body=b"\x93\x0b" + b"\x91" * 100_000)
@example(body=b"\xdd\xff\xff\xff\xff")  # an array of four thousand million
@example(body=b"\xc6\xff\xff\xff\xff")
@example(body=b"\xdb\xff\xff\xff\xff\x00")
@example(body=b"\xc1")
def test_random_bytes_raise_nothing_else(body):
    for read in READERS:
        try:
            message = read(body)
        except BadFrame:
            continue
        assert read(body_of(coordinator_messages.encode(message))) == message


@given(message=st.one_of(down, up), at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_wrong_byte_raises_nothing_else(message, at, value):
    body = bytearray(body_of(coordinator_messages.encode(message)))
    body[at % len(body)] = value
    test_random_bytes_raise_nothing_else.hypothesis.inner_test(bytes(body))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pack(None), id="nothing"),
        pytest.param(pack("beat"), id="a word"),
        pytest.param(pack({"step": 1}), id="a map"),
        pytest.param(pack([]), id="no number"),
        pytest.param(pack([99, 1]), id="an unknown number"),
        pytest.param(pack([-1]), id="a negative number"),
        pytest.param(pack(["11", 1, 1]), id="a number as text"),
        pytest.param(pack([14]), id="too few fields"),
        pytest.param(pack([14, "1"]), id="text for a number"),
        pytest.param(pack([14, 1.5]), id="a fraction for a count"),
        pytest.param(pack([14, -1]), id="a negative round"),
        pytest.param(pack([14, (1 << 40) + 1]), id="a round too large"),
        pytest.param(pack([14, (1 << 64) - 1]), id="the largest number that there is"),
        pytest.param(pack([11, -2, 0]), id="a step below none"),
        pytest.param(pack([11, (1 << 60) + 1, 0]), id="a step too large"),
        pytest.param(pack([11, 0, 0, -1.0]), id="imports that were over before they began"),
        pytest.param(pack([11, 0, 0, 1e8]), id="imports without an end"),
        pytest.param(pack([15, math.nan]), id="a time that is no number"),
        pytest.param(pack([15, math.inf]), id="a time without an end"),
        pytest.param(pack([15, -0.5]), id="a negative time"),
        pytest.param(pack([15, 1e8]), id="a time too long"),
        pytest.param(pack([13, 1, 0, "x" * 1_025]), id="a text too long"),
        pytest.param(pack([12, 1, 70_000, []]), id="a port too large"),
        pytest.param(pack([12, 1, 1, ["s"] * 17]), id="a path too long"),
        pytest.param(pack([12, 1, 1, ["s" * 254]]), id="a switch's name too long"),
        pytest.param(pack([12, 1, 1, [], [[1, 0, 2, 1]] * 257]), id="too many steps in memory"),
        pytest.param(pack([12, 1, 1, [], [[-2, 0, 2, 1]]]), id="a step in memory below none"),
        pytest.param(pack([12, 1, 1, [], [[1, -1, 2, 1]]]), id="a negative rank in memory"),
        pytest.param(pack([12, 1, 1, [], [[1, 0, 2, -1]]]), id="a negative round in memory"),
        pytest.param(pack([12, 1, 1, [], [[1, 0]]]), id="a step in memory of no ranks"),
        pytest.param(b"\x92\x0f\xc7\x08\x05" + struct.pack(">d", 1.0), id="an extension type"),
        pytest.param(b"\x94\x0d\x01\x00\xa2\xff\xfe", id="text that is no UTF-8"),
        pytest.param(pack(["turnout.launcher.coordinator_messages.Ask"]), id="a class by its name"),
    ],
)
def test_what_is_no_message_is_refused(body):
    refuses(coordinator_messages.read_at_coordinator, body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(3, b"x" * 65, id="a proof too long"),
        pytest.param(5, {"id": "", "name": "a"}, id="a member without an id"),
        pytest.param(5, {"id": "a/0", "name": "a" * 254}, id="a member's name too long"),
        pytest.param(5, {"id": "a/0", "name": "a", "processes": 0}, id="a member without processes"),
        pytest.param(5, {"id": "a/0", "name": "a", "processes": 10**6}, id="a million processes"),
        pytest.param(5, {"id": "a/0", "name": "a", "port": -1}, id="a negative port"),
        pytest.param(5, {"id": "a/0", "name": "a", "path": ["s"] * 17}, id="a member's path too long"),
        pytest.param(5, {"id": "a/0", "name": "a", "index": -1}, id="a negative index"),
        pytest.param(5, {"id": "a/0", "name": "a", "started_s": math.nan}, id="a birth at no time"),
        pytest.param(6, {"min_nodes": 3, "max_nodes": 2}, id="min above max"),
        pytest.param(6, {"min_nodes": 1, "max_nodes": 1 << 60}, id="too many members"),
        pytest.param(6, {"min_nodes": 1, "max_nodes": 1, "node_unit": 0}, id="no unit"),
        pytest.param(6, {"min_nodes": 1, "max_nodes": 1, "max_restarts": -1}, id="less than no restarts"),
        pytest.param(6, {"min_nodes": 1, "max_nodes": 1, "last_call_s": -1.0}, id="a negative last call"),
        pytest.param(6, {"min_nodes": 1, "max_nodes": 1, "last_call_s": math.nan}, id="a last call that is no time"),
        pytest.param(6, {"min_nodes": 1, "max_nodes": 1, "join_timeout_s": math.inf}, id="a wait without an end"),
        pytest.param(7, [0, 0, 1, 0], id="a number for a yes"),
        pytest.param(7, [1 << 41], id="a base too large"),
        pytest.param(10, [[1, 0, 2, 1]] * 257, id="too many steps in memory"),
        pytest.param(10, [[1, 0, 1 << 41, 1]], id="memory of too many ranks"),
        pytest.param(10, [[1, 0, 2, "1"]], id="a round in memory that is a word"),
        pytest.param(11, -1.0, id="imports that were over before they began"),
        pytest.param(11, True, id="a yes for a time"),
        pytest.param(8, {"used": -1, "total": 0, "saved_step": -1}, id="less than no restarts used"),
        pytest.param(8, {"used": 0, "total": 0, "saved_step": 1 << 62}, id="a saved step too large"),
    ],
)
def test_a_join_out_of_bounds_is_refused(field, value):
    fields = msgspec.msgpack.decode(body_of(coordinator_messages.encode(JOIN)))
    assert coordinator_messages.read_at_coordinator(pack(fields)) == JOIN
    fields[field] = value
    refuses(coordinator_messages.read_at_coordinator, pack(fields))


@pytest.mark.parametrize(
    ("body", "read"),
    [
        pytest.param(
            pack([11]), coordinator_messages.Heartbeat(), id="a heartbeat of an older agent: it can start processes"
        ),
        pytest.param(
            pack([11, 5, 3]),
            coordinator_messages.Heartbeat(5, 3, 0.0),
            id="one that tells steps and nothing of imports",
        ),
        pytest.param(pack([11, 5, 3, 2.5]), coordinator_messages.Heartbeat(5, 3, 2.5), id="one of today"),
        pytest.param(
            pack([11, 5, 3, 2.5, None, None, {"of": 2_030}]),
            coordinator_messages.Heartbeat(5, 3, 2.5),
            id="one of a newer agent",
        ),
    ],
)
def test_agents_of_several_versions_understand_one_another(body, read):
    """Fields that one does not know are at the end: it leaves them out, or passes over them."""
    assert coordinator_messages.read_at_coordinator(body) == read
    assert coordinator_messages.read_at_member(body) == read


def test_a_join_of_an_older_agent_says_that_it_can_start_processes():
    fields = msgspec.msgpack.decode(
        body_of(coordinator_messages.encode(msgspec.structs.replace(JOIN, importing_s=9.0)))
    )
    assert coordinator_messages.read_at_coordinator(pack(fields)).importing_s == 9.0
    older = coordinator_messages.read_at_coordinator(pack(fields[:-2]))
    assert (older, older.importing_s) == (JOIN, 0.0)


@given(message=st.one_of(*(st.builds(kind, *TO_MEMBER[kind]) for kind in TO_MEMBER if kind not in TO_COORDINATOR)))
def test_what_only_a_coordinator_says_is_not_taken_from_a_member(message):
    refuses(coordinator_messages.read_at_coordinator, body_of(coordinator_messages.encode(message)))


@pytest.mark.parametrize(
    ("head", "maximum", "size"),
    [
        pytest.param(b"\0\0\0\1", coordinator_messages.MAX_BYTES, 1, id="one byte"),
        pytest.param(
            b"\0\x40\0\0",
            coordinator_messages.MAX_BYTES,
            coordinator_messages.MAX_BYTES,
            id="as much as there may be",
        ),
        pytest.param(b"\0\x40\0\1", coordinator_messages.MAX_BYTES, None, id="one byte more"),
        pytest.param(b"\0\0\0\0", coordinator_messages.MAX_BYTES, None, id="nothing"),
        pytest.param(b"\xff\xff\xff\xff", coordinator_messages.MAX_BYTES, None, id="four gigabytes"),
        pytest.param(b"\0\0\x60\1", coordinator_messages.MAX_JOIN_BYTES, None, id="too much from a stranger"),
        pytest.param(b"GET ", coordinator_messages.MAX_BYTES, None, id="a browser"),
    ],
)
def test_how_much_is_read_is_bounded(head, maximum, size):
    if size is None:
        with pytest.raises(BadFrame):
            body_bytes(head, maximum)
    else:
        assert body_bytes(head, maximum) == size


def test_the_largest_messages_fit():
    many = tuple(Member(f"{'w' * 100}/{n:06}", "w" * 100, "h" * 63, "10.0.0.1", 29_400, 8) for n in range(20_000))
    assert len(coordinator_messages.encode(coordinator_messages.Roster(1, many))) + MAC_BYTES <= 8 << 20
    path = ("s" * 253,) * 16
    largest = Member("i" * 128, "n" * 253, "h" * 253, "a" * 39, 65_535, 1_024, path)
    steps = (coordinator_messages.HeldStep(1 << 60, 1 << 40, 1 << 40, 1 << 40, 1 << 40, True),) * MAX_HOLDS
    join = coordinator_messages.encode(
        coordinator_messages.Join(
            1,
            "r" * 253,
            b"n" * 64,
            b"p" * 64,
            largest,
            ElasticSpec(),
            coordinator_messages.LastWorld(),
            RestartBudget(),
            9,
            steps,
        )
    )
    assert len(join) + MAC_BYTES <= coordinator_messages.MAX_JOIN_BYTES


THEIRS, OURS = b"c" * 16, b"m" * 16
PROOF = coordinator_messages.proof(b"token", "member", "job", THEIRS, OURS)


@pytest.mark.parametrize(
    ("claimed", "token", "role", "run", "theirs", "ours", "proves"),
    [
        pytest.param(PROOF, b"token", "member", "job", THEIRS, OURS, True, id="the one who knows the token"),
        pytest.param(PROOF, b"other", "member", "job", THEIRS, OURS, False, id="another token"),
        pytest.param(PROOF, b"", "member", "job", THEIRS, OURS, False, id="no token here"),
        pytest.param(PROOF, b"token", "member", "job", b"d" * 16, OURS, False, id="replayed to another challenge"),
        pytest.param(PROOF, b"token", "member", "job", THEIRS, b"n" * 16, False, id="with another nonce of its own"),
        pytest.param(PROOF, b"token", "coordinator", "job", OURS, THEIRS, False, id="sent back to its maker"),
        pytest.param(PROOF, b"token", "coordinator", "job", THEIRS, OURS, False, id="in the other role"),
        pytest.param(PROOF, b"token", "member", "job2", THEIRS, OURS, False, id="for another job"),
        pytest.param(b"", b"token", "member", "job", THEIRS, OURS, False, id="nothing at all"),
        pytest.param(PROOF[:-1], b"token", "member", "job", THEIRS, OURS, False, id="a part of it"),
        pytest.param(PROOF + b"\0", b"token", "member", "job", THEIRS, OURS, False, id="more than it"),
    ],
)
def test_a_proof(claimed, token, role, run, theirs, ours, proves):
    assert coordinator_messages.is_proof(claimed, token, role, run, theirs, ours) is proves


@given(one=st.tuples(words, words, proofs, proofs), other=st.tuples(words, words, proofs, proofs))
@example(one=("a", "bc", b"", b""), other=("ab", "c", b"", b""))
@example(one=("a", "b", b"cd", b""), other=("a", "b", b"c", b"d"))
def test_no_two_handshakes_have_the_same_proof(one, other):
    assert (coordinator_messages.proof(b"t", *one) == coordinator_messages.proof(b"t", *other)) is (one == other)


def test_the_token_is_in_no_frame():
    token = b"correct horse battery"
    proof = coordinator_messages.proof(token, "member", "job", THEIRS, OURS)
    assert token not in coordinator_messages.encode(msgspec.structs.replace(JOIN, nonce=OURS, proof=proof))
