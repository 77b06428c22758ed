"""One rank's file of memory: its generations are written, sealed, hashed and read here, crash or no crash.

The file outlives the processes that map it. Its trainer alone writes generations, and holds a lock on the file while
it lives; its keeper pins what it reads, hashes it, and makes pages ahead. What the pages of the file mean is in
launcher/checkpoint/generations.py; which file is whose, in files.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from turnout.launcher.checkpoint.generations import (
    EPOCH,
    PAGE_BYTES,
    PINS,
    RECORD_AT,
    RECORD_BYTES,
    RESERVED,
    STATE,
    SUMS_SUM,
    Identity,
    Record,
    Slot,
    State,
    next_epoch,
    offset_of,
    read_table,
    record_bytes,
    slot_to_write,
    table_at,
)
from turnout.launcher.checkpoint.sums import sum_of
from turnout.launcher.errors import BadCheckpoint, LauncherError, NoMemory
from turnout.launcher.shell.memory import files, kernel
from turnout.launcher.shell.memory.files import boot_id, find, leftovers
from turnout.launcher.shell.memory.room import Room

__all__ = ["Arena", "Taken", "address_of", "boot_id", "find", "leftovers"]

_TRIES = 8  # with the keeper pinning one generation after another just as it is taken


class Taken(LauncherError):
    """Another living process, or another Checkpointer of this one, writes into this arena. One at a time can."""


class Arena:
    """An open arena, by make() or open(). Usable from several threads.

    identity: whose it is, as page 0 tells it. file: the open file, whose bytes are those of the mappings.
    """

    def __init__(self, path: Path, file: int, identity: Identity) -> None:
        self.path, self.identity, self.file = path, identity, file
        self._guard = threading.Lock()
        self._head = mmap.mmap(file, table_at(identity.count))
        self._bytes = memoryview(self._head)
        self._words = self._bytes.cast("Q")  # one store of 8 bytes each: what the states rely on
        self._maps: dict[int, mmap.mmap] = {}
        self._filling: set[int] = set()
        self._ready: dict[int, int] = {}
        self._locks = files.Locks(file)
        self._room = Room(path, file, self._locks)

    @classmethod
    def make(cls, folder: str | Path, identity: Identity) -> Arena:
        """A new one, which appears in the folder whole. Takes a page per generation; the rest by reserve()."""
        path, file = files.make(Path(folder), identity)
        return cls(path, file, identity)

    @classmethod
    def open(cls, path: str | Path) -> Arena:
        """Raises BadCheckpoint where this is no arena of this user, of mode 0600, whose identity has its sum."""
        file, identity = files.look(Path(path))
        return cls(Path(path), file, identity)

    def slots(self) -> tuple[Slot, ...]:
        """All generations as they are now. One that is not pinned may change at once."""
        return tuple(self._slot(generation) for generation in range(self.identity.count))

    def _slot(self, generation: int) -> Slot:
        at = table_at(generation)
        while True:
            before = self._word(generation, STATE), self._word(generation, EPOCH)
            page = bytes(self._bytes[at : at + PAGE_BYTES])
            kernel.fence()
            if before == (self._word(generation, STATE), self._word(generation, EPOCH)):
                return read_table(page)

    def reserve(self, generation: int, size: int) -> None:
        """Give this generation so many bytes of memory, so that no write ever ends in SIGBUS.

        What it holds stays as it is. Raises NoMemory, and then keeps no more than there was before.
        """
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        if size <= self._word(generation, RESERVED):
            return
        with self._room.taking() as take:
            take(f"generation {generation}", offset_of(generation), self._word(generation, RESERVED), size)
            self._store(generation, RESERVED, max(size, self._word(generation, RESERVED)))

    def populate(self, generation: int, size: int) -> bool:
        """Reserve, and have the pages made and mapped here, so that the first save into them is as fast as any later.

        Takes as long as that save would without it: it is for the keeper, which makes the pages, and again for a
        thread beside the training loop, which only maps them, in a third of the time. False where the kernel cannot
        (before 5.14).
        """
        self.reserve(generation, size)
        view = self.map(generation, size)
        try:
            done = kernel.populate(address_of(view), size)
        except OSError as error:
            raise NoMemory(f"{self.path.parent} does not give its pages: {error.strerror}") from error
        if done and self._maps.get(generation) is view.obj:
            self._ready[generation] = size
        return done

    def ready(self, generation: int, size: int) -> bool:
        """Is so much of it populated here? If not, a save through file is faster than one through the mapping."""
        return self._ready.get(generation, 0) >= size

    def map(self, generation: int, size: int) -> memoryview:
        """The first bytes of a generation. They must be reserved. The address stays while this view is kept."""
        with self._guard:
            found = self._maps.get(generation)
            if found is None or len(found) < size:
                try:
                    found = mmap.mmap(self.file, -(-size // PAGE_BYTES) * PAGE_BYTES, offset=offset_of(generation))
                except ValueError as error:
                    raise BadCheckpoint(
                        f"{self.path}: {size} bytes of generation {generation} are not there"
                    ) from error
                except OSError as error:
                    raise NoMemory(f"{self.path}: {size} bytes cannot be mapped: {error.strerror}") from error
                self._ready.pop(generation, None)
                self._maps[generation] = found  # the smaller one goes when nobody looks at it any more
            return memoryview(found)[:size]

    def claim(self) -> bool:
        """Become the writer, until close() or the end of this process. False where another living process is."""
        return self._locks.claim()

    def begin(self, record: Record) -> int | None:
        """Choose a generation for this save, reserve its bytes and make it WRITING: now its bytes may change.

        record: its epoch is not looked at. Returns None where slot_to_write() finds none. Raises NoMemory, and then
        nothing has changed, and Taken.
        """
        if not self.claim():
            raise Taken(
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
            if self._take(generation, next_epoch(slots)):
                self._filling.add(generation)
                return generation
        if full is not None:
            raise full
        return None

    def _take(self, generation: int, epoch: int) -> bool:
        """WRITING first, then look for pins; pin() does it the other way round: one of both sees the other."""
        before = self._word(generation, STATE)
        self._store(generation, STATE, State.WRITING)
        kernel.fence()
        if self._word(generation, PINS):
            self._store(generation, STATE, before)
            return False
        self._store(generation, EPOCH, epoch)
        self._store(generation, SUMS_SUM, 0)
        self._write_record(generation, bytes(RECORD_BYTES))  # whatever its state is taken for, it holds nothing
        return True

    def seal(self, generation: int, record: Record) -> Record:
        """All bytes are there: make them the newest. Returns the record with its epoch.

        A process that is killed at any instruction leaves this generation either WRITING or whole, since the state is
        the last store, and one of 8 aligned bytes. x86 shows stores to others in the order of the program, those of
        memmove() too: where it goes round the cache it ends with a fence. The threads that copied have been waited
        for. On machines that reorder stores, fence() is what holds the state back until all else is seen.
        """
        if generation not in self._filling:
            raise ValueError(f"generation {generation} was not begun here")
        record = replace(record, epoch=self._word(generation, EPOCH))
        self._write_record(generation, record_bytes(record))
        kernel.fence()
        self._store(generation, STATE, State.SEALED)
        self._filling.discard(generation)
        return record

    def discard(self, generation: int) -> None:
        """It holds nothing any more; its memory stays. For its writer, or for who has pinned it and found it broken."""
        self._store(generation, STATE, State.EMPTY)
        self._filling.discard(generation)

    def pin(self, generation: int, epoch: int | None = None) -> Record | None:
        """Keep the writer from this generation until unpin(). For the keeper alone; may be nested.

        epoch: the one that is meant. Returns None, and pins nothing, where it is not or no longer there.
        """
        with self._guard:
            self._store(generation, PINS, self._word(generation, PINS) + 1)
        kernel.fence()
        slot = self._slot(generation)
        if slot.record is None or epoch not in (None, slot.epoch):
            self.unpin(generation)
            return None
        return slot.record

    def unpin(self, generation: int) -> None:
        """The other half of pin()."""
        with self._guard:
            self._store(generation, PINS, max(self._word(generation, PINS), 1) - 1)

    def unpin_all(self) -> None:
        """What a keeper that is gone has left pinned is free. For the keeper that follows it."""
        with self._guard:
            for generation in range(self.identity.count):
                self._store(generation, PINS, 0)

    def hashed(self, generation: int, sums: Sequence[int]) -> None:
        """Put the sums of its chunks behind its data, and make a pinned SEALED generation HASHED."""
        record = self._slot(generation).record
        data = struct.pack(f"<{len(sums)}Q", *sums)
        if record is None or len(data) != record.sums_bytes:
            raise ValueError(f"{len(sums)} sums are not those of generation {generation}")
        self.map(generation, record.region_bytes)[record.sums_at : record.sums_at + len(data)] = data
        self._store(generation, SUMS_SUM, sum_of(data))
        kernel.fence()
        self._store(generation, STATE, State.HASHED)

    def sums(self, generation: int) -> tuple[int, ...]:
        """The sums of a HASHED generation's chunks. Raises BadCheckpoint where they are not what was written."""
        slot = self._slot(generation)
        if slot.record is None or slot.sums_sum is None:
            raise BadCheckpoint(f"generation {generation} has no sums{slot.fault and ': '}{slot.fault}")
        at = slot.record.sums_at
        data = bytes(self.map(generation, slot.record.region_bytes)[at : at + slot.record.sums_bytes])
        if sum_of(data) != slot.sums_sum:
            raise BadCheckpoint(f"the sums of generation {generation} are not what was written")
        return struct.unpack(f"<{len(data) // 8}Q", data)

    def close(self) -> None:
        """Let go of it; the file stays. Views that are still kept stay readable."""
        with self._room.closed():
            self._close()

    def _close(self) -> None:
        self._words.release()
        self._bytes.release()
        self._head.close()
        self._maps.clear()
        self._locks.close()
        os.close(self.file)

    def remove(self) -> None:
        """Remove the file. Its memory is free when the last process has let go of it."""
        self.path.unlink(missing_ok=True)

    def _word(self, generation: int, word: int) -> int:
        return self._words[table_at(generation) // 8 + word]

    def _store(self, generation: int, word: int, value: int) -> None:
        self._words[table_at(generation) // 8 + word] = value

    def _write_record(self, generation: int, data: bytes) -> None:
        at = table_at(generation) + RECORD_AT
        self._bytes[at : at + RECORD_BYTES] = data


def address_of(view: memoryview) -> int:
    """Where a writable view begins, for as long as somebody keeps it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
