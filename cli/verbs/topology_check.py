"""The verb `turnout topology check FILE`: every fault of a topology map."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from turnout.cli.exit_codes import ExitCode
from turnout.cli.verb_support.cluster_flags import Verbs, add_verb

_EXAMPLES = (
    ("topology check map.txt", "a text of `asw psw ip` lines, or our YAML form"),
    ("topology check configmap.yaml", "a ConfigMap"),
    ("topology check -", "of stdin"),
)


def add(commands: Verbs) -> None:
    """Add the command `check` to `turnout topology`."""
    check = add_verb(
        commands, "check", "tell every fault of a topology text or ConfigMap; exit 3 when it has any", _EXAMPLES
    )
    check.add_argument("file", help="a text of `asw psw ip` lines, our YAML form, or a ConfigMap; - for stdin")
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    """Check the map in a file, or on stdin for "-", and print its faults.

    Returns the exit code: NEGATIVE_RESULT if it has faults, FAILED if the file cannot be read.
    """
    from turnout.cli.topo_check import check, report_lines

    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        print(f"turnout topology check: {error}", file=sys.stderr)
        return ExitCode.FAILED
    reading = check(text)
    name = "stdin" if args.file == "-" else args.file
    print("\n".join(report_lines(name, reading)), file=sys.stderr if reading.faults else sys.stdout)
    return ExitCode.NEGATIVE_RESULT if reading.faults else ExitCode.DONE
