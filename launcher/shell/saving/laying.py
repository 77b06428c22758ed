"""What a save copies, and where to: worked out once for the same names, dtypes and shapes, and kept for the next save;
and what a shard that was laid out so holds.

Most saves differ from the one before in addresses and in a few plain values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from launcher.checkpoint.generations import Record
from launcher.checkpoint.layout import Entry, Layout, head_of, pack, read_head
from launcher.errors import BadCheckpoint
from launcher.shell.memory.copying import Rows
from launcher.shell.saving.tensors import is_bytes, over, restored, spec_of

Elsewhere: TypeAlias = tuple[torch.Tensor, Entry]  # torch copies it: from a device, or from an order of its own

KEY, BESIDE = "turnout", "turnout-rng"  # of the head's metadata


@dataclass(frozen=True, slots=True)
class Laid:
    """One save. tensors: by entry of the layout. head: as it is to be written."""

    layout: Layout
    head: bytes
    tensors: tuple[torch.Tensor, ...]
    starts: Rows = field(repr=False)
    sizes: Rows = field(repr=False)

    def record(self, step: int, round_: int, place: tuple[int, int]) -> Record:
        """As its generation's table tells it. place: rank and world."""
        return Record(0, step, round_, *place, len(self.head), self.layout.data_bytes)

    def pieces(self, data: int, skip: npt.NDArray[np.bool_] | None = None) -> tuple[Rows, list[Elsewhere]]:
        """To, from and bytes of what can be copied byte by byte; the tensors that torch has to copy.

        data: where the first byte after the head goes. skip: entries that are there already.
        """
        starts, sizes, tensors, entries = self.starts, self.sizes, self.tensors, self.layout.entries
        if skip is not None and skip.any():
            chosen = np.flatnonzero(~skip)
            starts, sizes = starts[chosen], sizes[chosen]
            tensors, entries = (tuple(each[at] for at in chosen.tolist()) for each in (tensors, entries))
        plain = np.fromiter(map(is_bytes, tensors), np.bool_, len(tensors))
        sources = np.fromiter((each.data_ptr() for each in tensors), np.uint64, len(tensors))
        rows = np.stack([starts + data, sources.astype(np.int64), sizes], axis=1)
        others = np.flatnonzero(~plain).tolist()
        elsewhere = [(tensors[at].detach(), entries[at]) for at in others]
        return (rows[plain] if others else rows), elsewhere


class Laying:
    """rank, world: of the process, as its shards tell it."""

    def __init__(self, rank: int, world: int) -> None:
        self._place = {"rank": rank, "world": world}
        self._key: object = None
        self._layout = Layout((), 0)
        self._names: tuple[str, ...] = ()
        self._starts = self._sizes = np.zeros(0, np.int64)
        self._text, self._head = ("", ""), b""

    def __call__(self, text: str, tensors: Mapping[str, torch.Tensor], beside: str = "") -> Laid:
        """Lay out a state that was flattened. beside: text that travels with it. Raises BadState."""
        key = [(name, each.dtype, each.shape) for name, each in tensors.items()]
        if key != self._key:
            layout = pack(spec_of(name, tensor) for name, tensor in tensors.items())
            self._starts = np.array([each.start for each in layout.entries], np.int64)
            self._sizes = np.array([each.end - each.start for each in layout.entries], np.int64)
            self._names = tuple(each.name for each in layout.entries)
            self._key, self._layout, self._head = key, layout, b""
        if not self._head or (text, beside) != self._text:
            about = msgspec.json.encode({"tree": text, **self._place}).decode()
            metadata = {KEY: about, BESIDE: beside} if beside else {KEY: about}
            self._text, self._head = (text, beside), head_of(self._layout, metadata)
        ordered = tuple(tensors[name] for name in self._names)
        return Laid(self._layout, self._head, ordered, self._starts, self._sizes)


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
