"""Decides which tensors a save need not copy: frozen ones, whose bytes the generation holds from an earlier save.

The user declares which tensors are frozen, and the declaration is checked. A frozen tensor with another address or
version than at that earlier save is copied again. After each save, some bytes of the tensors that were not copied are
compared with the arena, in turn. That comparison finds writes that torch does not count: through .data, or from outside
torch. Then every generation that may have stale bytes is discarded, and all later saves copy every tensor.
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

# The user's declaration: names of tensors or of their parents in the state, or a predicate of name and tensor.
FrozenNames: TypeAlias = Callable[[str, torch.Tensor], bool] | Collection[str]

COMPARED_BYTES = 32 << 20  # compared after each save: a few milliseconds of another core
_HASH_WAIT_S = 10.0  # seconds to wait until the daemon has hashed a generation, before it is discarded
_NO_VERSION = -1  # the version of an entry that is not frozen, or whose tensor has none
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True, slots=True)
class _TensorVersions:
    """The addresses and versions of the tensors of one save, by layout entry. A different value means that the tensor
    was written to or replaced.
    """

    sources: Rows  # addresses of the bytes
    versions: Rows  # torch's version counters, _NO_VERSION if not frozen or not counted
    storages: Rows  # addresses of torch's storage objects, _NO_VERSION if not frozen
    references: list[StorageWeakRef]  # weak references that keep each storage address unique while they live

    def unchanged_since(self, former: _TensorVersions) -> Mask:
        """Return a mask of the entries that are equal in `former`, an earlier save. Entries without a version are
        False.
        """
        mask: Mask = (
            (self.versions == former.versions) & (self.versions != _NO_VERSION) & (self.sources == former.sources)
        )
        if self.storages is not former.storages:
            mask &= self.storages == former.storages
        return mask

    def is_unchanged(self, index: int, tensor: torch.Tensor) -> bool:
        """Return True if a tensor has the version, address and storage that its entry `index` had at this save."""
        current = tensor._version, tensor.data_ptr(), tensor.untyped_storage()._cdata
        return current == (self.versions[index], self.sources[index], self.storages[index])


@dataclass(frozen=True, slots=True)
class SkippedParams:
    """The entries that one save does not copy, since the generation has their bytes already."""

    marks: _TensorVersions  # of all entries at this save
    mask: Mask  # by entry: True if it is not copied


@dataclass(frozen=True, slots=True)
class _LastSave:
    """What one generation holds after its last save."""

    layout: Layout
    head_bytes: int
    epoch: int  # of that save
    skipped: SkippedParams


class FrozenParams:
    """Decides for one process which frozen tensors a save does not copy, and checks in the background that they are
    unchanged.

    frozen_names: the user's declaration. on_changed: called, on another thread, with the name of a frozen tensor that
    was found changed. streams: copies tensors of a device to the host for the comparison. compared_bytes: compared
    after each save, at most. `disabled`: a frozen tensor has changed, so every save copies every tensor.
    """

    def __init__(
        self,
        frozen_names: FrozenNames,
        on_changed: Callable[[str], object],
        streams: CopyStreams,
        compared_bytes: int = COMPARED_BYTES,
    ) -> None:
        self._frozen_names, self._on_changed, self._budget, self._streams = (
            frozen_names,
            on_changed,
            compared_bytes,
            streams,
        )
        self.disabled = False
        self._layout: Layout | None = None
        self._frozen_indexes: npt.NDArray[np.intp] = np.zeros(
            0, np.intp
        )  # indexes of entries that were declared frozen
        self._marks: _TensorVersions | None = None  # of the last save
        self._last_saves: dict[int, _LastSave] = {}
        self._at = (0, 0)  # index of the entry and offset in it at which the next comparison begins
        self._comparing: threading.Thread | None = None

    def choose_skipped(self, generation: int, before: Slot, plan: SavePlan, head_bytes: int) -> SkippedParams:
        """Return the entries that a save into this generation need not copy: frozen, and unchanged since its last save.

        before: the generation's slot before this save began. plan, head_bytes: of this save. No entry is chosen if
        this object is disabled, if the generation is damaged, or if its last save is not known here, had another layout
        or header length, or was not passed to `compare_skipped`. So pass the result to that method after the save.
        """
        last_save, marks = self._last_saves.pop(generation, None), self._versions_of_plan(plan)
        if (
            self.disabled
            or last_save is None
            or last_save.layout is not plan.layout
            or (last_save.epoch, last_save.head_bytes) != (before.epoch, head_bytes)
            or before.record is None  # that generation was found damaged
        ):
            return SkippedParams(marks, np.zeros(len(plan.tensors), np.bool_))
        return SkippedParams(marks, marks.unchanged_since(last_save.skipped.marks))

    def _versions_of_plan(self, plan: SavePlan) -> _TensorVersions:
        """Return the addresses and versions of a plan's tensors, and remember them for the next call."""
        if self._layout is not plan.layout:
            entries = zip(plan.layout.entries, plan.tensors, strict=True)
            mask = np.array([self._is_frozen(entry.name, tensor) for entry, tensor in entries], np.bool_)
            self._frozen_indexes, self._layout, self._at, self._marks = np.flatnonzero(mask), plan.layout, (0, 0), None
        tensors = [plan.tensors[index] for index in self._frozen_indexes.tolist()]
        versions, storages = (np.full(len(plan.tensors), _NO_VERSION, np.int64) for _ in range(2))
        versions[self._frozen_indexes] = _versions(tensors)
        storages[self._frozen_indexes] = [tensor.untyped_storage()._cdata for tensor in tensors]
        before = self._marks
        if before is not None and np.array_equal(storages, before.storages):
            storages, references = before.storages, before.references
        else:
            references = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
        self._marks = _TensorVersions(plan.sources, versions, storages, references)
        return self._marks

    def _is_frozen(self, name: str, tensor: torch.Tensor) -> bool:
        """Return True if the user declared this tensor, or a parent of its name, frozen."""
        if callable(self._frozen_names):
            return bool(self._frozen_names(name, tensor))
        return any(name == each or name.startswith(f"{each}/") for each in self._frozen_names)

    def compare_skipped(
        self, arena: Arena, generation: int, record: ShardRecord, plan: SavePlan, skipped: SkippedParams
    ) -> None:
        """Record what a sealed generation holds now, and start a thread that compares the entries that were not copied.

        skipped: as `choose_skipped` returned it for this save. Does nothing if this object is disabled. arena,
        generation: that were sealed. record, plan: of this save.
        """
        if self.disabled:
            return
        self._last_saves[generation] = _LastSave(plan.layout, record.head_bytes, record.epoch, skipped)
        if skipped.mask.any():
            self._comparing = threading.Thread(
                target=self._compare, args=(arena, generation, record, plan), name="turnout-compare", daemon=True
            )
            self._comparing.start()

    def wait_compared(self) -> None:
        """Wait until the background comparison has ended. Call it before a generation is written or read."""
        comparing = self._comparing
        if comparing is not None and comparing is not threading.current_thread():
            comparing.join()

    def _compare(self, arena: Arena, generation: int, record: ShardRecord, plan: SavePlan) -> None:
        """Compare tensors that a save did not copy with their bytes in the arena, up to `compared_bytes` bytes.

        The next call continues at the following tensor. If a tensor differs although its version is unchanged, all
        generations with stale bytes are discarded, and every later save copies every tensor. arena, generation, record,
        plan: of that save.
        """
        view = arena.map(generation, record.region_bytes)
        last_save, remaining_bytes, (first, byte) = self._last_saves[generation], self._budget, self._at
        chosen = np.flatnonzero(last_save.skipped.mask & (plan.sizes > 0)).tolist()
        start = bisect_left(chosen, first)
        order = chosen[start:] + chosen[:start]
        byte = byte if order and order[0] == first else 0
        for turn, index in enumerate(order):
            entry, tensor, tensor_bytes = plan.layout.entries[index], plan.tensors[index], int(plan.sizes[index])
            size = min(tensor_bytes - byte, remaining_bytes) if plan.copied_as_bytes[index] else tensor_bytes
            equal = _is_equal(view, record.head_bytes, entry, tensor, byte, size, self._streams)
            if not equal and last_save.skipped.marks.is_unchanged(index, tensor):
                self._disable(arena, index, entry.name)
                return
            remaining_bytes, byte = remaining_bytes - size, byte + size
            self._at = (index, byte) if byte < tensor_bytes else (order[(turn + 1) % len(order)], 0)
            byte = 0
            if remaining_bytes <= 0:
                return

    def _disable(self, arena: Arena, index: int, name: str) -> None:
        """Discard every generation whose last save did not copy the changed entry, and disable this object for good.

        It is unknown when the tensor changed, so none of these generations can be trusted. index, name: of the entry.
        arena: with the generations.
        """
        self.disabled = True
        for generation, last_save in self._last_saves.items():
            if last_save.skipped.mask[index]:
                until_s = time.monotonic() + _HASH_WAIT_S
                while time.monotonic() < until_s:  # a daemon that still hashes it would mark it as valid afterwards
                    slot = arena.slots()[generation]
                    if slot.state is not SlotState.SEALED or not slot.pinned:
                        break
                    time.sleep(0.001)
                arena.discard(generation)
        self._last_saves.clear()
        self._on_changed(name)


