"""Saves through torch.distributed.checkpoint (DCP) into memory: each rank's part goes to its arena, and its daemon
writes it to storage.

    dcp.save(state, storage_writer=FlashStorageWriter(folder, step=step))
    reader = FlashStorageReader(folder)
    if reader:
        dcp.load(state, storage_reader=reader)

Any world size can load it through DCP's own planners. Nothing is pickled or unpickled: values that are not tensors are
JSON text. There are no collectives besides DCP's; what ranks have to agree on is sent with its plans.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from turnout.launcher.checkpoint.dcp import metadata as dcp_metadata
from turnout.launcher.checkpoint.dcp.metadata import FlashLoadPlanner, FlashSavePlanner, chunk_name, table_of, text_of
from turnout.launcher.checkpoint.dcp.reader import FlashStorageReader, absolute_folder, memories
from turnout.launcher.checkpoint.engine.memory_saver import MemorySaver
from turnout.launcher.checkpoint.engine.process_info import ProcessInfo
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.coordinator_messages import MAX_REPLICAS
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.errors import BadState, LauncherError

__all__ = ["FlashLoadPlanner", "FlashSavePlanner", "FlashStorageReader", "FlashStorageWriter"]

# The run's id without an agent: saves of two launches are never committed as one.
_LAUNCH = f"own-{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class _SaveRequest:
    """The message of each rank to DCP's coordinating rank, sent with its plan."""

    step: int
    place: str  # equal for ranks that share memory
    items: tuple[WriteItem, ...]  # before DCP removes items that other ranks have too


@dataclass(frozen=True, slots=True)
class _SaveOrder:
    """The message of DCP's coordinating rank to each rank, sent with its plan."""

    rank: int
    world: int  # number of ranks
    launch: str  # id of the run without an agent
    save: str  # id of this save
    extra_items: tuple[WriteItem, ...]  # items to save besides the plan's, which no other rank of its place saves
    table: bytes  # as JSON, b"" for all but the first rank of a place


def _is_complete(plan: SavePlan) -> bool:
    """Return True if the plan is complete. Since torch 2.7 a plan may only refer to a cached one."""
    return bool(getattr(plan, "usable", True))


def _requests_of(plans: list[SavePlan]) -> list[_SaveRequest]:
    """Return each rank's request. Raises LauncherError if the ranks save different steps or use cached plans."""
    requests = [plan.storage_data for plan in plans]
    if not all(isinstance(each, _SaveRequest) for each in requests) or not all(map(_is_complete, plans)):
        raise LauncherError("the planner must give each rank's own plan: leave enable_plan_caching off")
    if len(steps := {each.step for each in requests}) > 1:
        raise LauncherError(f"the ranks save different steps: {sorted(steps)}")
    return requests


