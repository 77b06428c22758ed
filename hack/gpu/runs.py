"""Starts a script of hack/gpu/scripts.py under turnout-run or torchrun, and reads what it wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("scripts.py")
ROOT = Path(__file__).parents[2]
TURNOUT_RUN = (sys.executable, "-m", "turnout.launcher")
_NOT_PASSED_ON = ("TURNOUT_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_")


def environment(folder: Path, memory: Path) -> dict[str, str]:
    """Return the environment of a job: this checkout, arenas in `memory`, checkpoints below `folder`, loopback only."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return variables | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TURNOUT_MEMORY_DIR": str(memory),
        "GPU_CHECK_FOLDER": str(folder / "checkpoints"),
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the events that the job's processes have written so far; [] if the file does not exist."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@contextmanager
def start_job(
    folder: Path,
    memory: Path,
    script: str,
    device: str,
    *options: str,
    more: Sequence[str] = (),
    program: Sequence[str] = TURNOUT_RUN,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a job; yield (its agent's process, the file of its events). All its processes are killed after the block.

    folder: for events and log. memory: for arenas. script: function of scripts.py to run. options: of the launcher.
    more: arguments of the script. program: the launcher. device: "cuda" or "cpu", passed to the script.
    """
    file = folder / "events"
    command = [*program, "--standalone", *options, str(SCRIPT), script, device, str(file), *more]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment(folder, memory),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process, file
    finally:
        if process.poll() is None:  # an agent ends its workers, its parent process and its daemon
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for pid in {process.pid, *(each["pid"] for each in lines(file))}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def run(
    folder: Path,
    memory: Path,
    script: str,
    device: str,
    *options: str,
    more: Sequence[str] = (),
    limit_s: float = 120,
) -> tuple[int, list[dict[str, Any]], str]:
    """Run a job to its end. Return (exit code, events, log). Raises TimeoutExpired after `limit_s`.

    The other arguments are those of `start_job`.
    """
    with start_job(folder, memory, script, device, *options, more=more) as (process, file):
        code = process.wait(limit_s)
        return code, lines(file), (folder / "log").read_text(errors="replace")
