"""Copies tensors that do not change once into each generation, instead of with every save.

The user declares which tensors are frozen, and the declaration is checked. A tensor with another address or version is
copied again. After each save some bytes of the other frozen tensors are compared with memory, in turn.
That comparison finds writes that torch does not count: through .data, or from outside torch. Everything that may be
stale is then dropped, and all later saves copy every tensor.
"""

from __future__ import annotations

import ctypes
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from turnout.launcher.accelerator import CopyStreams, HostCopy
from turnout.launcher.checkpoint.arena.arena import Arena, address_of
from turnout.launcher.checkpoint.arena.parallel_copy import Rows
from turnout.launcher.checkpoint.engine.save_plan import Mask, SavePlan
from turnout.launcher.checkpoint.engine.state_dict import is_bytes, tensor_over, versions_of
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord, Slot, SlotState
from turnout.launcher.checkpoint.format.shard_file import Entry, Layout

Declared: TypeAlias = Callable[[str, torch.Tensor], bool] | Collection[str]

COMPARED_BYTES = 32 << 20  # per save: a few milliseconds of another core
_HASHED_S = 10.0
_NONE = -1  # no version
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Identifies the tensors of one save, by layout entry. A different value means that the tensor was written to or
    replaced.
    """

    sources: Rows  # addresses of the bytes
    versions: Rows  # torch's version counters, _NONE if not declared frozen or not counted
    storages: Rows  # addresses of torch's storage objects
    references: list[StorageWeakRef]  # weak references that keep each storage address unique while they live

    def same(self, others: _Marks) -> Mask:
        """Mark the entries that are unchanged in both. An entry without a version is never marked."""
        same: Mask = (self.versions == others.versions) & (self.versions != _NONE) & (self.sources == others.sources)
        if self.storages is not others.storages:
            same &= self.storages == others.storages
        return same

    def fit(self, at: int, tensor: torch.Tensor) -> bool:
        """Return True if this entry's tensor still has the same version, address and storage."""
        now = tensor._version, tensor.data_ptr(), tensor.untyped_storage()._cdata
        return now == (self.versions[at], self.sources[at], self.storages[at])


@dataclass(frozen=True, slots=True)
class SkippedParams:
    """Says which entries one save does not copy, since the generation has them already."""

    marks: _Marks
    mask: Mask  # by entry: True if it is not copied


@dataclass(frozen=True, slots=True)
class _LastSave:
    """Describes what one generation holds after its last save."""

    layout: Layout
    head_bytes: int
    epoch: int
    skip: SkippedParams


