"""Write the decision log to disk: in its own thread, bounded, readable by its owner only.

A slow or full disk never delays the autoscaler. Decisions for which the disk has no time are left out. A failed write
is logged once, and the next write contains the decision on every job again.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from turnout.autoscaler.model import Step
from turnout.autoscaler.reporting.decision_log import LastDecisions, UsageLine, encode_decisions, encode_usage

log = logging.getLogger("turnout.autoscaler")

MAX_BYTES = 64 << 20  # of one file; the previous file is kept as well
_MAX_QUEUED = 16  # decisions that wait for the disk
_EXIT_TIMEOUT_S = 5.0  # at the end, for the disk to write queued decisions
_Entry = tuple[float, Sequence[Step], Sequence[UsageLine]]  # time, the decision on every job, and usage


class DecisionLogWriter:
    """The writer of changed decisions to the files of the decision log: `path`, and `path`.1 with older ones.

    max_bytes: of one file. left_out: number of decisions for which the disk had no time.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Prepare the writer; `with` starts its thread. path: of the log, opened by the thread."""
        self._path, self._max_bytes = path, max_bytes
        self._decisions = LastDecisions()
        self._queue: queue.Queue[_Entry | None] = queue.Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._work, name="decision-log", daemon=True)
        self._file: int | None = None
        self._bytes = 0
        self._failed = False
        self.left_out = 0

    def __enter__(self) -> DecisionLogWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the queued decisions, but do not wait for a disk that hangs."""
        try:
            self._queue.put(None, timeout=_EXIT_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_EXIT_TIMEOUT_S)

    def note(self, now_s: float, steps: Sequence[Step], usage: Sequence[UsageLine] = ()) -> None:
        """Queue one decision for writing, with lines about usage. Never wait: if the queue is full, count it in
        `left_out`.

        now_s: seconds since 1970. steps: the decision on every job. usage: lines that follow the decision, () for none.
        """
        try:
            self._queue.put_nowait((now_s, steps, usage))
        except queue.Full:
            if not self.left_out:
                log.warning("decision_log_slow", extra={"path": str(self._path)})
            self.left_out += 1

    def _work(self) -> None:
        """Write queued decisions until None is queued, then close the file: the body of the thread.

        Of several errors in a row only the first is logged. A decision that failed is not retried: the next write
        contains the decision on every job. Its usage lines are lost.
        """
        while (entry := self._queue.get()) is not None:
            try:
                self._write(*entry)
            except OSError as error:
                self._fail(error.strerror or str(error))
            except Exception:  # a defect of the log must not end the autoscaler
                log.exception("decision_log_fault")
                self._fail("a fault of its own")
            else:
                self._failed = False
        if self._file is not None:
            os.close(self._file)

    def _write(self, now_s: float, steps: Sequence[Step], usage: Sequence[UsageLine]) -> None:
        """Append the changed decisions and the usage to the log. Raises OSError. now_s: time of the decision, since
        1970.

        steps: the decision on every job. A full file is rotated first, and the new file begins with all decisions.
        """
        if self._file is None:
            self._open()
        usage_bytes = encode_usage(usage)
        lines = encode_decisions(self._decisions.changed_steps(steps), now_s) + usage_bytes
        if self._bytes and self._bytes + len(lines) > self._max_bytes:
            self._rotate()
            lines = encode_decisions(self._decisions.changed_steps(steps), now_s) + usage_bytes
        self._put(lines)

    def _open(self) -> None:
        """Open the file to append, readable by its owner only. Raises OSError.

        A line that a crash has cut off is ended, so that the next line can be read.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.open(self._path, flags, 0o600)
        status = os.fstat(self._file)
        self._bytes = 0
        if stat.S_ISREG(status.st_mode):
            os.fchmod(self._file, 0o600)
            self._bytes = status.st_size
            if status.st_size and os.pread(self._file, 1, status.st_size - 1) != b"\n":
                self._put(b"\n")

    def _rotate(self) -> None:
        """Begin a new file. The current file replaces the previous one (`path`.1). Raises OSError. The next write
        contains the decision on every job.
        """
        self._close()
        os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        self._open()

    def _put(self, lines: bytes) -> None:
        """Write all bytes to the open file, and count them. Raises OSError."""
        assert self._file is not None
        unwritten = memoryview(lines)
        while unwritten:
            size = os.write(self._file, unwritten)
            self._bytes += size
            unwritten = unwritten[size:]

    def _close(self) -> None:
        """Close the file, if it is open. The next write contains the decision on every job. Raises OSError."""
        self._decisions = LastDecisions()
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _fail(self, why: str) -> None:
        """Log the first failure in a row, and close the file: the next decision opens it again. why: for the log."""
        if not self._failed:
            log.warning("decision_log_failed", extra={"path": str(self._path), "why": why})
        self._failed = True
        try:
            self._close()
        except OSError as error:
            log.debug("decision_log_close_failed", extra={"why": str(error)})
