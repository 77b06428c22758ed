"""`Checkpointer` saves every few steps to memory, less often to storage, and loads the newest step of both.

    checkpoints = Checkpointer("/checkpoints/bert")
    loaded = checkpoints.load()
    start, state = loaded if loaded else (0, fresh())
    for step in steps.count(start):
        train(state)
        checkpoints.save(step, state, disk=step % 100 == 0)

Under turnout-run the memory outlives the process, and a restarted process finds it again. Source: CS-19
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from turnout.launcher.accelerator import CopyStreams
from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.checkpoint.engine.async_copy import BeforeOptimizerSteps, CopyPolicy, Optimizer, addresses
from turnout.launcher.checkpoint.engine.frozen_params import FrozenNames
from turnout.launcher.checkpoint.engine.memory_saver import MemorySaver
from turnout.launcher.checkpoint.engine.process_info import ProcessInfo, SaveStats
from turnout.launcher.checkpoint.engine.save_plan import extra_text_of, state_of
from turnout.launcher.checkpoint.engine.state_dict import plain_state, restore
from turnout.launcher.checkpoint.format.daemon_messages import Hashed, Persisted, Save, SaveFailed, ToClient
from turnout.launcher.checkpoint.format.manifest import Manifest
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import await_manifest, committed_manifests, newest_manifest
from turnout.launcher.checkpoint.storage.step_reader import load as load_shard
from turnout.launcher.checkpoint.storage.store import Store
from turnout.launcher.coordinator_messages import MAX_REPLICAS
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.errors import BadCheckpoint, StorageFailed
from turnout.launcher.health.hang_monitor.progress import RESTORING_PHASE, SAVING_PHASE, in_phase

log = logging.getLogger("turnout.checkpoint")


class Loaded(NamedTuple):
    """A loaded step and its state. The caller owns the state's tensors."""

    step: int
    state: object


