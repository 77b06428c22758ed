"""Defines the pages of an arena as values: the position of each part, and the generation that the next save overwrites.

An arena is one rank's file in shared memory. Page 0 is its identity, and page g + 1 the table of generation g. The
bytes of generation g begin at offset_of(g): header, data, then from the next page on the checksums of their chunks.
launcher/checkpoint/arena/arena.py knows how these bytes are written, and in which order.

A table page has words of 8 bytes, little endian, each written by one side. The trainer writes the state, the epoch and
the record; the daemon writes the pins and the checksum. A state is eight bytes of text, so no flipped bit changes one
state into another. After the first record the daemon writes the checkpoint folder, for the next daemon.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES, sum_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat

PAGE_BYTES = 4_096
STRIDE_BYTES = 1 << 40  # between generations, so that growing one never moves another
MAX_GENERATIONS = 7  # 8 TiB of a sparse file: half of ext4's limit
MAX_NUMBER = 1 << 60  # upper bound of epochs, steps, rounds and worlds

STATE, PINS, EPOCH, SUMS_SUM, RESERVED = range(5)  # indexes of words in a table page
RECORD_AT = 64  # offset in a table page
RECORD_BYTES = 64
TARGET_AT = PAGE_BYTES + RECORD_AT + RECORD_BYTES  # offset in the file: the rest of generation 0's table
TARGET_BYTES = PAGE_BYTES - RECORD_AT - RECORD_BYTES

VERSION = 1  # each version has a golden arena in tests/launcher/checkpoint/engine/golden
_OURS = b"TURNOUT"
_MAGIC = _OURS + bytes([VERSION])
_LENGTH = struct.Struct("<H")
_SUM = struct.Struct("<Q")
_WORDS = struct.Struct("<5Q")
_FIELDS = struct.Struct("<7q")


class SlotState(IntEnum):
    """The state of a generation. Only SEALED and HASHED may be read."""

    EMPTY = 0  # a new file is all zeros
    WRITING = int.from_bytes(b"WRITING.", "little")
    SEALED = int.from_bytes(b"SEALED..", "little")  # complete, but without checksums, so bit flips are not detected
    HASHED = int.from_bytes(b"HASHED..", "little")  # complete, with the checksums of its chunks after it


@dataclass(frozen=True, slots=True)
class Identity:
    """The job, worker and local rank to which an arena belongs."""

    run: str  # the job's id
    worker: str  # whose memory it is in
    local_rank: int  # of the worker, or of the owner if there is one
    boot: str  # boot id of the machine
    count: int  # of generations
    owner: str = ""  # the worker whose replica this is, "" for the worker's own shards
    owner_count: int = 1  # generations of the owner's own arena

    def __post_init__(self) -> None:
        if max(len(self.run), len(self.worker), len(self.owner)) > 253 or len(self.boot) > 64:
            raise BadCheckpoint("an arena's run, worker or boot id is too long")
        if not 0 <= self.local_rank < 1 << 20:
            raise BadCheckpoint(f"an arena of local rank {self.local_rank}: 0 to {(1 << 20) - 1} are possible")
        for count in (self.count, self.owner_count):
            if not 1 <= count <= MAX_GENERATIONS:
                raise BadCheckpoint(f"an arena of {count} generations: 1 to {MAX_GENERATIONS} are possible")


_identity = msgspec.msgpack.Decoder(Identity)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """The save that one generation of an arena holds: its step, its rank and its sizes."""

    epoch: int  # number of the save among all saves begun in this arena, from 1
    step: int
    round: int  # in which it was saved
    rank: int
    world: int  # number of ranks
    head_bytes: int  # a multiple of PAGE_BYTES
    data_bytes: int  # of the tensors, which follow the header

    def __post_init__(self) -> None:
        if not (0 <= self.epoch <= MAX_NUMBER and 0 <= self.step <= MAX_NUMBER and 0 <= self.round <= MAX_NUMBER):
            raise BadCheckpoint("a record's epoch, step or round is out of bounds")
        if not 0 <= self.rank < self.world <= MAX_NUMBER:
            raise BadCheckpoint(f"a record of rank {self.rank} in a world of {self.world}")
        if self.head_bytes < PAGE_BYTES or self.head_bytes % PAGE_BYTES or self.data_bytes < 0:
            raise BadCheckpoint("a record's bytes are not those of a head and its data")
        if self.region_bytes > STRIDE_BYTES:
            raise BadCheckpoint(f"a record of {self.region_bytes} bytes: {STRIDE_BYTES} are taken")

    @property
    def shard_bytes(self) -> int:
        """Return the bytes of header and data, which are hashed, persisted and sent."""
        return self.head_bytes + self.data_bytes

    @property
    def sums_at(self) -> int:
        """Return the offset of the checksums from the start of the generation."""
        return _round_up_to_pages(self.shard_bytes)

    @property
    def sums_bytes(self) -> int:
        """Return the bytes of the checksums: 8 for each chunk of CHUNK_BYTES, of which the last may be shorter."""
        return 8 * -(-self.shard_bytes // CHUNK_BYTES)

    @property
    def region_bytes(self) -> int:
        """Return the bytes to reserve for header, data and checksums, in whole pages."""
        return self.sums_at + _round_up_to_pages(self.sums_bytes)


@dataclass(frozen=True, slots=True)
class Slot:
    """One generation as its table describes it."""

    state: SlotState = SlotState.EMPTY
    pinned: bool = False  # the daemon reads it, so it must not be overwritten
    epoch: int = 0  # also that of a save being written
    record: ShardRecord | None = None  # of SEALED and HASHED only
    sums_sum: int | None = None  # checksum of the checksums, of HASHED only
    reserved_bytes: int = 0  # allocated from the start of the generation
    fault: str = ""  # why the table is invalid; the slot then counts as EMPTY


def offset_of(generation: int) -> int:
    """Return the offset of the generation's bytes in the file."""
    return (generation + 1) * STRIDE_BYTES


