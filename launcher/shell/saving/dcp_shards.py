"""A step that torch.distributed.checkpoint has saved, as its shards hold it: in this host's arenas, or in storage.

No byte of it is given out that was not hashed. Memory is read where the agents have agreed on its step; what is broken
or missing there is told, and comes from storage if the same save lies there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from turnout.launcher.checkpoint import tree
from turnout.launcher.checkpoint.layout import Entry, read_head
from turnout.launcher.checkpoint.manifest import Blocks, Manifest
from turnout.launcher.checkpoint.parts import KEY
from turnout.launcher.errors import BadCheckpoint, LauncherError
from turnout.launcher.shell.memory.arena import Arena
from turnout.launcher.shell.memory.region import Region
from turnout.launcher.shell.saving import dcp_metadata
from turnout.launcher.shell.saving.dcp_metadata import Table
from turnout.launcher.shell.saving.rank import Rank, Where
from turnout.launcher.shell.storage.reader import blocks_of
from turnout.launcher.shell.storage.store import Store
from turnout.launcher.shell.storage.verified import Piece, Verified

log = logging.getLogger("turnout.checkpoint")

Bringing: TypeAlias = Callable[[int], Where]

_MOST_ASIDE_BYTES = 256 << 20  # at a time, of what cannot be read straight to its place


@dataclass(frozen=True, slots=True)
class Shard:
    """What one shard holds. save: of which save. chunks: by `chunk_name`. values: by key, as text of a tree."""

    save: str
    chunks: Mapping[str, Entry]
    values: Mapping[str, str]
    table: Entry | None
    head_bytes: int


@dataclass(frozen=True, slots=True)
class Placed:
    """What is to be read. aside_bytes: of memory that is taken for it. done: it is there, and verified."""

    piece: Piece
    aside_bytes: int
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Want:
    """A chunk, or a value, and the rank that saved it. place: what is to be read; None where the head has all of it."""

    name: str
    rank: int
    place: Callable[[Shard], Placed | None]
    is_value: bool = False

    def is_in(self, shard: Shard) -> bool:
        """Whether the shard has such a thing."""
        return self.name in (shard.values if self.is_value else shard.chunks)


class Source(Protocol):
    """Where shards are."""

    def opened(self, rank: int) -> AbstractContextManager[Verified]:
        """One of them. Raises BadCheckpoint, StorageFailed."""

    def holder(self, want: Want) -> int | None:
        """The rank in whose shard it is to be looked for, None for nowhere here."""

    def shard(self, rank: int, verified: Verified) -> Shard:
        """What the open shard of this rank holds. Raises BadCheckpoint, StorageFailed."""


class InMemory:
    """The arenas of this worker that hold a step, by rank: path, generation and epoch of each.

    bring: has the shard of another rank brought here, of a step that another world has saved; raises LauncherError.
    """

    def __init__(self, step: int, held: Mapping[int, Where], bring: Bringing | None = None) -> None:
        self.step, self._held, self._bring = step, dict(held), bring
        self._shards, self._nowhere = dict[int, Shard](), set[int]()
        if not held and bring is not None:
            self._held[0] = bring(0)  # which tells what the others are
        for rank in self._held:
            self._look(rank)

    def _look(self, rank: int) -> None:
        with self.opened(rank) as verified:
            self._shards[rank] = shard_of(verified)
        if len({shard.save for shard in self._shards.values()}) != 1:
            raise BadCheckpoint(f"memory does not hold step {self.step} as one save")

    @classmethod
    def of(cls, rank: Rank, step: int, bring: Bringing | None = None) -> InMemory:
        """What this worker's memory has. Raises BadCheckpoint where that is nothing, or broken, and as `bring` does."""
        return cls(step, rank.holds(step), bring)

    @contextmanager
    def opened(self, rank: int) -> Iterator[Verified]:
        path, generation, epoch = self._held[rank]
        arena = Arena.open(path)
        try:
            record = arena.slots()[generation].record
            if record is None or record.epoch != epoch:
                raise BadCheckpoint(f"memory holds step {self.step} of rank {rank} no longer")
            region = Region(arena, generation, record.head_bytes + record.data_bytes)
            yield Verified(region, arena.sums(generation), f"step {self.step} of rank {rank} in memory")
        finally:
            arena.close()

    def holder(self, want: Want) -> int | None:
        if not any(want.is_in(shard) for shard in self._shards.values()):
            self._brought(want.rank)
        return next((rank for rank, shard in self._shards.items() if want.is_in(shard)), None)

    def _brought(self, rank: int) -> None:
        if self._bring is None or rank in self._shards or rank in self._nowhere:
            return
        try:
            self._held[rank] = self._bring(rank)
            self._look(rank)
        except LauncherError as error:
            self._nowhere.add(rank)
            self._shards.pop(rank, None)
            log.warning("memory_passed_over", extra={"step": self.step, "why": str(error)})

    def shard(self, rank: int, verified: Verified) -> Shard:
        return self._shards[rank]

    def table(self) -> Table:
        """Raises BadCheckpoint."""
        if not any(shard.table for shard in self._shards.values()):
            self._brought(0)
        for rank, shard in self._shards.items():
            if shard.table is not None:
                with self.opened(rank) as verified:
                    return _table(shard, verified)
        raise BadCheckpoint(f"no shard of step {self.step} in this memory tells what the others are")


