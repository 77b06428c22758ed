"""Writes, seals, hashes and reads the generations of one rank's arena, safely even if a process crashes.

The file outlives the processes that map it. Only the trainer, a training process, writes generations, and holds a lock
on the file while it lives. The daemon pins the generations that it reads, hashes them and allocates pages in advance.
launcher/checkpoint/format/arena_layout.py defines the pages; arena_files.py knows the owner of each file.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from turnout.launcher import linux
from turnout.launcher.checkpoint.arena import arena_files
from turnout.launcher.checkpoint.arena.arena_files import ShmAllocation, boot_id, find, leftovers, open_arena_file
from turnout.launcher.checkpoint.format.arena_layout import (
    EPOCH,
    PAGE_BYTES,
    PINS,
    RECORD_AT,
    RECORD_BYTES,
    RESERVED,
    STATE,
    SUMS_SUM,
    Identity,
    ShardRecord,
    Slot,
    SlotState,
    next_epoch,
    offset_of,
    read_table,
    record_bytes,
    slot_to_write,
    table_at,
)
from turnout.launcher.checkpoint.format.shard_file import sum_of
from turnout.launcher.errors import BadCheckpoint, LauncherError, NoMemory
from turnout.launcher.event_log import EventLog

_TRIES = 8  # to begin a save: enough even if the daemon pins each generation just before it is marked


class ArenaBusy(LauncherError):
    """Another process, or another Checkpointer of this one, writes into this arena. Only one at a time may."""


class Arena:
    """An open arena, from make() or open(). Threads may share it.

    path, file: the file and its descriptor. identity: read from page 0.
    """

    def __init__(self, path: Path, file: int, identity: Identity) -> None:
        self.path, self.identity, self.file = path, identity, file
        self._guard = threading.Lock()
        self._head = mmap.mmap(file, table_at(identity.count))
        self._bytes = memoryview(self._head)
        self._words = self._bytes.cast("Q")  # state changes rely on single 8-byte stores
        self._maps: dict[int, mmap.mmap] = {}
        self._filling: set[int] = set()
        self._ready: dict[int, int] = {}
        self._locks = arena_files.ArenaLocks(file)
        self._room = ShmAllocation(path, file, self._locks)

    @classmethod
    def make(cls, folder: str | Path, identity: Identity) -> Arena:
        """Create the file of an arena in the folder, and return the open arena, with memory for one page per
        generation.

        reserve() allocates the rest. The file appears in the folder only when it is complete. Raises NoMemory if the
        folder is missing, lacks the space, or does not support files without a name. identity: written to page 0; its
        count is the number of generations.
        """
        path, file = arena_files.make(Path(folder), identity)
        return cls(path, file, identity)

    @classmethod
    def open(cls, path: str | Path) -> Arena:
        """Open an arena. Raises BadCheckpoint unless it is a valid arena of this user with mode 0600."""
        file, identity = arena_files.open_arena_file(Path(path))
        return cls(Path(path), file, identity)

    def slots(self) -> tuple[Slot, ...]:
        """Read the tables of all generations. A generation that is not pinned may change at any time."""
        return tuple(self._read_slot(generation) for generation in range(self.identity.count))

    def _read_slot(self, generation: int) -> Slot:
        """Read the table of one generation, without a lock.

        If another process changes the state or the epoch during the read, it is read again.
        """
        offset = table_at(generation)
        while True:
            before = self._word(generation, STATE), self._word(generation, EPOCH)
            page = bytes(self._bytes[offset : offset + PAGE_BYTES])
            linux.memory_barrier()
            if before == (self._word(generation, STATE), self._word(generation, EPOCH)):
                return read_table(page)

    def reserve(self, generation: int, size: int) -> None:
        """Allocate at least `size` bytes for this generation, so that a later write cannot end in SIGBUS. Its content
        is kept.

        Does nothing if they are allocated already. Raises NoMemory, and then no more memory is allocated than before.
        """
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        if size <= self._word(generation, RESERVED):
            return
        with self._room.allocator() as take:
            take(f"generation {generation}", offset_of(generation), self._word(generation, RESERVED), size)
            self._set_word(generation, RESERVED, max(size, self._word(generation, RESERVED)))

    def populate(self, generation: int, size: int) -> bool:
        """Allocate `size` bytes of a generation and map their pages, so that the first save into them is as fast as any
        later one. A thread beside the training loop calls it.

        Returns False if the kernel is older than 5.14, so that the pages are not mapped. Raises NoMemory if the memory
        cannot be allocated or mapped.
        """
        self.reserve(generation, size)
        view = self.map(generation, size)
        try:
            is_mapped = linux.populate(address_of(view), size)
        except OSError as error:
            raise NoMemory(f"{self.path.parent} does not give its pages: {error.strerror}") from error
        if is_mapped and self._maps.get(generation) is view.obj:
            self._ready[generation] = size
        return is_mapped

    def is_mapped(self, generation: int, size: int) -> bool:
        """Return True if the pages of `size` bytes of a generation are mapped in this process.

        If not, writing through the file is faster than through the mapping.
        """
        return self._ready.get(generation, 0) >= size

    def map(self, generation: int, size: int) -> memoryview:
        """Return a view of the first `size` bytes of a generation, which must be allocated. Its address is valid while
        the view exists.

        Raises BadCheckpoint if the file ends before these bytes, and NoMemory if the kernel refuses the mapping.
        """
        with self._guard:
            mapping = self._maps.get(generation)
            if mapping is None or len(mapping) < size:
                try:
                    mapping = mmap.mmap(self.file, -(-size // PAGE_BYTES) * PAGE_BYTES, offset=offset_of(generation))
                except ValueError as error:
                    raise BadCheckpoint(
                        f"{self.path}: {size} bytes of generation {generation} are not there"
                    ) from error
                except OSError as error:
                    raise NoMemory(f"{self.path}: {size} bytes cannot be mapped: {error.strerror}") from error
                self._ready.pop(generation, None)
                self._maps[generation] = mapping  # the smaller mapping ends with its last reader
            return memoryview(mapping)[:size]

    def claim(self) -> bool:
        """Become the writer until close() or the end of this process. Return False if another living process, or
        another Arena object, is the writer, or if this process was forked after the arena was opened.
        """
        return self._locks.claim()

    def begin(self, record: ShardRecord) -> int | None:
        """Choose a generation for a save, allocate its memory and mark it WRITING; return it.

        record: of the save; its epoch is ignored. Call seal() or discard() afterwards. Returns None if no generation
        may be overwritten. Raises ArenaBusy if claim() fails, and NoMemory, without any change, if no free generation
        gets enough memory.
        """
        if not self.claim():
            raise ArenaBusy(
                f"{self.path} has another writer: a rank saves through one checkpointer at a time; "
                "use that one for all of its state, or close() it first"
            )
        full: NoMemory | None = None
        busy = set(self._filling)
        for _ in range(_TRIES):
            slots = self.slots()
            generation = slot_to_write(slots, busy=busy)
            if generation is None:
                break
            try:
                self.reserve(generation, record.region_bytes)
            except NoMemory as error:  # another generation may have its memory already
                full = full or error
                busy.add(generation)
                continue
            if self._mark_writing(generation, next_epoch(slots)):
                self._filling.add(generation)
                return generation
        if full is not None:
            raise full
        return None

    def _mark_writing(self, generation: int, epoch: int) -> bool:
        """Mark a generation WRITING with this epoch, unless it is pinned; return True if it is marked.

        The state is written before the pins are read. pin() writes the pins before it reads the state, so at least one
        of both processes sees the other's store.
        """
        before = self._word(generation, STATE)
        self._set_word(generation, STATE, SlotState.WRITING)
        linux.memory_barrier()
        if self._word(generation, PINS):
            self._set_word(generation, STATE, before)
            return False
        self._set_word(generation, EPOCH, epoch)
        self._set_word(generation, SUMS_SUM, 0)
        # An empty record is invalid with any state, so a reader with an old state does not accept it.
        self._write_record(generation, bytes(RECORD_BYTES))
        return True

    def seal(self, generation: int, record: ShardRecord) -> ShardRecord:
        """Make a generation the newest, since all its bytes are written. Returns the record with its epoch.

        A process that is killed at any instruction leaves the generation either WRITING or complete: the state is the
        last store, of 8 aligned bytes. The caller has waited for all threads that copy. x86 shows stores to other cores
        in program order, including those of memmove(), which ends with a fence when it bypasses the cache. On other
        machines memory_barrier() orders the state after all other stores. Raises ValueError if begin() did not choose
        it here.
        """
        if generation not in self._filling:
            raise ValueError(f"generation {generation} is not being filled by this writer")
        record = replace(record, epoch=self._word(generation, EPOCH))
        self._write_record(generation, record_bytes(record))
        linux.memory_barrier()
        self._set_word(generation, STATE, SlotState.SEALED)
        self._filling.discard(generation)
        return record

    def discard(self, generation: int) -> None:
        """Mark a generation empty; its memory stays allocated. Only its writer calls it, or a process that has pinned
        it and found it corrupt.
        """
        self._set_word(generation, STATE, SlotState.EMPTY)
        self._filling.discard(generation)

    def pin(self, generation: int, epoch: int | None = None) -> ShardRecord | None:
        """Pin a generation, so that its writer does not overwrite it until unpin(); return its record.

        Only the daemon pins; pins may be nested. epoch: of the expected save, None for any. Returns None, without a
        pin, if the generation has no readable save or another one.
        """
        with self._guard:
            self._set_word(generation, PINS, self._word(generation, PINS) + 1)
        linux.memory_barrier()
        slot = self._read_slot(generation)
        if slot.record is None or epoch not in (None, slot.epoch):
            self.unpin(generation)
            return None
        return slot.record

    def pin_newest(self, matches: Callable[[ShardRecord], bool]) -> tuple[int, ShardRecord] | None:
        """Pin the newest generation whose record matches; return its number and its record.

        None if no record matches, or if the generation was overwritten meanwhile.
        """
        slots = self.slots()
        matching = [
            (slot.epoch, generation_number)
            for generation_number, slot in enumerate(slots)
            if slot.record is not None and matches(slot.record)
        ]
        epoch, generation = max(matching, default=(0, 0))
        record = self.pin(generation, epoch) if matching else None
        return None if record is None else (generation, record)

    def unpin(self, generation: int) -> None:
        """Remove one pin from a generation. Without any pin, its writer may overwrite it."""
        with self._guard:
            self._set_word(generation, PINS, max(self._word(generation, PINS), 1) - 1)

    def unpin_all(self) -> None:
        """Remove all pins of an earlier daemon. Only the next daemon calls it."""
        with self._guard:
            for generation in range(self.identity.count):
                self._set_word(generation, PINS, 0)

    def set_hashed(self, generation: int, sums: Sequence[int]) -> None:
        """Write the checksums of the chunks after the data of a pinned SEALED generation, and mark it HASHED.

        sums: one for each chunk. Raises ValueError if their number is wrong or the generation has no save.
        """
        record = self._read_slot(generation).record
        data = struct.pack(f"<{len(sums)}Q", *sums)
        if record is None or len(data) != record.sums_bytes:
            raise ValueError(f"{len(sums)} sums are not those of generation {generation}")
        self.map(generation, record.region_bytes)[record.sums_at : record.sums_at + len(data)] = data
        self._set_word(generation, SUMS_SUM, sum_of(data))
        linux.memory_barrier()
        self._set_word(generation, STATE, SlotState.HASHED)

    def sums(self, generation: int) -> tuple[int, ...]:
        """Return the chunk checksums of a HASHED generation, in order.

        Raises BadCheckpoint if the generation is not HASHED, or if the checksums are not what was written.
        """
        slot = self._read_slot(generation)
        if slot.record is None or slot.sums_sum is None:
            raise BadCheckpoint(f"generation {generation} has no sums{slot.fault and ': '}{slot.fault}")
        offset = slot.record.sums_at
        data = bytes(self.map(generation, slot.record.region_bytes)[offset : offset + slot.record.sums_bytes])
        if sum_of(data) != slot.sums_sum:
            raise BadCheckpoint(f"the sums of generation {generation} are not what was written")
        return struct.unpack(f"<{len(data) // 8}Q", data)

    def close(self) -> None:
        """Close the arena; the file stays. Existing views stay readable."""
        with self._room.stop():
            self._close()

    def _close(self) -> None:
        """Release the mappings, the locks and the file of this arena."""
        self._words.release()
        self._bytes.release()
        self._head.close()
        self._maps.clear()
        self._locks.close()
        os.close(self.file)

    def remove(self) -> None:
        """Remove the file. Its memory is freed when the last process has closed it."""
        self.path.unlink(missing_ok=True)

    def _word(self, generation: int, word: int) -> int:
        """Return a word of a generation's table. word: its index, such as STATE."""
        return self._words[table_at(generation) // 8 + word]

    def _set_word(self, generation: int, word: int, value: int) -> None:
        """Set a word of a generation's table. word: its index, such as STATE."""
        self._words[table_at(generation) // 8 + word] = value

    def _write_record(self, generation: int, data: bytes) -> None:
        """Write the encoded record of a generation into its table."""
        offset = table_at(generation) + RECORD_AT
        self._bytes[offset : offset + RECORD_BYTES] = data


def address_of(view: memoryview) -> int:
    """Return the address of a writable view. Valid while the view is kept."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class ArenaReader:
    """Reads a generation's bytes through its file. A mapping for one load would cost a page fault for each page."""

    at_once_bytes = 1 << 20

    def __init__(self, arena: Arena, generation: int, size_bytes: int) -> None:
        self._file, self._start, self.size_bytes = arena.file, offset_of(generation), size_bytes

    def fill(self, view: memoryview, offset: int) -> None:
        """Read bytes into `view`. Raises BadCheckpoint if the file ends first.

        offset: of the first byte in the generation.
        """
        while view.nbytes:
            read_bytes = os.preadv(self._file, [view], self._start + offset)
            if not read_bytes:
                raise BadCheckpoint("memory ends before its shard does")
            view, offset = view[read_bytes:], offset + read_bytes

    def forget(self, offset: int, size_bytes: int) -> None:
        """Do nothing: memory is not cached anywhere."""


ADOPT_S = 10.0  # seconds for a daemon whose agent was killed to write what it holds

_POLL_S = 0.05


def lock_for_daemon(arena: Arena) -> bool:
    """Become the only daemon of an arena, until it is closed or this process ends. False if another daemon is alive."""
    try:
        fcntl.flock(arena.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def adopt_arenas(folder: Path, run: str, worker: str, log_event: EventLog) -> Iterator[Arena]:
    """Lock and yield the arenas of an earlier daemon of this worker, one per local rank: the one with the newest save.

    The newest save is that of the highest round, then of the highest step. A daemon that still runs gets ADOPT_S to
    end; an arena that it still locks then is skipped and logged. Invalid arenas are skipped. Older arenas of the same
    rank are removed. Replicas are not adopted here. folder: of the arenas. run: the job's id.
    """
    newest: dict[int, Arena] = {}
    until_s = time.monotonic() + ADOPT_S
    for arena_file in find(folder, run, worker, lambda why: log_event("arena_passed_over", {"why": why})):
        with suppress(BadCheckpoint):
            arena = Arena.open(arena_file.path)
            while not (is_locked := lock_for_daemon(arena)) and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            if not is_locked:
                log_event("arena_passed_over", {"why": f"{arena.path} has another daemon"})
                arena.close()
                continue
            before = newest.get(arena.identity.local_rank)
            if before is not None:
                older, arena = sorted((before, arena), key=_age)
                older.remove()
                older.close()
            newest[arena.identity.local_rank] = arena
    yield from newest.values()


def _age(arena: Arena) -> tuple[int, int]:
    """Return round and step of the newest save in an arena, (-1, -1) for none."""
    return max(((slot.record.round, slot.record.step) for slot in arena.slots() if slot.record), default=(-1, -1))


def abandoned_arenas(folder: Path, run: str, worker: str) -> Iterator[Path]:
    """Yield the paths of unused arenas of another boot, and of this worker in another run, for the caller to remove.

    folder: of the arenas. run: the job's id. worker: the worker's name. In a job without a name, a slash and a hash of
    the command follow it; arenas with another hash are yielded too.
    """
    boot, name = boot_id(), worker.partition("/")[0]
    for path in leftovers(folder, ""):
        with suppress(BadCheckpoint):
            file, identity = open_arena_file(path)
            os.close(file)
            is_own = (identity.run, identity.worker) == (run, worker)
            if identity.boot != boot or (identity.worker.partition("/")[0] == name and not is_own):
                yield path
