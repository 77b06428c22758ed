"""`Checkpointer`: every few steps into memory, now and then to storage, and back from wherever the newest one is.

    checkpoints = Checkpointer("/checkpoints/bert")
    loaded = checkpoints.load()
    start, state = loaded if loaded else (0, fresh())
    for step in steps.count(start):
        train(state)
        checkpoints.save(step, state, disk=step % 100 == 0)

Under turnout-run memory outlives the process: it is found again after a restart. Source: issue 7
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from launcher.checkpoint.wire import Failed, Hashed, Persisted, Sealed, ToClient
from launcher.errors import BadCheckpoint, StorageFailed
from launcher.shell.progress import Steps
from launcher.shell.saving.memory import Memory, state_of
from launcher.shell.saving.rank import Rank
from launcher.shell.storage.opening import open_store
from launcher.shell.storage.reader import committed
from launcher.shell.storage.reader import load as load_shard

log = logging.getLogger("turnout.checkpoint")


class Loaded(NamedTuple):
    """A step and its state. The state's tensors are the caller's own."""

    step: int
    state: object


@dataclass(frozen=True, slots=True)
class Stats:
    """Of this rank. Steps: the newest, -1 for none. failures: persists that storage did not take; why: the last one's.

    saves: into memory; saved_bytes: in all of them.
    """

    saves: int = 0
    saved_bytes: int = 0
    sealed: int = -1
    hashed: int = -1
    persisted: int = -1
    committed: int = -1
    in_flight: int = 0
    failures: int = 0
    why: str = ""


class Checkpointer:
    """Of one process. folder: a path or a URL of fsspec, for the checkpoints that go to storage.

    generations: how many saves memory holds, 2 to 7; with 3 a save never waits for storage. replicated: every rank has
    the same state (DDP): local rank 0 saves for its worker, rank 0 to storage. keep, every: how many of the newest
    checkpoints stay in storage, and which multiples; without either all of them. threads: that copy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        generations: int = 3,
        replicated: bool = False,
        keep: int = 0,
        every: int = 0,
        threads: int = 2,
    ) -> None:
        if not 2 <= generations <= 7 or keep < 0 or every < 0:
            raise ValueError("generations are 2 to 7, keep and every 0 or more")
        self.folder = str(folder) if "://" in str(folder) else str(Path(folder).absolute())
        self._rank = Rank.of(os.environ, self.folder)
        self._generations, self._replicated, self._threads = generations, replicated, threads
        self._keep, self._every = keep, every
        self._memory: Memory | None = None
        self._steps = Steps()
        self._saves = self._saved_bytes = 0
        self._why = ""
        self.on_failure: Callable[[int, str], None] = lambda step, why: None

    @property
    def saves_here(self) -> bool:
        """Does this process save? Of a replicated state one process of each worker does."""
        return not self._replicated or self._rank.local_rank == 0

    def _opened(self) -> Memory:
        if self._memory is None:
            self._memory = Memory(
                self._rank, os.environ, generations=self._generations, replicated=self._replicated,
                threads=self._threads, told=self._told,
            )  # fmt: skip
            atexit.register(self.close)
        return self._memory

    def prepare(self, state: object) -> None:
        """Have the memory for such a state ready before the first save, in the background. Raises NoMemory."""
        if self.saves_here:
            self._opened().prepare(state)

    def save(self, step: int, state: object, *, disk: bool = True) -> None:
        """Save this step in memory; training may go on when this returns. disk: and to storage, in the background.

        state: nested dicts, lists and tuples of tensors and plain values. Raises BadState for anything else, and
        NoMemory; the saves before this one are kept.
        """
        self._save(step, state, Sealed(0, 0, step, self.folder, keep=self._keep, every=self._every) if disk else None)

    def save_as_torch_file(self, step: int, state: object, path: str | Path) -> None:
        """The same, to storage as one file that `torch.load(path, weights_only=True)` reads."""
        self._save(step, state, Sealed(0, 0, step, self.folder, "torch", str(Path(path).absolute())))

    def _save(self, step: int, state: object, target: Sealed | None) -> None:
        if not self.saves_here:
            return
        if self._replicated and self._rank.rank:
            target = None
        self._saved_bytes += self._opened().save(step, state, target)
        self._saves += 1
        self._steps.saved(step)

    def load(self) -> Loaded | None:
        """The newest step: from memory where all ranks hold it, else from storage. None where nothing was saved.

        Each byte is verified. Raises BadCheckpoint where memory was agreed on and is broken: the next round does
        without it; StorageFailed where storage cannot be read.
        """
        memory = self._opened()
        restore = self._rank.restore
        if restore is None:
            restore = memory.newest() if self._rank.world == 1 or self._replicated else -1
        if restore >= 0:
            try:
                return Loaded(restore, memory.load(restore))
            except BadCheckpoint as error:
                if self._rank.world > 1 and not self._replicated:
                    raise
                log.warning("memory_passed_over", extra={"step": restore, "why": str(error)})
        return self._from_storage()

    def _from_storage(self) -> Loaded | None:
        store = open_store(self.folder)
        rank, world = (0, 1) if self._replicated else (self._rank.rank, self._rank.world)
        if "://" not in self.folder and not Path(self.folder).is_dir():
            return None
        for manifest in committed(store, lambda word, fields: log.warning(word, extra=dict(fields))):
            if manifest.world != world:
                raise BadCheckpoint(
                    f"step {manifest.step} in {self.folder} is of {manifest.world} ranks, this world has {world}: "
                    "save with torch.distributed.checkpoint what is to be loaded in another world size"
                )
            try:
                return Loaded(manifest.step, state_of(load_shard(store, manifest, rank)))
            except (BadCheckpoint, StorageFailed) as error:
                if world > 1:  # the other ranks would not fall back with us
                    raise
                log.warning("checkpoint_passed_over", extra={"step": manifest.step, "why": str(error)})
        return None

    def wait(self, timeout_s: float | None = None) -> None:
        """Until all that was saved is hashed and, where it was to be, in storage. Raises TimeoutError."""
        if self._memory is not None:
            self._memory.prepared()
            self._memory.client.wait(timeout_s)

    def stats(self) -> Stats:
        """What has become of the saves of this rank."""
        if self._memory is None:
            return Stats()
        found = self._memory.stats()
        return Stats(
            self._saves, self._saved_bytes, found.sealed, found.hashed, found.persisted, found.committed,
            found.in_flight, found.failures, self._why,
        )  # fmt: skip

    def _told(self, message: ToClient) -> None:
        match message:
            case Failed(step=step, reason=reason, detail=detail) if reason != "overwritten":
                self._why = detail
                log.warning("persist_failed", extra={"step": step, "reason": reason, "detail": detail})
                self.on_failure(step, detail)
            case Hashed() | Persisted():
                log.debug(type(message).__name__.lower(), extra={"step": message.step})

    def close(self) -> None:
        """Nothing more is saved. What is in flight goes on: with the agent, or first where there is none."""
        memory, self._memory = self._memory, None
        if memory is not None:
            atexit.unregister(self.close)
            memory.close()
