"""A relay between two daemons cannot change a shard, though it knows all that passes and how checksums are made."""

from __future__ import annotations

import pytest

from tests.kit.wait import until_async
from tests.launcher.checkpoint.replication.forgery import forged
from tests.launcher.checkpoint.replication.proxy import Wire
from tests.launcher.checkpoint.replication.world import bytes_of
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES, sum_of, sums_of
from turnout.launcher.checkpoint.replication.peer_connection import (
    Offer,
    PeerChallenge,
    PeerHello,
    PeerProven,
    ShardGiven,
    encode,
)
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.framing import MAC_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]
SUMS_BYTES = 24
# What is sent before the checksums of a shard: by who offers it, and by who is asked for it.
OFFERED = len(encode(PeerChallenge("job", "w0", 1, bytes(16), bytes(32))))
OFFERED += len(encode(Offer(0, 4, bytes(64), bytes(8), -1))) + MAC_BYTES
GIVEN = len(encode(PeerHello(1, bytes(16)))) + len(encode(PeerProven(bytes(32)))) + MAC_BYTES
GIVEN += len(encode(ShardGiven(4, bytes(64), bytes(8)))) + MAC_BYTES


def one_bit(shard):
    return {SUMS_BYTES + CHUNK_BYTES: shard[CHUNK_BYTES] ^ 1}


def with_its_sum(shard):
    """The last chunk is another one, and so is its checksum."""
    last = bytes(len(shard) - 2 * CHUNK_BYTES)
    return {
        **dict(enumerate(sum_of(last).to_bytes(8, "little"), 16)),
        **dict(enumerate(last, SUMS_BYTES + 2 * CHUNK_BYTES)),
    }


def fitted(shard):
    return {SUMS_BYTES + CHUNK_BYTES + at: byte for at, byte in forged(shard[CHUNK_BYTES:]).items()}


def the_proof(shard):
    """The last byte of what follows the shard."""
    return {SUMS_BYTES + len(shard) + at: 0 for at in range(MAC_BYTES)}


CHANGES = [
    pytest.param(one_bit, "chunk 1 is not what was sent", id="one bit"),
    pytest.param(with_its_sum, "the sums are not what was sent", id="a chunk, and its checksum to match"),
    pytest.param(fitted, "nobody proves that it is what was sent", id="bytes that are fitted to their checksum"),
    pytest.param(the_proof, "nobody proves that it is what was sent", id="the proof alone"),
]


async def test_bytes_can_be_fitted_to_their_checksum():
    """So that the relay below is as able as a real one."""
    chunk = bytes(bytes_of(4, 0)[CHUNK_BYTES : 2 * CHUNK_BYTES])
    other = bytearray(chunk)
    for at, byte in forged(chunk).items():
        other[at] = byte
    assert other != chunk
    assert sums_of(memoryview(other)) == sums_of(memoryview(chunk))


@pytest.mark.parametrize(("change", "why"), CHANGES)
async def test_a_replica_that_a_relay_changes_is_not_kept(job, change, why):
    """Each end says so, no copy counts, and the next one, by a sound way, is whole."""
    job = job(2)
    wire = Wire(job[1].endpoint.port)
    await job.form(wires={1: await wire.open()})
    wire.forge = {OFFERED + at: byte for at, byte in change(bytes(bytes_of(4, 0))).items()}
    await job.save(4)
    await until_async(lambda: "replica_failed" in job[0].words(), lambda: job.messages)
    assert ("replica_corrupt", {"owner": "w0", "step": 4, "detail": why}) in job[1].messages
    assert job[0].replicator.progress()[0] == -1
    assert job[1].kept(job[0]) == []
    wire.forge = {}
    for step in (5, 6):
        await job.save(step)
        await until_async(lambda step=step: job[0].replicator.progress()[0] == step, lambda: job.messages)
    assert job[1].kept(job[0])[0] == 6
    await wire.close()


@pytest.mark.parametrize(("change", "why"), CHANGES)
async def test_a_shard_that_a_relay_changes_is_not_restored(job, change, why):
    job = job(2)
    await job.form()
    await job.save(4)
    await job.copied(4)
    await job.replaced(1)
    wire = Wire(job[0].endpoint.port, answers=True)
    seat = job.seat(1, 2, wires={0: await wire.open()}, saved_round=1)
    (holders,) = seat.replica_group.replica_holders
    wire.forge = {GIVEN + at: byte for at, byte in change(bytes(bytes_of(4, 1))).items()}
    with pytest.raises(BadCheckpoint, match=why):
        await job[1].round(job.seat(1, 2, saved_round=1, fetch_from=holders), 4)
    assert [slot.record for slot in job[1].arena.slots()] == [None] * 4
    wire.forge, wire.sent = {}, 0
    await job[1].round(job.seat(1, 2, saved_round=1, fetch_from=holders), 4)
    assert job[1].own() == 4
    await wire.close()
