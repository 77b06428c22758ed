"""A process that saves step after step, for test_kills.py: `python -m tests.launcher.checkpoint.daemon.saver ARENA`.

Each line that it reads makes it fork a saver, which goes on where the arena is, until it is killed. All tell what they
do on one pipe: "saver PID", then "began STEP" and "sealed STEP", at last "ended".
"""

import os
import signal
import sys
from itertools import count, pairwise

import numpy as np

from turnout.launcher.checkpoint.arena.arena import Arena, address_of
from turnout.launcher.checkpoint.arena.parallel_copy import Copier
from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES, ShardRecord, newest_generation, offset_of
from turnout.launcher.linux import die_with

MAX_WORDS = 1 << 16
_BASE = np.arange(MAX_WORDS, dtype=np.uint64)


def record_of(step):
    """Each step has a size of its own, 64 to 512 KiB and an odd end."""
    return ShardRecord(0, step, 1, 0, 1, PAGE_BYTES, 8 * (MAX_WORDS // (1 + step % 8)) - step % 7)


def bytes_of(step):
    """Give the bytes of this step's generation: no eight of them occur in another step at the same place."""
    record = record_of(step)
    words = _BASE + np.uint64(step << 32)
    return np.concatenate([np.full(record.head_bytes, step % 251, np.uint8), words.view(np.uint8)[: record.data_bytes]])


def tell(line):
    os.write(1, f"{line}\n".encode())


def die_with_parent():
    die_with(os.getppid(), signal.SIGKILL)


def save_on(path):
    arena, copier = Arena.open(path), Copier(2)
    slots = arena.slots()
    at = newest_generation(slots)
    for step in count(0 if at is None else slots[at].record.step + 1):
        record, data = record_of(step), bytes_of(step)
        while (generation := arena.begin(record)) is None:
            pass  # a reader has pinned what could be overwritten
        tell(f"began {step}")
        view = arena.map(generation, record.shard_bytes)
        borders = [len(data) * part // 40 for part in range(41)]
        to = address_of(view) if step % 2 else offset_of(generation)
        rows = [(to + start, data.ctypes.data + start, end - start) for start, end in pairwise(borders)]
        if step % 2:
            copier.copy(rows)
        else:
            copier.write(arena.file, rows)
        copier.wait()
        arena.seal(generation, record)
        tell(f"sealed {step}")


def main(path):
    die_with_parent()
    for _ in sys.stdin:
        if (pid := os.fork()) == 0:
            die_with_parent()
            tell(f"saver {os.getpid()}")
            try:
                save_on(path)
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        tell("ended")


if __name__ == "__main__":
    main(sys.argv[1])
