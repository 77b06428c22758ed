"""Reads a step saved through torch.distributed.checkpoint from shards in this host's arenas or in storage.

Only verified bytes are returned. Memory is read if the agents agreed on its step. A shard that is broken or missing in
memory is logged, and read from storage if the same save is there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from turnout.launcher.checkpoint.arena.arena import Arena, ArenaReader
from turnout.launcher.checkpoint.dcp import metadata as dcp_metadata
from turnout.launcher.checkpoint.dcp.metadata import Table
from turnout.launcher.checkpoint.engine.process_info import ProcessInfo, ShardPosition
from turnout.launcher.checkpoint.format import state_tree
from turnout.launcher.checkpoint.format.manifest import BlockChecksums, Manifest
from turnout.launcher.checkpoint.format.shard_file import KEY, Entry, read_head
from turnout.launcher.checkpoint.storage.step_reader import ByteRange, VerifiedReader, block_checksums_of
from turnout.launcher.checkpoint.storage.store import Store
from turnout.launcher.errors import BadCheckpoint, LauncherError

log = logging.getLogger("turnout.checkpoint")

FetchRank: TypeAlias = Callable[[int], ShardPosition]  # fetches the shard of a rank into local memory
_MAX_BUFFER_BYTES = 256 << 20  # of buffers at a time, for bytes that cannot be read into their target


@dataclass(frozen=True, slots=True)
class DcpShard:
    """The content of one DCP shard in memory or storage: its chunks, its values and its header."""

    save: str  # the id of the save
    chunks: Mapping[str, Entry]  # by chunk_name
    values: Mapping[str, str]  # by key, as text of a tree
    table: Entry | None  # the table of all ranks' tensors, None if this shard has none
    head_bytes: int  # length of the header


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """A planned read of a byte range from a shard, with a function to call once the bytes are verified."""

    piece: ByteRange
    buffer_bytes: int  # temporary memory that it needs
    on_verified: Callable[[], None]  # called when the bytes are read and verified


@dataclass(frozen=True, slots=True)
class WantedItem:
    """A chunk or a value to read, and the rank that saved it."""

    name: str  # of a chunk in its shard, or the key of a value
    rank: int  # that saved it
    place: Callable[[DcpShard], PlannedRead | None]  # plans the read in a shard; None if the header has all of it
    is_value: bool = False

    def is_in(self, shard: DcpShard) -> bool:
        """Return True if the shard has this chunk or value."""
        return self.name in (shard.values if self.is_value else shard.chunks)


class ShardSource(Protocol):
    """A place that has shards of a step."""

    def open_shard(self, rank: int) -> AbstractContextManager[VerifiedReader]:
        """Open the shard of a rank. Raises BadCheckpoint if the source lacks it, and StorageFailed if storage fails."""

    def find_rank(self, want: WantedItem) -> int | None:
        """Return the rank whose shard should hold the wanted item, or None if this source has no such shard."""

    def shard(self, rank: int, verified: VerifiedReader) -> DcpShard:
        """Return the content of this rank's shard. verified: the shard, opened by `open_shard`.

        Raises BadCheckpoint if the shard is broken, and StorageFailed if storage fails.
        """


class InMemory:
    """Reads a step from this worker's arenas.

    positions: path, generation and epoch, by rank; {} if no shard is here: then shard 0 is fetched. fetch: fetches the
    shard of another rank, for a step that is read in parts; None if no shard may be fetched. Raises BadCheckpoint if a
    shard is broken or of another save, and the errors of `fetch`.
    """

    def __init__(self, step: int, positions: Mapping[int, ShardPosition], fetch: FetchRank | None = None) -> None:
        self.step, self._positions, self._fetch = step, dict(positions), fetch
        self._shards, self._unfetched = dict[int, DcpShard](), set[int]()
        if not positions and fetch is not None:
            self._positions[0] = fetch(0)  # shard 0 describes the others
        for rank in self._positions:
            self._read_head(rank)

    def _read_head(self, rank: int) -> None:
        """Read the head of a rank's shard and remember it.

        Raises BadCheckpoint if the shard is broken, or of another save than the shards read before.
        """
        with self.open_shard(rank) as verified:
            self._shards[rank] = shard_of(verified)
        if len({shard.save for shard in self._shards.values()}) != 1:
            raise BadCheckpoint(f"memory does not hold step {self.step} as one save")

    @classmethod
    def of(cls, rank: ProcessInfo, step: int, fetch: FetchRank | None = None) -> InMemory:
        """Find this step in the worker's memory. fetch: as for the class.

        Raises BadCheckpoint if a shard is broken or of another save, and the errors of `fetch` if no shard is here.
        Without `fetch`, a missing step raises only in `table`. rank: this process.
        """
        return cls(step, rank.locate_step(step), fetch)

    @contextmanager
    def open_shard(self, rank: int) -> Iterator[VerifiedReader]:
        """Open a rank's shard in shared memory, and close it when the block ends.

        rank: of a shard that is here, as `find_rank` returns it. Every read is checked against the checksums. Raises
        BadCheckpoint if a newer save has overwritten the shard, or if its arena is missing or broken.
        """
        path, generation, epoch = self._positions[rank]
        arena = Arena.open(path)
        try:
            record = arena.slots()[generation].record
            if record is None or record.epoch != epoch:
                raise BadCheckpoint(f"memory holds step {self.step} of rank {rank} no longer")
            region = ArenaReader(arena, generation, record.head_bytes + record.data_bytes)
            yield VerifiedReader(region, arena.sums(generation), f"step {self.step} of rank {rank} in memory")
        finally:
            arena.close()

    def find_rank(self, want: WantedItem) -> int | None:
        """Return the rank of the shard in memory that has the item, after trying to fetch it; None if there is none."""
        if not any(want.is_in(shard) for shard in self._shards.values()):
            self._try_fetch(want.rank)
        return next((rank for rank, shard in self._shards.items() if want.is_in(shard)), None)

    def _try_fetch(self, rank: int) -> None:
        """Fetch the shard of a rank from another worker, unless it is here or a fetch of it has failed. Log a
        failure.
        """
        if self._fetch is None or rank in self._shards or rank in self._unfetched:
            return
        try:
            self._positions[rank] = self._fetch(rank)
            self._read_head(rank)
        except LauncherError as error:
            self._unfetched.add(rank)
            self._shards.pop(rank, None)
            log.warning("memory_passed_over", extra={"step": self.step, "why": str(error)})

    def shard(self, rank: int, verified: VerifiedReader) -> DcpShard:
        """Return the content of a shard that is here, as its header was read before. verified: not used."""
        return self._shards[rank]

    def table(self) -> Table:
        """Return the table of this save. If no shard here has it, try to fetch shard 0.

        Raises BadCheckpoint if the table is not found, or if the shard that has it is broken.
        """
        if not any(shard.table for shard in self._shards.values()):
            self._try_fetch(0)
        for rank, shard in self._shards.items():
            if shard.table is not None:
                with self.open_shard(rank) as verified:
                    return _read_table(shard, verified)
        raise BadCheckpoint(f"no shard of step {self.step} in this memory tells what the others are")


class InStorage:
    """A committed step in storage, from which shards are opened for reading."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store, self._manifest, self.step = store, manifest, manifest.step
        self._shards: dict[int, DcpShard] = {}  # shards whose headers were read
        self._blocks: dict[int, BlockChecksums | None] = {}

    @contextmanager
    def open_shard(self, rank: int) -> Iterator[VerifiedReader]:
        """Open a rank's shard in storage, and close it when the block ends.

        Every read is checked against the checksums of blocks, or of the shard's chunks if it has none. Raises
        BadCheckpoint if the manifest has no such rank or the file is missing, and StorageFailed if storage fails.
        """
        if rank >= self._manifest.world:
            raise BadCheckpoint(f"step {self.step} has no rank {rank}")
        shard = self._manifest.shards[rank]
        if rank not in self._blocks:
            self._blocks[rank] = block_checksums_of(self._store, self.step, shard)
        blocks, name = self._blocks[rank], f"{shard.file} of step {self.step}"
        with self._store.open_file(self.step, shard.file) as file:
            if blocks is None:
                yield VerifiedReader(file, shard.sums, name)
            else:
                yield VerifiedReader(file, blocks.sums, name, blocks.block_bytes)

    def find_rank(self, want: WantedItem) -> int | None:
        """Return the rank that saved the item. Whether storage has its shard is not checked."""
        return want.rank

    def shard(self, rank: int, verified: VerifiedReader) -> DcpShard:
        """Return the content of a rank's shard. verified: the shard, opened by `open_shard`; read at the first call.

        Raises BadCheckpoint if the shard is broken or not of DCP, and StorageFailed if storage fails.
        """
        if rank not in self._shards:
            self._shards[rank] = shard_of(verified)
        return self._shards[rank]

    def table(self) -> Table:
        """Return the table of this save, from shard 0. Raises StorageFailed if storage fails.

        Raises BadCheckpoint if shard 0 is missing or broken, or if the table has another world size than the manifest.
        """
        with self.open_shard(0) as verified:
            table = _read_table(self.shard(0, verified), verified)
        if table.world != self._manifest.world:
            raise BadCheckpoint(f"step {self.step} was saved by {table.world} ranks, its manifest says otherwise")
        return table


