"""Writes a generation to storage: as a shard that a manifest commits, or as one file that torch.load reads."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.manifest import MOST_BYTES, read_note
from turnout.launcher.checkpoint.storage.open_store import open_store
from turnout.launcher.checkpoint.storage.rate_limiter import RateLimit, RateLimiter
from turnout.launcher.checkpoint.storage.store import note_name, step_name
from turnout.launcher.checkpoint.storage.writer import ShardWrite, persist
from turnout.launcher.errors import BadCheckpoint, StorageFailed

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
        "turnout.launcher.checkpoint.engine.torch_export",
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
