"""The verb `turnout usage`: GPU-hours by user, job, queue, day or pair of queues."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.cli.exit_codes import ExitCode
from turnout.cli.verb_support.cluster_flags import Verbs, add_verb, duration_s
from turnout.cli.verb_support.run_verb import print_now

if TYPE_CHECKING:
    from turnout.cli.views.usage import Usage

REPORTS = ("user", "job", "queue", "day", "lending")
_DAY_S = 86_400.0
_EXAMPLES = (
    ("usage --decision-log decisions", "GPU-hours of each queue in the last 30 days"),
    ("usage --decision-log decisions --by user -o csv", "for a bill"),
    ("usage --decision-log decisions --by lending --since 7d", "who has lent to whom, day by day"),
)


def add(commands: Verbs) -> None:
    """Add the verb `usage` to the command line."""
    usage = add_verb(
        commands,
        "usage",
        "GPU-hours by user, job or queue, and who has lent to whom",
        _EXAMPLES,
        "It reads the lines about usage that the autoscaler writes to its decision log every 15 minutes.",
    )
    usage.add_argument(
        "--decision-log",
        type=Path,
        required=True,
        metavar="FILE",
        help="the autoscaler's; FILE.1 beside it is read, too, and `-` is stdin",
    )
    usage.add_argument(
        "--since",
        type=duration_s,
        default=30 * _DAY_S,
        metavar="TIME",
        help="up to now, as in 12h or 7d (30d)",
    )
    usage.add_argument("--by", choices=REPORTS, default="queue", help="what the rows are (%(default)s)")
    usage.add_argument(
        "-o", "--output", choices=("table", "csv", "json", "yaml"), default="table", help="output format (%(default)s)"
    )
    usage.set_defaults(run=_usage)


def _usage(args: argparse.Namespace) -> int:
    """Print the GPU-hours in a decision log, by what --by names.

    Returns the exit code: FAILED if the log cannot be read, or has no line about usage of that time.
    """
    from turnout.cli.views.listing import text
    from turnout.cli.views.usage import usage_listing
    from turnout.kube.client.clock import RealClock

    try:
        usage = _read(args.decision_log, RealClock().wall() - args.since)
    except OSError as error:
        print(f"turnout usage: {args.decision_log}: {error.strerror or error}", file=sys.stderr)
        return ExitCode.FAILED
    if not usage.lines:
        older = f"; {usage.older_lines} lines are older" if usage.older_lines else ""
        print(f"turnout usage: {args.decision_log} has no line about usage of that time{older}", file=sys.stderr)
        return ExitCode.FAILED
    print_now(_csv(args.by, usage) if args.output == "csv" else text(usage_listing(args.by, usage), args.output))
    return ExitCode.DONE


def _csv(report: str, usage: Usage) -> str:
    """Return a report, one of REPORTS, as CSV with a heading (RFC 4180, but lines end with a line feed), without a line
    feed at the end.
    """
    import csv
    import io

    from turnout.cli.views.usage import fields, rows, values

    text = io.StringIO()
    writer = csv.DictWriter(text, fields(report), lineterminator="\n")
    writer.writeheader()
    writer.writerows(values(report, row) for row in rows(report, usage))
    return text.getvalue().rstrip("\n")


def _read(log: Path, since_s: float) -> Usage:
    """Return the usage since `since_s` in a decision log. log: "-" for stdin. since_s: since 1970.

    Lines that are not about usage are skipped. Raises OSError if the log cannot be read.
    """
    from turnout.cli.views.usage import read_usage

    if str(log) == "-":
        return read_usage(sys.stdin.buffer, since_s)
    return read_usage(_log_lines(log), since_s)


def _log_lines(log: Path) -> Iterator[bytes]:
    """Yield the lines of a decision log, oldest first: first those of the rotated file LOG.1, if it exists.

    Raises OSError if one of them cannot be read, or LOG is missing.
    """
    previous = log.with_name(log.name + ".1")
    for path in (previous, log) if previous.exists() else (log,):
        with path.open("rb") as file:
            yield from file
