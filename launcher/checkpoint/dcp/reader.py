"""Reads steps that writer.py saved: finds a step, lets all ranks agree on it through DCP's plans, and loads it in any
world size.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch.autograd.graph import increment_version
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from turnout.launcher.checkpoint.arena.arena_files import find
from turnout.launcher.checkpoint.daemon.trainer_client import DaemonLost, fetch_shard
from turnout.launcher.checkpoint.dcp.metadata import Chunk, chunk_name, load_text, metadata_of
from turnout.launcher.checkpoint.dcp.shards import (
    DcpShard,
    FetchRank,
    InMemory,
    InStorage,
    PlannedRead,
    SavedStep,
    WantedItem,
    log,
)
from turnout.launcher.checkpoint.engine.memory_saver import MemorySaver
from turnout.launcher.checkpoint.engine.process_info import ProcessInfo, ReshardedStep, ShardPosition
from turnout.launcher.checkpoint.engine.state_dict import NAMES, is_bytes, octets, tensor_over
from turnout.launcher.checkpoint.format.daemon_messages import FetchShard, SaveFailed, ToClient
from turnout.launcher.checkpoint.format.shard_file import Entry
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import ByteRange, await_manifest, committed_manifests, manifest_of
from turnout.launcher.env import DAEMON
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed

Place = Callable[[DcpShard], PlannedRead | None]  # plans the read of one item in a shard; None if it needs no read


class MemorySavers:
    """The open MemorySavers of this process, one per rank and run, which readers and writers of single saves share."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[tuple[str, str, int], tuple[ProcessInfo, MemorySaver]] = {}
        self._closes = False

    def of(self, rank: ProcessInfo, environ: Mapping[str, str], generations: int = 3, replicas: int = 0) -> MemorySaver:
        """Return the saver of this rank, for the folder of `rank`; open it at the first call.

        All folders share the saver of a run, worker and local rank, since the rank has one arena. It is closed and a
        new one is opened if another field of `rank` differs from that of the call before, such as its round. A caller
        that still has the closed saver gets DaemonLost from it. environ: of this process. generations, replicas: as for
        Checkpointer; they count when it is opened, `replicas` also when the folder changes. All savers are closed at
        the exit of the process. Raises DaemonLost if no daemon can be reached or it refuses, and TimeoutError if it
        does not answer.
        """
        key = (rank.run, rank.worker, rank.local_rank)
        with self._guard:
            opened = self._open.get(key)
            place = replace(rank, folder="", stored_step=None)  # what the folders of this rank have in common
            if opened is not None and opened[0] == place:
                opened[1].change_folder(rank.folder, replicas)
                return opened[1]
            if opened is not None:  # the same process is in another world now
                opened[1].close()
            memory = MemorySaver(
                rank,
                environ,
                generations=generations,
                replicated=False,
                threads=2,
                on_message=_log_failed_save,
                replicas=replicas,
            )
            self._open[key] = place, memory
            if not self._closes:
                self._closes = True
                atexit.register(self.close)
            return memory

    def close(self) -> None:
        """Close all savers. An agent's daemon finishes saves in flight; without an agent they finish before this
        returns.
        """
        with self._guard:
            for _, memory in self._open.values():
                memory.close()
            self._open.clear()


memories = MemorySavers()


def _log_failed_save(message: ToClient) -> None:
    """Log a save that failed, unless a newer save overwrote it."""
    if isinstance(message, SaveFailed) and message.reason != "overwritten":
        log.warning("persist_failed", extra={"step": message.step, "reason": message.reason, "detail": message.detail})


def absolute_folder(folder: str | os.PathLike[str]) -> str:
    """Return a URL unchanged, and a path as an absolute one."""
    text = os.fspath(folder)
    return text if "://" in text else str(Path(text).absolute())


def process_info(folder: str, environ: Mapping[str, str]) -> ProcessInfo:
    """Return this process's identity, with rank and world size of torch.distributed if it is initialized.

    folder: of the checkpoints in storage. environ: has the rest of the identity.
    """
    rank = ProcessInfo.of(environ, folder)
    if dist.is_available() and dist.is_initialized():
        return replace(rank, rank=dist.get_rank(), world=dist.get_world_size())
    return rank


