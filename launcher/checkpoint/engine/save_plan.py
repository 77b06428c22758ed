"""Plans one save: which bytes are copied where. It also decodes the state in a shard that such a plan laid out.

Most saves differ from the save before only in addresses and a few plain values. If names, types and shapes are equal,
the rest of the plan is reused. Every tensor's properties are compared in every save.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from turnout.launcher.accelerator import CopyStreams, HostCopy
from turnout.launcher.checkpoint.arena.parallel_copy import Rows
from turnout.launcher.checkpoint.engine.state_dict import (
    TensorSpecs,
    cache_tree_of,
    flatten,
    is_bytes,
    restore_state,
    spec_of,
    specs_of,
    tensor_over,
)
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.shard_file import (
    KEY,
    Entry,
    Layout,
    encode_layout,
    escape_text,
    head_of,
    join_head,
    pack,
    read_head,
)
from turnout.launcher.checkpoint.format.state_tree import TreeCache
from turnout.launcher.errors import BadCheckpoint

# A tensor that torch has to copy, since it lies on a device or has another memory layout than its saved bytes.
TorchCopiedTensor: TypeAlias = tuple[torch.Tensor, Entry]
Mask: TypeAlias = npt.NDArray[np.bool_]  # one bool per layout entry

EXTRA_TEXT_KEY = "turnout-rng"  # key in the header's metadata
_MAX_CACHE_PAUSE = 64  # saves until the tree of a state that changes each time is cached again


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The plan of one save. Arrays and tensors are ordered by layout entry."""

    layout: Layout
    head: bytes  # the shard's header, as it is written
    tensors: tuple[torch.Tensor, ...]
    sources: Rows = field(repr=False)  # addresses of the tensors' bytes
    starts: Rows = field(repr=False)  # offsets after the header
    sizes: Rows = field(repr=False)  # in bytes
    copied_as_bytes: Mask = field(repr=False)  # True if the bytes lie in CPU memory as they are saved

    def record(self, step: int, round_: int, place: tuple[int, int]) -> ShardRecord:
        """Return the record of this save for the arena's table. place: rank and world size."""
        return ShardRecord(0, step, round_, *place, len(self.head), self.layout.data_bytes)

    def on_device(self, streams: CopyStreams) -> Mask:
        """Return a new mask, by entry: True if these streams copy it from a device."""
        if self.copied_as_bytes.all():
            return np.zeros(len(self.tensors), np.bool_)
        has_copy = np.fromiter(map(streams.holds, self.tensors), np.bool_, len(self.tensors))
        return ~self.copied_as_bytes & has_copy

    def pieces(self, data_start: int, leave_out: Mask | None = None) -> tuple[Rows, list[TorchCopiedTensor]]:
        """Return the pieces to copy as bytes, rows of (target, source, size), and the tensors that torch has to copy.

        data_start: where the first byte after the header goes, as an address or a file offset. leave_out: mask of the
        entries that are not copied in this save; None: all are copied. Each tensor comes with its layout entry.
        """
        chosen, other_entries = self.copied_as_bytes, ~self.copied_as_bytes
        if leave_out is not None:
            chosen, other_entries = chosen & ~leave_out, other_entries & ~leave_out
        rows = np.stack([self.starts + data_start, self.sources, self.sizes], axis=1)
        elsewhere = [
            (self.tensors[index].detach(), self.layout.entries[index])
            for index in np.flatnonzero(other_entries).tolist()
        ]
        return (rows if chosen.all() else rows[chosen]), elsewhere


@dataclass(frozen=True, slots=True)
class _LastPlan:
    """One save's plan, cached for the next save."""

    tree: TreeCache
    specs: TensorSpecs  # specs of the tensors in the tree
    places: tuple[int, ...]  # first place of each entry in the tree
    order: npt.NDArray[np.intp]  # places, as an array
    described: bytes  # the layout as the header has it
    plan: SavePlan  # the plan without header and tensors