class SavedStep:
    """One saved step, read from memory first, then from storage.

    memory: None to read only from storage. open_storage: opens the step in storage, and raises BadCheckpoint if it is
    not there. `source`: see `read`; "" before the first read. Raises the errors of `memory.table`, or without memory
    those of `open_storage` and `InStorage.table`.
    """

    def __init__(self, memory: InMemory | None, open_storage: Callable[[], InStorage]) -> None:
        self._memory, self._open_storage = memory, open_storage
        source = memory or open_storage()
        self.source = ""
        self.step, self.table = source.step, source.table()

    def read(self, wants: Iterable[WantedItem]) -> None:
        """Read every wanted item into its target. Sets `source` to "memory" if all items so far came from there, else
        to "storage".

        Raises BadCheckpoint if an item is intact neither in memory nor in storage, and StorageFailed if storage fails.
        Some items may have been read then.
        """
        missing = list(wants)
        if self._memory is not None:
            missing = list(self._read_from(self._memory, missing, skip_broken=True))
        self.source = "storage" if missing or self._memory is None else self.source or "memory"
        if missing:
            for _ in self._read_from(self._open_storage(), missing, skip_broken=False):
                raise BadCheckpoint(f"step {self.step} is not whole")

    def _read_from(
        self, source: ShardSource, wants: Iterable[WantedItem], *, skip_broken: bool
    ) -> Iterator[WantedItem]:
        """Read the items that one source has. Yield those that it lacks.

        skip_broken: also yield the items of a shard that is broken, which is logged; otherwise BadCheckpoint is raised.
        wants: the items.
        """
        by_rank: dict[int, list[WantedItem]] = {}
        for want in wants:
            rank = source.find_rank(want)
            if rank is None:
                yield want
            else:
                by_rank.setdefault(rank, []).append(want)
        for rank, items in sorted(by_rank.items()):
            try:
                with source.open_shard(rank) as verified:
                    self._read_shard(verified, source.shard(rank, verified), rank, items)
            except BadCheckpoint as error:
                if not skip_broken:
                    raise
                log.warning("memory_passed_over", extra={"step": self.step, "why": str(error)})
                yield from items

    def _read_shard(self, verified: VerifiedReader, shard: DcpShard, rank: int, wants: Iterable[WantedItem]) -> None:
        """Read the wanted items from one rank's shard into their targets.

        Planned reads are carried out when their buffers exceed _MAX_BUFFER_BYTES, and at the end. Raises BadCheckpoint
        if the shard is of another save, lacks an item or is broken, and StorageFailed if storage fails. Some items may
        have been read then. verified: the open shard. shard: its content.
        """
        if shard.save != self.table.save:
            raise BadCheckpoint(f"rank {rank} of step {self.step} is of another save of this step")
        reads, buffer_bytes = list[PlannedRead](), 0
        for want in wants:
            if not want.is_in(shard):
                raise BadCheckpoint(f"rank {rank} of step {self.step} does not hold {want.name}")
            if (planned := want.place(shard)) is not None:
                reads.append(planned)
                buffer_bytes += planned.buffer_bytes
            if buffer_bytes > _MAX_BUFFER_BYTES:
                _read_planned(verified, reads)
                reads, buffer_bytes = [], 0
        _read_planned(verified, reads)


