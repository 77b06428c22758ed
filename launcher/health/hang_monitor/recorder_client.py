"""Asks a training process for torch's records, and reads its answer as untrusted data.

How the process answers is in recorder_server.py. The wait is short, since the process may be unable to answer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

from turnout.launcher.health.flight_recorder.model import MOST_BYTES, Record
from turnout.launcher.health.flight_recorder.parse import read
from turnout.launcher.health.hang_monitor.recorder_server import ear, told

ANSWER_S = 1.0  # seconds to wait for the record before the stack is taken; then it is checked once more
_LOOK_S = 0.01


def ask(progress: Path) -> str:
    """Ask a process, and wait up to ANSWER_S for its answer. Return the reason why it cannot be asked, "" if it can."""
    if refused := _ask(progress):
        return refused
    until_s = time.monotonic() + ANSWER_S
    while not os.path.lexists(told(progress)) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    return ""


def _ask(progress: Path) -> str:
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(told(progress))
        pipe = os.open(ear(progress), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                return "what it listens to is no pipe"
            os.write(pipe, b"?")
        finally:
            os.close(pipe)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return "it has no thread of ours that could tell: it has not imported torch, or nobody has seen it start"
        return f"it cannot be asked: {error.strerror}"
    return ""


def answer(progress: Path, refused: str) -> Record:
    """Read the answer that has come so far. refused: why the process was not asked."""
    if refused:
        return Record(why=refused)
    try:
        file = os.open(told(progress), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return Record(why="it did not answer: Python's lock is held, or the process does not run")
    except OSError as error:
        return Record(why=f"its answer cannot be read: {error.strerror}")
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return Record(why="its answer is no file")
        return read(os.read(file, MOST_BYTES + 1))
    except OSError as error:
        return Record(why=f"its answer cannot be read: {error.strerror}")
    finally:
        os.close(file)