class CheckpointLoader:
    """Loads the newest step of one training process, from memory if all ranks hold it, else from storage.

    rank: this process. folder: of the checkpoints in storage. memory: returns the saver of this process. replicated:
    every rank has the same state. rng: restore the random number generators. `source`: of the last load, "memory" or
    "storage"; "" for none.
    """

    def __init__(
        self, rank: ProcessInfo, folder: str, memory: Callable[[], MemorySaver], *, replicated: bool, rng: bool
    ) -> None:
        self._rank, self._folder, self._memory, self._replicated, self._rng = rank, folder, memory, replicated, rng
        self.source = ""

    def load(self, into: Mapping[str, object] | None) -> Loaded | None:
        """Load the newest step. A single rank falls back to storage if the step in memory is broken.

        into: objects by key that load their part of the state; None for none. Returns and raises as Checkpointer.load.
        """
        memory_step = self._step_in_memory()
        if memory_step >= 0:
            try:
                return self._restore("memory", memory_step, self._memory().read(memory_step), into)
            except BadCheckpoint as error:
                if self._rank.world > 1:  # the other ranks would not fall back as well
                    raise
                log.warning("memory_passed_over", extra={"step": memory_step, "why": str(error)})
        return self._load_from_storage(into)

    def _restore(self, source: str, step: int, shard: memoryview, into: Mapping[str, object] | None) -> Loaded:
        """Decode a verified shard, load it into objects, and restore the random number generators if this rank saved
        it.

        source: "memory" or "storage", for logs. into: objects by key that load the state, None for none.
        """
        state, rng_text = state_of(shard), extra_text_of(shard) if self._rng else ""
        if into:
            restore(into, state)
        if rng_text and not rng.restore(rng_text, self._rank.rank):
            log.info("random_numbers_of_another_rank", extra={"step": step})
        self.source = source
        log.info("checkpoint_loaded", extra={"step": step, "source": source})
        return Loaded(step, state)

    def _step_in_memory(self) -> int:
        """Return the step to load from memory, or -1 to load from storage.

        An agent names the step that all ranks hold. Without an agent, a single rank takes its own newest step unless
        storage has a newer one. Several ranks without an agent read storage, since no rank knows what the others hold.
        """
        if self._rank.restore_step is not None:
            return self._rank.restore_step
        newest_step = self._memory().newest_step() if self._rank.world == 1 else -1
        if newest_step >= 0:
            with suppress(StorageFailed):
                stored = newest_manifest(open_store(self._folder), lambda word, fields: None)
                if stored is not None and stored.step > newest_step:
                    log.warning(
                        "memory_passed_over", extra={"step": newest_step, "why": f"storage has step {stored.step}"}
                    )
                    return -1
        return newest_step

    def _load_from_storage(self, into: Mapping[str, object] | None) -> Loaded | None:
        """Load the newest readable step from storage; None if there is none.

        A single rank logs a step that it cannot read and tries an older one; in a larger world the error is raised.
        Raises BadCheckpoint for a step of another world size, NewerFormat for one of a newer format, and StorageFailed
        if storage cannot be listed. into: as of `load`.
        """
        store = open_store(self._folder)
        rank, world = (0, 1) if self._replicated else (self._rank.rank, self._rank.world)
        if "://" not in self._folder and not Path(self._folder).is_dir():
            return None
        for manifest in self._manifests_to_read(store):
            if manifest.world != world:
                raise BadCheckpoint(
                    f"step {manifest.step} in {self._folder} is of {manifest.world} ranks, this world has {world}: "
                    "save with torch.distributed.checkpoint what is to be loaded in another world size"
                )
            try:
                return self._restore("storage", manifest.step, load_shard(store, manifest, rank), into)
            except (BadCheckpoint, StorageFailed) as error:
                if self._rank.world > 1:
                    raise
                log.warning("checkpoint_passed_over", extra={"step": manifest.step, "why": str(error)})
        return None

    def _manifests_to_read(self, store: Store) -> Iterable[Manifest]:
        """Return the manifests of the committed steps that this rank may read, newest first.

        If the agents agreed on one step in storage for all ranks, only that one; () if they agreed that there is none.
        Raises BadCheckpoint if the named step does not become visible here, and StorageFailed.
        """
        named = self._rank.stored_step
        if named is None or self._rank.world == 1:
            return committed_manifests(store, _log_warning)
        for step in store.steps():
            if step > named:
                why = f"in this round all ranks read step {named}" if named >= 0 else "it was not there for all ranks"
                log.warning("checkpoint_passed_over", extra={"step": step, "why": why})
        return (await_manifest(store, named),) if named >= 0 else ()