class FrozenParams:
    """Decides for one process which frozen tensors a save can skip, and checks in the background that they are
    unchanged.

    declared: names of tensors or of their parents, or a function of name and tensor. on_changed: called with the
    name of a tensor that changed unnoticed by torch. streams: bring a device's tensors to the host for the comparison.
    At most `compared_bytes` bytes are compared after each save.
    """

    def __init__(
        self,
        declared: Declared,
        on_changed: Callable[[str], object],
        streams: CopyStreams,
        compared_bytes: int = COMPARED_BYTES,
    ) -> None:
        self._declared, self._on_changed, self._budget, self._streams = declared, on_changed, compared_bytes, streams
        self.off = False
        self._layout: Layout | None = None
        self._declared_at: npt.NDArray[np.intp] = np.zeros(0, np.intp)  # indexes of entries that were declared frozen
        self._marks: _Marks | None = None  # of the last save
        self._last_saves: dict[int, _LastSave] = {}
        self._at = (0, 0)  # entry and offset of the next comparison
        self._comparing: threading.Thread | None = None

    def skip(self, generation: int, before: Slot, laid: SavePlan, head_bytes: int) -> SkippedParams:
        """Choose the entries that this generation holds already.

        before: the generation's slot as it was before it was taken for this save.
        """
        last_save, marks = self._last_saves.pop(generation, None), self._marks_of(laid)
        if (
            self.off
            or last_save is None
            or last_save.layout is not laid.layout
            or (last_save.epoch, last_save.head_bytes) != (before.epoch, head_bytes)
            or before.record is None  # that generation was found damaged
        ):
            return SkippedParams(marks, np.zeros(len(laid.tensors), np.bool_))
        return SkippedParams(marks, marks.same(last_save.skip.marks))

    def _marks_of(self, laid: SavePlan) -> _Marks:
        """Return the versions and storages of the frozen tensors of a plan."""
        if self._layout is not laid.layout:
            named = zip(laid.layout.entries, laid.tensors, strict=True)
            mask = np.array([self._is_frozen(entry.name, tensor) for entry, tensor in named], np.bool_)
            self._declared_at, self._layout, self._at, self._marks = np.flatnonzero(mask), laid.layout, (0, 0), None
        tensors = [laid.tensors[at] for at in self._declared_at.tolist()]
        versions, storages = (np.full(len(laid.tensors), _NONE, np.int64) for _ in range(2))
        versions[self._declared_at] = _versions(tensors)
        storages[self._declared_at] = [tensor.untyped_storage()._cdata for tensor in tensors]
        before = self._marks
        if before is not None and np.array_equal(storages, before.storages):
            storages, references = before.storages, before.references
        else:
            references = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
        self._marks = _Marks(laid.sources, versions, storages, references)
        return self._marks

    def _is_frozen(self, name: str, tensor: torch.Tensor) -> bool:
        if callable(self._declared):
            return bool(self._declared(name, tensor))
        return any(name == each or name.startswith(f"{each}/") for each in self._declared)

    def compare_skipped(
        self, arena: Arena, generation: int, record: ShardRecord, laid: SavePlan, skip: SkippedParams
    ) -> None:
        """Record that the generation is sealed with all entries, and start a thread that compares the skipped ones."""
        if self.off:
            return
        self._last_saves[generation] = _LastSave(laid.layout, record.head_bytes, record.epoch, skip)
        if skip.mask.any():
            self._comparing = threading.Thread(
                target=self._compare, args=(arena, generation, record, laid), name="turnout-compare", daemon=True
            )
            self._comparing.start()

    def wait_compared(self) -> None:
        """Wait for the background comparison to end. Call it before generations change or are read."""
        comparing = self._comparing
        if comparing is not None and comparing is not threading.current_thread():
            comparing.join()

    def _compare(self, arena: Arena, generation: int, record: ShardRecord, laid: SavePlan) -> None:
        """Compare some skipped tensors with their bytes in memory, up to the byte budget.

        The next call continues at the following tensor. At a difference in a tensor that is marked unchanged, all
        skipping of this generation ends.
        """
        view = arena.map(generation, record.region_bytes)
        last_save, left, (first, byte) = self._last_saves[generation], self._budget, self._at
        chosen = np.flatnonzero(last_save.skip.mask & (laid.sizes > 0)).tolist()
        start = bisect_left(chosen, first)
        order = chosen[start:] + chosen[:start]
        byte = byte if order and order[0] == first else 0
        for turn, at in enumerate(order):
            entry, tensor, tensor_bytes = laid.layout.entries[at], laid.tensors[at], int(laid.sizes[at])
            size = min(tensor_bytes - byte, left) if laid.plain[at] else tensor_bytes
            equal = _equal(view, record.head_bytes, entry, tensor, byte, size, self._streams)
            if not equal and last_save.skip.marks.fit(at, tensor):
                self._drop(arena, at, entry.name)
                return
            left, byte = left - size, byte + size
            self._at = (at, byte) if byte < tensor_bytes else (order[(turn + 1) % len(order)], 0)
            byte = 0
            if left <= 0:
                return

    def _drop(self, arena: Arena, at: int, name: str) -> None:
        """Discard every generation that skipped this changed entry, and skip nothing from now on.

        When the tensor changed is unknown, so no such generation can be trusted.
        """
        self.off = True
        for generation, last_save in self._last_saves.items():
            if last_save.skip.mask[at]:
                until_s = time.monotonic() + _HASHED_S
                while time.monotonic() < until_s:  # a daemon that is hashing it would mark it whole again
                    slot = arena.slots()[generation]
                    if slot.state is not SlotState.SEALED or not slot.pinned:
                        break
                    time.sleep(0.001)
                arena.discard(generation)
        self._last_saves.clear()
        self._on_changed(name)


def _versions(tensors: list[torch.Tensor]) -> Sequence[int]:
    """Return torch's counters of changes in place, one per tensor; _NONE for an inference tensor."""
    try:
        return versions_of(tensors)
    except RuntimeError:
        return [_NONE if tensor.is_inference() else tensor._version for tensor in tensors]


def _equal(
    view: memoryview, head_bytes: int, entry: Entry, tensor: torch.Tensor, byte: int, size: int, streams: CopyStreams
) -> bool:
    """Return True if a part of a tensor equals its saved bytes.

    byte, size: the part. A tensor that is not plain host memory is compared as a whole, in a copy.
    """
    if is_bytes(tensor):
        at = address_of(view) + head_bytes + entry.start + byte
        return bool(_libc.memcmp(at, tensor.data_ptr() + byte, size) == 0)
    saved = tensor_over(view, entry, head_bytes)
    current = torch.empty_like(saved)
    streams.start([HostCopy(current, tensor)]).wait()
    return bool((saved.reshape(-1).view(torch.uint8) == current.reshape(-1).view(torch.uint8)).all())
