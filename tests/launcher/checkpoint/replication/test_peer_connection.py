"""A peer's bytes are believed only as far as proved: its identity, their time, and each byte."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import ExitStack

import pytest

from tests.kit.wait import until_async
from tests.launcher.checkpoint.replication.proxy import Wire
from tests.launcher.checkpoint.replication.world import TOKEN, ReplicaDaemon, bytes_of, record_of
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, ShardRecord
from turnout.launcher.checkpoint.replication.peer_connection import (
    PROOF_BYTES,
    Copied,
    Copy,
    Fetch,
    Follow,
    Offer,
    PeerChallenge,
    PeerIdentity,
    PeerRefusal,
    PeerUnavailable,
    SendShard,
    ShardKept,
    connect_peer,
    encode,
    pack_record,
)
from turnout.launcher.errors import BadFrame
from turnout.launcher.framing import MAC_BYTES

pytestmark = pytest.mark.asyncio
# What comes before the shard.
GREET_BYTES = len(encode(PeerChallenge("job", "w0", 1, bytes(16), bytes(32))))
OFFER_BYTES = len(encode(Offer(0, 4, bytes(64), bytes(8), -1))) + MAC_BYTES
SUMS_BYTES = 24


async def knock(daemon, token=TOKEN, run="job", worker="w7", round_=1):
    return await connect_peer(daemon.endpoint, PeerIdentity(run, worker, token), round_)


@pytest.mark.parametrize(("who", "why"), [
    pytest.param({"token": b"another token, as long"}, "token", id="the token of another job"),
    pytest.param({"token": b""}, "token", id="no token"),
    pytest.param({"run": "other"}, "token", id="another run"),
])  # fmt: skip
async def test_a_stranger_is_not_let_in(job, who, why):
    job = job(2)
    await job.form()
    with pytest.raises(PeerUnavailable) as error:
        await knock(job[1], **who)
    assert error.value.reason == why
    assert "stranger_refused" in job[1].words()


async def test_a_daemon_that_does_not_know_the_token_is_told_nothing(job):
    """A caller cannot get an answer by sending back the daemon's own nonce either: proofs differ by role."""
    job = job(2, token=b"another token, as long")
    await job.form()
    with pytest.raises(PeerUnavailable):
        await knock(job[1])


async def test_strangers_do_not_close_out_who_knows_the_token(job):
    job = job(2)
    await job.form()
    with ExitStack() as crowd:
        for _ in range(700):
            _, writer = await asyncio.open_connection("127.0.0.1", job[1].endpoint.port)
            crowd.callback(writer.close)
        connection = await knock(job[1])
        with pytest.raises(PeerUnavailable) as error:
            await connection.ask(Fetch(4, 1, 0, 2))
        assert error.value.reason == "not_here"
        connection.close()


async def test_who_is_of_an_older_round_is_refused(job):
    """docs/design.md 5: what it would write is of a past that was given up."""
    job = job(2)
    await job.form()
    await job.save(4)
    await job.copied(4)
    await job[1].round(job.seat(1, 2), 4)
    connection = await knock(job[1], round_=1)
    assert (await connection.receive()).reason == "older_round"
    connection.close()
    assert job[1].kept(job[0]) == [4]


async def test_a_round_that_ends_while_two_talk(job):
    job = job(2)
    await job.form()
    connection = await knock(job[1], round_=1)
    await job[1].round(job.seat(1, 2), -1)
    for message in (Offer(0, 3, pack_record(record_of(5, 0, 2)), b"12345678", -1), Fetch(4, 1, 0, 2)):
        with pytest.raises(PeerUnavailable) as error:
            await connection.ask(message)
        assert error.value.reason == "older_round"
        connection.close()
        connection = await knock(job[1], round_=2)
        await job[1].round(job.seat(1, 3), -1)
    connection.close()


async def test_what_does_not_fit_is_refused_before_a_byte_is_taken(job):
    """With what is to be added: to its own log, and to whom sends."""
    job = job(2)
    await job.form()
    connection = await knock(job[1])
    with pytest.raises(PeerUnavailable) as error:
        await connection.ask(Offer(0, 3, pack_record(ShardRecord(0, 5, 1, 0, 2, PAGE_BYTES, 1 << 39)), b"12345678", -1))
    connection.close()
    assert error.value.reason == "no_memory"
    assert "checkpoints in memory need 1024.00 GiB" in str(error.value)
    ((what, fields),) = job[1].messages
    assert (what, fields["owner"], fields["step"]) == ("replica_refused", "w7", 5)
    assert job[1].replicator.replica_store.arenas.all() == ()


async def test_a_sender_whose_copies_are_refused_goes_on_without_and_says_so(job):
    """Its replica holder is a round ahead. A copy less is no reason to hold up the copies of others."""
    job = job(2)
    await job[1].round(job.seat(1, 2), meets=False)
    await job[0].round(job.seat(0))
    follower = await knock(job[0], worker="w1")
    await follower.send(Follow())
    for step, newest_copy in ((4, -1), (5, 4)):
        await job[0].save(step)
        assert await follower.receive() == Copy(step, newest_copy)
        await follower.send(Copied(step, "kept"))
    follower.close()
    assert job[0].words() == ["replica_refused"]
    assert job[0].ends()[0] == (4, 0, "failed", False)
    assert job[1].replicator.replica_store.arenas.all() == ()


