"""Runs two tests as `make test` does, interrupts them as Ctrl-C in a terminal does, and tells what is left.

python interrupted.py FOLDER, as the first process of a process namespace with an empty /dev/shm of its own.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIGNS = ("plane", "agents")
BEGIN_WITHIN_S, END_WITHIN_S, GONE_WITHIN_S = 120.0, 60.0, 10.0
_never = threading.Event()


def until(look, within_s):
    """Look until something is found or time is up; give what was found last."""
    end_s = time.monotonic() + within_s
    while not (found := look()) and time.monotonic() < end_s:
        _never.wait(0.05)
    return found


def others():
    """The command lines of all processes but this one; who has ended is reaped, since nobody else is here."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            with contextlib.suppress(OSError):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def main(folder):
    tests = [str(HERE / "endless" / f"{sign}.py") for sign in SIGNS]
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "TURNOUT_TEST_STARTED": str(folder)}
    with (folder / "log").open("wb") as log:
        run = subprocess.Popen(
            command, cwd=HERE.parents[1], stdout=log, stderr=log, env=environment, start_new_session=True
        )
    began = until(lambda: all((folder / sign).exists() for sign in SIGNS) or run.poll() is not None, BEGIN_WITHIN_S)
    os.killpg(run.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(END_WITHIN_S)
    until(lambda: not others(), GONE_WITHIN_S)
    report = {
        "began": bool(began) and all((folder / sign).exists() for sign in SIGNS),
        "code": run.returncode,
        "processes": others(),
        "memory": sorted(os.listdir("/dev/shm")),
        "log": (folder / "log").read_text(errors="replace")[-3000:],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
