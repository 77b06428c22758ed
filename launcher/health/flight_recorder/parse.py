"""Reduces dumps of torch's Flight Recorder to a record, and encodes and decodes records.

Dumps may come from torch of any age; missing fields count as unknown. A record comes from a user's process, and may
contain anything. Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, dump_json, 2.5 to 2.15
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from turnout.launcher.errors import BadStacks
from turnout.launcher.health.flight_recorder.model import (
    MOST_BYTES,
    MOST_GROUPS,
    MOST_NAME,
    MOST_RANKS_TEXT,
    Call,
    Group,
    Record,
)

MOST_DUMP_BYTES = 64 << 20  # torch keeps 2,000 calls by default, which is one megabyte
_KEPT = 4  # open calls, and as many completed ones
_TOGETHER = "coalesced"  # torch's name for several operations started as one
_ALIKE = ("all_reduce",)  # operations whose size is equal on all ranks


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    pg_id: int
    collective_seq_id: int
    profiling_name: str
    state: str = ""
    is_p2p: bool = False
    retired: bool = False
    time_created_ns: int = 0
    input_sizes: msgspec.Raw = msgspec.Raw(b"")


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []
    pg_status: dict[str, msgspec.Raw] | None = None


class _Kept:
    """The calls of one process group while its entries are read. A different `pg_id` means that the group was created
    again.
    """

    __slots__ = ("about", "calls", "open", "pg_id", "sends")

    def __init__(self, pg_id: int, about: str) -> None:
        self.pg_id, self.about, self.sends = pg_id, about, ""
        self.calls, self.open = dict[int, Call](), set[int]()

    def send(self, op: str, done: bool) -> None:
        """Record a send or receive. Coalesced ones are listed singly, never as done, and then once as a whole."""
        if not done:
            self.sends = op
        elif op == _TOGETHER:
            self.sends = ""

    def call(self, number: int, op: str, open_s: float | None, *, in_order: bool) -> None:
        """Record a collective call. Of several entries the last one counts, and one that is done marks the call as
        done.
        """
        before = self.calls.get(number)
        if before is not None and before.open_s is None:
            open_s = None
        self.calls[number] = Call(number, op, open_s)
        if open_s is not None:
            self.open.add(number)
        elif in_order:
            for each in self.open:
                self.calls[each] = Call(each, self.calls[each].op)
            self.open.clear()


_dump = msgspec.json.Decoder(_Dump)
_record = msgspec.json.Decoder(Record)


def reduce(dumps: Sequence[bytes], ranks: Mapping[str, str], now_ns: int) -> Record:
    """Keep the last calls of each group. dumps: of each recorder. ranks: folded sets of ranks by group name.

    now_ns: by the clock of the dumps. The caller adds the rank. Raises BadStacks for an invalid dump.
    """
    found, whole = dict[tuple[str, str], _Kept](), True
    for raw in dumps:
        if len(raw) > MOST_DUMP_BYTES:
            raise BadStacks(f"its torch has {len(raw)} bytes on record, and no more than {MOST_DUMP_BYTES} are read")
        try:
            dump = _dump.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadStacks(f"its torch dumps what we do not know: {str(error)[:200]}") from error
        for entry in dump.entries:
            _keep(found, entry, now_ns)
        recorded = {str(entry.pg_id) for entry in dump.entries}
        whole &= recorded.issuperset(dump.pg_status) if dump.pg_status is not None else not recorded
    groups = [
        Group(
            name[:MOST_NAME],
            kept.about[:MOST_NAME],
            backend[:MOST_NAME],
            ranks.get(name, "") if len(ranks.get(name, "")) <= MOST_RANKS_TEXT else "",
            _window(kept.calls),
        )
        for (name, backend), kept in found.items()
        if kept.calls
    ]
    sends = next((kept.sends for kept in found.values() if kept.sends), "")
    whole &= len(groups) <= MOST_GROUPS
    return Record(whole=whole, groups=tuple(groups[-MOST_GROUPS:]), sends=sends)


def _keep(found: dict[tuple[str, str], _Kept], entry: _Entry, now_ns: int) -> None:
    backend, _, op = entry.profiling_name.partition(":")
    key = entry.process_group[0], backend
    kept = found.pop(key, None)
    if kept is None or kept.pg_id != entry.pg_id:
        kept = _Kept(entry.pg_id, entry.process_group[1])
    found[key] = kept  # the group called last comes last
    done = entry.state == "completed" or entry.retired
    if entry.is_p2p:
        kept.send(op[:MOST_NAME], done)
        return
    if op in _ALIKE:
        op = f"{op} of {bytes(entry.input_sizes).decode(errors='replace')}"
    open_s = None if done else min(max(0.0, (now_ns - entry.time_created_ns) / 1e9), 1e9)
    in_order = backend != "gloo"  # a device runs the calls of a group in order; gloo has threads for them
    kept.call(max(0, entry.collective_seq_id), op[:MOST_NAME], open_s, in_order=in_order)


def _window(calls: Mapping[int, Call]) -> tuple[Call, ...]:
    """Select the first open calls, in which others may wait, the last done ones, and the very last call."""
    waits = sorted(number for number, call in calls.items() if call.open_s is not None)
    done = sorted(number for number, call in calls.items() if call.open_s is None)
    return tuple(calls[number] for number in sorted({*waits[:_KEPT], *done[-_KEPT:], max(calls)}))


def write(record: Record) -> bytes:
    """Encode a record. A record that is too large is replaced by one that says so."""
    raw = msgspec.json.encode(record)
    if len(raw) <= MOST_BYTES:
        return raw
    return msgspec.json.encode(
        Record(record.rank, record.world, why=f"its record has {len(raw)} bytes, {MOST_BYTES} may be written")
    )


def read(raw: bytes) -> Record:
    """Decode a record of a user's process. Invalid text gives a record whose `why` says so."""
    if len(raw) > MOST_BYTES:
        return Record(why=f"its record has {len(raw)} bytes, and no more than {MOST_BYTES} are read")
    try:
        record = _record.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return Record(why=_printable(f"its record is not what we write: {error}")[:300])
    return msgspec.structs.replace(
        record,
        groups=tuple(_clean(group) for group in record.groups),
        sends=_printable(record.sends),
        why=_printable(record.why),
    )


def _clean(group: Group) -> Group:
    return Group(
        _printable(group.name),
        _printable(group.about),
        _printable(group.backend),
        group.ranks,
        tuple(Call(call.number, _printable(call.op), call.open_s) for call in group.calls),
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
