"""Pieces of a shard land where they were wanted, whatever was asked for, and each byte was hashed. The checksums are
those of chunks in the manifest, or of blocks where the note of the shard has them.
"""

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.launcher.checkpoint.storage.world import save, save_all
from turnout.launcher.checkpoint.format.manifest import write_note
from turnout.launcher.checkpoint.format.shard_file import BLOCK_BYTES, CHUNK_BYTES, sums_of
from turnout.launcher.checkpoint.storage.posix_store import PosixStore
from turnout.launcher.checkpoint.storage.step_reader import ByteRange, VerifiedReader, block_checksums_of, load, note_of
from turnout.launcher.errors import BadCheckpoint

SHARD_BYTES = 3 * CHUNK_BYTES + 1_000
LARGE_BYTES = 9 << 20
NOTE = "rank-00000.json"


class InMemory:
    """A file that is open. spans: of each read, where it began and how long it was."""

    at_once_bytes = 1 << 20

    def __init__(self, content):
        self.content, self.size_bytes, self.spans = content, len(content), []

    def fill(self, view, offset):
        self.spans.append((offset, view.nbytes))
        view[:] = self.content[offset : offset + view.nbytes]


@pytest.fixture(scope="module")
def content():
    return bytearray(bytes(range(251)) * (SHARD_BYTES // 251 + 1))[:SHARD_BYTES]


@pytest.fixture(scope="module")
def sums(content):
    return sums_of(memoryview(content))


@pytest.fixture(scope="module")
def finer(content):
    return sums_of(memoryview(content), BLOCK_BYTES)


def pieces_of(spans):
    return [ByteRange(start, memoryview(bytearray(min(size, SHARD_BYTES - start)))) for start, size in spans]


starts = st.one_of(
    st.integers(0, SHARD_BYTES), st.builds(lambda at, by: at * CHUNK_BYTES + by, st.integers(1, 3), st.integers(-2, 2))
)
sizes = st.one_of(st.integers(0, 50), st.sampled_from([CHUNK_BYTES, 2 * CHUNK_BYTES, SHARD_BYTES]))


@pytest.mark.parametrize("block_bytes", [CHUNK_BYTES, BLOCK_BYTES], ids=["sums of chunks", "sums of blocks"])
@settings(max_examples=scaled(20))
@given(st.lists(st.tuples(starts, sizes), max_size=8))
def test_every_piece_holds_the_bytes_from_its_start_on(content, sums, finer, block_bytes, spans):
    pieces = pieces_of(spans)
    file = InMemory(content)
    VerifiedReader(file, sums if block_bytes == CHUNK_BYTES else finer, "a shard", block_bytes).fill(pieces)
    assert all(piece.into == content[piece.start : piece.end] for piece in pieces)


@given(st.lists(st.integers(0, SHARD_BYTES), min_size=2, max_size=12, unique=True).map(sorted))
@settings(max_examples=scaled(20))
def test_pieces_apart_read_no_byte_twice_and_none_far_from_those_wanted(content, finer, cuts):
    pieces = pieces_of([(start, end - start) for start, end in zip(cuts[::2], cuts[1::2], strict=False)])
    file = InMemory(content)
    VerifiedReader(file, finer, "a shard", BLOCK_BYTES).fill(pieces)
    read = [
        number
        for start, size in file.spans
        for number in range(start // BLOCK_BYTES, -(-(start + size) // BLOCK_BYTES))
    ]
    positions = {n for each in pieces for n in range(each.start // BLOCK_BYTES, -(-each.end // BLOCK_BYTES))}
    assert sorted(read) == sorted(positions)


@pytest.mark.parametrize("requested", [0, 1, 3], ids=["in the first chunk", "in the second", "in the last"])
@pytest.mark.parametrize("flipped", [0, CHUNK_BYTES - 1, CHUNK_BYTES, SHARD_BYTES - 1])
@pytest.mark.parametrize("size", [10, CHUNK_BYTES])
def test_a_flipped_byte_is_found_in_a_chunk_that_is_read_and_in_no_other(content, sums, requested, flipped, size):
    broken = bytearray(content)
    broken[flipped] ^= 1
    pieces = pieces_of([(requested * CHUNK_BYTES, size)])
    verified = VerifiedReader(InMemory(broken), sums, "a shard")
    if flipped // CHUNK_BYTES == requested:
        with pytest.raises(
            BadCheckpoint,
            match=f"a shard: chunk {requested}, at byte {requested * CHUNK_BYTES}, is not what was written",
        ):
            verified.fill(pieces)
    else:
        verified.fill(pieces)
        assert pieces[0].into == content[pieces[0].start : pieces[0].end]


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, SHARD_BYTES + 1), (SHARD_BYTES + 1, SHARD_BYTES + 1)])
def test_bytes_that_are_not_in_the_shard_are_told(content, sums, start, end):
    with pytest.raises(BadCheckpoint, match=f"{start} to {end} are not in it"):
        VerifiedReader(InMemory(content), sums, "a shard").read(start, end)


def test_sums_of_another_size_are_told(content, sums):
    with pytest.raises(BadCheckpoint, match="its 3 sums are not those"):
        VerifiedReader(InMemory(content), sums[:3], "a shard")


@pytest.fixture
def store(folder):
    return PosixStore(folder)


def path_of(store, name):
    return store.path / "step-0000000010" / name


def test_a_note_has_the_sums_of_what_the_file_holds(store):
    shard = save_all(store, 10, world=1, size_bytes=LARGE_BYTES).shards[0]
    blocks = block_checksums_of(store, 10, shard)
    assert blocks.block_bytes == BLOCK_BYTES
    assert list(blocks.sums) == sums_of(memoryview(path_of(store, shard.file).read_bytes()), BLOCK_BYTES)


def of_another_round(store):
    save(store, 10, 0, world=1, round_=2)


def of_before_there_were_any(store):
    path_of(store, NOTE).write_bytes(write_note(replace(note_of(store, 10, 0), blocks=None)))


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(of_another_round, id="another round has noted another shard since"),
        pytest.param(of_before_there_were_any, id="it was noted without them"),
        pytest.param(lambda store: path_of(store, NOTE).unlink(), id="there is no note"),
        pytest.param(lambda store: os.truncate(path_of(store, NOTE), 99), id="the note is cut short"),
    ],
)
def test_what_is_not_the_note_of_the_committed_shard_has_no_say(store, harm):
    shard = save_all(store, 10, world=1).shards[0]
    assert block_checksums_of(store, 10, shard) is not None
    harm(store)
    assert block_checksums_of(store, 10, shard) is None


