"""Saves a snapshot of one rank's state into its arena in shared memory, and reads it back.

A save makes a plan, copies the tensors into a free generation, seals it and notifies the daemon. The snapshot then
survives this process. Writing it to storage is the work of the daemon, later (launcher/checkpoint/daemon/persist.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from turnout.launcher.accelerator import NO_COPIES, CopyStreams, PageRegistrar, PendingCopies, SideStreams
from turnout.launcher.checkpoint.arena.arena import Arena, address_of
from turnout.launcher.checkpoint.arena.parallel_copy import Copier
from turnout.launcher.checkpoint.daemon.trainer_client import TrainerClient
from turnout.launcher.checkpoint.engine.async_copy import AsyncCopy, CopyPolicy, overlap_mask
from turnout.launcher.checkpoint.engine.frozen_params import FrozenNames, FrozenParams, SkippedParams
from turnout.launcher.checkpoint.engine.process_info import ProcessInfo
from turnout.launcher.checkpoint.engine.save_plan import Mask, SavePlan, SavePlanner, host_copies, state_of
from turnout.launcher.checkpoint.format.arena_layout import MAX_GENERATIONS, ShardRecord, Slot, offset_of
from turnout.launcher.checkpoint.format.daemon_messages import Hello, Save, Stats, ToClient
from turnout.launcher.checkpoint.format.shard_file import CHUNK_BYTES, sum_of
from turnout.launcher.errors import BadCheckpoint, LauncherError, NoMemory

log = logging.getLogger("turnout.checkpoint")


class PinnedPages:
    """Maps the pages of one process's arena before they are written, and registers ("pins") them with the accelerator's
    driver for fast copies.

    generations: how many are saved into. `by_file`: pages that are not mapped yet are allocated faster by writing to
    the file; False if the kernel cannot map pages ahead.
    """

    def __init__(self, generations: int) -> None:
        self.by_file = True
        self._generations = generations
        self._mapped_bytes = 0  # bytes of each generation that are mapped, or soon will be
        self._requested_bytes = 0  # bytes of each that are registered, soon will be, or were refused
        self._arena: Arena | None = None
        self._registered: dict[int, tuple[memoryview, PageRegistrar]] = {}  # the view keeps it mapped
        self._thread: threading.Thread | None = None

    def prepare(self, arena: Arena, size: int, registrar: PageRegistrar | None = None) -> None:
        """Map the pages of all generations in the background, and register them if a registrar is given.

        size: bytes of one generation. Does nothing if a preparation still runs, or if one of this size or a larger one
        was done; one that failed for lack of memory is repeated. arena: into which is saved. For another arena than
        before, first wait for the running preparation, and unregister the pages of the former arena.
        """
        if arena is not self._arena:
            self.close()
            self._arena, self._mapped_bytes, self._requested_bytes = arena, 0, 0
        is_begun = size <= self._mapped_bytes and (registrar is None or size <= self._requested_bytes)
        if is_begun or (self._thread is not None and self._thread.is_alive()):
            return
        self._mapped_bytes = size
        self._requested_bytes = self._requested_bytes if registrar is None else size
        self._thread = threading.Thread(
            target=self._populate, args=(arena, size, registrar), name="turnout-pages", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no preparation runs; return False if one still runs after the limit.

        timeout_s: seconds, None for no limit.
        """
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_registered(self, view: memoryview, generation: int) -> bool:
        """Return True if this view's pages are registered: a device then copies into them without blocking the host."""
        mapping, _ = self._registered.get(generation, (None, None))
        return mapping is not None and mapping.obj is view.obj

    def close(self) -> None:
        """Unregister all pages. Call it before the arena is closed."""
        self.wait()
        if self._registered:  # on a thread of its own: see CudaRegistrar
            thread = threading.Thread(target=self._forget_all, name="turnout-pages")
            thread.start()
            thread.join()

    def _forget_all(self) -> None:
        """Unregister the pages of all generations."""
        for generation in list(self._registered):
            self._forget(generation)

    def _populate(self, arena: Arena, size: int, registrar: PageRegistrar | None) -> None:
        """Populate the pages of all generations with memory, then register them with the accelerator's driver.

        size: bytes of one generation. registrar: None without an accelerator.
        """
        generations = range(min(self._generations, arena.identity.count))
        try:
            for generation in generations:
                self.by_file = arena.populate(generation, size) and self.by_file
        except NoMemory:  # a save reports missing memory; if there is enough by then, the pages are prepared again
            self._mapped_bytes = self._requested_bytes = 0
            return
        if registrar is not None:
            self._register(arena, generations, size, registrar)

    def _register(self, arena: Arena, generations: range, size: int, registrar: PageRegistrar) -> None:
        """Register the mappings that are new with the accelerator's driver, so that copies become faster.

        A refusal is logged, and the other generations are not tried. A generation whose mapping is registered already
        is skipped. generations: their indices. size: bytes of one generation.
        """
        began_s, new_bytes = time.monotonic(), 0
        for generation in generations:
            mapping = memoryview(arena.map(generation, size).obj)
            registered, _ = self._registered.get(generation, (None, None))
            if registered is not None and registered.obj is mapping.obj:
                continue
            self._forget(generation)
            if why := registrar.register(address_of(mapping), mapping.nbytes):
                log.warning("memory_not_registered", extra={"bytes": mapping.nbytes, "why": why})
                return  # copies from the device are slower then, but correct
            self._registered[generation] = mapping, registrar
            new_bytes += mapping.nbytes
        if new_bytes:
            took_s = round(time.monotonic() - began_s, 3)
            log.info("memory_registered", extra={"bytes": new_bytes, "took_s": took_s})

    def _forget(self, generation: int) -> None:
        """Unregister the pages of one generation from the accelerator's driver, if they are registered."""
        view, registrar = self._registered.pop(generation, (None, None))
        if view is not None and registrar is not None:
            registrar.unregister(address_of(view))