class FlashStorageWriter(StorageWriter):  # type: ignore[misc, unused-ignore]
    """Saves one step through DCP.

    folder: a path or an fsspec URL. step: >= 0. disk: write it there in the background; otherwise it stays in memory,
    and goes to the folder only if training resumes from it after a failure. generations, keep, every, replicas: as for
    Checkpointer. environ: None for this process's. Each worker's memory has all items that its own ranks need; items
    that are equal on all ranks are saved once per worker. Raises ValueError for a number out of its bounds.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        step: int,
        disk: bool = True,
        generations: int = 3,
        keep: int = 0,
        every: int = 0,
        environ: Mapping[str, str] | None = None,
        replicas: int = 0,
    ) -> None:
        if step < 0 or not 2 <= generations <= 7 or keep < 0 or every < 0 or not 0 <= replicas <= MAX_REPLICAS:
            raise ValueError(f"step, keep and every are 0 or more, generations 2 to 7, replicas 0 to {MAX_REPLICAS}")
        self.folder, self.step, self.disk, self.generations = absolute_folder(folder), step, disk, generations
        self.home = self.folder  # names the memory if no agent does
        self._keep, self._every, self._replicas = keep, every, replicas
        self._environ = os.environ if environ is None else environ
        self._memory: MemorySaver | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Change the folder to `checkpoint_id`, if it is given."""
        if checkpoint_id is not None:
            self.folder = absolute_folder(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raise LauncherError if the save uses no collectives: then no rank would know the plans of all ranks. Called
        by DCP.

        is_coordinator, args: not used. kwargs: of DCP.
        """
        if kwargs.get("use_collectives") is False:
            raise LauncherError("use_collectives=False leaves nobody who knows what all ranks have saved")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan with this rank's request to the coordinating rank: step, worker and items. Called by DCP."""
        rank = ProcessInfo.of(self._environ, self.folder)
        return replace(
            plan, storage_data=_SaveRequest(self.step, rank.worker if rank.has_agent else "", tuple(plan.items))
        )

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans with an order to each rank: the items that it saves besides its own plan, and the table.

        Called by DCP on the coordinating rank. Raises LauncherError if the ranks save different steps or use cached
        plans, and BadState for a tensor or a key that a checkpoint cannot have, and if there are too many chunks.
        """
        requests = _requests_of(plans)
        save = secrets.token_hex(16)
        table = dcp_metadata.write(table_of(plans, save))
        orders, items_of_place = [], _planned_items(plans)
        first = dict[str, int]()
        for rank, (plan, each) in enumerate(zip(plans, requests, strict=True)):
            extra_items = tuple(item for item in each.items if item.index not in items_of_place[each.place])
            items_of_place[each.place].update(item.index for item in extra_items)
            own_table = table if first.setdefault(each.place, rank) == rank else b""
            orders.append(
                replace(plan, storage_data=_SaveOrder(rank, len(plans), _LAUNCH, save, extra_items, own_table))
            )
        return orders

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Save this rank's items of the plan and of its order in memory, before returning. Called by DCP.

        Returns a finished future with one result for each item of the plan. The daemon writes the save to storage
        later, if `disk` is set. Raises BadState for a value that is not supported, NoMemory if memory is too small,
        ArenaBusy if another process saves as this rank, DaemonLost if the daemon is lost, TimeoutError if it does not
        answer, and LauncherError if the planner drops the order or has its own encoding.
        """
        order = plan.storage_data
        if not isinstance(order, _SaveOrder):
            raise LauncherError("the planner has not kept the plan's storage_data")
        chunks, values, results = dict[str, torch.Tensor](), dict[str, str](), list[WriteResult]()
        for item in (*plan.items, *order.extra_items):
            if item.type is WriteItemType.BYTE_IO:
                text = values[item.index.fqn] = text_of(planner, item)
                results.append(WriteResult(item.index, len(text), None))
            else:
                tensor = planner.resolve_data(item).detach()
                chunks[chunk_name(item.index.fqn, item.tensor_data.chunk.offsets)] = tensor
                results.append(WriteResult(item.index, tensor.numel() * tensor.element_size(), None))
        table = torch.frombuffer(bytearray(order.table), dtype=torch.uint8) if order.table else None
        state = {"dcp": 1, "save": order.save, "chunks": chunks, "values": values, "table": table}
        target = Save(0, 0, self.step, self.folder, keep=self._keep, every=self._every, later=not self.disk)
        self._memory = memories.of(self._own_process_info(order), self._environ, self.generations, self._replicas)
        try:
            self._memory.save(self.step, state, target)
        except BadState as error:
            raise BadState(error.path.removeprefix("chunks/"), error.fault) from error
        Steps().saved(self.step)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results[: len(plan.items)])
        return done

    def _own_process_info(self, order: _SaveOrder) -> ProcessInfo:
        """Return the process info under which this rank saves.

        Without an agent, each rank of a larger world gets a worker name and a daemon of its own. order: from the
        coordinating rank; its rank and world replace those of the environment.
        """
        rank = replace(ProcessInfo.of(self._environ, self.home), rank=order.rank, world=order.world)
        if rank.has_agent or order.world == 1:
            return rank
        # With a daemon of its own, it would adopt the arena of another rank of this name.
        return replace(rank, run=order.launch, worker=f"{rank.worker}-{order.rank}", local_rank=0)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Raise LauncherError if the saved keys differ from the planner's metadata. The daemons commit the step. Called
        by DCP.
        """
        saved = {result.index.fqn for of_rank in results for result in of_rank}
        if saved != set(metadata.state_dict_metadata):
            raise LauncherError("the planner's metadata has other keys than its plans")

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the daemon has finished this rank's saves: written them to storage, if that is their target, and
        on rank 0 committed the steps.

        Does nothing before write_data(). A write or commit that fails ends the wait, too, and is logged, not raised.
        timeout_s: seconds, None for no limit. Raises TimeoutError after them, and DaemonLost if the daemon is lost.
        After a TimeoutError the saves go on, and a later call waits for them.
        """
        if self._memory is not None:
            self._memory.wait(timeout_s)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True for any path that is not empty. Called by DCP."""
        return bool(os.fspath(checkpoint_id))


def _planned_items(plans: Sequence[SavePlan]) -> dict[str, set[MetadataIndex]]:
    """Return, by worker (`place` of the plan), the indices of all items that the plans of its ranks save."""
    items_of_place = dict[str, set[MetadataIndex]]()
    for plan in plans:
        items_of_place.setdefault(plan.storage_data.place, set()).update(item.index for item in plan.items)
    return items_of_place