def test_a_note_with_any_wrong_byte_has_no_say(store):
    shard, path = save_all(store, 10, world=1).shards[0], path_of(store, NOTE)
    content = path.read_bytes()
    for at, byte in enumerate(content):
        path.write_bytes(content[:at] + bytes([byte ^ 1 << at % 8]) + content[at + 1 :])
        assert block_checksums_of(store, 10, shard) is None, at


@pytest.mark.parametrize("left_bytes", [0, 4_095, CHUNK_BYTES, CHUNK_BYTES + 1, LARGE_BYTES])
def test_a_file_that_gets_shorter_while_it_is_read_is_told(store, left_bytes):
    manifest = save_all(store, 10, world=1, size_bytes=LARGE_BYTES)
    shard = manifest.shards[0]
    blocks, path = block_checksums_of(store, 10, shard), path_of(store, shard.file)
    with store.open_file(10, shard.file) as file:
        verified = VerifiedReader(file, blocks.sums, "a shard", blocks.block_bytes)
        os.truncate(path, left_bytes)
        with pytest.raises(BadCheckpoint, match="ends at byte"):
            verified.read(0, shard.bytes)
    with pytest.raises(BadCheckpoint, match=f"has {left_bytes} bytes; the manifest states {shard.bytes} bytes"):
        load(store, manifest, 0)
