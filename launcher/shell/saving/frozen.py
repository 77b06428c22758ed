"""Tensors that do not change are copied once into each generation, and not again with every save.

Which these are is declared, and not believed: a tensor whose address or version is another one is copied, and after
each save so many bytes of the others are compared with what memory has of them, round and round. What neither tells
at once, a write through .data or from outside torch, is found when its turn comes: then all that may be stale is
dropped, and from then on everything is copied.
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

from turnout.launcher.checkpoint.generations import Record, Slot, State
from turnout.launcher.checkpoint.layout import Entry, Layout
from turnout.launcher.shell.memory.arena import Arena, address_of
from turnout.launcher.shell.memory.copying import Rows
from turnout.launcher.shell.saving.laying import Laid, Mask
from turnout.launcher.shell.saving.tensors import is_bytes, over, versions_of

Declared: TypeAlias = Callable[[str, torch.Tensor], bool] | Collection[str]

COMPARED_BYTES = 32 << 20  # after each save: a few milliseconds of another core
_HASHED_S = 10.0
_NONE = -1  # no version
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Of tensors, by entry: another one where a tensor was written to, as far as torch knows.

    versions: _NONE of what is not declared, or is not counted. storages: while its weak references live no other one
    has the address of one of them.
    """

    sources: Rows
    versions: Rows
    storages: Rows
    references: list[StorageWeakRef]

    def same(self, others: _Marks) -> Mask:
        """Where both are the same, and say so."""
        same: Mask = (self.versions == others.versions) & (self.versions != _NONE) & (self.sources == others.sources)
        if self.storages is not others.storages:
            same &= self.storages == others.storages
        return same

    def fit(self, at: int, tensor: torch.Tensor) -> bool:
        """Is this entry's tensor still as it was?"""
        now = tensor._version, tensor.data_ptr(), tensor.untyped_storage()._cdata
        return now == (self.versions[at], self.sources[at], self.storages[at])


@dataclass(frozen=True, slots=True)
class Skip:
    """What one save leaves out. By entry: its mark; is it left out?"""

    marks: _Marks
    mask: Mask


@dataclass(frozen=True, slots=True)
class _Held:
    """What one generation has of a layout, as its last save has left it."""

    layout: Layout
    head_bytes: int
    epoch: int
    skip: Skip


class Frozen:
    """Of one process. declared: names, of tensors or of what they lie in, or a function of name and tensor.

    told: what is said when a tensor has changed silently: its name. compared_bytes: after each save.
    """

    def __init__(self, declared: Declared, told: Callable[[str], object], compared_bytes: int = COMPARED_BYTES) -> None:
        self._declared, self._told, self._budget = declared, told, compared_bytes
        self.off = False
        self._layout: Layout | None = None
        self._declared_at: npt.NDArray[np.intp] = np.zeros(0, np.intp)  # entries
        self._marks: _Marks | None = None  # of the last save
        self._held: dict[int, _Held] = {}
        self._at = (0, 0)  # the entry, and the byte in it, to compare next
        self._comparing: threading.Thread | None = None

    def skip(self, generation: int, before: Slot, laid: Laid, head_bytes: int) -> Skip:
        """What this generation has already. before: it was that when it was taken for this save."""
        held, marks = self._held.pop(generation, None), self._marks_of(laid)
        if (
            self.off
            or held is None
            or held.layout is not laid.layout
            or (held.epoch, held.head_bytes) != (before.epoch, head_bytes)
            or before.record is None  # somebody has found it broken
        ):
            return Skip(marks, np.zeros(len(laid.tensors), np.bool_))
        return Skip(marks, marks.same(held.skip.marks))

    def _marks_of(self, laid: Laid) -> _Marks:
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

    def sealed(self, arena: Arena, generation: int, record: Record, laid: Laid, skip: Skip) -> None:
        """The generation holds all of it now. Begins to compare."""
        if self.off:
            return
        self._held[generation] = _Held(laid.layout, record.head_bytes, record.epoch, skip)
        if skip.mask.any():
            self._comparing = threading.Thread(
                target=self._compare, args=(arena, generation, record, laid), name="turnout-compare", daemon=True
            )
            self._comparing.start()

    def settled(self) -> None:
        """Wait for the comparison: before the generations change, or are read."""
        comparing = self._comparing
        if comparing is not None and comparing is not threading.current_thread():
            comparing.join()

    def _compare(self, arena: Arena, generation: int, record: Record, laid: Laid) -> None:
        view = arena.map(generation, record.region_bytes)
        held, left, (first, byte) = self._held[generation], self._budget, self._at
        chosen = np.flatnonzero(held.skip.mask & (laid.sizes > 0)).tolist()
        start = bisect_left(chosen, first)
        order = chosen[start:] + chosen[:start]
        byte = byte if order and order[0] == first else 0
        for turn, at in enumerate(order):
            entry, tensor, whole = laid.layout.entries[at], laid.tensors[at], int(laid.sizes[at])
            size = min(whole - byte, left) if laid.plain[at] else whole
            if not _equal(view, record.head_bytes, entry, tensor, byte, size) and held.skip.marks.fit(at, tensor):
                self._drop(arena, at, entry.name)
                return
            left, byte = left - size, byte + size
            self._at = (at, byte) if byte < whole else (order[(turn + 1) % len(order)], 0)
            byte = 0
            if left <= 0:
                return

    def _drop(self, arena: Arena, at: int, name: str) -> None:
        """Nobody knows since when: every generation that has not copied it goes."""
        self.off = True
        for generation, held in self._held.items():
            if held.skip.mask[at]:
                until_s = time.monotonic() + _HASHED_S
                while time.monotonic() < until_s:  # a keeper that is just hashing it would make it whole again
                    slot = arena.slots()[generation]
                    if slot.state is not State.SEALED or not slot.pinned:
                        break
                    time.sleep(0.001)
                arena.discard(generation)
        self._held.clear()
        self._told(name)


def _versions(tensors: list[torch.Tensor]) -> Sequence[int]:
    try:
        return versions_of(tensors)
    except RuntimeError:
        return [_NONE if tensor.is_inference() else tensor._version for tensor in tensors]


def _equal(view: memoryview, head_bytes: int, entry: Entry, tensor: torch.Tensor, byte: int, size: int) -> bool:
    if is_bytes(tensor):
        at = address_of(view) + head_bytes + entry.start + byte
        return bool(_libc.memcmp(at, tensor.data_ptr() + byte, size) == 0)
    there = over(view, entry, head_bytes)
    here = torch.empty_like(there).copy_(tensor)
    return bool((there.reshape(-1).view(torch.uint8) == here.reshape(-1).view(torch.uint8)).all())