class SavePlanner:
    """Plans saves, and reuses the plan of the save before. rank, world: written to each shard's header."""

    def __init__(self, rank: int, world: int) -> None:
        self._place = {"rank": rank, "world": world}
        before, behind = (msgspec.json.encode({"tree": "", **self._place}).partition(b'""')[at] for at in (0, 2))
        self._before, self._behind = escape_text(before + b'"'), escape_text(b'"' + behind)
        self._key: object = None
        self._layout = Layout((), 0)
        self._last_plan: _LastPlan | None = None
        self._useless_caches = self._pause = 0  # consecutive cached plans without use; saves until the next is cached

    def __call__(self, state: object, extra_text: str = "") -> SavePlan:
        """Plan the save of a state. extra_text: text that is saved with it, "" for none.

        The plan keeps the state's tensors alive. Raises BadState if a value is not supported or the state is too large.
        """
        last_plan = self._last_plan
        tensors_in_tree = last_plan.tree.walk(state) if last_plan is not None else None
        current = specs_of(tensors_in_tree) if tensors_in_tree is not None else None
        if last_plan is None or tensors_in_tree is None or current is None or current.specs != last_plan.specs:
            return self._full_plan(state, extra_text)
        self._useless_caches = 0
        sources = np.array(current.addresses, np.uint64).astype(np.int64)[last_plan.order]
        tensors = tuple([tensors_in_tree[at] for at in last_plan.places])
        return replace(last_plan.plan, head=self._head(last_plan, extra_text), tensors=tensors, sources=sources)

    def _head(self, last_plan: _LastPlan, extra_text: str) -> bytes:
        """Encode the header from the cached plan. The bytes equal those that `_full_plan` would return."""
        about = [b'{"', KEY.encode(), b'":"', self._before, last_plan.tree.text(), self._behind]
        about += [b'","', EXTRA_TEXT_KEY.encode(), b'":"', escape_text(extra_text.encode())] if extra_text else []
        return join_head(b"".join([*about, b'"}']), last_plan.described)

    def _full_plan(self, state: object, extra_text: str) -> SavePlan:
        """Compute the plan of a save from the whole state: layout, head, tensors and their addresses.

        extra_text: stored in the head, "" for none. The plan may also be cached for the next save (`_cache_plan`).
        Raises BadState if a value is not supported or the state is too large.
        """
        text, tensors = flatten(state)
        key = [(name, each.dtype, each.shape) for name, each in tensors.items()]
        if key != self._key:
            self._key, self._layout = key, pack(spec_of(name, tensor) for name, tensor in tensors.items())
        about = msgspec.json.encode({"tree": text, **self._place}).decode()
        head = head_of(self._layout, {KEY: about, EXTRA_TEXT_KEY: extra_text} if extra_text else {KEY: about})
        ordered = tuple(tensors[each.name] for each in self._layout.entries)
        count = len(ordered)
        plan = SavePlan(
            self._layout,
            head,
            ordered,
            np.fromiter((each.data_ptr() for each in ordered), np.uint64, count).astype(np.int64),
            np.fromiter((each.start for each in self._layout.entries), np.int64, count),
            np.fromiter((each.end - each.start for each in self._layout.entries), np.int64, count),
            np.fromiter(map(is_bytes, ordered), np.bool_, count),
        )
        self._cache_plan(state, plan)
        return plan

    def _cache_plan(self, state: object, plan: SavePlan) -> None:
        """Cache a plan for later saves of a state of the same structure, without keeping this save's tensors alive.

        After each cached plan that was never used, twice as many saves pass before the next one is cached.
        """
        if self._pause > 0:
            self._pause -= 1
            return
        self._useless_caches += 1
        self._pause = min(1 << self._useless_caches, _MAX_CACHE_PAUSE) - 2
        tree = cache_tree_of(state)
        tensors_in_tree = tree.walk(state) if tree is not None else None
        current = specs_of(tensors_in_tree) if tensors_in_tree is not None else None
        if tree is None or tensors_in_tree is None or current is None:
            self._last_plan = None
            return
        first = dict[int, int]()
        for at, tensor in enumerate(tensors_in_tree):
            first.setdefault(id(tensor), at)
        places = tuple(first[id(tensor)] for tensor in plan.tensors)
        bare = replace(plan, head=b"", tensors=())  # keep nothing of this save's tensors alive
        self._last_plan = _LastPlan(
            tree, current.specs, places, np.array(places, np.intp), encode_layout(plan.layout), bare
        )


def host_copies(view: memoryview, head_bytes: int, tensors: list[TorchCopiedTensor]) -> list[HostCopy]:
    """Return the copies of tensors that torch has to make into a shard. view, head_bytes: the shard, and its header."""
    return [HostCopy(tensor_over(view, entry, head_bytes), tensor) for tensor, entry in tensors]


def state_of(shard: memoryview) -> object:
    """Decode the state in a verified shard. Its tensors share the shard's memory.

    Raises BadCheckpoint if the shard has no valid header or state, or if this torch lacks a dtype.
    """
    layout, metadata, head_bytes = read_head(shard)
    try:
        text = json.loads(metadata.get(KEY, ""))["tree"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"the shard has no tree: {error}") from error
    if not isinstance(text, str):
        raise BadCheckpoint("the tree is no text")
    return restore_state(text, layout, shard, head_bytes)


def extra_text_of(shard: memoryview) -> str:
    """Return the text that was saved with the state in a verified shard, "" for none.

    Raises BadCheckpoint if the shard has no valid header.
    """
    return read_head(shard)[1].get(EXTRA_TEXT_KEY, "")
