"""The generations of an arena as values: the pages that say what lies where, and which generation is written next.

An arena is one rank's file of memory. Page 0 is its identity, page g + 1 the table of generation g, and the bytes of
generation g begin at offset_of(g): head, data, then from the next page on the sums of their chunks. How these bytes
get there, and in which order, is the business of shell/memory/arena.py.

A table page has words of 8 bytes, little endian, each written whole by one side: the trainer owns the state, the epoch
and the record, the keeper the pins and the sum. A state is a word of text, so that no flipped bit makes one of another.
Behind the first record the keeper notes the folder of the checkpoints, for the keeper after it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from turnout.launcher.checkpoint.sums import CHUNK_BYTES, sum_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat

PAGE_BYTES = 4_096
STRIDE_BYTES = 1 << 40  # between generations: growing one never moves another
MOST_GENERATIONS = 7  # 8 TiB of a sparse file: half of what ext4 takes
MOST = 1 << 60

STATE, PINS, EPOCH, SUMS_SUM, RESERVED = range(5)  # words of a table page
RECORD_AT = 64
RECORD_BYTES = 64
TARGET_AT = PAGE_BYTES + RECORD_AT + RECORD_BYTES  # in the file: the rest of the table of generation 0
TARGET_BYTES = PAGE_BYTES - RECORD_AT - RECORD_BYTES

VERSION = 1  # of an arena; each has its golden one in tests/launcher/saving/golden
_OURS = b"TURNOUT"
_MAGIC = _OURS + bytes([VERSION])
_LENGTH = struct.Struct("<H")
_SUM = struct.Struct("<Q")
_WORDS = struct.Struct("<5Q")
_FIELDS = struct.Struct("<7q")


class State(IntEnum):
    """What a generation is. Only SEALED and HASHED may be read."""

    EMPTY = 0  # of a new file, whose bytes are all zero
    WRITING = int.from_bytes(b"WRITING.", "little")
    SEALED = int.from_bytes(b"SEALED..", "little")  # whole, but nothing tells whether a bit flips from now on
    HASHED = int.from_bytes(b"HASHED..", "little")  # whole, with the sums of its chunks behind it


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose arena it is. run: the job's id. boot: of the machine, new with each start. count: of generations.

    owner: the worker whose shards it keeps, "" where that is `worker` itself; then local_rank is the owner's, and
    owner_count the generations of the owner's own arena.
    """

    run: str
    worker: str
    local_rank: int
    boot: str
    count: int
    owner: str = ""
    owner_count: int = 1

    def __post_init__(self) -> None:
        if max(len(self.run), len(self.worker), len(self.owner)) > 253 or len(self.boot) > 64:
            raise BadCheckpoint("an arena's run, worker or boot id is too long")
        counts = self.count, self.owner_count
        if not 0 <= self.local_rank < 1 << 20 or not all(1 <= count <= MOST_GENERATIONS for count in counts):
            raise BadCheckpoint(f"an arena of {self.count} generations: 1 to {MOST_GENERATIONS} are taken")


