"""Writes saves to storage: as shards that a manifest commits, or as files that torch.load reads.

`run` is the whole pipeline.

A save comes here pinned: its memory is not overwritten until `run` lets go of it. The memory itself is in
rank_store.py, the commit of a step in commit.py. Replication runs beside this pipeline: the replicator receives each
step before `run` begins.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.daemon.rank_store import DroppedSave, RankStore
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.manifest import MOST_BYTES, read_note
from turnout.launcher.checkpoint.storage.open_store import open_store
from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter, ShardWrite, persist
from turnout.launcher.checkpoint.storage.store import note_name, step_name
from turnout.launcher.errors import BadCheckpoint, LauncherError, StorageFailed

TORCH_S = 3_600.0  # seconds for torch to write its file

_MAX_ERROR_CHARACTERS = 400


class Persister:
    """Writes the generations of one daemon to storage.

    run: the job's id. bytes_s: the limit of all writes together in bytes per second, 0 for none.
    """

    def __init__(self, run: str, bytes_s: float = 0.0) -> None:
        self._run, self._pace = run, RateLimit(bytes_s)

    def __call__(self, arena: Arena, generation: int, record: ShardRecord, target: Save) -> str:
        """Write a pinned and hashed generation; return the path. Blocks.

        Raises StorageFailed, and BadCheckpoint if the bytes in memory do not match their checksums.
        """
        if target.kind == "torch":
            return _as_torch_file(arena, generation, record, target)
        store = open_store(target.target)
        store.prepare()
        saving = ShardWrite(self._run, record.step, record.round, record.rank, record.world, record.head_bytes)
        region = arena.map(generation, record.shard_bytes)
        note = persist(store, saving, region, arena.sums(generation), time.time(), RateLimiter(self._pace))
        return f"{target.target.rstrip('/')}/{step_name(record.step)}/{note.shard.file}"

    def persist_if_missing(self, arena: Arena, generation: int, record: ShardRecord, target: Save) -> bool:
        """Write a shard unless it is in storage already; return True if it was written. Raises like __call__."""
        store = open_store(target.target)
        store.prepare()
        with suppress(BadCheckpoint):  # replace a note that cannot be read
            text = store.read(record.step, note_name(record.rank), MOST_BYTES)
            if text is not None and (note := read_note(text)).run == self._run and note.round == record.round:
                return False
        self(arena, generation, record, target)
        return True


def _as_torch_file(arena: Arena, generation: int, record: ShardRecord, target: Save) -> str:
    """Write the generation as a torch file in a child process, so that the daemon never imports torch. Raises
    StorageFailed.
    """
    path = target.path
    command = [
        sys.executable,
        "-m",
        "turnout.launcher.checkpoint.engine.torch_file",
        str(arena.path),
        str(generation),
        str(record.epoch),
        path,
        target.target,
        str(target.keep),
        str(target.every),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TORCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageFailed(f"{path}: {error}") from error
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or f"exit {done.returncode}"
        raise StorageFailed(f"{path}: {last[:_MAX_ERROR_CHARACTERS]}")
    return path


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