def table_at(generation: int) -> int:
    """Return the offset of the generation's table in the file."""
    return (generation + 1) * PAGE_BYTES


def identity_page(identity: Identity) -> bytes:
    """Encode page 0 of an arena. Its last word is the checksum of the rest."""
    body = msgspec.msgpack.encode(identity)
    page = (_MAGIC + _LENGTH.pack(len(body)) + body).ljust(PAGE_BYTES - _SUM.size, b"\0")
    return page + _SUM.pack(sum_of(page))


def read_identity(page: bytes | memoryview) -> Identity:
    """Decode page 0 of an arena.

    Raises BadCheckpoint if a bit differs from what was written, and NewerFormat for an intact page of a newer version.
    """
    data = bytes(page)
    if len(data) != PAGE_BYTES or not data.startswith(_OURS) or not data[len(_OURS)]:
        raise BadCheckpoint("no arena: it does not begin as one")
    if sum_of(data[: -_SUM.size]) != _SUM.unpack_from(data, PAGE_BYTES - _SUM.size)[0]:
        raise BadCheckpoint("an arena's identity does not have the sum that was written with it")
    if data[len(_OURS)] > VERSION:
        raise NewerFormat("an arena", data[len(_OURS)], VERSION)
    start = len(_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    try:
        return _identity.decode(data[start : start + length])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"an arena's identity cannot be read: {error}") from error


def record_bytes(record: ShardRecord) -> bytes:
    """Encode a record with its checksum."""
    fields = _FIELDS.pack(
        record.epoch, record.step, record.round, record.rank, record.world, record.head_bytes, record.data_bytes
    )
    return fields + _SUM.pack(sum_of(fields))


def read_record(data: bytes | memoryview) -> ShardRecord:
    """Decode a record. Raises BadCheckpoint if a bit differs from what was written. Zeros are no valid record.

    data: RECORD_BYTES bytes, else BadCheckpoint is raised, too.
    """
    raw = bytes(data)
    if len(raw) != RECORD_BYTES or sum_of(raw[: _FIELDS.size]) != _SUM.unpack_from(raw, _FIELDS.size)[0]:
        raise BadCheckpoint("a generation's record does not have the sum that was written with it")
    return ShardRecord(*_FIELDS.unpack_from(raw))


