"""`Checkpointer`: every few steps into memory, now and then to storage, and back from wherever the newest one is.

    checkpoints = Checkpointer("/checkpoints/bert")
    loaded = checkpoints.load()
    start, state = loaded if loaded else (0, fresh())
    for step in steps.count(start):
        train(state)
        checkpoints.save(step, state, disk=step % 100 == 0)

Under turnout-run memory outlives the process: it is found again after a restart. Source: CS-19
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from turnout.launcher.checkpoint.manifest import Manifest
from turnout.launcher.checkpoint.wire import Failed, Hashed, Persisted, Sealed, ToClient
from turnout.launcher.errors import BadCheckpoint, StorageFailed
from turnout.launcher.keeping import MOST_COPIES
from turnout.launcher.shell.progress import Steps
from turnout.launcher.shell.saving import rng
from turnout.launcher.shell.saving.frozen import Declared
from turnout.launcher.shell.saving.laying import beside, state_of
from turnout.launcher.shell.saving.memory import Memory
from turnout.launcher.shell.saving.overlap import BeforeSteps, Optimizer, Waits, addresses
from turnout.launcher.shell.saving.rank import Rank, Stats
from turnout.launcher.shell.saving.tensors import plain, restore
from turnout.launcher.shell.storage.opening import open_store
from turnout.launcher.shell.storage.reader import committed, newest, seen
from turnout.launcher.shell.storage.reader import load as load_shard
from turnout.launcher.shell.storage.store import Store
from turnout.launcher.shell.watching.beats import SAVES, in_phase

log = logging.getLogger("turnout.checkpoint")


class Loaded(NamedTuple):
    """A step and its state. The state's tensors are the caller's own."""

    step: int
    state: object


class Checkpointer:
    """Of one process. folder: a path or a URL of fsspec, for the checkpoints that go to storage.

    generations: how many saves memory holds, 2 to 7; with 3 none waits for a write to storage, and a second one on its
    way there may be overtaken; each one more keeps one more from that. replicated: every rank has the same state (DDP):
    local rank 0 saves for its worker, rank 0 to storage. keep, every: how many of the newest checkpoints stay in
    storage, and which multiples; without either all of them. threads: that copy. environ: of this process, by which its
    launcher tells it who it is. frozen: tensors that do not change, by name ("model/embedding", with all that lies in
    it) or by a function of name and tensor: each generation copies them once. Where one changes after all, torch's
    versions tell, and a comparison that goes round: then what may be stale is dropped and told. rng: the random numbers
    of torch, its device, numpy and Python go on where they were, for each rank that saves. replicas: how many other
    workers' memory has a copy of the newest save, 0 to 3; that takes one generation more.
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
        environ: Mapping[str, str] | None = None,
        frozen: Declared | None = None,
        rng: bool = True,
        replicas: int = 0,
    ) -> None:
        if not 2 <= generations <= 7 or keep < 0 or every < 0 or not 0 <= replicas <= MOST_COPIES:
            raise ValueError(f"generations are 2 to 7, replicas 0 to {MOST_COPIES}, keep and every 0 or more")
        self.folder = str(folder) if "://" in str(folder) else str(Path(folder).absolute())
        self._environ = dict(os.environ if environ is None else environ)
        self._rank = Rank.of(self._environ, self.folder)
        self._generations, self._replicated, self._threads = generations, replicated, threads
        self._keep, self._every, self._replicas = keep, every, replicas
        self._memory: Memory | None = None
        self._steps = Steps()
        self._saves = self._saved_bytes = 0
        self._dropped, self._why, self._source = 0, "", ""
        self._rng = rng
        self._frozen, self._before_steps = frozen, BeforeSteps(self._settle)
        self.on_failure: Callable[[int, str], None] = lambda step, why: None

    @property
    def saves_here(self) -> bool:
        """Does this process save? Of a replicated state one process of each worker does."""
        return not self._replicated or self._rank.local_rank == 0

    def _opened(self) -> Memory:
        if self._memory is None:
            self._memory = Memory(
                self._rank, self._environ, generations=self._generations, replicated=self._replicated,
                threads=self._threads, told=self._told, frozen=self._frozen, dropped=self._drops,
                replicas=self._replicas,
            )  # fmt: skip
            atexit.register(self.close)
        return self._memory

    def prepare(self, state: object) -> None:
        """Take the memory for such a state before the first save, and map it in the background. Raises NoMemory."""
        if self.saves_here:
            self._opened().prepare(plain(state), self._dice())

    def save(
        self,
        step: int,
        state: object,
        *,
        disk: bool = True,
        overlap: Optimizer | Sequence[Optimizer] = (),
        verify: bool = False,
    ) -> None:
        """Save this step in memory; training may go on when this returns. disk: and to storage, in the background.

        state: nested dicts, lists and tuples of tensors and plain values; in a dict also what has state_dict() and
        load_state_dict(), as a model, a GradScaler or a scheduler. Raises BadState for anything else, and NoMemory;
        the saves before this one are kept.

        overlap: what only these optimizers change, parameters and their own state, is copied while training goes on;
        the next step of one of them waits for it. All else is copied before this returns. Where one of these tensors
        is written to before that step, this save is dropped and told, and with later ones it is copied at once.
        Writes through .data are seen with verify alone, which hashes all of it twice.
        """
        optimizers = tuple(overlap) if isinstance(overlap, Sequence) else (overlap,)
        behind = Waits(addresses(optimizers), verify) if optimizers else None
        if self.saves_here:
            self._before_steps.see(optimizers)
        to = Sealed(0, 0, step, self.folder, keep=self._keep, every=self._every) if disk else None
        with in_phase(SAVES):
            self._save(step, state, to, behind)

    def _settle(self) -> None:
        if self._memory is not None:
            self._memory.settle()

    def _drops(self, step: int, why: str) -> None:
        self._dropped, self._why = self._dropped + 1, why
        log.warning("save_dropped", extra={"step": step, "why": why})
        self.on_failure(step, why)

    def _save(self, step: int, state: object, target: Sealed | None, behind: Waits | None = None) -> None:
        if not self.saves_here:
            return
        if self._replicated and self._rank.rank:
            target = None
        self._saved_bytes += self._opened().save(step, plain(state), target, behind, self._dice())
        self._saves += 1
        self._steps.saved(step)

    def _dice(self) -> str:
        return rng.seen(self._rank.rank) if self._rng else ""

    def load(self, into: Mapping[str, object] | None = None) -> Loaded | None:
        """The newest step: from memory where all ranks hold it, else from storage. None where nothing was saved.

        into: by key, what takes its part up again by load_state_dict(). Random numbers go on where they were.
        Each byte is verified. Raises BadCheckpoint where memory was agreed on and is broken: the next round does
        without it; StorageFailed where storage cannot be read.
        """
        held = self._in_memory()
        if held >= 0:
            try:
                return self._loaded("memory", held, self._opened().read(held), into)
            except BadCheckpoint as error:
                if self._rank.world > 1:  # the other ranks would not fall back with us
                    raise
                log.warning("memory_passed_over", extra={"step": held, "why": str(error)})
        return self._from_storage(into)

    def _loaded(self, source: str, step: int, shard: memoryview, into: Mapping[str, object] | None) -> Loaded:
        state, dice = state_of(shard), beside(shard) if self._rng else ""
        if into:
            restore(into, state)
        if dice and not rng.restore(dice, self._rank.rank):
            log.info("random_numbers_of_another_rank", extra={"step": step})
        self._source = source
        log.info("checkpoint_loaded", extra={"step": step, "source": source})
        return Loaded(step, state)

    def _in_memory(self) -> int:
        """The step to take from there: the one that all ranks hold, or of a rank alone its own if it is the newest.

        Where there are others and no agent nobody knows what they hold, so all of them take what storage has.
        """
        if self._rank.restore is not None:
            return self._rank.restore
        held = self._opened().newest() if self._rank.world == 1 else -1
        if held >= 0:
            with suppress(StorageFailed):
                found = newest(open_store(self.folder), lambda word, fields: None)
                if found is not None and found.step > held:
                    log.warning("memory_passed_over", extra={"step": held, "why": f"storage has step {found.step}"})
                    return -1
        return held

    def _from_storage(self, into: Mapping[str, object] | None) -> Loaded | None:
        store = open_store(self.folder)
        rank, world = (0, 1) if self._replicated else (self._rank.rank, self._rank.world)
        if "://" not in self.folder and not Path(self.folder).is_dir():
            return None
        for manifest in self._readable(store):
            if manifest.world != world:
                raise BadCheckpoint(
                    f"step {manifest.step} in {self.folder} is of {manifest.world} ranks, this world has {world}: "
                    "save with torch.distributed.checkpoint what is to be loaded in another world size"
                )
            try:
                return self._loaded("storage", manifest.step, load_shard(store, manifest, rank), into)
            except (BadCheckpoint, StorageFailed) as error:
                if self._rank.world > 1:
                    raise
                log.warning("checkpoint_passed_over", extra={"step": manifest.step, "why": str(error)})
        return None

    def _readable(self, store: Store) -> Iterable[Manifest]:
        """Newest first. Where one step was named for all ranks, that one, or none: nothing that was committed since.

        Raises BadCheckpoint where it does not become visible here, StorageFailed.
        """
        named = self._rank.stored
        if named is None or self._rank.world == 1:
            return committed(store, _tell)
        for step in store.steps():
            if step > named:
                why = f"in this round all ranks read step {named}" if named >= 0 else "it was not there for all ranks"
                log.warning("checkpoint_passed_over", extra={"step": step, "why": why})
        return (seen(store, named),) if named >= 0 else ()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until all that was saved is hashed and, where it was to be, in storage. Raises TimeoutError."""
        if self._memory is not None:
            self._memory.settle()
            self._memory.prepared()
            self._memory.client.wait(timeout_s)

    def stats(self) -> Stats:
        """What has become of the saves of this rank."""
        if self._memory is None:
            return Stats(self._saves, self._saved_bytes, why=self._why, source=self._source, dropped=self._dropped)
        found = self._memory.stats()
        return Stats(
            self._saves, self._saved_bytes, found.sealed, found.hashed, found.persisted, found.committed,
            found.in_flight, found.failures, self._why, self._source, self._dropped,
            self._memory.copied_bytes, found.overtaken, self._memory.waited_s, found.replicated, found.uncopied,
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


def _tell(word: str, fields: Mapping[str, object]) -> None:
    log.warning(word, extra=dict(fields))