def _step_in_memory(rank: ProcessInfo, environ: Mapping[str, str]) -> int:
    """Return the step in memory to load, -1 for none: the agent's choice; without an agent, a lone rank's newest.

    environ: of this process.
    """
    if rank.restore_step is not None:
        return rank.restore_step
    if rank.world > 1 or not find(rank.memory, rank.run, rank.worker):
        return -1
    return memories.of(rank, environ).newest_step()


def find_saved(folder: str, environ: Mapping[str, str], step: int | None) -> SavedStep | None:
    """Find the step to load, in memory or else in storage. None if there is none.

    folder: absolute path or URL. environ: of this process. step: the only step to find; None for the step that the
    agents chose, else the newest. None is also returned for a local folder that does not exist, and if the agents
    agreed that storage has no step. A step that memory cannot give is logged. Raises BadCheckpoint if the agreed step
    in storage is not valid, or if storage has committed steps but none can be read. Raises NewerFormat if the step to
    load is of a newer version, and StorageFailed if storage cannot be read.
    """
    rank = process_info(folder, environ)
    memory = rank.resharded_step.step if rank.resharded_step is not None else _step_in_memory(rank, environ)
    if memory >= 0 and step in (None, memory):
        try:
            return SavedStep(
                InMemory.of(rank, memory, _shard_fetcher(rank.resharded_step, environ)),
                lambda: _open_step_in_storage(folder, memory),
            )
        except (BadCheckpoint, DaemonLost) as error:
            log.warning("memory_passed_over", extra={"step": memory, "why": str(error)})
    if "://" not in folder and not Path(folder).is_dir():
        return None
    return _find_step_in_storage(folder, rank, step)


def _find_step_in_storage(folder: str, rank: ProcessInfo, step: int | None) -> SavedStep | None:
    """Find the newest readable step in storage, or only `step` if it is not None. None if there is none.

    In a world of several ranks, if step is None and the agents agreed on a step in storage, only that step is read, and
    the result is None if they agreed that there is none. A step without a valid manifest is logged and skipped. Raises
    BadCheckpoint if the agreed step has none, or if other steps are found but none can be read: the first error.
    Raises NewerFormat at once, and StorageFailed if storage cannot be read.
    """
    store, fault = open_store(folder), None
    # All ranks read the step that the agents agreed on, even if a newer step was committed since.
    if step is None and rank.stored_step is not None and rank.world > 1:
        if rank.stored_step < 0:
            return None
        step = await_manifest(store, rank.stored_step).step
    for manifest in committed_manifests(
        store, lambda word, fields: log.warning(word, extra=dict(fields)), only_step=step
    ):
        stored_step = InStorage(store, manifest)
        try:
            return SavedStep(None, lambda stored_step=stored_step: stored_step)  # type: ignore[misc]
        except NewerFormat:
            raise
        except BadCheckpoint as error:
            fault = fault or error
            log.warning("checkpoint_passed_over", extra={"step": manifest.step, "why": str(error)})
    if fault is not None:
        raise fault
    return None


def _shard_fetcher(parts: ReshardedStep | None, environ: Mapping[str, str]) -> FetchRank | None:
    """Return the function by which the daemon fetches a rank's shard into this host's memory.

    parts: the step in memory that is read in parts; None for none, then the result is None too. environ: has the path
    of the daemon's socket.
    """
    if parts is None:
        return None

    def fetch(rank: int) -> ShardPosition:
        """Return the position of a rank's shard after it was fetched. Raises the errors of `fetch_shard`."""
        fetched = fetch_shard(environ[DAEMON], FetchShard(parts.step, parts.round, rank, parts.ranks))
        return Path(fetched.path), fetched.generation, fetched.epoch

    return fetch


def _open_step_in_storage(folder: str, step: int) -> InStorage:
    """Open a step in storage, for the shards of it that are missing in memory.

    Raises BadCheckpoint if the step is not committed or storage fails: then these shards cannot be read now.
    """
    try:
        store = open_store(folder)
        return InStorage(store, manifest_of(store, step))
    except StorageFailed as error:
        raise BadCheckpoint(f"step {step} is not in storage either: {error}") from error


