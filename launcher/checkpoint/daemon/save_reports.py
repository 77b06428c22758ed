"""Reports the ends of saves to the agent, on a pipe that the daemon inherits.

The daemon writes a frame for each end and never waits: if the agent does not read, reports are dropped. The agent logs
each report as the event `save_ended`, which is counted (agent/save_metrics.py). For people, and for the page, complete
saves in storage and failed saves have events of their own (cli/views/saves.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import msgspec

from turnout.launcher.checkpoint.daemon.persist import SaveJob, SaveState
from turnout.launcher.checkpoint.format.daemon_messages import SaveEnded, encode, read_at_client
from turnout.launcher.errors import BadFrame
from turnout.launcher.event_log import EventLog, limit_rate
from turnout.launcher.framing import FrameSplitter
from turnout.launcher.model import SaveOutcome, SaveTier

MAX_REPORT_BYTES = 4_096  # the kernel writes up to so many to a pipe at once
MAX_REMEMBERED = 256  # ends that are not reported twice: a save is reported by its process and by the agent


class SaveReports:
    """Writes each end of a save once. fd: the pipe's write end, None to report nothing."""

    def __init__(self, fd: int | None, log_event: EventLog) -> None:
        self._fd, self._log_event = fd, limit_rate(log_event)
        self._known: dict[tuple[object, ...], None] = {}  # oldest first
        if fd is not None:
            os.set_blocking(fd, False)

    def write(self, save: SaveEnded) -> None:
        """Send one end of a save to the agent. Nothing is sent without an agent, or if the same end was sent before.

        If the agent does not read, the end is lost, which is logged; if it has ended, no more are sent.
        """
        key = (save.step, save.round, save.rank, save.tier, save.outcome)
        if self._fd is None or key in self._known:
            return
        self._known[key] = None
        if len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        try:
            os.write(self._fd, encode(save))
        except BlockingIOError:
            self._log_event("save_unreported", {"step": save.step, "why": "the agent does not read"})
        except OSError:
            self._fd = None


def ends_of(job: SaveJob) -> Iterator[SaveEnded]:
    """Yield the ends, by tier, that a save has reached with its state; none for most states.

    The end of rank 0's shards in storage is the commit, which CheckpointDaemon.commit reports.
    """
    end = SaveEnded(job.step, job.record.round, job.record.rank, SaveTier.MEMORY, SaveOutcome.DONE, False)
    end = msgspec.structs.replace(end, announced_s=job.announced_s)
    in_storage = msgspec.structs.replace(end, tier=SaveTier.STORAGE)
    match job.state:
        case SaveState.HASHED:
            yield msgspec.structs.replace(end, complete=True)
        case SaveState.SKIPPED:
            yield msgspec.structs.replace(end, outcome=SaveOutcome.SUPERSEDED)
        case SaveState.CORRUPT:
            yield msgspec.structs.replace(end, outcome=SaveOutcome.FAILED)
            if job.target is not None:
                yield msgspec.structs.replace(in_storage, outcome=SaveOutcome.FAILED)
        case SaveState.PERSISTED if job.target is not None:
            if job.target.kind == "torch":
                yield msgspec.structs.replace(in_storage, complete=True)
            elif job.record.rank:
                yield in_storage
        case SaveState.SUPERSEDED:
            yield msgspec.structs.replace(in_storage, outcome=SaveOutcome.SUPERSEDED)
        case SaveState.FAILED:
            yield msgspec.structs.replace(in_storage, outcome=SaveOutcome.FAILED)


class SaveReportReader(asyncio.Protocol):
    """The agent's end of one daemon's pipe. `ended` is set when the pipe has ended and all reports are logged."""

    def __init__(self, log_event: EventLog) -> None:
        self._log_event, self._frames = log_event, FrameSplitter(MAX_REPORT_BYTES)
        self._log_rarely = limit_rate(log_event)  # all ranks fail at once
        self.ended = asyncio.Event()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. Called by asyncio."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Log each report as an event. After an invalid frame, log that and stop reading. Called by asyncio."""
        try:
            for body in self._frames.split(data):
                if isinstance(save := read_at_client(body), SaveEnded):
                    self._log_end(save)
        except BadFrame as error:
            self._log_event("frame_refused", {"why": str(error)})
            self.close()

    def _log_end(self, save: SaveEnded) -> None:
        """Log an end for the metrics; for people also a failure, and a complete step in storage."""
        self._log_event("save_ended", msgspec.structs.asdict(save))
        fields = {"step": save.step, "round": save.round, "tier": save.tier.value, "ended_s": round(save.ended_s, 3)}
        if save.outcome is SaveOutcome.FAILED:
            self._log_rarely("save_failed", {**fields, "rank": save.rank})
        elif save.complete and save.tier is SaveTier.STORAGE:
            took = {"took_s": round(max(save.ended_s - save.announced_s, 0.0), 3)} if save.announced_s else {}
            self._log_event("step_saved", {**fields, **took})

    def connection_lost(self, exc: Exception | None) -> None:
        """Set `ended`. Called by asyncio."""
        self.ended.set()

    def close(self) -> None:
        """Stop reading."""
        if self._transport is not None:
            self._transport.close()
