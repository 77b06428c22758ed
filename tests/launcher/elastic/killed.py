"""Runs an example as it is, but that its last rank is killed in its first life: `killed.py EXAMPLE FOLDER STEP`.

In its second life this rank writes to FOLDER.from which step of memory it goes on from.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path

script, folder, step = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
spec = importlib.util.spec_from_file_location("example", script)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
AGAIN = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
LAST = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)


class Steps(example.Steps):
    def done(self, now):
        if now == step and LAST and not AGAIN:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().done(now)


example.Steps = Steps
if LAST and AGAIN:
    folder.with_suffix(".from").write_text(os.environ["TURNOUT_RESTORE_STEP"])
example.main(folder)
