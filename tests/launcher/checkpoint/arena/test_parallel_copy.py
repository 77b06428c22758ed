"""Copies: all bytes, at their places, and no others, however many threads and pieces there are."""

import errno
import mmap
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.arena.arena import address_of
from turnout.launcher.checkpoint.arena.parallel_copy import MAX_THREADS, Copier, divide_evenly

GUARD = 64  # bytes between and around targets that must stay as they are

# sizes: what tensors have: none, scalars, thousands of small ones, some of many pages. gap: is there a hole before it?
pieces = st.lists(
    st.tuples(st.sampled_from([0, 1, 4, 8, 300, 4_096, 16_383, 16_384, 70_001]), st.booleans()), max_size=60
)


def laid_out(shape, seed=1):
    """Sources of these sizes, and where each goes: rows of offset, address and bytes. Also what must be there then."""
    dice = np.random.default_rng(seed)
    sources = [dice.integers(1, 255, size, np.uint8) for size, _ in shape]
    at, rows = GUARD, []
    for source, (size, gap) in zip(sources, shape, strict=True):
        at += GUARD * gap
        rows.append((at, source.ctypes.data, size))
        at += size
    expected = np.zeros(at + GUARD, np.uint8)
    for source, (to, _, size) in zip(sources, rows, strict=True):
        expected[to : to + size] = source
    return sources, rows, expected


def moved(rows, base):
    return [(base + to, source, size) for to, source, size in rows]


@pytest.fixture(scope="module")
def copiers():
    copier_by_threads = {threads: Copier(threads) for threads in (1, 2, 3, MAX_THREADS)}
    yield copier_by_threads
    for copier in copier_by_threads.values():
        copier.close()


@given(shape=pieces, threads=st.sampled_from([1, 2, 3, MAX_THREADS]), as_array=st.booleans())
def test_each_piece_lies_where_it_belongs_and_nothing_else_has_changed(copiers, shape, threads, as_array):
    sources, rows, expected = laid_out(shape)
    target = np.zeros_like(expected)
    order = moved(rows, target.ctypes.data)
    copiers[threads].copy(np.array(order, np.int64).reshape(-1, 3) if as_array else order)
    copiers[threads].wait()
    assert np.array_equal(target, expected)
    assert len(sources) == len(rows)  # kept until here: only their addresses were given


@given(shape=pieces)
def test_through_the_file_the_result_is_the_same(copiers, shape):
    sources, rows, expected = laid_out(shape)
    file = os.memfd_create("copied")
    try:
        os.truncate(file, len(expected))
        copiers[1].write(file, rows)
        copiers[1].wait()
        with mmap.mmap(file, 0) as target:
            assert target[:] == expected.tobytes()
    finally:
        os.close(file)
    assert len(sources) == len(rows)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param([(4, False)] * 5_000, id="thousands of scalars, side by side"),
        pytest.param([(4, True)] * 3_000, id="thousands of scalars, each by itself"),
        pytest.param([(80 << 20, False), (3, False)], id="one that is larger than a thread takes at a time"),
        pytest.param([(0, False)] * 3, id="nothing but empty ones"),
        pytest.param([], id="none at all"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_shapes_of_states(copiers, shape, threads):
    sources, rows, expected = laid_out(shape)
    target = bytearray(len(expected))
    copiers[threads].copy(moved(rows, address_of(memoryview(target))))
    copiers[threads].wait()
    assert target == expected.tobytes()
    file = os.memfd_create("copied")
    copiers[threads].write(file, rows)
    copiers[threads].wait()
    file_bytes = os.pread(file, len(expected), 0)
    os.close(file)
    assert file_bytes == expected.tobytes()[: len(file_bytes)]
    assert len(file_bytes) == max((to + size for to, _, size in rows if size), default=0)
    assert len(sources) == len(rows)


def test_tensors_of_torch_are_copied_bit_by_bit(copiers):
    tensors = [torch.randn(300, 50), torch.arange(7, dtype=torch.int8), torch.tensor(float("nan")), torch.randn(9)[2:]]
    target = bytearray(sum(tensor.nbytes for tensor in tensors))
    rows, at = [], address_of(memoryview(target))
    for tensor in tensors:
        rows.append((at, tensor.data_ptr(), tensor.nbytes))
        at += tensor.nbytes
    copiers[2].copy(rows)
    copiers[2].wait()
    assert target == b"".join(tensor.numpy().tobytes() for tensor in tensors)


@given(shape=pieces, count=st.integers(1, 9))
def test_the_parts_of_an_order_are_even_and_together_the_order(shape, count):
    _, rows, _ = laid_out(shape)
    parts = divide_evenly(np.array(rows, np.int64).reshape(-1, 3), count)
    total = sum(size for _, _, size in rows)
    sizes = [int(part[:, 2].sum()) for part in parts]
    assert sum(sizes) == total
    assert len(parts) == min(count, total)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    put_together = []
    for to, source, size in np.concatenate(parts).tolist() if parts else []:
        if put_together and put_together[-1][1] + put_together[-1][2] == source:
            put_together[-1][2] += size
        else:
            put_together.append([to, source, size])
    assert [tuple(row) for row in put_together] == [row for row in rows if row[2]]


def test_an_error_in_a_thread_reaches_the_waiter_and_the_next_copy_is_fine(copiers):
    _, rows, expected = laid_out([(100, False)])
    reader, writer = os.pipe()
    os.close(reader)
    copiers[2].write(writer, rows)
    with pytest.raises(OSError) as failed:
        copiers[2].wait()
    os.close(writer)
    assert failed.value.errno == errno.ESPIPE
    target = bytearray(len(expected))
    copiers[2].copy(moved(rows, address_of(memoryview(target))))
    copiers[2].wait()
    copiers[2].wait()
    assert target == expected.tobytes()


@pytest.mark.parametrize("threads", [0, MAX_THREADS + 1])
def test_a_number_of_threads_that_is_not_taken(threads):
    with pytest.raises(ValueError, match="1 to 8 are taken"):
        Copier(threads)


@pytest.mark.parametrize("piece", [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_a_piece_below_zero_is_refused_before_a_byte_moves(copiers, piece):
    with pytest.raises(ValueError, match="below 0"):
        copiers[1].copy([piece])
    copiers[1].wait()
