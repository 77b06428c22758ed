"""Whose an arena in the folder is: a keeper takes up what an earlier life of its worker has left, and removes what
nobody will ask for. One living keeper has an arena, by a lock on its file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.shell.memory.arena import Arena, boot_id, find, leftovers
from turnout.launcher.shell.memory.files import look
from turnout.launcher.shell.say import Say

ADOPT_S = 10.0  # for a keeper whose agent was killed to have written what it holds
_LOOK_S = 0.05


def is_ours_alone(arena: Arena) -> bool:
    """Become its only keeper, until it is closed or this process ends. False where another living keeper is."""
    try:
        fcntl.flock(arena.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def adopted(folder: Path, run: str, worker: str, say: Say) -> Iterator[Arena]:
    """The arenas that an earlier keeper of this worker has left, one of each local rank: the one saved to last.

    One that still writes has some time to end. Others of the same rank are removed.
    """
    newest: dict[int, Arena] = {}
    until_s = time.monotonic() + ADOPT_S
    for found in find(folder, run, worker, lambda why: say("arena_passed_over", {"why": why})):
        with suppress(BadCheckpoint):
            arena = Arena.open(found.path)
            while not (free := is_ours_alone(arena)) and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
            if not free:
                say("arena_passed_over", {"why": f"{arena.path} has another keeper"})
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


def left_behind(folder: Path, run: str, worker: str) -> Iterator[Path]:
    """Arenas that nobody uses, of another boot, or of this worker in a run that is not ours: memory that is lost else.

    A worker of a job without a name has what it runs behind a slash.
    """
    boot, name = boot_id(), worker.partition("/")[0]
    for path in leftovers(folder, ""):
        with suppress(BadCheckpoint):
            file, identity = look(path)
            os.close(file)
            ours = (identity.run, identity.worker) == (run, worker)
            if identity.boot != boot or (identity.worker.partition("/")[0] == name and not ours):
                yield path
