"""How fast is written, in which pieces, and what is left of it in the page cache."""

import ctypes
import mmap
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.checkpoint.storage.world import round_of_step, save, save_all
from turnout.launcher.checkpoint.storage.posix_store import WINDOW_BYTES, PosixStore, WritebackFile
from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter
from turnout.launcher.checkpoint.storage.step_reader import verify

MIB = 1 << 20


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now_s, self.slept = 0.0, []

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0
        self.slept.append(seconds)
        self.now_s += seconds


@given(
    pieces=st.lists(st.integers(1, 4 * MIB), min_size=1, max_size=50),
    bytes_s=st.integers(1_000_000, 1_000_000_000),
    idle_s=st.floats(0, 10),
)
def test_no_more_than_the_pace_is_written_and_no_less(pieces, bytes_s, idle_s):
    clock = Clock()
    paced = RateLimiter(RateLimit(bytes_s), clock.monotonic, clock.sleep)
    clock.now_s = idle_s
    for size in pieces:
        paced.take(size)
    assert clock.now_s - idle_s == pytest.approx(sum(pieces[:-1]) / bytes_s)


def test_without_a_limit_nobody_waits():
    clock = Clock()
    paced = RateLimiter(RateLimit(), clock.monotonic, clock.sleep)
    for _ in range(100):
        paced.take(MIB)
    assert clock.slept == []


def test_who_is_told_to_hurry_writes_on_within_a_quarter_of_a_second():
    clock = Clock()
    paced = RateLimiter(
        RateLimit(1_000),
        clock.monotonic,
        lambda seconds: (clock.sleep(seconds), setattr(paced, "rate_limit", RateLimit())),
    )
    paced.take(100_000)
    paced.take(100_000)
    assert clock.slept == [0.25]


def test_a_shard_is_written_at_its_pace(folder):
    clock, wrote = Clock(), []
    store = PosixStore(folder, failpoint=wrote.append)
    paced = RateLimiter(RateLimit(MIB), clock.monotonic, clock.sleep)
    save(store, 10, 0, world=1, size_bytes=5 * MIB, paced=paced)
    assert wrote.count("wrote") == 7  # a MiB each, what is left of each chunk, and the note
    assert clock.now_s == pytest.approx(5, abs=0.01)


def test_a_step_is_verified_at_its_pace(folder):
    clock = Clock()
    save_all(PosixStore(folder), 10, size_bytes=5 * MIB)
    verify(PosixStore(folder), 10, RateLimiter(RateLimit(MIB), clock.monotonic, clock.sleep))
    assert clock.now_s == pytest.approx(9, abs=0.1)  # twice 5 MiB, less the last chunk


@pytest.mark.parametrize(("bytes_s", "piece_bytes"), [(-1.0, MIB), (float("nan"), MIB), (1.0, 4_095)])
def test_a_pace_that_is_none_is_refused(bytes_s, piece_bytes):
    with pytest.raises(ValueError, match="the rate limit must be"):
        RateLimit(bytes_s, piece_bytes)


def cached_bytes(path):
    """How much of a file is in the page cache."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start
    assert not failed
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_what_was_written_does_not_stay_in_the_page_cache(tmp_path):
    size = 3 * WINDOW_BYTES
    store = PosixStore(tmp_path)
    save_all(store, 10, world=1, size_bytes=size)
    shard = tmp_path / "step-0000000010" / "rank-00000.safetensors"
    assert cached_bytes(shard) < size / 10
    assert round_of_step(store, 10, size) == 1
    verify(store, 10)
    assert cached_bytes(shard) < size / 10


def test_windows_are_forgotten_while_the_file_is_written(tmp_path):
    path = tmp_path / "file"
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    flushed = WritebackFile(file)
    for _ in range(4 * WINDOW_BYTES // MIB):
        flushed.note_written(os.write(file, bytes(MIB)))
    assert cached_bytes(path) <= 2 * WINDOW_BYTES
    flushed.close()
    os.close(file)
    assert path.read_bytes() == bytes(4 * WINDOW_BYTES)


def test_without_writeback_the_file_is_synced_and_a_failed_sync_is_raised():
    reads, writes = os.pipe()  # it knows neither
    with pytest.raises(OSError, match="Invalid argument"):
        WritebackFile(writes).note_written(WINDOW_BYTES)
    os.close(reads)
    os.close(writes)