def read_table(page: bytes | memoryview) -> Slot:
    """Decode the table of one generation. Raises nothing: the slot's `fault` says why a table is invalid."""
    raw = bytes(page)
    word, pins, epoch, sums_sum, reserved = _WORDS.unpack_from(raw)
    pinned, epoch = pins != 0, epoch if epoch <= MAX_NUMBER else 0
    reserved = reserved if reserved <= STRIDE_BYTES else 0
    try:
        state = SlotState(word)
        if state in (SlotState.EMPTY, SlotState.WRITING):
            return Slot(state, pinned, epoch, reserved_bytes=reserved)
        record = read_record(raw[RECORD_AT : RECORD_AT + RECORD_BYTES])
        if record.epoch != epoch:
            raise BadCheckpoint(f"a generation's record is of epoch {record.epoch}, its table of {epoch}")
    except (BadCheckpoint, ValueError) as error:
        fault = str(error) if isinstance(error, BadCheckpoint) else "a generation is in no state that there is"
        return Slot(pinned=pinned, epoch=epoch, reserved_bytes=reserved, fault=fault)
    return Slot(state, pinned, epoch, record, sums_sum if state is SlotState.HASHED else None, reserved)


def target_bytes(target: str) -> bytes:
    """Encode a checkpoint folder or URL with its checksum. A target that is too long or no valid Unicode is encoded as
    "", which means unknown.
    """
    body = target.encode(errors="replace")
    if len(body) > TARGET_BYTES - _LENGTH.size - _SUM.size or body.decode() != target:
        body = b""
    text = (_LENGTH.pack(len(body)) + body).ljust(TARGET_BYTES - _SUM.size, b"\0")
    return text + _SUM.pack(sum_of(text))


def read_target(data: bytes | memoryview) -> str:
    """Decode the checkpoint folder or URL; "" if none was written or a byte differs.

    data: TARGET_BYTES bytes, else the result is "", too. The training process names the folder again at its next save.
    """
    text, sum_ = bytes(data[: -_SUM.size]), bytes(data[-_SUM.size :])
    if len(data) != TARGET_BYTES or _SUM.pack(sum_of(text)) != sum_:
        return ""
    (length,) = _LENGTH.unpack_from(text)
    try:
        return text[_LENGTH.size :][:length].decode()
    except UnicodeDecodeError:
        return ""


def newest_generation(slots: Sequence[Slot], *, hashed_only: bool = False) -> int | None:
    """Return the readable generation with the highest epoch, None if there is none. hashed_only: ignore SEALED ones."""
    readable = (SlotState.HASHED,) if hashed_only else (SlotState.SEALED, SlotState.HASHED)
    readable_generations = [(slot.epoch, generation) for generation, slot in enumerate(slots) if slot.state in readable]
    return max(readable_generations)[1] if readable_generations else None


def next_epoch(slots: Sequence[Slot]) -> int:
    """Return the epoch of the save that begins now, above that of every earlier save, finished or not."""
    return max((slot.epoch for slot in slots), default=0) + 1


def slot_to_write(slots: Sequence[Slot], *, busy: Collection[int] = ()) -> int | None:
    """Choose the generation that the next save overwrites: an empty one, else the oldest.

    Of several empty generations the one with most reserved memory is chosen. A pinned generation is never chosen, since
    the daemon reads it. The newest readable one is never chosen, so that it survives a crash during the save.
    slots: by generation. busy: generations that must not be chosen, since this process still fills them. Returns None
    if no other one is free; the daemon then has to drop a save. Source: docs/facts/launcher.md 5
    """
    last = newest_generation(slots)
    free = [generation for generation, slot in enumerate(slots) if not slot.pinned and generation not in busy]
    others = [generation for generation in free if generation != last]
    return min(others, key=lambda generation: _overwrite_priority(slots[generation])) if others else None


def _overwrite_priority(slot: Slot) -> tuple[bool, int]:
    """Return the sort key of generations to overwrite: empty ones with most memory first, then the oldest save."""
    return (True, slot.epoch) if slot.record is not None else (False, -slot.reserved_bytes)


def _round_up_to_pages(size: int) -> int:
    """Round a number of bytes up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