class StepChoice:
    """The step that one reader reads, found at the first use.

    folder: absolute path or URL. environ: of this process. step: the step to read, None for the newest. `saved`: the
    step that was found, None before the first use and if there is none. The first use raises the errors of
    `find_saved`.
    """

    def __init__(self, folder: str, environ: Mapping[str, str], step: int | None) -> None:
        self.folder, self.step, self._environ = folder, step, environ
        self.saved: SavedStep | None = None

    def find(self) -> SavedStep | None:
        """Return the step that is read, found at the first call; None if there is none."""
        if self.saved is None:
            self.saved = find_saved(self.folder, self._environ, self.step)
        return self.saved

    def require(self) -> SavedStep:
        """Return the step that is read. Raises BadCheckpoint if there is none, and the errors of `find_saved`."""
        saved = self.find()
        if saved is None:
            what = "nothing" if self.step is None else f"no step {self.step}"
            raise BadCheckpoint(f"{self.folder}: {what} is stored here")
        return saved

    def find_agreed(self, step: int, save: str, shape: int) -> SavedStep:
        """Return the save that all ranks agreed on; search for its step if this rank has found another save.

        save, shape: id and shape of its table. Raises BadCheckpoint if this rank does not find it, and the errors of
        `find_saved`.
        """
        if self.require().table.save != save:
            log.warning("checkpoint_passed_over", extra={"step": self.require().step, "why": "another rank lacks it"})
            self.saved = find_saved(self.folder, self._environ, step)
            if self.require().table.save != save or self.require().table.shape != shape:
                raise BadCheckpoint(f"step {step} is another one than the other ranks have")
        return self.require()


class FlashStorageReader(StorageReader):  # type: ignore[misc, unused-ignore]
    """Reads one step, found at the first use. Later loads use the same step, unless the ranks agree on an older one.

    folder: a path or an fsspec URL. step: the step to read, None for the newest. environ: None for this process's.
    bool(reader) is False if there is no step. It reads from memory if the agents agreed on the step, else from storage,
    in any world size. Shards in other workers' memory are fetched, and stay in this worker's memory until newer saves
    need it. The first use raises the errors of `find_saved`.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, step: int | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self._environ = absolute_folder(folder), os.environ if environ is None else environ
        self._choice = StepChoice(self.folder, self._environ, step)

    def __bool__(self) -> bool:
        return self._choice.find() is not None

    @property
    def step(self) -> int | None:
        """Return the step that is read, or None if there is none to read (`find_saved`)."""
        saved = self._choice.find()
        return None if saved is None else saved.step

    @property
    def source(self) -> str:
        """Return the source of the loads so far: "memory", "storage" if any part came from there, "" before the
        first.
        """
        return "" if self._choice.saved is None else self._choice.saved.source

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Change the folder to `checkpoint_id`, and forget the step that was found. Called by DCP.

        Nothing changes for None and for the same folder.
        """
        if checkpoint_id is not None and absolute_folder(checkpoint_id) != self.folder:
            self.folder = absolute_folder(checkpoint_id)
            self._choice = StepChoice(self.folder, self._environ, self._choice.step)

    def read_metadata(self) -> Metadata:
        """Return DCP's metadata of the step that is read.

        Raises BadCheckpoint if there is no step to read, and the errors of `find_saved`.
        """
        return metadata_of(self._choice.require().table)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Do nothing. Called by DCP."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with the step that this rank has found. Called by DCP."""
        saved = self._choice.require()
        return replace(plan, storage_data=(saved.step, saved.table.save, saved.table.shape))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans with the step that all ranks read: the oldest that any rank has found. Called by DCP.

        Raises BadCheckpoint if the ranks have found steps with different tables.
        """
        saves = [plan.storage_data for plan in plans]
        if len({shape for _, _, shape in saves}) > 1:
            steps = sorted({step for step, _, _ in saves})
            raise BadCheckpoint(f"the ranks see different checkpoints, of steps {steps}: load again")
        return [replace(plan, storage_data=min(saves)) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read all items of the plan before returning; return a finished future. Called by DCP.

        Raises BadCheckpoint if the agreed step is missing or an item is broken, StorageFailed if storage fails, and
        LauncherError for a planner with its own decoding. The state dict may then be partly filled.
        """
        saved = self._choice.find_agreed(*plan.storage_data)
        saved.read(_wanted_items(saved, planner, plan))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True for any path that is not empty. Called by DCP."""
        return bool(os.fspath(checkpoint_id))


def _wanted_items(saved: SavedStep, planner: LoadPlanner, plan: LoadPlan) -> Iterator[WantedItem]:
    """Yield the tensor chunks and values that a plan reads, each with the function that loads it.

    Raises BadCheckpoint if the checkpoint lacks one. saved: the step. planner: names the target of each item.
    """
    chunks: dict[str, dict[tuple[int, ...], Chunk]] = {}
    for item in plan.items:
        key = item.storage_index.fqn
        if item.type is LoadItemType.BYTE_IO:
            if key not in saved.table.values:
                raise BadCheckpoint(f"step {saved.step} has no value {key}")
            yield WantedItem(key, saved.table.values[key], _plan_value(planner, item), is_value=True)
            continue
        if key not in chunks and key in saved.table.tensors:
            chunks[key] = {each.offsets: each for each in saved.table.tensors[key].chunks}
        chunk = chunks.get(key, {}).get(tuple(item.storage_index.offset or ()))
        if chunk is None:
            raise BadCheckpoint(f"step {saved.step} has no chunk of {key} at {item.storage_index.offset}")
        yield WantedItem(chunk_name(key, chunk.offsets), chunk.rank, _plan_tensor(planner, item, chunk))


def _plan_value(planner: LoadPlanner, item: ReadItem) -> Place:
    """Return a function that loads a value, which is no tensor, from the shard that holds it.

    planner: gets the value. item: of the plan.
    """

    def place(shard: DcpShard) -> None:
        """Pass the value's text to the planner. Raises the errors of `load_text`."""
        load_text(planner, item, shard.values[item.storage_index.fqn])

    return place