@pytest.mark.parametrize("message", [SendShard(), ShardKept(), PeerRefusal("busy")])
async def test_a_message_not_for_a_daemon_ends_the_connection(job, message):
    job = job(2)
    await job.form()
    connection = await knock(job[1])
    await connection.send(message)
    with pytest.raises((PeerUnavailable, BadFrame)):
        await connection.receive()
    connection.close()
    await until_async(lambda: "frame_refused" in job[1].words())


def positions():
    """Give positions in the stream from a sender to its replica holder: in each part, at borders, and some more."""
    dice, shard = random.Random(7), PAGE_BYTES + record_of(0, 0, 1).data_bytes
    begins = GREET_BYTES + OFFER_BYTES + SUMS_BYTES
    parts = {
        "the greeting": (0, GREET_BYTES - 1),
        "the offer": (GREET_BYTES, GREET_BYTES + OFFER_BYTES - 1),
        "the sums": (begins - SUMS_BYTES, begins - 1),
        "the head": (begins, begins + PAGE_BYTES - 1),
        "the first chunk": (begins + PAGE_BYTES, begins + (4 << 20) - 1),
        "the last chunk": (begins + (8 << 20), begins + shard - 1),
    }
    for part, (first, last) in parts.items():
        for at in (first, last, *(dice.randrange(first, last) for _ in range(1))):
            yield pytest.param(at, id=f"{part}, byte {at}")


@pytest.mark.slow
@pytest.mark.parametrize("at", [*positions()])
async def test_a_byte_that_is_another_one_when_it_arrives_is_found(job, at):
    """Nothing of that copy is kept, the one before it stays, and the next one is whole again."""

    job = job(2)
    wire = Wire(job[1].endpoint.port)
    await job.form(wires={1: await wire.open()})
    wire.flip = at
    await job.save(4)
    await until_async(lambda: {"replica_failed", "replica_refused"} & {*job[0].words()}, lambda: job.messages)
    assert job[1].kept(job[0]) == []
    for step in (5, 6):
        await job.save(step)
        await until_async(lambda step=step: job[0].replicator.progress()[0] == step, lambda: job.messages)
    assert job[1].kept(job[0])[0] == 6
    await wire.close()


async def test_a_wire_that_is_cut_in_mid_copy_leaves_the_one_before_it(job):
    job = job(2)
    wire = Wire(job[1].endpoint.port)
    await job.form(wires={1: await wire.open()})
    for step in (4, 5):
        await job.save(step)
        await job.copied(step)
    wire.cut = wire.sent + (5 << 20)
    await job.save(6)
    await until_async(lambda: "replica_failed" in job[0].words())
    assert job[1].kept(job[0]) == [5]
    wire.cut = None
    await job.save(7)
    await until_async(lambda: job[0].replicator.progress()[0] == 7, lambda: job.messages)
    assert job[1].kept(job[0]) == [7, 5]
    await wire.close()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(6, id="killed 6 times"),
        pytest.param(200, id="killed 200 times", marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
async def test_a_sender_that_is_killed_leaves_the_newest_whole_copy(tmp_path, kills):
    """At any moment, in mid-copy too: what it was told to be whole is there, and nothing that is torn."""
    dice, daemon, newest, torn = random.Random(11), ReplicaDaemon(tmp_path / "w1", "w1", 1), -1, 0
    for _ in range(kills):
        sender = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.launcher.checkpoint.replication.sender"),
            *(tmp_path / "w0", str(daemon.endpoint.port), str(newest + 1)),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await sender.stdout.readline()
        await asyncio.sleep(dice.uniform(0, 0.05))
        sender.kill()
        words = (await sender.stdout.read()).split()
        await sender.wait()
        owner = Owner()
        await until_async(lambda: not daemon.replicator.peers.is_busy(), "what was begun ends")
        steps = daemon.kept(owner)
        assert steps[0] >= max(map(int, words), default=newest)
        torn += len(steps) < 2
        newest = steps[0]
    assert torn, "some were killed in mid-copy"
    await daemon.close()


class Owner:
    """An owner of what is kept, saved as sender.py does."""

    def __init__(self):
        self.rank, self.size = 0, record_of(0, 0, 2).data_bytes
        self.daemon = type("FakePort", (), {"worker": "w0"})


async def test_the_parts_of_the_stream_are_where_they_are_thought_to_be(job):
    """So that each of them is hit."""
    job = job(2)
    wire = Wire(job[1].endpoint.port)
    await job.form(wires={1: await wire.open()})
    await job.save(4)
    await until_async(lambda: job[0].replicator.progress()[0] == 4)
    assert wire.sent == GREET_BYTES + OFFER_BYTES + SUMS_BYTES + len(bytes_of(4, 0)) + PROOF_BYTES
    await wire.close()
