"""Find and open trace files, in the folder named by TURNOUT_TRACES or in ../shared/traces. They are never copied."""

from __future__ import annotations

import os
from pathlib import Path

from turnout.simulator.replay.traces import Table, TraceRow, rows_of, tables_of

VARIABLE, DEFAULT = "TURNOUT_TRACES", "../shared/traces"


def trace_folder() -> Path:
    """Return the folder where the traces should be."""
    return Path(os.environ.get(VARIABLE) or DEFAULT)


def read_cluster_trace(name: str) -> tuple[TraceRow, ...] | None:
    """Return the jobs of one ITP cluster; None if its file is missing. name: the number in the file's name, such as 02.

    Raises BadTrace if the file is no trace.
    """
    path = trace_folder() / "itp" / f"cluster{name}.csv"
    return rows_of(path.read_text()) if path.is_file() else None


def read_speed_tables() -> tuple[Table, ...]:
    """Return the measured speeds on A100: a table for each model and batch size, sorted by file name; () without files.

    Batch sizes that were measured with fewer than two sizes of GPUs are left out.

    Raises BadTrace if a file is no table of speeds.
    """
    paths = sorted((trace_folder() / "elasticflow-throughput" / "throughputs_A100").glob("*.csv"))
    return tuple(table for path in paths for table in tables_of(path.read_text()))
