"""How far a run is: documents and bytes for each second, and when it will end."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnout.preprocess.model import ShardNote, TextChunk

LEAST_INTERVAL_S = 1.0  # between two lines, whatever --log-interval says


@dataclass(slots=True)
class ProgressLine:
    """Counts of a run under way. Chunks that an earlier run did count as done, but not for the rates."""

    total_bytes: int  # of all chunks, >= 0
    log_interval: int  # documents between two lines, >= 1
    started_s: float
    expected_documents: int | None = None  # what the user expects in all, None if unknown
    done_bytes: int = 0  # by an earlier run at the start
    documents: int = 0  # of this run
    fault_count: int = 0
    _read_bytes: int = field(default=0, init=False)
    _reported_documents: int = field(default=0, init=False)
    _reported_s: float = field(default=float("-inf"), init=False)

    def add(self, chunk: TextChunk, record: ShardNote) -> None:
        """Count a chunk that is done."""
        self.done_bytes += chunk.size_bytes
        self._read_bytes += chunk.size_bytes
        self.documents += record.documents
        self.fault_count += sum(record.fault_counts.values())

    def line(self, now_s: float) -> str | None:
        """Return a line of progress if one is due."""
        if self.documents - self._reported_documents < self.log_interval or now_s - self._reported_s < LEAST_INTERVAL_S:
            return None
        self._reported_documents, self._reported_s = self.documents, now_s
        return self.text(now_s)

    def text(self, now_s: float) -> str:
        """Return where the run is, in one line."""
        seconds = max(now_s - self.started_s, 1e-9)
        rate = self._read_bytes / seconds
        fraction = self.done_bytes / self.total_bytes if self.total_bytes else 1.0
        if self.expected_documents is not None:
            fraction = min(1.0, self.documents / self.expected_documents)
        remaining = self.total_bytes - self.done_bytes
        eta = f", {clock_text(remaining / rate)} left" if remaining and rate else ""
        faults = f", {self.fault_count:,} left out" if self.fault_count else ""
        return (
            f"{fraction:4.0%}  {self.documents:,} documents, {self.documents / seconds:,.0f} documents/s,"
            f" {rate / 1e6:,.1f} MB/s{eta}{faults}"
        )


def clock_text(seconds: float) -> str:
    """Return a duration as 59 s, 3 min 05 s or 2 h 03 min."""
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{whole_s} s"
    minutes, rest = divmod(whole_s, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