class InStorage:
    """A step that is committed."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store, self._manifest, self.step = store, manifest, manifest.step
        self._shards: dict[int, Shard] = {}  # whose heads were read
        self._blocks: dict[int, Blocks | None] = {}

    @contextmanager
    def opened(self, rank: int) -> Iterator[Verified]:
        if rank >= self._manifest.world:
            raise BadCheckpoint(f"step {self.step} has no rank {rank}")
        shard = self._manifest.shards[rank]
        if rank not in self._blocks:
            self._blocks[rank] = blocks_of(self._store, self.step, shard)
        blocks, name = self._blocks[rank], f"{shard.file} of step {self.step}"
        with self._store.opened(self.step, shard.file) as file:
            if blocks is None:
                yield Verified(file, shard.sums, name)
            else:
                yield Verified(file, blocks.sums, name, blocks.block_bytes)

    def holder(self, want: Want) -> int | None:
        return want.rank

    def shard(self, rank: int, verified: Verified) -> Shard:
        if rank not in self._shards:
            self._shards[rank] = shard_of(verified)
        return self._shards[rank]

    def table(self) -> Table:
        """Raises BadCheckpoint, StorageFailed."""
        with self.opened(0) as verified:
            table = _table(self.shard(0, verified), verified)
        if table.world != self._manifest.world:
            raise BadCheckpoint(f"step {self.step} was saved by {table.world} ranks, its manifest says otherwise")
        return table


class Saved:
    """One step. near: memory. far: gives what storage has of it, and raises BadCheckpoint where that is nothing."""

    def __init__(self, near: InMemory | None, far: Callable[[], InStorage]) -> None:
        self._near, self._far = near, far
        source = near or far()
        self.source = ""
        self.step, self.table = source.step, source.table()

    def read(self, wants: Iterable[Want]) -> None:
        """Have each of them taken. Raises BadCheckpoint, StorageFailed; some of them may have been taken then.

        source: "memory" where all that was read so far was there, else "storage".
        """
        left = list(wants)
        if self._near is not None:
            left = list(self._from(self._near, left, again=True))
        self.source = "storage" if left or self._near is None else self.source or "memory"
        if left:
            for _ in self._from(self._far(), left, again=False):
                raise BadCheckpoint(f"step {self.step} is not whole")

    def _from(self, source: Source, wants: Iterable[Want], *, again: bool) -> Iterator[Want]:
        """Gives those that are not there. again: also those that are broken there."""
        by_rank: dict[int, list[Want]] = {}
        for want in wants:
            rank = source.holder(want)
            if rank is None:
                yield want
            else:
                by_rank.setdefault(rank, []).append(want)
        for rank, there in sorted(by_rank.items()):
            try:
                with source.opened(rank) as verified:
                    self._take(verified, source.shard(rank, verified), rank, there)
            except BadCheckpoint as error:
                if not again:
                    raise
                log.warning("memory_passed_over", extra={"step": self.step, "why": str(error)})
                yield from there

    def _take(self, verified: Verified, shard: Shard, rank: int, wants: Iterable[Want]) -> None:
        if shard.save != self.table.save:
            raise BadCheckpoint(f"rank {rank} of step {self.step} is of another save of this step")
        placed, aside_bytes = list[Placed](), 0
        for want in wants:
            if not want.is_in(shard):
                raise BadCheckpoint(f"rank {rank} of step {self.step} does not hold {want.name}")
            if (found := want.place(shard)) is not None:
                placed.append(found)
                aside_bytes += found.aside_bytes
            if aside_bytes > _MOST_ASIDE_BYTES:
                _have(verified, placed)
                placed, aside_bytes = [], 0
        _have(verified, placed)


def _have(verified: Verified, placed: Sequence[Placed]) -> None:
    verified.fill(each.piece for each in placed)
    for each in placed:
        each.done()


def shard_of(verified: Verified) -> Shard:
    """What a shard holds. Raises BadCheckpoint for one that was not saved through torch.distributed.checkpoint."""
    first = verified.read(0, min(verified.block_bytes, verified.size_bytes))
    size = 8 + int.from_bytes(first[:8], "little")
    layout, metadata, head_bytes = read_head(first if size <= first.nbytes else verified.read(0, size))
    try:
        text = json.loads(metadata.get(KEY, ""))["tree"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadCheckpoint(f"the shard has no tree: {error}") from error
    if not isinstance(text, str):
        raise BadCheckpoint("the tree is no text")
    match tree.unflatten(text, {entry.name: entry for entry in layout.entries}):
        case {
            "dcp": 1,
            "save": str(save),
            "chunks": dict(chunks),
            "values": dict(values),
            "table": (None | Entry()) as table,
        }:
            whole = all(isinstance(each, Entry) for each in chunks.values())
            if whole and all(isinstance(each, str) for each in values.values()):
                return Shard(save, chunks, values, table, head_bytes)
    raise BadCheckpoint("the shard was not saved through torch.distributed.checkpoint")


def _table(shard: Shard, verified: Verified) -> Table:
    if shard.table is None:
        raise BadCheckpoint("the shard does not tell what the others are")
    start, end = shard.head_bytes + shard.table.start, shard.head_bytes + shard.table.end
    if end - start > dcp_metadata.MOST_BYTES:
        raise BadCheckpoint(f"metadata of {end - start} bytes: {dcp_metadata.MOST_BYTES} at most")
    table = dcp_metadata.read(bytes(verified.read(start, end)))
    if table.save != shard.save:
        raise BadCheckpoint("the metadata is of another save")
    return table