@dataclass(frozen=True, slots=True)
class Record:
    """What one generation holds. epoch: how many saves this arena has begun, 1 and on: what is newer has more.

    head_bytes: a multiple of PAGE_BYTES. data_bytes: of the tensors, which follow it. rank: of world, in that round.
    """

    epoch: int
    step: int
    round: int
    rank: int
    world: int
    head_bytes: int
    data_bytes: int

    def __post_init__(self) -> None:
        if not (0 <= self.epoch <= MOST and 0 <= self.step <= MOST and 0 <= self.round <= MOST):
            raise BadCheckpoint("a record's epoch, step or round is out of bounds")
        if not 0 <= self.rank < self.world <= MOST:
            raise BadCheckpoint(f"a record of rank {self.rank} in a world of {self.world}")
        if self.head_bytes < PAGE_BYTES or self.head_bytes % PAGE_BYTES or self.data_bytes < 0:
            raise BadCheckpoint("a record's bytes are not those of a head and its data")
        if self.region_bytes > STRIDE_BYTES:
            raise BadCheckpoint(f"a record of {self.region_bytes} bytes: {STRIDE_BYTES} are taken")

    @property
    def shard_bytes(self) -> int:
        """Head and data: what is hashed, persisted and sent."""
        return self.head_bytes + self.data_bytes

    @property
    def sums_at(self) -> int:
        """Where the sums begin, from the start of the generation."""
        return _up(self.shard_bytes)

    @property
    def sums_bytes(self) -> int:
        """8 for each chunk of CHUNK_BYTES, the last of which may be shorter."""
        return 8 * -(-self.shard_bytes // CHUNK_BYTES)

    @property
    def region_bytes(self) -> int:
        """All that has to be reserved."""
        return self.sums_at + _up(self.sums_bytes)


@dataclass(frozen=True, slots=True)
class Slot:
    """One generation as its table tells it. fault: why a table cannot be believed; such a slot counts as EMPTY.

    epoch: also of one that is being written. record: of SEALED and HASHED. sums_sum: of HASHED: the sum of its sums.
    reserved_bytes: that its file is known to have.
    """

    state: State = State.EMPTY
    pinned: bool = False
    epoch: int = 0
    record: Record | None = None
    sums_sum: int | None = None
    reserved_bytes: int = 0
    fault: str = ""


def offset_of(generation: int) -> int:
    """Where its bytes begin in the file."""
    return (generation + 1) * STRIDE_BYTES


def table_at(generation: int) -> int:
    """Where its table begins in the file."""
    return (generation + 1) * PAGE_BYTES


def identity_page(identity: Identity) -> bytes:
    """Page 0 of an arena. Its last word is the sum of all before it."""
    body = msgspec.msgpack.encode(identity)
    page = (_MAGIC + _LENGTH.pack(len(body)) + body).ljust(PAGE_BYTES - _SUM.size, b"\0")
    return page + _SUM.pack(sum_of(page))


def read_identity(page: bytes | memoryview) -> Identity:
    """Raises BadCheckpoint where one bit is not as it was written, and NewerFormat."""
    data = bytes(page)
    if len(data) != PAGE_BYTES or not data.startswith(_OURS) or not data[len(_OURS)]:
        raise BadCheckpoint("no arena: it does not begin as one")
    if sum_of(data[: -_SUM.size]) != _SUM.unpack_from(data, PAGE_BYTES - _SUM.size)[0]:
        raise BadCheckpoint("an arena's identity does not have the sum that was written with it")
    if data[len(_OURS)] > VERSION:
        raise NewerFormat("an arena", data[len(_OURS)], VERSION)
    at = len(_MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    try:
        return msgspec.msgpack.decode(data[at : at + length], type=Identity)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadCheckpoint(f"an arena's identity cannot be read: {error}") from error


def record_bytes(record: Record) -> bytes:
    """A record and its own sum."""
    fields = _FIELDS.pack(
        record.epoch, record.step, record.round, record.rank, record.world, record.head_bytes, record.data_bytes
    )
    return fields + _SUM.pack(sum_of(fields))


def read_record(data: bytes | memoryview) -> Record:
    """Raises BadCheckpoint where one bit is not as it was written. A record of zeros is none."""
    raw = bytes(data)
    if len(raw) != RECORD_BYTES or sum_of(raw[: _FIELDS.size]) != _SUM.unpack_from(raw, _FIELDS.size)[0]:
        raise BadCheckpoint("a generation's record does not have the sum that was written with it")
    return Record(*_FIELDS.unpack_from(raw))


def read_table(page: bytes | memoryview) -> Slot:
    """One generation. Raises nothing: a table that cannot be believed is told by the slot's fault."""
    raw = bytes(page)
    word, pins, epoch, sums_sum, reserved = _WORDS.unpack_from(raw)
    pinned, epoch = pins != 0, epoch if epoch <= MOST else 0
    reserved = reserved if reserved <= STRIDE_BYTES else 0
    try:
        state = State(word)
        if state in (State.EMPTY, State.WRITING):
            return Slot(state, pinned, epoch, reserved_bytes=reserved)
        record = read_record(raw[RECORD_AT : RECORD_AT + RECORD_BYTES])
        if record.epoch != epoch:
            raise BadCheckpoint(f"a generation's record is of epoch {record.epoch}, its table of {epoch}")
    except (BadCheckpoint, ValueError) as error:
        fault = str(error) if isinstance(error, BadCheckpoint) else "a generation is in no state that there is"
        return Slot(pinned=pinned, epoch=epoch, reserved_bytes=reserved, fault=fault)
    return Slot(state, pinned, epoch, record, sums_sum if state is State.HASHED else None, reserved)


def target_bytes(target: str) -> bytes:
    """A folder or URL of checkpoints, and the sum of it. One that is too long, or no text, is "": nobody knows it."""
    body = target.encode(errors="replace")
    if len(body) > TARGET_BYTES - _LENGTH.size - _SUM.size or body.decode() != target:
        body = b""
    text = (_LENGTH.pack(len(body)) + body).ljust(TARGET_BYTES - _SUM.size, b"\0")
    return text + _SUM.pack(sum_of(text))


def read_target(data: bytes | memoryview) -> str:
    """ "" where one bit is not as it was written, or nothing was. Raises nothing: its process names it again."""
    text, sum_ = bytes(data[: -_SUM.size]), bytes(data[-_SUM.size :])
    if len(data) != TARGET_BYTES or _SUM.pack(sum_of(text)) != sum_:
        return ""
    (length,) = _LENGTH.unpack_from(text)
    try:
        return text[_LENGTH.size :][:length].decode()
    except UnicodeDecodeError:
        return ""


def newest(slots: Sequence[Slot], *, hashed_only: bool = False) -> int | None:
    """The generation that was begun last of those that may be read, None where there is none."""
    readable = (State.HASHED,) if hashed_only else (State.SEALED, State.HASHED)
    found = [(slot.epoch, at) for at, slot in enumerate(slots) if slot.state in readable]
    return max(found)[1] if found else None


def next_epoch(slots: Sequence[Slot]) -> int:
    """Of the save that begins now: more than any before it, finished or not."""
    return max((slot.epoch for slot in slots), default=0) + 1


def slot_to_write(slots: Sequence[Slot], *, busy: Collection[int] = ()) -> int | None:
    """Choose the generation that the next save overwrites: one that holds nothing, else the oldest.

    Of those that hold nothing the one that has most memory already.

    Never a pinned one, which is being read, nor the newest that is sealed: a crash in mid-save leaves it. busy: those
    that this process is still filling. Returns None where only such are left: then the keeper has to let one go.
    Source: docs/facts/launcher.md 5
    """
    last = newest(slots)
    free = [at for at, slot in enumerate(slots) if not slot.pinned and at not in busy]
    others = [at for at in free if at != last]
    return min(others, key=lambda at: _rank(slots[at])) if others else None


def _rank(slot: Slot) -> tuple[bool, int]:
    return (True, slot.epoch) if slot.record is not None else (False, -slot.reserved_bytes)


def _up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
