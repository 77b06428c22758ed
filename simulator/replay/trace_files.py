"""Where traces lie: the folder named by TURNOUT_TRACES, else ../shared/traces. They are read there and never copied."""

from __future__ import annotations

import os
from pathlib import Path

from turnout.simulator.replay.traces import Row, Table, rows_of, tables_of

VARIABLE, DEFAULT = "TURNOUT_TRACES", "../shared/traces"


def folder() -> Path:
    """Where they should be."""
    return Path(os.environ.get(VARIABLE) or DEFAULT)


def cluster(name: str) -> tuple[Row, ...] | None:
    """The jobs of one ITP cluster, None when its file is not there. Raises BadTrace."""
    path = folder() / "itp" / f"cluster{name}.csv"
    return rows_of(path.read_text()) if path.is_file() else None


def speeds() -> tuple[Table, ...]:
    """Measured speeds on A100, of every model and batch size; none when they are not there. Raises BadTrace."""
    paths = sorted((folder() / "elasticflow-throughput" / "throughputs_A100").glob("*.csv"))
    return tuple(table for path in paths for table in tables_of(path.read_text()))