class Checkpointer:
    """Saves and loads the checkpoints of one training process.

    folder: a path or an fsspec URL, for the checkpoints that go to storage.
    generations: how many saves memory holds, 2 to 7. With 2, a save waits until the save before it is in storage. With
    3, no save waits, but of two saves that are queued for storage the older may be dropped. Each further generation
    lets one more save be queued.
    replicated: every rank has the same state (DDP). Local rank 0 saves for its worker, and rank 0 to storage.
    keep, every: storage keeps the `keep` newest checkpoints, and those of steps that are multiples of `every`. With 0
    for both, it keeps all.
    threads: the number of threads that copy the state, 1 to 8.
    environ: environment variables, in which the launcher passes rank and paths; None for this process's own.
    frozen: tensors that never change, which are copied once into each generation. Either names ("model/embedding" also
    covers all names below it), or a function of name and tensor. None: no tensor. If such a tensor changes after all,
    torch's versions or a background comparison find it; stale saves are then dropped and reported.
    rng: save and restore the random number generators of torch, its device, numpy and Python, for each rank.
    replicas: how many other workers keep a copy of the newest save in memory, 0 to 3. Above 0 needs one generation
    more.
    streams: copies tensors on devices; None for one stream per device, separate from the stream that trains.
    `on_failure`: set by the caller; called with step and reason of a save that was dropped or could not be stored.
    Raises ValueError for generations, replicas, keep or every out of these bounds.
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
        frozen: FrozenNames | None = None,
        rng: bool = True,
        replicas: int = 0,
        streams: CopyStreams | None = None,
    ) -> None:
        if not 2 <= generations <= 7 or keep < 0 or every < 0 or not 0 <= replicas <= MAX_REPLICAS:
            raise ValueError(f"generations are 2 to 7, replicas 0 to {MAX_REPLICAS}, keep and every 0 or more")
        self.folder = str(folder) if "://" in str(folder) else str(Path(folder).absolute())
        self._environ = dict(os.environ if environ is None else environ)
        self._rank = ProcessInfo.of(self._environ, self.folder)
        self._generations, self._replicated, self._threads = generations, replicated, threads
        self._keep, self._every, self._replicas = keep, every, replicas
        self._memory: MemorySaver | None = None
        self._steps = Steps()
        self._saves = self._saved_bytes = 0
        self._dropped, self._why = 0, ""
        self._loader = CheckpointLoader(self._rank, self.folder, self._memory_saver, replicated=replicated, rng=rng)
        self._rng, self._streams = rng, streams
        self._frozen, self._before_steps = frozen, BeforeOptimizerSteps(self._before_step)
        self.on_failure: Callable[[int, str], None] = lambda step, why: None

    @property
    def saves_here(self) -> bool:
        """Return True if this process saves. With a replicated state only one process per worker does."""
        return not self._replicated or self._rank.local_rank == 0

    def _memory_saver(self) -> MemorySaver:
        """Return the saver of this process, created at the first call. It is closed when the process exits."""
        if self._memory is None:
            self._memory = MemorySaver(
                self._rank,
                self._environ,
                generations=self._generations,
                replicated=self._replicated,
                threads=self._threads,
                on_message=self._on_daemon_message,
                frozen=self._frozen,
                dropped=self._report_dropped,
                replicas=self._replicas,
                streams=self._streams,
            )
            atexit.register(self.close)
        return self._memory

    def prepare(self, state: object) -> None:
        """Allocate the memory for such a state before the first save, and map it in the background.

        Does nothing if this process does not save. Raises NoMemory if memory is too small, BadState for a value that is
        not supported, DaemonLost if the daemon is lost, and TimeoutError if it does not answer.
        """
        if self.saves_here:
            self._memory_saver().prepare(plain_state(state), _rng_text(self._rng, self._rank.rank))

    def save(
        self,
        step: int,
        state: object,
        *,
        disk: bool = True,
        overlap: Optimizer | Sequence[Optimizer] = (),
        verify: bool = False,
    ) -> None:
        """Save this step in memory, and with `disk` also to storage in the background. Training may continue when this
        returns.

        state: nested dicts, lists and tuples of tensors and plain values. At the top of a dict also objects with
        state_dict() and load_state_dict(), such as a model, a GradScaler or a scheduler. overlap: optimizers whose
        parameters and state are copied while training continues. All other values are copied before this returns, or on
        a device before the next kernel. The next step of any of these optimizers waits for that copy: on the host for
        tensors of the host, on the device for tensors of a device. If such a tensor is written to before that step,
        this save is dropped and reported, and later saves copy the tensor before they return. Writes through .data are
        found only with `verify`, which hashes these tensors twice. Does nothing if this process does not save.

        Raises BadState for any other kind of value, NoMemory if memory is too small, ArenaBusy if another process saves
        as this rank, DaemonLost if the daemon is lost, TimeoutError if it does not answer, and LauncherError if no
        memory gets free. Then the newest earlier save stays valid; an older one may be overwritten, or dropped on its
        way to storage. A failure of storage is not raised: see `on_failure`.
        """
        optimizers = tuple(overlap) if isinstance(overlap, Sequence) else (overlap,)
        copy_policy = CopyPolicy(addresses(optimizers), verify) if optimizers else None
        if optimizers and self.saves_here:
            self._before_steps.watch(optimizers)
        target = Save(0, 0, step, self.folder, keep=self._keep, every=self._every) if disk else None
        with in_phase(SAVING_PHASE):
            if not self.saves_here:
                return
            if self._replicated and self._rank.rank:  # the state of rank 0 is written to storage
                target = None
            self._saved_bytes += self._memory_saver().save(
                step, plain_state(state), target, copy_policy, _rng_text(self._rng, self._rank.rank)
            )
            self._saves += 1
            self._steps.saved(step)

    def _before_step(self) -> None:
        """Order the optimizer's step after a copy that still runs."""
        if self._memory is not None:
            self._memory.before_step()

    def _report_dropped(self, step: int, why: str) -> None:
        """Count and log a dropped save, and report it to `on_failure`. step: -1 for saves of unknown steps."""
        self._dropped, self._why = self._dropped + 1, why
        log.warning("save_dropped", extra={"step": step, "why": why})
        self.on_failure(step, why)

    def load(self, into: Mapping[str, object] | None = None) -> Loaded | None:
        """Load the newest step: from memory if all ranks hold it, else from storage.

        Returns None if nothing was saved, or if the agents agreed that no step is there for all ranks. A single rank
        skips and logs steps that it cannot read, and gets None if no step is left. into: objects by key; each loads its
        part of the state by load_state_dict(). None: only return the state. Random number generators are restored too.
        Every byte is verified.

        In a larger world, raises BadCheckpoint if this rank's part of the step that all ranks load is broken; if that
        was in memory, the next round does not use the step. Raises BadCheckpoint for a stored step of another world
        size, NewerFormat, a BadCheckpoint, if the stored step is of a newer Turnout, and StorageFailed if storage
        cannot be read. Raises DaemonLost if the daemon is lost, and TimeoutError if it does not answer.
        """
        with in_phase(RESTORING_PHASE):
            return self._loader.load(into)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until every save is hashed and, if it has a target in storage, written there, or has failed or was
        dropped; on rank 0 until the steps are committed.

        Also waits until the memory's pages are mapped. timeout_s: seconds, None for no limit. A copy that an overlapped
        save has begun is finished all the same. Raises TimeoutError if all that takes longer, and DaemonLost if the
        daemon is lost. After a TimeoutError the saves go on, and a later call waits for them. A failed save is not
        raised: see `on_failure`.
        """
        if self._memory is not None:
            self._memory.wait(timeout_s)

    def stats(self) -> SaveStats:
        """Report the progress and failures of this rank's saves.

        Raises DaemonLost if the daemon is lost, and TimeoutError if it does not answer.
        """
        if self._memory is None:
            return SaveStats(
                self._saves, self._saved_bytes, why=self._why, source=self._loader.source, dropped=self._dropped
            )
        daemon_stats = self._memory.stats()
        return SaveStats(
            self._saves,
            self._saved_bytes,
            daemon_stats.sealed,
            daemon_stats.hashed,
            daemon_stats.persisted,
            daemon_stats.committed,
            daemon_stats.in_flight,
            daemon_stats.failures,
            self._why,
            self._loader.source,
            self._dropped,
            self._memory.copied_bytes,
            daemon_stats.dropped,
            self._memory.waited_s,
            daemon_stats.replicated,
            daemon_stats.skipped_replicas,
        )

    def _on_daemon_message(self, message: ToClient) -> None:
        """Log a message of the daemon about a save, and report a failed save to `on_failure`.

        A save that was overwritten by a newer one before the daemon knew of it is no failure.
        """
        match message:
            case SaveFailed(step=step, reason=reason, detail=detail) if reason != "overwritten":
                self._why = detail
                log.warning("persist_failed", extra={"step": step, "reason": reason, "detail": detail})
                self.on_failure(step, detail)
            case Hashed() | Persisted():
                log.debug(type(message).__name__.lower(), extra={"step": message.step})

    def close(self) -> None:
        """Stop saving. An agent's daemon finishes saves in flight; without an agent they finish before this returns."""
        memory, self._memory = self._memory, None
        if memory is not None:
            atexit.unregister(self.close)
            memory.close()


def _rng_text(is_saved: bool, rank: int) -> str:
    """Return the random number generators of a rank as text, "" if they are not saved."""
    return rng.encode_state(rank) if is_saved else ""


def _log_warning(word: str, fields: Mapping[str, object]) -> None:
    """Log an event of storage as a warning."""
    log.warning(word, extra=dict(fields))
