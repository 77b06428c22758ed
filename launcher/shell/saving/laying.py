"""What a save copies, and where to; and what a shard that was laid out so holds.

Most saves differ from the one before in addresses and in a few plain values only: for the same names, kinds and shapes
all else is kept. That they are the same is seen on each tensor, each time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from turnout.launcher.checkpoint.generations import Record
from turnout.launcher.checkpoint.kept import Kept
from turnout.launcher.checkpoint.layout import Entry, Layout, described, head_of, headed, pack, quoted, read_head
from turnout.launcher.checkpoint.parts import KEY
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.shell.memory.copying import Rows
from turnout.launcher.shell.saving.tensors import Looks, flatten, is_bytes, keep, looks_of, over, restored, spec_of

Elsewhere: TypeAlias = tuple[torch.Tensor, Entry]  # torch copies it: from a device, or from an order of its own
Mask: TypeAlias = npt.NDArray[np.bool_]

BESIDE = "turnout-rng"  # of the head's metadata
_MOST_WAITED = 64  # saves, until a tree that changes with each of them is kept once more


@dataclass(frozen=True, slots=True)
class Laid:
    """One save, by entry of the layout: its tensors, where their bytes lie and are to lie, how many these are.

    head: as it is to be written. plain: which lie in memory as they are to be saved.
    """

    layout: Layout
    head: bytes
    tensors: tuple[torch.Tensor, ...]
    sources: Rows = field(repr=False)
    starts: Rows = field(repr=False)
    sizes: Rows = field(repr=False)
    plain: Mask = field(repr=False)

    def record(self, step: int, round_: int, place: tuple[int, int]) -> Record:
        """As its generation's table tells it. place: rank and world."""
        return Record(0, step, round_, *place, len(self.head), self.layout.data_bytes)

    def device(self) -> torch.device | None:
        """The GPU that tensors lie on: the first, where there are several."""
        if self.plain.all():
            return None
        return next((tensor.device for tensor in self.tensors if tensor.is_cuda), None)

    def pieces(self, data: int, skip: Mask | None = None) -> tuple[Rows, list[Elsewhere]]:
        """To, from and bytes of what can be copied byte by byte; the tensors that torch has to copy.

        data: where the first byte after the head goes. skip: entries that are there already.
        """
        chosen, others = (self.plain, ~self.plain) if skip is None else (self.plain & ~skip, ~self.plain & ~skip)
        rows = np.stack([self.starts + data, self.sources, self.sizes], axis=1)
        elsewhere = [(self.tensors[at].detach(), self.layout.entries[at]) for at in np.flatnonzero(others).tolist()]
        return (rows if chosen.all() else rows[chosen]), elsewhere


@dataclass(frozen=True, slots=True)
class _Kept:
    """Of one save, for the next. tree: of its state; looks: of what stands in it; places: where each entry does first.

    described: the layout, as the head tells it. laid: but for what no save has in common with another.
    """

    tree: Kept
    looks: Looks
    places: tuple[int, ...]
    order: npt.NDArray[np.intp]  # places again
    described: bytes
    laid: Laid


class Laying:
    """rank, world: of the process, as its shards tell it."""

    def __init__(self, rank: int, world: int) -> None:
        self._place = {"rank": rank, "world": world}
        before, behind = (msgspec.json.encode({"tree": "", **self._place}).partition(b'""')[at] for at in (0, 2))
        self._before, self._behind = quoted(before + b'"'), quoted(b'"' + behind)
        self._key: object = None
        self._layout = Layout((), 0)
        self._kept: _Kept | None = None
        self._in_vain = self._pause = 0  # kept one after the other, and none was of use; saves until the next is

    def __call__(self, state: object, beside: str = "") -> Laid:
        """Lay out a state. beside: text that travels with it. Raises BadState."""
        kept = self._kept
        found = kept.tree.walk(state) if kept is not None else None
        seen = looks_of(found) if found is not None else None
        if kept is None or found is None or seen is None or seen.looks != kept.looks:
            return self._anew(state, beside)
        self._in_vain = 0
        sources = np.array(seen.addresses, np.uint64).astype(np.int64)[kept.order]
        tensors = tuple([found[at] for at in kept.places])
        return replace(kept.laid, head=self._head(kept, beside), tensors=tensors, sources=sources)

    def _head(self, kept: _Kept, beside: str) -> bytes:
        """As `_anew` makes it."""
        about = [b'{"', KEY.encode(), b'":"', self._before, kept.tree.text(), self._behind]
        about += [b'","', BESIDE.encode(), b'":"', quoted(beside.encode())] if beside else []
        return headed(b"".join([*about, b'"}']), kept.described)

    def _anew(self, state: object, beside: str) -> Laid:
        text, tensors = flatten(state)
        key = [(name, each.dtype, each.shape) for name, each in tensors.items()]
        if key != self._key:
            self._key, self._layout = key, pack(spec_of(name, tensor) for name, tensor in tensors.items())
        about = msgspec.json.encode({"tree": text, **self._place}).decode()
        head = head_of(self._layout, {KEY: about, BESIDE: beside} if beside else {KEY: about})
        ordered = tuple(tensors[each.name] for each in self._layout.entries)
        count = len(ordered)
        laid = Laid(
            self._layout,
            head,
            ordered,
            np.fromiter((each.data_ptr() for each in ordered), np.uint64, count).astype(np.int64),
            np.fromiter((each.start for each in self._layout.entries), np.int64, count),
            np.fromiter((each.end - each.start for each in self._layout.entries), np.int64, count),
            np.fromiter(map(is_bytes, ordered), np.bool_, count),
        )
        self._keep(state, laid)
        return laid

    def _keep(self, state: object, laid: Laid) -> None:
        if self._pause > 0:
            self._pause -= 1
            return
        self._in_vain += 1
        self._pause = min(1 << self._in_vain, _MOST_WAITED) - 2
        tree = keep(state)
        found = tree.walk(state) if tree is not None else None
        seen = looks_of(found) if found is not None else None
        if tree is None or found is None or seen is None:
            self._kept = None
            return
        first = dict[int, int]()
        for at, tensor in enumerate(found):
            first.setdefault(id(tensor), at)
        places = tuple(first[id(tensor)] for tensor in laid.tensors)
        bare = replace(laid, head=b"", tensors=())  # nothing of this save lives longer than it
        self._kept = _Kept(tree, seen.looks, places, np.array(places, np.intp), described(laid.layout), bare)


def copied_by_torch(view: memoryview, head_bytes: int, tensors: list[Elsewhere]) -> None:
    """What is no plain bytes of this machine's memory. view: of the shard."""
    for tensor, entry in tensors:
        over(view, entry, head_bytes).copy_(tensor, non_blocking=True)
    for device in {tensor.device for tensor, _ in tensors}:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)


def state_of(shard: memoryview) -> object:
    """The state in a verified shard. Its tensors lie in these bytes. Raises BadCheckpoint."""
    layout, metadata, head_bytes = read_head(shard)
    try:
        text = json.loads(metadata.get(KEY, ""))["tree"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"the shard has no tree: {error}") from error
    if not isinstance(text, str):
        raise BadCheckpoint("the tree is no text")
    return restored(text, layout, shard, head_bytes)


def beside(shard: memoryview) -> str:
    """The text that was saved with the state in a verified shard, "" for none. Raises BadCheckpoint."""
    return read_head(shard)[1].get(BESIDE, "")