_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.0005, 0.02  # seconds between two checks for a free generation, at first and at most
PATIENCE_S = 1.0  # seconds that a save waits for a free generation before it drops an older save that waits for storage
_MAX_WAIT_S = 600.0  # seconds that a save waits for a free generation
_SPARE_BYTES = 64 << 10  # room for a longer header, such as one with a larger step number


@dataclass(slots=True)
class _RunningSave:
    """One save that is being copied or waits to be sealed."""

    arena: Arena
    generation: int  # into which it is copied
    record: ShardRecord
    plan: SavePlan
    target: Save  # where the daemon writes it in storage; without a folder, it stays in memory
    skipped_params: SkippedParams | None  # frozen tensors that are not copied, None if none are declared
    async_copy: AsyncCopy | None = None  # the part that is copied while training continues, None for none
    device_copies: list[PendingCopies] = field(default_factory=list)  # started copies, which may still run

    def entries_not_copied(self, excluded: Mask | None) -> Mask | None:
        """Return a mask of the entries that are not copied: the excluded ones, and those that the generation holds.

        None for no entry. excluded: None for none.
        """
        if self.skipped_params is None or excluded is None:
            return excluded if self.skipped_params is None else self.skipped_params.mask
        return excluded | self.skipped_params.mask

    def order_before(self) -> None:
        """Make the devices run all kernels that are queued from now on after the copies."""
        for copies in self.device_copies:
            copies.order_before()

    def wait_for_devices(self) -> None:
        """Block until the devices have made their copies."""
        for copies in self.device_copies:
            copies.wait()


