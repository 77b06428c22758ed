"""What is read of a shard is where it was wanted, whatever was asked for, and each of its bytes was hashed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.checkpoint.sums import CHUNK_BYTES, sums_of
from launcher.errors import BadCheckpoint
from launcher.shell.storage.verified import Piece, Verified

SHARD_BYTES = 3 * CHUNK_BYTES + 1_000


class InMemory:
    """A file that is open. reads: where each began."""

    def __init__(self, content):
        self.content, self.size_bytes, self.reads = content, len(content), []

    def fill(self, view, offset):
        self.reads.append(offset)
        view[:] = self.content[offset : offset + view.nbytes]


@pytest.fixture(scope="module")
def content():
    return bytearray(bytes(range(251)) * (SHARD_BYTES // 251 + 1))[:SHARD_BYTES]


@pytest.fixture(scope="module")
def sums(content):
    return sums_of(memoryview(content))


def pieces_of(spans):
    return [Piece(start, memoryview(bytearray(min(size, SHARD_BYTES - start)))) for start, size in spans]


starts = st.one_of(
    st.integers(0, SHARD_BYTES), st.builds(lambda at, by: at * CHUNK_BYTES + by, st.integers(1, 3), st.integers(-2, 2))
)
sizes = st.one_of(st.integers(0, 50), st.sampled_from([CHUNK_BYTES, 2 * CHUNK_BYTES, SHARD_BYTES]))


@settings(max_examples=30)
@given(st.lists(st.tuples(starts, sizes), max_size=8))
def test_every_piece_holds_the_bytes_from_its_start_on(content, sums, spans):
    pieces = pieces_of(spans)
    file = InMemory(content)
    Verified(file, sums, "a shard").fill(pieces)
    assert all(piece.into == content[piece.start : piece.end] for piece in pieces)
    assert len(set(file.reads)) == len(file.reads)  # no chunk is read twice


@pytest.mark.parametrize("wanted", [0, 1, 3], ids=["in the first chunk", "in the second", "in the last"])
@pytest.mark.parametrize("flipped", [0, CHUNK_BYTES - 1, CHUNK_BYTES, SHARD_BYTES - 1])
@pytest.mark.parametrize("size", [10, CHUNK_BYTES])
def test_a_flipped_byte_is_found_in_a_chunk_that_is_read_and_in_no_other(content, sums, wanted, flipped, size):
    broken = bytearray(content)
    broken[flipped] ^= 1
    pieces = pieces_of([(wanted * CHUNK_BYTES, size)])
    verified = Verified(InMemory(broken), sums, "a shard")
    if flipped // CHUNK_BYTES == wanted:
        with pytest.raises(BadCheckpoint, match=f"a shard: chunk {wanted} is not what was written"):
            verified.fill(pieces)
    else:
        verified.fill(pieces)
        assert pieces[0].into == content[pieces[0].start : pieces[0].end]


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, SHARD_BYTES + 1), (SHARD_BYTES + 1, SHARD_BYTES + 1)])
def test_bytes_that_are_not_in_the_shard_are_told(content, sums, start, end):
    with pytest.raises(BadCheckpoint, match=f"{start} to {end} are not in it"):
        Verified(InMemory(content), sums, "a shard").read(start, end)


def test_sums_of_another_size_are_told(content, sums):
    with pytest.raises(BadCheckpoint, match="its 3 sums are not those"):
        Verified(InMemory(content), sums[:3], "a shard")