def _plan_tensor(planner: LoadPlanner, item: ReadItem, chunk: Chunk) -> Place:
    """Return a function that plans, for the shard that holds `chunk`, the read of an item's rows.

    The rows are read directly into the target tensor if possible, else into a buffer and then copied. planner:
    names the target of the item.
    """

    def place(shard: DcpShard) -> PlannedRead:
        """Plan the read of this tensor piece from one shard.

        A contiguous piece of the target's type is read into the target; any other into a buffer, and then copied.
        Raises BadCheckpoint if shard and metadata disagree.
        """
        entry = shard.chunks[chunk_name(item.storage_index.fqn, chunk.offsets)]
        if entry.shape != chunk.sizes:
            raise BadCheckpoint(f"{entry.name} is {entry.shape}, and {chunk.sizes} by the metadata")
        starts, sizes = tuple(item.storage_offsets), tuple(item.lengths)
        shape, offset, size = entry.shape, entry.start, entry.end - entry.start
        if shape and size:
            row = size // shape[0]
            shape, offset, size = (sizes[0], *shape[1:]), offset + starts[0] * row, sizes[0] * row
        target = planner.resolve_tensor(item).detach()
        if target.shape != sizes:
            raise BadCheckpoint(f"{entry.name}: {sizes} does not go into {tuple(target.shape)}")
        if shape == sizes and NAMES.get(target.dtype) == entry.dtype and is_bytes(target) and not target.is_inference():
            buffer = octets(target.data_ptr(), target.nbytes)

            def commit() -> None:
                increment_version(target)
                planner.commit_tensor(item, target)

            return PlannedRead(ByteRange(shard.head_bytes + offset, buffer), 0, commit)
        buffer = memoryview(bytearray(size))

        def copy_and_commit() -> None:
            """Copy the wanted part of the buffer into the target tensor, and tell the planner that it is loaded."""
            source = tensor_over(buffer, Entry(entry.name, entry.dtype, shape, 0, size), 0)
            for dim in range(1, len(shape)):
                source = source.narrow(dim, starts[dim], sizes[dim])
            target.copy_(source)
            planner.commit_tensor(item, target)

        return PlannedRead(ByteRange(shard.head_bytes + offset, buffer), size, copy_and_commit)

    return place
