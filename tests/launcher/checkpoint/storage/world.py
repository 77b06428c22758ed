"""Helpers of the tests of storage: regions of memory, worlds that save them, and what was told."""

import random

from turnout.launcher.checkpoint.daemon.persist import Commit
from turnout.launcher.checkpoint.format.shard_file import Spec, head_of, pack, sums_of
from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter, ShardWrite, persist
from turnout.launcher.checkpoint.storage.step_reader import load, manifest_of, verify

RUN = "bert"
SMALL_BYTES = 28 << 10  # with its head half of 64 KiB
NOW_S = 1_800_000_000.0


def region(step, rank, round_=1, size_bytes=SMALL_BYTES):
    """The safetensors file that such a rank saves in such a round: always the same bytes."""
    layout = pack([Spec("weight", "U8", (size_bytes,))])
    dice = random.Random(f"{step} {rank} {round_} {size_bytes}")
    return bytearray(head_of(layout, {"rank": str(rank)}) + dice.randbytes(size_bytes))


def save(store, step, rank, world=2, round_=1, run=RUN, size_bytes=SMALL_BYTES, paced=None, saved_s=NOW_S):
    """Persist one rank's shard."""
    octets = memoryview(region(step, rank, round_, size_bytes))
    saving = ShardWrite(run, step, round_, rank, world, head_bytes=octets.nbytes - size_bytes)
    return persist(store, saving, octets, sums_of(octets), saved_s, paced)


def commit(store, step, world=2, round_=1, run=RUN, say=None):
    """Look once for what commits the step."""
    return Commit(store, run, step, round_, world, say or Said()).try_commit()


def save_all(store, step, world=2, round_=1, **more):
    """Persist all ranks' shards, and commit them."""
    for rank in range(world):
        save(store, step, rank, world, round_, **more)
    manifest = commit(store, step, world, round_)
    assert manifest is not None
    return manifest


def round_of_step(store, step, size_bytes=SMALL_BYTES):
    """See that a step is what one round saved, all of it, bit for bit. Gives that round."""
    manifest = verify(store, step)
    assert manifest == manifest_of(store, step)
    for rank in range(manifest.world):
        assert load(store, manifest, rank) == region(step, rank, manifest.round, size_bytes)
    return manifest.round


def small_pieces():
    """A pace at which a small region takes several writes."""
    return RateLimiter(RateLimit(piece_bytes=16 << 10))


class Said:
    """Whoever is told."""

    def __init__(self):
        self.all = []

    def __call__(self, word, fields):
        self.all.append((word, dict(fields)))

    def words(self):
        return [word for word, _ in self.all]

    def steps(self, word):
        return [fields["step"] for each, fields in self.all if each == word]
