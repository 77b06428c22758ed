"""The time for which a save stops training, its cost beside training, and the time of a load.

Ours beside what torch ships, and beside the copies that nobody can do without: memcpy of the same tensors by plain
threads into warm shared memory, and the same bytes over a loopback socket. All of a table is done in turn, in one
process. What is saved goes to tmpfs, what is persisted to a disk. No GPU takes part.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

from hack.bench.checkpoint.plan import BenchmarkFolders, CheckpointPlan
from hack.bench.checkpoint.results import CheckpointResults
from hack.bench.checkpoint.scenes.runner import run_in_child
from hack.bench.checkpoint.state import ModelSize
from hack.bench.support.measure import load_note
from hack.bench.support.outcome import Outcome, Scale

MEMORY, DISK = Path("/dev/shm"), Path("/var/tmp")
REMOVE_S = 10.0
LARGE = ModelSize(width=640, layers=29, words=19_200)  # 1.87 GB in 1,056 tensors
SMALL = ModelSize(width=240, layers=29, words=8_600)  # 268 MB in as many
FULL = CheckpointPlan(
    size=LARGE,
    small=ModelSize(width=352, layers=29, words=9_600),  # 565 MB
    wide=ModelSize(width=2_048, layers=2, words=19_200),  # 1.70 GB in 84 tensors
    firsts=5,
    steady=5,
    loops=5,
    loop_s=1.0,
    persists=6,
    worlds=((1, 2), (1, 8), (2, 1), (2, 3), (3, 2), (4, 6), (5, 7), (7, 5), (8, 1), (8, 4)),  # 40 s each
    loads=5,
    sent_bytes=512 << 20,
    sockets=9,
)
QUICK = CheckpointPlan(
    size=SMALL,
    small=ModelSize(width=256, layers=6, words=3_000),  # 78 MB in 228 tensors
    wide=ModelSize(width=1_024, layers=1, words=8_192),  # 264 MB in 48 tensors
    firsts=5,
    steady=5,
    loops=5,
    loop_s=0.1,
    persists=5,
    worlds=((1, 2), (2, 1), (2, 3), (4, 2)),
    loads=5,
    sent_bytes=256 << 20,
    sockets=5,
)
TINY = ModelSize(width=32, layers=2, words=64)
SMALLEST = CheckpointPlan(
    size=TINY,
    small=TINY,
    wide=TINY,
    firsts=1,
    steady=1,
    loops=1,
    loop_s=0.01,
    persists=1,
    worlds=((2, 3),),
    loads=1,
    sent_bytes=1 << 20,
    sockets=1,
)


def run(scale: Scale) -> Outcome:
    """Measure everything."""
    return run_scenes(scale.pick(FULL, QUICK, SMALLEST))


def run_scenes(plan: CheckpointPlan, memory: Path = MEMORY, disk: Path = DISK) -> Outcome:
    """Run all scenes in new folders below `memory` and `disk`, which are removed afterwards, also after a signal."""
    with ExitStack() as ends:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                ends.callback(signal.signal, number, signal.signal(number, _exit_on_signal))
        folders = []
        for parent in (memory, disk):
            folders.append(Path(tempfile.mkdtemp(prefix="turnout-bench-", dir=parent)))
            ends.callback(_remove, folders[-1])
        found = CheckpointResults(run_in_child(plan, BenchmarkFolders(*folders)))
    notes = [
        *found.failures(),
        f"Baseline: torch {metadata.version('torch')}, as many threads as there are cores where nothing else runs.",
        "floor 1, floor 2: memcpy of the same tensors by 1 and 2 plain threads, in turn with the rest of its table.",
        load_note(),
    ]
    title = "checkpoint: saves that stop training, saves beside training, loads"
    return Outcome(title, found.tables(), found.targets(), notes)


def _exit_on_signal(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _remove(folder: Path) -> None:
    """Delete a folder, and try again while children of a killed scene still write into it."""
    until_s = time.monotonic() + REMOVE_S
    while folder.exists() and time.monotonic() < until_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)
