"""Takes over the arenas that an earlier daemon of this worker left, and finds arenas that nobody will use again.

A lock on the file makes sure that an arena has only one living daemon.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from turnout.launcher.checkpoint.arena.arena import Arena, boot_id, find, leftovers
from turnout.launcher.checkpoint.arena.files import open_arena_file
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.event_log import EventLog

ADOPT_S = 10.0  # seconds for a daemon whose agent was killed to write what it holds
_LOOK_S = 0.05


def lock_for_daemon(arena: Arena) -> bool:
    """Become the only daemon of an arena, until it is closed or this process ends. False if another daemon is alive."""
    try:
        fcntl.flock(arena.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def adopt_arenas(folder: Path, run: str, worker: str, log_event: EventLog) -> Iterator[Arena]:
    """Give the arenas that an earlier daemon of this worker left, one per local rank: the one saved to last.

    A daemon that still writes gets ADOPT_S to end. Other arenas of the same rank are removed.
    """
    newest: dict[int, Arena] = {}
    until_s = time.monotonic() + ADOPT_S
    for found in find(folder, run, worker, lambda why: log_event("arena_passed_over", {"why": why})):
        with suppress(BadCheckpoint):
            arena = Arena.open(found.path)
            while not (free := lock_for_daemon(arena)) and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
            if not free:
                log_event("arena_passed_over", {"why": f"{arena.path} has another daemon"})
                arena.close()
                continue
            before = newest.get(arena.identity.local_rank)
            if before is not None:
                older, arena = sorted((before, arena), key=_age)
                older.remove()
                older.close()
            newest[arena.identity.local_rank] = arena
    yield from newest.values()


def _age(arena: Arena) -> tuple[int, int]:
    return max(((slot.record.round, slot.record.step) for slot in arena.slots() if slot.record), default=(-1, -1))


def abandoned_arenas(folder: Path, run: str, worker: str) -> Iterator[Path]:
    """List unused arenas of another boot, and of this worker in another run. Their memory would otherwise be lost.

    The worker's name ends at the slash: in a job without a name, the command follows it.
    """
    boot, name = boot_id(), worker.partition("/")[0]
    for path in leftovers(folder, ""):
        with suppress(BadCheckpoint):
            file, identity = open_arena_file(path)
            os.close(file)
            is_own = (identity.run, identity.worker) == (run, worker)
            if identity.boot != boot or (identity.worker.partition("/")[0] == name and not is_own):
                yield path
