"""The progress of a run: its share, documents and bytes for each second, and the time that remains."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnout.preprocess.model import ShardRecord, TextChunk
from turnout.preprocess.run import PreprocessRun

MIN_INTERVAL_S = 1.0  # seconds between two lines at least, also with a small --log-interval


@dataclass(slots=True)
class RunProgress:
    """The counts of a run in progress. Chunks that an earlier run finished count for the share, not for the rates."""

    total_bytes: int  # input of all chunks, >= 0
    log_interval: int  # documents between two lines, >= 1
    started_s: float  # the start of the run, on the clock of now_s
    expected_documents: int | None = None  # documents of all chunks that the user expects, >= 1; None if unknown
    earlier_documents: int = 0  # documents of chunks that an earlier run finished
    done_bytes: int = 0  # bytes of input in finished chunks, those that an earlier run finished included
    documents: int = 0  # documents of this run
    fault_count: int = 0  # documents that this run left out
    _read_bytes: int = field(default=0, init=False)
    _reported_documents: int = field(default=0, init=False)
    _reported_s: float = field(default=float("-inf"), init=False)

    def add(self, chunk: TextChunk, record: ShardRecord) -> None:
        """Count a finished chunk. record: of its shard."""
        self.done_bytes += chunk.size_bytes
        self._read_bytes += chunk.size_bytes
        self.documents += record.documents
        self.fault_count += sum(record.fault_counts.values())

    def line_if_due(self, now_s: float) -> str | None:
        """Return a line of progress if one is due, and note that it was reported; else None.

        now_s: seconds on a monotonic clock. A line is due after log_interval documents, but not within MIN_INTERVAL_S.
        """
        if self.documents - self._reported_documents < self.log_interval or now_s - self._reported_s < MIN_INTERVAL_S:
            return None
        self._reported_documents, self._reported_s = self.documents, now_s
        return self.line(now_s)

    def line(self, now_s: float) -> str:
        """Return a line about the progress. now_s: seconds on a monotonic clock.

        The percentage is the share of documents if expected_documents is known, else the share of bytes.
        """
        seconds = max(now_s - self.started_s, 1e-9)
        rate = self._read_bytes / seconds
        fraction = self.done_bytes / self.total_bytes if self.total_bytes else 1.0
        if self.expected_documents is not None:
            fraction = min(1.0, (self.earlier_documents + self.documents) / self.expected_documents)
        remaining = self.total_bytes - self.done_bytes
        eta = f", {clock_text(remaining / rate)} left" if remaining and rate else ""
        faults = f", {self.fault_count:,} left out" if self.fault_count else ""
        return (
            f"{fraction:4.0%}  {self.documents:,} documents, {self.documents / seconds:,.0f} documents/s,"
            f" {rate / 1e6:,.1f} MB/s{eta}{faults}"
        )


def progress_of(run: PreprocessRun, started_s: float) -> RunProgress:
    """Return the progress of a run before its pending chunks. started_s: now, on a monotonic clock.

    --num-docs counts the documents of all --indexes; those of this process are estimated by the bytes of its chunks.
    """
    share_bytes = sum(chunk.size_bytes for chunk in run.chunks)
    total_bytes = sum(chunk.size_bytes for chunk in run.plan.chunks)
    expected = run.options.num_docs
    return RunProgress(
        total_bytes=share_bytes,
        log_interval=run.options.log_interval,
        started_s=started_s,
        expected_documents=max(1, round(expected * share_bytes / total_bytes)) if expected and total_bytes else None,
        earlier_documents=sum(record.documents for record in run.finished.values()),
        done_bytes=sum(chunk.size_bytes for chunk in run.chunks if chunk.index in run.finished),
    )


def clock_text(seconds: float) -> str:
    """Return a duration as a text: 59 s, 3 min 05 s or 2 h 03 min."""
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{whole_s} s"
    minutes, rest = divmod(whole_s, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
