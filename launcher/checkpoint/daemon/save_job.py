"""Carries one save of one rank from memory to storage: `run` is the whole pipeline, from top to bottom.

A save comes here pinned: its memory is not overwritten until `run` lets go of it. The memory itself is in
rank_store.py, writing to storage in persist.py, the commit of a step in commit_coordinator.py. Replication runs beside
this pipeline: the replicator hears of each step before `run` begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from turnout.launcher.checkpoint.daemon.persist_queue import DroppedSave
from turnout.launcher.checkpoint.daemon.rank_store import RankStore
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.errors import LauncherError


class SaveState(StrEnum):
    """How far a save has come, or how it ended."""

    PINNED = "pinned"
    HASHED = "hashed"
    PERSISTED = "persisted"
    COMMITTED = "committed"
    CORRUPT = "corrupt"  # its bytes changed after it was sealed
    DROPPED = "superseded"  # newer saves needed its memory before it was written
    FAILED = "failed"  # storage failed


@dataclass(frozen=True, slots=True)
class SaveJob:
    """One save of one rank on its way."""

    step: int
    slot: int  # the generation of the arena that holds it
    record: ShardRecord
    target: Save | None  # where in storage it goes; None if it stays in memory
    state: SaveState = SaveState.PINNED
    detail: str = ""  # its path in storage, or why it ended

    def in_state(self, state: SaveState, detail: str = "") -> SaveJob:
        """Return this save in another state."""
        return replace(self, state=state, detail=detail)


async def run(
    job: SaveJob,
    store: RankStore,
    *,
    hashes: bool,
    commit: Callable[[ShardRecord, Save], Awaitable[bool]],
    report: Callable[[SaveJob], None],
) -> None:
    """Hash a pinned save, write it to its target and commit its step, as far as each applies. Raises nothing.

    hashes: False if its checksums are known or not wanted. report: called with the save in each state that it reaches.
    """
    try:
        if hashes:
            if not await store.hash(job.slot):
                report(job.in_state(SaveState.CORRUPT, "its memory is not what was hashed"))
                return
            report(job.in_state(SaveState.HASHED))
        if job.target is None:
            return
        path = await store.write(job.slot, job.record, job.target)
        report(job.in_state(SaveState.PERSISTED, path))
    except DroppedSave as error:
        report(job.in_state(SaveState.DROPPED, str(error)))
        return
    except LauncherError as error:
        report(job.in_state(SaveState.FAILED, str(error)))
        return
    finally:
        store.unpin(job.slot)
    if job.target.kind == "shards" and job.record.rank == 0 and await commit(job.record, job.target):
        report(job.in_state(SaveState.COMMITTED))
