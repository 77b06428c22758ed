"""A generation on its way to storage: as a shard that a manifest commits, or as one file that torch.load reads."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress

from turnout.launcher.checkpoint.generations import Record
from turnout.launcher.checkpoint.manifest import MOST_BYTES, read_note
from turnout.launcher.checkpoint.wire import Sealed
from turnout.launcher.errors import BadCheckpoint, StorageFailed
from turnout.launcher.shell.memory.arena import Arena
from turnout.launcher.shell.storage.opening import open_store
from turnout.launcher.shell.storage.pace import Pace, Paced
from turnout.launcher.shell.storage.store import note_name, step_name
from turnout.launcher.shell.storage.writer import Saving, persist

TORCH_S = 3_600.0  # for torch to write its file
_MOST_TOLD = 400


class Persisting:
    """Of one keeper. run: the job's. bytes_s: of all writing together, 0 for no limit."""

    def __init__(self, run: str, bytes_s: float = 0.0) -> None:
        self._run, self._pace = run, Pace(bytes_s)

    def __call__(self, arena: Arena, generation: int, record: Record, to: Sealed) -> str:
        """Write it; blocks. The generation is pinned and hashed. Gives where it lies.

        Raises StorageFailed, and BadCheckpoint where memory is not what was hashed.
        """
        if to.kind == "torch":
            return _as_torch_file(arena, generation, record, to)
        store = open_store(to.target)
        store.prepare()
        saving = Saving(self._run, record.step, record.round, record.rank, record.world, record.head_bytes)
        region = arena.map(generation, record.shard_bytes)
        note = persist(store, saving, region, arena.sums(generation), time.time(), Paced(self._pace))
        return f"{to.target.rstrip('/')}/{step_name(record.step)}/{note.shard.file}"

    def once(self, arena: Arena, generation: int, record: Record, to: Sealed) -> bool:
        """The same, as a shard; not where its own keeper has written it already. Raises as it does."""
        store = open_store(to.target)
        store.prepare()
        with suppress(BadCheckpoint):  # a note that cannot be read is there to be replaced
            text = store.read(record.step, note_name(record.rank), MOST_BYTES)
            if text is not None and (note := read_note(text)).run == self._run and note.round == record.round:
                return False
        self(arena, generation, record, to)
        return True


def _as_torch_file(arena: Arena, generation: int, record: Record, to: Sealed) -> str:
    """In a process of its own: torch is gigabytes that a keeper does not need."""
    path = to.path
    command = [
        sys.executable, "-m", "turnout.launcher.shell.memory.torch_file",
        str(arena.path), str(generation), str(record.epoch), path, to.target, str(to.keep), str(to.every),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TORCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageFailed(f"{path}: {error}") from error
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2] or f"exit {done.returncode}"
        raise StorageFailed(f"{path}: {last[:_MOST_TOLD]}")
    return path
