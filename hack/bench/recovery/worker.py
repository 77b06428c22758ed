"""A training process that records when it reaches each phase: `-m hack.bench.recovery.worker FOLDER`.

It loads a state that lies in memory, then makes steps, each a collective of all, until it is ended. Whatever happens,
it ends by itself after some minutes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from hack.bench.recovery.phase_times import PhaseMark

STATE = "state.bin"
STATE_BYTES = 64 << 20
STEP_S = 0.02
LIFE_S = 180


def start_time(pid: int | str) -> str:
    """Return when a process began, in clock ticks as text; "" if it has ended. The pid and this time identify it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def main(folder: Path) -> None:
    """Train until killed, for LIFE_S seconds at most, and mark when each phase of the start ended.

    folder: of the saved state; the marks of this process are appended to a file there.
    """
    signal.alarm(LIFE_S)
    with (folder / f"marks-{os.getpid()}-{start_time('self')}").open("a", buffering=1) as marks:

        def mark(word: str) -> None:
            rank, restart = (int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
            marks.write(PhaseMark(os.getpid(), rank, restart, word, time.monotonic()).line())

        mark("started")
        import torch
        import torch.distributed as dist

        mark("imported")
        dist.init_process_group("gloo")
        mark("met")
        state = torch.empty(STATE_BYTES // 4)
        state.copy_(torch.from_file(str(folder / STATE), size=STATE_BYTES // 4))
        mark("loaded")
        ones = torch.ones(256)
        dist.all_reduce(ones)
        state[:256].add_(ones)
        mark("stepped")
        while True:
            time.sleep(STEP_S)
            dist.all_reduce(ones)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