class MemorySaver:
    """Saves snapshots of one process's state into generations of its arena.

    rank: this process. environ: its environment. generations: 2 or more, MAX_GENERATIONS are used at most; one is added
    if there are replicas.
    replicated: every rank has the same state. threads: the number of threads that copy, 1 to 8.
    on_message: called on another thread with later messages of the daemon.
    frozen: tensors that are copied once, None for none. dropped: called with step and reason of each dropped save.
    replicas: how many other workers keep a copy; ignored for a replicated state, which every worker has.
    streams: copies tensors on devices; None for one stream per device, separate from the stream that trains.
    `copied_bytes`: bytes that saves have copied. `waited_s`: total time that saves waited for a free generation.
    Raises DaemonLost if no daemon can be reached or it refuses, and TimeoutError if it does not answer.
    """

    def __init__(
        self,
        rank: ProcessInfo,
        environ: Mapping[str, str],
        *,
        generations: int,
        replicated: bool,
        threads: int,
        on_message: Callable[[ToClient], None],
        frozen: FrozenNames | None = None,
        dropped: Callable[[int, str], object] = lambda step, why: None,
        replicas: int = 0,
        streams: CopyStreams | None = None,
    ) -> None:
        local_rank, replicas = (0, 0) if replicated else (rank.local_rank, replicas)
        self._rank, self._generations = rank, min(generations + bool(replicas), MAX_GENERATIONS)
        self._place = (0, 1) if replicated else (rank.rank, rank.world)
        target = "" if replicated and rank.rank else rank.folder
        about = (rank.run, rank.worker, rank.rank, local_rank, rank.world, rank.round)
        self._hello = Hello(*about, target=target, replicas=replicas, replicated=replicated, read_folder=rank.folder)
        self.client = TrainerClient(self._hello, dict(environ), rank.memory, on_message)
        self._copier = Copier(threads)
        self._arena = Arena.open(self.client.arena) if self.client.arena else None
        self._requested_bytes = 0  # bytes requested from the daemon for each generation
        self._planner = SavePlanner(*self._place)
        self._streams = streams if streams is not None else SideStreams()
        self._frozen = FrozenParams(frozen, self._report_frozen_change, self._streams) if frozen is not None else None
        self._on_dropped, self._changing_names = dropped, set[str]()
        self._pending: _RunningSave | None = None
        self._finish_lock = threading.RLock()  # reentrant: the callback for a dropped save may call back
        self.copied_bytes, self.waited_s = 0, 0.0  # waited_s: for a free generation
        self._pages = PinnedPages(self._generations)
        self._registrar: PageRegistrar | None = None  # of the first device from which memory was saved
        self._sealer = ThreadPoolExecutor(1, "turnout-seal")  # seals what a device copied after the optimizer's step
        self._sealing: tuple[_RunningSave, Future[None]] | None = None

    def change_folder(self, folder: str, replicas: int) -> None:
        """Name the checkpoint folder of the next saves to the daemon, if it differs from that of the saves before.

        Saves that were announced keep their folder. For a state that is not replicated. folder: absolute path or URL.
        replicas: how many other workers keep a copy of the next saves. Raises DaemonLost if the daemon is lost, and
        TimeoutError if it does not answer.
        """
        if folder != self._hello.read_folder:
            hello = msgspec.structs.replace(self._hello, target=folder, replicas=replicas, read_folder=folder)
            self.client.introduce(hello)
            self._hello = hello

    def prepare(self, state: object, extra_text: str = "") -> int:
        """Allocate memory and map pages for a state like this one, so that the first save is fast. Return the bytes of
        one generation.

        The state itself is not saved; a pending save is finished first. extra_text: text that is saved with the state,
        "" for none. Raises BadState for a value that is not supported, NoMemory if memory is too small, DaemonLost if
        the daemon is lost, and TimeoutError if it does not answer.
        """
        self.finish_save()
        plan = self._planner(state, extra_text)
        record = plan.record(0, 0, self._place)
        self._prepare_pages(self._reserve(record), plan)
        return record.region_bytes

    def wait(self, timeout_s: float | None = None) -> None:
        """Finish a pending save; wait until the pages are mapped and the daemon has finished all saves.

        timeout_s: seconds, None for no limit. A copy that runs is finished all the same. Raises TimeoutError after the
        limit, DaemonLost if the daemon is lost, and the errors of `finish_save`. Saves and the mapping go on after a
        TimeoutError, and a later call waits for them.
        """
        if timeout_s is None:
            self.finish_save()
            self._pages.wait()
            self.client.wait()
            return
        until_s = time.monotonic() + timeout_s
        self.finish_save()
        if not self._pages.wait(max(until_s - time.monotonic(), 0.0)):
            raise TimeoutError(f"the memory's pages were not mapped within {timeout_s:g} s")
        try:
            self.client.wait(max(until_s - time.monotonic(), 0.0))
        except TimeoutError as error:
            raise TimeoutError(f"the daemon has not finished all saves within {timeout_s:g} s") from error

    def _prepare_pages(self, arena: Arena, plan: SavePlan) -> None:
        """Start to map the pages of all generations, and to register them if the plan has a tensor on a device."""
        if self._registrar is None and (on_device := plan.on_device(self._streams)).any():
            self._registrar = self._streams.registrar(plan.tensors[int(on_device.argmax())].device)
        self._pages.prepare(arena, self._requested_bytes, self._registrar)

    def save(
        self, step: int, state: object, target: Save | None, copy_policy: CopyPolicy | None = None, extra_text: str = ""
    ) -> int:
        """Copy a snapshot of the state into a free generation, seal it and notify the daemon; return the shard's bytes.

        target: where the daemon writes it in storage later, None for memory only. Blocks while it copies. With a
        `copy_policy`, a part of the copy continues in the background, and finish_save() or before_step() seals it.
        extra_text: saved with the state, "" for none. Raises BadState for a value that is not supported, NoMemory if
        memory is too small, ArenaBusy if another process saves into this arena, DaemonLost if the daemon is lost,
        TimeoutError if it does not answer, BadCheckpoint if a new arena is not valid, LauncherError if no generation
        gets free, and the errors of `finish_save` for the save before. Then the newest earlier save stays valid; an
        older one may be overwritten, or dropped on its way to storage.
        """
        self.finish_save()
        plan = self._planner(state, extra_text)
        record = plan.record(step, self._rank.round, self._place)
        arena = self._reserve(record)
        generation, before = self._begin(arena, record)
        skipped_params = (
            self._frozen.choose_skipped(generation, before, plan, record.head_bytes) if self._frozen else None
        )
        save = _RunningSave(arena, generation, record, plan, target or Save(0, 0, step), skipped_params)
        try:
            if copy_policy is None:
                self._copy(save, None, wait=True)
                save.wait_for_devices()
            else:
                self._begin_overlapped(save, copy_policy)
                self._pending = save
        except BaseException:
            self._pending = None
            self._discard(save)
            raise
        if copy_policy is None:
            self._seal(save)
        return record.shard_bytes

    def _begin_overlapped(self, save: _RunningSave, copy_policy: CopyPolicy) -> None:
        """Copy the tensors that may change during forward and backward, and start to copy those that only an optimizer
        changes.

        On a device both copies are only queued, and the next kernel of the training runs after the first copy. The host
        waits for the first copy only if the target's pages are not registered. copy_policy: says which tensors only an
        optimizer changes.
        """
        plan, view = save.plan, save.arena.map(save.generation, save.record.region_bytes)
        is_registered = self._pages.is_registered(view, save.generation)
        on_device = (
            plan.on_device(self._streams)
            if is_registered and not copy_policy.verify
            else np.zeros_like(plan.copied_as_bytes)
        )
        mask = overlap_mask(plan, copy_policy.addresses, self._changing_names, on_device)
        if save.skipped_params is not None:
            mask &= ~save.skipped_params.mask
        save.async_copy = AsyncCopy.of(plan, mask, copy_policy.verify)
        self._copy(save, mask, wait=True)
        if is_registered:
            save.order_before()
        else:
            save.wait_for_devices()
        self._copy(save, ~mask, wait=False)

    def before_step(self) -> None:
        """Prepare for an optimizer's step: drop the pending save if a tensor was written to, else order the step after
        its copy. Call it before each step, on the thread that trains.

        Blocks for copies from host memory. For copies from a device only the device waits, and another thread seals
        the save when they have ended. Raises the errors of `finish_save`.
        """
        with self._finish_lock:
            save, async_copy = self._pending, self._pending.async_copy if self._pending is not None else None
            if save is not None and async_copy is not None and save.device_copies:
                self._pending = None
                if names := self._changed_names(save, async_copy):
                    self._drop(save, names)
                else:
                    self._sealing = save, self._sealer.submit(self._seal_copied, save)
            if self._sealing is None:
                self.finish_save()
                return
            self._sealing[0].order_before()  # each optimizer may step on a stream of its own
            if self._frozen is not None:
                self._frozen.wait_compared()

    def finish_save(self) -> None:
        """Finish the pending save: seal it, or drop and report it if a tensor was written to meanwhile.

        Call it on the thread that trains: an operation that still runs on another thread has not increased its tensor's
        version yet. Raises the error of a failed copy, and then the save is discarded. Raises DaemonLost if no daemon
        can be reached; the save is valid in memory all the same.
        """
        with self._finish_lock:  # a second caller waits until the copy is complete
            sealing, self._sealing = self._sealing, None
            if sealing is not None:
                sealing[1].result()
            save, self._pending = self._pending, None
            if save is not None and save.async_copy is not None:
                if names := self._changed_names(save, save.async_copy):
                    self._drop(save, names)
                else:
                    self._seal_copied(save)
        if self._frozen is not None:
            self._frozen.wait_compared()

    def _changed_names(self, save: _RunningSave, async_copy: AsyncCopy) -> list[str]:
        """Wait for the copies from host memory. Return the names of tensors that were written to since the save began.

        If this raises, the save is discarded.
        """
        try:
            self._copier.wait()
            region = save.arena.map(save.generation, save.record.region_bytes)
            return async_copy.changed_tensors(address_of(region) + save.record.head_bytes)
        except BaseException:
            self._discard(save)
            raise

    def _drop(self, save: _RunningSave, names: list[str]) -> None:
        """Discard a save and report it, since these tensors were written to; later saves copy them before returning."""
        self._discard(save)
        self._changing_names.update(names)
        self._on_dropped(save.record.step, f"{', '.join(names[:3])} was written to before the optimizer's step")

    def _discard(self, save: _RunningSave) -> None:
        """Free the save's generation, once no device writes into it any more."""
        try:
            save.wait_for_devices()
        finally:
            save.arena.discard(save.generation)

    def _seal_copied(self, save: _RunningSave) -> None:
        """Seal the save once its devices have made their copies."""
        try:
            save.wait_for_devices()
        except BaseException:
            save.arena.discard(save.generation)
            raise
        self._seal(save)

    def _seal(self, save: _RunningSave) -> None:
        """Seal the generation, which makes the save valid, and announce it to the daemon, which writes it to storage.

        Then start to compare the frozen tensors that were not copied. Raises DaemonLost if no daemon can be reached;
        the save is valid in memory all the same.
        """
        record = save.arena.seal(save.generation, save.record)
        message = msgspec.structs.replace(save.target, generation=save.generation, epoch=record.epoch, step=record.step)
        self.client.link.announce_save(message)
        if self._frozen is not None and save.skipped_params is not None:
            self._frozen.compare_skipped(save.arena, save.generation, record, save.plan, save.skipped_params)

    def _reserve(self, record: ShardRecord) -> Arena:
        """Return the arena. If this record does not fit, first ask the daemon for more memory, perhaps in a new arena.

        Raises NoMemory if memory is too small, DaemonLost if the daemon is lost, TimeoutError if it does not answer,
        and BadCheckpoint if the new arena is not valid.
        """
        if self._arena is None or self._requested_bytes < record.region_bytes:
            self._requested_bytes = 0
            requested_bytes = record.region_bytes + _SPARE_BYTES
            path = self.client.reserve(requested_bytes, self._generations)
            if self._arena is None or str(self._arena.path) != path:
                self._arena = Arena.open(path)
            self._requested_bytes = requested_bytes
        return self._arena

    def _begin(self, arena: Arena, record: ShardRecord) -> tuple[int, Slot]:
        """Begin to write into a free generation; return its number, and its slot before that.

        The slot is empty if no tensors were declared frozen. The newest sealed generation, and one that is pinned while
        the daemon writes it to storage, are never taken. If none is free after PATIENCE_S, the oldest saves that wait
        for storage are dropped, one at a time. With two generations no save can be dropped, so this one waits. Raises
        LauncherError after _MAX_WAIT_S, and the errors of `Arena.begin` and of the daemon. record: of the save.
        """
        self.client.link.wait_pinned()
        began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while (waited_s := time.monotonic() - began_s) < _MAX_WAIT_S:
            before = arena.slots() if self._frozen else ()
            if (generation := arena.begin(record)) is not None:
                self.waited_s += waited_s if pause_s > _FIRST_PAUSE_S else 0.0
                return generation, before[generation] if before else Slot()
            if waited_s > PATIENCE_S:
                self.client.drop_oldest()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        raise LauncherError(f"{arena.path}: no generation was free within {_MAX_WAIT_S:g} s: is the daemon stopped?")

    def _copy(self, save: _RunningSave, excluded: Mask | None, *, wait: bool) -> None:
        """Copy all entries that are neither in `excluded` nor held by the generation already.

        Copies go through the mapping if its pages exist or the kernel cannot allocate them ahead, else by writing to
        the file, which allocates pages without page faults. Copies from devices are only started. excluded: mask of
        entries, None for none. wait: also copy the header, and return when all copies from host memory have ended;
        False for the background part of a save.
        """
        arena, generation, record, plan = save.arena, save.generation, save.record, save.plan
        ready = arena.is_mapped(generation, record.region_bytes)
        view = arena.map(generation, record.region_bytes)
        not_copied = save.entries_not_copied(excluded)
        try:
            if ready or not self._pages.by_file:
                rows, elsewhere = plan.pieces(address_of(view) + record.head_bytes, not_copied)
                if wait:
                    view[: record.head_bytes] = plan.head
                self._copier.copy(rows, background=not wait)
            else:
                rows, elsewhere = plan.pieces(offset_of(generation) + record.head_bytes, not_copied)
                if wait:  # a background copy has written its header by then; only one thread writes to a file
                    os.pwrite(arena.file, plan.head, offset_of(generation))
                self._copier.write(arena.file, rows)
            copies = self._streams.start(host_copies(view, record.head_bytes, elsewhere)) if elsewhere else NO_COPIES
            if copies is not NO_COPIES:
                save.device_copies.append(copies)
        except BaseException:
            self._copier.wait()
            raise
        self.copied_bytes += int(plan.sizes.sum() if not_copied is None else plan.sizes[~not_copied].sum())
        if wait:
            self._copier.wait()
        if not ready or elsewhere:
            self._prepare_pages(arena, plan)

    def _report_frozen_change(self, name: str) -> None:
        """Report a tensor that was declared frozen but has changed. Called on the thread that compares."""
        self._on_dropped(-1, f"{name} was declared frozen and has changed: from now on all is copied with each save")

    def load(self, step: int) -> object:
        """Load the state of this step and verify every byte. Raises the errors of `read`, and BadCheckpoint also if the
        state cannot be decoded.
        """
        return state_of(self.read(step))

    def read(self, step: int) -> memoryview:
        """Return a verified copy of this step's shard, in memory of its own; a pending save is finished first.

        Raises BadCheckpoint if the step is missing, not hashed, broken, or saved as another rank or in another world
        size.
        """
        self.finish_save()
        if self._arena is None:
            raise BadCheckpoint("no memory holds a step")
        slots = self._arena.slots()
        candidates = [
            (slot.epoch, generation)
            for generation, slot in enumerate(slots)
            if slot.record and slot.record.step == step
        ]
        if not candidates:
            raise BadCheckpoint(f"memory does not hold step {step}")
        generation = max(candidates)[1]
        record, sums = slots[generation].record, self._arena.sums(generation)
        assert record is not None
        if (record.rank, record.world) != self._place:
            raise BadCheckpoint(
                f"memory holds step {step} as rank {record.rank} of {record.world}, not as {self._place[0]} of "
                f"{self._place[1]}"
            )
        return self._verified_copy(self._arena.map(generation, record.shard_bytes), sums, step)

    def _verified_copy(self, region: memoryview, sums: tuple[int, ...], step: int) -> memoryview:
        """Return a copy of a region, in memory of this process alone, after comparing each chunk's checksum.

        sums: expected checksums, one per chunk. step: for the message. Raises BadCheckpoint if a chunk differs.
        """
        private_copy = torch.empty(region.nbytes, dtype=torch.uint8)
        self._copier.copy([(private_copy.data_ptr(), address_of(region), region.nbytes)])
        self._copier.wait()
        view = memoryview(private_copy.numpy())
        for number, expected in enumerate(sums):
            if sum_of(view[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]) != expected:
                raise BadCheckpoint(f"chunk {number} of step {step} in memory is not what was hashed")
        return view

    def newest_step(self) -> int:
        """Finish a pending save, and return the newest hashed step in memory, -1 for none.

        Only for a single rank without an agent. Raises DaemonLost if the daemon is lost, and TimeoutError if it does
        not answer.
        """
        self.finish_save()
        steps = self.client.held_steps(1)
        return steps[0].step if steps else -1

    def stats(self) -> Stats:
        """Return the daemon's statistics for this process, after finishing a pending save.

        Raises DaemonLost if the daemon is lost, and TimeoutError if it does not answer.
        """
        self.finish_save()
        return self.client.stats()

    def close(self) -> None:
        """Stop saving, so that another process may save. The daemon finishes the saves that were announced to it."""
        self.finish_save()
        self._sealer.shutdown()
        self._pages.close()
        self._copier.close()
        self.client.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
