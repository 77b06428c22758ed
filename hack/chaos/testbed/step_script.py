"""Trains nothing: notes that it began, and each step, until it is told to finish. Argument: a folder.

A step of the world is done when every rank has written it; agents.py counts it so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

_STEP_S = 0.02


def main(folder: Path) -> None:
    """Train without a model until `folder` has the file "finish".

    Each event becomes a line of a file of this process in FOLDER/history.
    """
    env = os.environ
    head: dict[str, object] = {
        "round": int(env["TURNOUT_ROUND"]),
        "rank": int(env["RANK"]),
        "world": int(env["WORLD_SIZE"]),
    }
    head |= {"worker": env["TURNOUT_WORKER"], "pid": os.getpid()}
    head |= {"restarts": int(env["TORCHELASTIC_RESTART_COUNT"])}
    name = f"{head['worker']}.{head['round']}.{head['pid']}.jsonl".replace("/", "-")
    with (folder / "history" / name).open("a", buffering=1) as file:
        step = 0
        file.write(json.dumps({"event": "begun", "at_s": time.monotonic(), "step": step, **head}) + "\n")
        while not (folder / "finish").exists():
            time.sleep(_STEP_S)
            step += 1
            file.write(json.dumps({"event": "stepped", "at_s": time.monotonic(), "step": step, **head}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
