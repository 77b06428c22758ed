"""The training script of a trial: it notes when it began and when it was last alive, until it is told to finish.

Argument: the trial's folder. Without torch, so that a trial takes a second.
"""

import os
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
round_, rank, size = (int(os.environ[name]) for name in ("TURNOUT_ROUND", "RANK", "WORLD_SIZE"))
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
began_s = time.monotonic()
note = folder / f"life-{round_}-{rank}-{os.getpid()}"
while True:
    text = f"{round_} {rank} {size} {os.getpid()} {restarts} {began_s:.6f} {time.monotonic():.6f}\n"
    part = note.with_suffix(".part")
    part.write_text(text)
    part.rename(note)
    if (folder / "finish").exists():
        break
    time.sleep(0.01)
