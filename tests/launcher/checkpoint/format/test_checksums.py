"""Sums over chunks: each is of its own bytes, and no single wrong byte keeps the sum of its chunk."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.shard_file import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    MAX_BLOCKS,
    block_bytes_of,
    sum_of,
    sums_of,
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", 0x2D06800538D394C2, id="of nothing, as the authors of xxh3 publish it"),
        pytest.param(b"turnout", 0x35566FF301D6F662, id="of a word"),
        pytest.param(bytes(4_096), 0x93D76FE148C689BA, id="of an empty page"),
    ],
)
def test_the_sum_is_the_same_for_all_time(data, expected):
    assert sum_of(data) == sum_of(bytearray(data)) == sum_of(memoryview(data)) == expected


@pytest.mark.parametrize(
    ("size", "chunks"),
    [
        pytest.param(0, [], id="no bytes, no sums"),
        pytest.param(1, [1], id="one byte, one sum"),
        pytest.param(7, [7], id="one byte short of a chunk"),
        pytest.param(8, [8], id="just a chunk"),
        pytest.param(9, [8, 1], id="one byte more"),
        pytest.param(24, [8, 8, 8], id="whole chunks"),
    ],
)
def test_each_chunk_has_its_own_sum(size, chunks):
    data = random.Random(7).randbytes(size)
    starts = [sum(chunks[:at]) for at in range(len(chunks))]
    expected = [sum_of(data[at : at + each]) for at, each in zip(starts, chunks, strict=True)]
    assert sums_of(memoryview(data), 8) == expected


def test_a_chunk_is_four_mebibytes_unless_told():
    data = memoryview(bytearray(CHUNK_BYTES + 1))
    assert CHUNK_BYTES == 4 << 20
    assert sums_of(data) == [sum_of(data[:CHUNK_BYTES]), sum_of(b"\0")]


@given(numbers=st.lists(st.floats(width=64), max_size=64), chunk_bytes=st.integers(1, 64))
def test_only_the_bytes_count_not_what_they_are_seen_as(numbers, chunk_bytes):
    view = memoryview(array("d", numbers))
    octets = memoryview(view.tobytes())
    assert sums_of(view, chunk_bytes) == sums_of(octets, chunk_bytes)
    if numbers:
        assert sums_of(octets.cast("B", [len(numbers), 8]), chunk_bytes) == sums_of(octets, chunk_bytes)


def test_every_wrong_byte_of_64_kib_is_seen_in_its_chunk_and_in_no_other():
    dice = random.Random(7)
    data = bytearray(dice.randbytes(64 << 10))
    right = sums_of(memoryview(data), 4_096)
    for at in range(len(data)):
        data[at] ^= (flip := dice.randint(1, 255))
        chunk = at // 4_096
        assert sum_of(memoryview(data)[chunk * 4_096 : (chunk + 1) * 4_096]) != right[chunk]
        data[at] ^= flip
    assert sums_of(memoryview(data), 4_096) == right
    data[5_000] ^= 1
    assert [at for at, each in enumerate(sums_of(memoryview(data), 4_096)) if each != right[at]] == [1]


@pytest.mark.parametrize(
    ("size_bytes", "block_bytes"),
    [
        pytest.param(0, 256 << 10, id="nothing"),
        pytest.param(8 << 30, 256 << 10, id="as much as the smallest blocks are for"),
        pytest.param((8 << 30) + 1, 512 << 10, id="a byte more"),
        pytest.param(40 << 30, 2 << 20, id="40 GiB"),
        pytest.param(1 << 40, 4 << 20, id="so much that chunks do"),
    ],
)
def test_blocks_are_larger_where_there_would_be_too_many(size_bytes, block_bytes):
    assert block_bytes_of(size_bytes) == block_bytes
    assert block_bytes == CHUNK_BYTES or -(-size_bytes // block_bytes) <= MAX_BLOCKS
    assert CHUNK_BYTES % block_bytes == block_bytes % BLOCK_BYTES == 0