def _read_planned(verified: VerifiedReader, reads: Sequence[PlannedRead]) -> None:
    """Carry out all planned reads, then call the function `on_verified` of each, in order.

    Raises BadCheckpoint if bytes differ from their checksums; then no function is called. verified: the open shard.
    """
    verified.fill(each.piece for each in reads)
    for each in reads:
        each.on_verified()


def shard_of(verified: VerifiedReader) -> DcpShard:
    """Read the content of a shard from its header.

    Raises BadCheckpoint if it is broken, or was not saved through torch.distributed.checkpoint, and the errors of
    `VerifiedReader.read`. verified: the open shard.
    """
    first = verified.read(0, min(verified.block_bytes, verified.size_bytes))
    size = 8 + int.from_bytes(first[:8], "little")
    layout, metadata, head_bytes = read_head(first if size <= first.nbytes else verified.read(0, size))
    try:
        text = json.loads(metadata.get(KEY, ""))["tree"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadCheckpoint(f"the shard has no tree: {error}") from error
    if not isinstance(text, str):
        raise BadCheckpoint("the tree is no text")
    match state_tree.unflatten(text, {entry.name: entry for entry in layout.entries}):
        case {
            "dcp": 1,
            "save": str(save),
            "chunks": dict(chunks),
            "values": dict(values),
            "table": (None | Entry()) as table,
        }:
            has_entries = all(isinstance(each, Entry) for each in chunks.values())
            if has_entries and all(isinstance(each, str) for each in values.values()):
                return DcpShard(save, chunks, values, table, head_bytes)
    raise BadCheckpoint("the shard was not saved through torch.distributed.checkpoint")


def _read_table(shard: DcpShard, verified: VerifiedReader) -> Table:
    """Return the table of all ranks' tensors in this shard.

    Raises BadCheckpoint if it has none, a broken one, or that of another save; NewerFormat for a newer version.
    verified: the same shard, open.
    """
    if shard.table is None:
        raise BadCheckpoint("the shard does not tell what the others are")
    start, end = shard.head_bytes + shard.table.start, shard.head_bytes + shard.table.end
    if end - start > dcp_metadata.MAX_BYTES:
        raise BadCheckpoint(f"metadata of {end - start} bytes: {dcp_metadata.MAX_BYTES} at most")
    table = dcp_metadata.read(bytes(verified.read(start, end)))
    if table.save != shard.save:
        raise BadCheckpoint("the metadata is of another save")
    return table
