"""The decision log on disk: written by a thread of its own, bounded, for its owner's eyes only.

It never holds the autoscaler up: a look that the disk has no time for is left out, a disk that is full or away is
told once, and the next line that can be written says everything again.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from turnout.autoscaler.model import Observation, Policy, Queue, Step
from turnout.autoscaler.reporting.decision_log import DecisionLogEncoder

log = logging.getLogger("turnout.autoscaler")

MOST_BYTES = 64 << 20  # of one file; the one before it is kept as well
WHOLE_EACH = 500  # lines, after which one says everything, so that a lost line costs no more than these
_WAITING = 16  # looks that may wait for the disk
_FAREWELL_S = 5.0
_Look = tuple[Observation, Policy, float, Sequence[Step]]


class DecisionLogWriter:
    """Writes looks to the files of the decision log.

    left_out: looks that the disk had no time for. most_bytes: the bound of one file.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, whole_each: int = WHOLE_EACH) -> None:
        self._path, self._most_bytes, self._whole_each = path, most_bytes, whole_each
        self._scribe = DecisionLogEncoder(_program())
        self._looks: queue.Queue[_Look | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._work, name="decision-log", daemon=True)
        self._file: int | None = None
        self._bytes = self._lines = 0
        self._failed = False
        self.left_out = 0

    def __enter__(self) -> DecisionLogWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what waits, and do not wait for a disk that hangs."""
        try:
            self._looks.put(None, timeout=_FAREWELL_S)
        except queue.Full:
            return
        self._thread.join(_FAREWELL_S)

    def note(self, seen: Observation, policy: Policy, now_s: float, steps: Sequence[Step]) -> None:
        """Write a look down, soon."""
        kept = replace(seen, queues={name: _kept(queue) for name, queue in seen.queues.items()})
        try:
            self._looks.put_nowait((kept, policy, now_s, steps))
        except queue.Full:
            if not self.left_out:
                log.warning("decision_log_slow", extra={"path": str(self._path)})
            self.left_out += 1

    def _work(self) -> None:
        while (look := self._looks.get()) is not None:
            try:
                self._write(look)
            except OSError as error:
                self._lost(error.strerror or str(error))
            except Exception:  # a fault of ours in telling must not end what is told of
                log.exception("decision_log_fault")
                self._lost("a fault of its own")
            else:
                self._failed = False
        if self._file is not None:
            os.close(self._file)

    def _write(self, look: _Look) -> None:
        if self._file is None:
            self._open()
        if self._lines >= self._whole_each:
            self._scribe.forget()
            self._lines = 0
        line = self._scribe.line(*look)
        if self._bytes and self._bytes + len(line) > self._most_bytes:
            self._rotate()
            line = self._scribe.line(*look)
        self._put(line)
        self._lines += 1

    def _open(self) -> None:
        """Go on behind what is there; a line that a crash has cut off is ended, so that the next one can be read."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.open(self._path, flags, 0o600)
        told = os.fstat(self._file)
        self._bytes = 0
        if stat.S_ISREG(told.st_mode):
            os.fchmod(self._file, 0o600)
            self._bytes = told.st_size
            if told.st_size and os.pread(self._file, 1, told.st_size - 1) != b"\n":
                self._put(b"\n")

    def _rotate(self) -> None:
        """Begin a new file. The one before becomes the old one, and the old one goes."""
        self._close()
        os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        self._open()

    def _put(self, line: bytes) -> None:
        assert self._file is not None
        left = memoryview(line)
        while left:
            written = os.write(self._file, left)
            self._bytes += written
            left = left[written:]

    def _close(self) -> None:
        """Close the file. The next line will say everything."""
        self._scribe.forget()
        self._lines = 0
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _lost(self, why: str) -> None:
        """Say so, the first time; the file is opened anew for the next look."""
        if not self._failed:
            log.warning("decision_log_failed", extra={"path": str(self._path), "why": why})
        self._failed = True
        try:
            self._close()
        except OSError as again:
            log.debug("decision_log_close_failed", extra={"why": str(again)})


def _kept(queue: Queue) -> Queue:
    """A queue whose amounts nobody counts on in, while the thread comes to it."""
    told = {each.name: getattr(queue, each.name) for each in fields(queue)}
    amounts: dict[str, Any] = {name: dict(each) for name, each in told.items() if isinstance(each, Mapping)}
    return replace(queue, **amounts)


def _program() -> str:
    try:
        return version("turnout")
    except PackageNotFoundError:
        return ""