def _versions(tensors: list[torch.Tensor]) -> Sequence[int]:
    """Return torch's counters of changes in place, one per tensor; _NO_VERSION for an inference tensor."""
    try:
        return versions_of(tensors)
    except RuntimeError:
        return [_NO_VERSION if tensor.is_inference() else tensor._version for tensor in tensors]


def _is_equal(
    view: memoryview,
    head_bytes: int,
    entry: Entry,
    tensor: torch.Tensor,
    first_byte: int,
    size: int,
    streams: CopyStreams,
) -> bool:
    """Return True if a part of a tensor equals its saved bytes.

    view, head_bytes: the shard in the arena and the length of its header. entry: of the tensor in the layout.
    first_byte, size: offset of the part in the tensor and its length, in bytes. Both are ignored for a tensor that does
    not lie in host memory as it is saved: it is compared as a whole, in a copy. streams: make that copy.
    """
    if is_bytes(tensor):
        address = address_of(view) + head_bytes + entry.start + first_byte
        return bool(_libc.memcmp(address, tensor.data_ptr() + first_byte, size) == 0)
    saved = tensor_over(view, entry, head_bytes)
    current = torch.empty_like(saved)
    streams.start([HostCopy(current, tensor)]).wait()
    return bool((saved.reshape(-1).view(torch.uint8) == current.reshape(-1).view(torch.uint8)).all())
