"""One rank's saves into its arena: laid out, copied by plain threads, sealed, told to the keeper; and read again."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping

import torch

from launcher.checkpoint.generations import Record
from launcher.checkpoint.layout import Layout, head_of, pack, read_head
from launcher.checkpoint.sums import CHUNK_BYTES, sum_of
from launcher.checkpoint.wire import Hello, Sealed, Stats, ToClient
from launcher.errors import BadCheckpoint, LauncherError
from launcher.shell.memory.arena import Arena, address_of
from launcher.shell.memory.client import Client
from launcher.shell.memory.copying import Copier
from launcher.shell.saving.rank import Rank
from launcher.shell.saving.tensors import flatten, is_bytes, over, restored, spec_of

KEY = "turnout"  # of the head's metadata
_LOOK_S = 0.0005
_STUCK_S = 600.0


class Memory:
    """Of one process. generations: 2 or more; told: what the keeper says later, on a thread."""

    def __init__(
        self,
        rank: Rank,
        environ: Mapping[str, str],
        *,
        generations: int,
        replicated: bool,
        threads: int,
        told: Callable[[ToClient], None],
    ) -> None:
        self._rank, self._generations = rank, generations
        self._place = (0, 1) if replicated else (rank.rank, rank.world)
        local_rank = 0 if replicated else rank.local_rank
        hello = Hello(rank.run, rank.worker, rank.rank, local_rank, rank.world, rank.round)
        self.client = Client(hello, dict(environ), rank.memory, told)
        self._copier = Copier(threads)
        self._arena = Arena.open(self.client.arena) if self.client.arena else None
        self._asked = 0  # bytes of a generation that the keeper was asked for
        self._known: tuple[object, Layout, bytes] | None = None
        self._mapping: threading.Thread | None = None

    def prepare(self, state: object) -> int:
        """Have the memory for such a state, and its pages, before the first save. Gives its bytes. Raises NoMemory."""
        text, tensors = flatten(state)
        layout, head = self._laid_out(text, tensors)
        record = Record(0, 0, 0, *self._place, len(head), layout.data_bytes)
        arena = self._reserved(record)

        def mapped() -> None:
            for generation in range(min(self._generations, arena.identity.count)):
                arena.populate(generation, record.region_bytes)

        self._mapping = threading.Thread(target=mapped, name="turnout-pages", daemon=True)
        self._mapping.start()
        return record.region_bytes

    def prepared(self) -> None:
        """Wait until the pages are there."""
        if self._mapping is not None:
            self._mapping.join()

    def save(self, step: int, state: object, target: Sealed | None) -> int:
        """Copy, seal, tell. Blocks for as long as the copy takes. Gives the bytes. Raises BadState and NoMemory."""
        text, tensors = flatten(state)
        layout, head = self._laid_out(text, tensors)
        record = Record(0, step, self._rank.round, *self._place, len(head), layout.data_bytes)
        arena = self._reserved(record)
        generation = self._begun(arena, record)
        self._copy(arena, generation, record, layout, head, tensors)
        record = arena.seal(generation, record)
        told = target or Sealed(0, 0, step)
        self.client.sealed(
            Sealed(generation, record.epoch, step, told.target, told.kind, told.path, told.keep, told.every)
        )
        return record.head_bytes + record.data_bytes

    def _laid_out(self, text: str, tensors: Mapping[str, torch.Tensor]) -> tuple[Layout, bytes]:
        key = (text, tuple((name, each.dtype, each.shape) for name, each in tensors.items()))
        if self._known is None or self._known[0] != key:
            layout = pack(spec_of(name, tensor) for name, tensor in tensors.items())
            rank, world = self._place
            about = json.dumps({"tree": text, "rank": rank, "world": world})
            self._known = (key, layout, head_of(layout, {KEY: about}))
        return self._known[1], self._known[2]

    def _reserved(self, record: Record) -> Arena:
        if self._arena is None or self._asked < record.region_bytes:
            path = self.client.need(record.region_bytes, self._generations)
            if self._arena is None or str(self._arena.path) != path:
                self._arena = Arena.open(path)
            self._asked = record.region_bytes
        return self._arena

    def _begun(self, arena: Arena, record: Record) -> int:
        """A generation to write. What the keeper reads just now is not overwritten: in the worst case it is awaited."""
        self.client.unheard()
        until_s = time.monotonic() + _STUCK_S
        while time.monotonic() < until_s:
            generation = arena.begin(record)
            if generation is None:
                generation = arena.begin(record, spare_newest=False)
            if generation is not None:
                return generation
            time.sleep(_LOOK_S)
        raise LauncherError(f"{arena.path}: no generation was free within {_STUCK_S:g} s: is the keeper stopped?")

    def _copy(
        self,
        arena: Arena,
        generation: int,
        record: Record,
        layout: Layout,
        head: bytes,
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        view = arena.map(generation, record.region_bytes)
        to = address_of(view)
        view[: len(head)] = head
        data, pieces, elsewhere = to + len(head), list[tuple[int, int, int]](), list[tuple[torch.Tensor, int]]()
        for at, entry in enumerate(layout.entries):
            tensor = tensors[entry.name]
            if is_bytes(tensor):
                pieces.append((data + entry.start, tensor.data_ptr(), entry.end - entry.start))
            else:
                elsewhere.append((tensor, at))
        self._copier.copy(pieces)
        devices = set()
        for tensor, at in elsewhere:
            over(view, layout.entries[at], len(head)).copy_(tensor, non_blocking=True)
            devices.add(tensor.device)
        self._copier.wait()
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def load(self, step: int) -> object:
        """The state of this step, every byte of it verified. Raises BadCheckpoint where it is not there, or broken."""
        if self._arena is None:
            raise BadCheckpoint("no memory holds a step")
        slots = self._arena.slots()
        held = [(slot.epoch, at) for at, slot in enumerate(slots) if slot.record and slot.record.step == step]
        if not held:
            raise BadCheckpoint(f"memory does not hold step {step}")
        generation = max(held)[1]
        record, sums = slots[generation].record, self._arena.sums(generation)
        assert record is not None
        if (record.rank, record.world) != self._place:
            raise BadCheckpoint(
                f"memory holds step {step} as rank {record.rank} of {record.world}, not as {self._place[0]} of "
                f"{self._place[1]}"
            )
        return state_of(self._verified(self._arena.map(generation, record.head_bytes + record.data_bytes), sums, step))

    def _verified(self, region: memoryview, sums: tuple[int, ...], step: int) -> memoryview:
        """A copy that nobody else can change, each chunk of it hashed."""
        aside = torch.empty(region.nbytes, dtype=torch.uint8)
        self._copier.copy([(aside.data_ptr(), address_of(region), region.nbytes)])
        self._copier.wait()
        view = memoryview(aside.numpy())
        for number, expected in enumerate(sums):
            if sum_of(view[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]) != expected:
                raise BadCheckpoint(f"chunk {number} of step {step} in memory is not what was hashed")
        return view

    def newest(self) -> int:
        """Where no agent has said which step all hold, and there is one rank only: the newest that is hashed."""
        held = self.client.settle(1)
        return held[0].step if held else -1

    def stats(self) -> Stats:
        """Of the keeper, for this process."""
        return self.client.stats()

    def close(self) -> None:
        """No more saves. What was told to the keeper goes on."""
        self._copier.close()
        self.client.close()


def state_of(shard: memoryview) -> object:
    """The state in a verified shard. Its tensors lie in these bytes. Raises BadCheckpoint."""
    layout, metadata, head_bytes = read_head(shard)
    try:
        about = json.loads(metadata.get(KEY, ""))
        text = about["tree"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"the shard has no tree: {error}") from error
    if not isinstance(text, str):
        raise BadCheckpoint("the tree is no text")
    return restored(text, layout, shard, head_bytes)


def environ() -> dict[str, str]:
    """Of this process, now."""
    return dict(os.environ)
