"""The time for which a world of two processes stands still after a kill, by what their parent has imported ahead.

`python -m hack.bench.recovery.preload [TIMES]` measures three typical scripts: by default, and with `--preload`.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

TRAIN_SCRIPT = Path(__file__).with_name("preload_script.py")
PRELOADS = {"ddp": (), "transformers": ("transformers.trainer",), "lightning": ("lightning",)}
LIMIT_S = 120.0
TRAINS_S = 3.0  # between a first step and the kill
_LOOK = threading.Event()
_Found = TypeVar("_Found")


def still_s(script: str, options: Sequence[str], times: int) -> list[float]:
    """Kill rank 1 so many times, and measure until both ranks have done the first step of their next life."""
    with tempfile.TemporaryDirectory() as folder:
        steps, log = Path(folder, "steps"), Path(folder, "log")
        command = [
            *(sys.executable, "-m", "turnout.launcher", "--standalone", "--nproc-per-node=2", f"--max-restarts={times}")
        ]
        with log.open("wb") as said:
            agent = subprocess.Popen(
                [*command, *options, str(TRAIN_SCRIPT), script, str(steps)], stdout=said, stderr=said
            )
        try:
            found = []
            for round_ in range(1, times + 1):
                victim = _until(partial(_lives, steps, round_), log)[1]
                _LOOK.wait(TRAINS_S)
                began_s = time.monotonic()
                os.kill(victim[0], signal.SIGKILL)
                lives = _until(partial(_lives, steps, round_ + 1), log)
                found.append(max(life[1] for life in lives.values()) - began_s)
            return found
        finally:
            agent.terminate()
            agent.wait(LIMIT_S)


def _lives(steps: Path, round_: int) -> dict[int, tuple[int, float]]:
    """The pid and the first step of each rank, once both have done it."""
    lines = [line.split() for line in steps.read_text().splitlines()] if steps.exists() else []
    lives = {int(rank): (int(pid), float(at_s)) for each, rank, pid, at_s in lines if int(each) == round_}
    return lives if len(lives) == 2 else {}


def _until(look: Callable[[], _Found], log: Path) -> _Found:
    until_s = time.monotonic() + LIMIT_S
    while not (found := look()):
        if time.monotonic() > until_s:
            raise TimeoutError(log.read_text())
        _LOOK.wait(0.02)
    return found


def main() -> None:
    """Measure each script, and print a line for each."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for script, modules in PRELOADS.items():
        for options in ((), (f"--preload={','.join(modules)}",)) if modules else ((),):
            found = still_s(script, options, times)
            each = ", ".join(f"{seconds:.2f}" for seconds in found)
            print(
                f"{script:13} {' '.join(options):24} median {statistics.median(found):.2f} s, of {each}; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
