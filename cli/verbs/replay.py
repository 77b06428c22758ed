"""`turnout replay-decisions FILE`: a decision log decided again by this program."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from turnout.cli.commands.cluster_flags import add_verb
from turnout.cli.exit_codes import Exit


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    replay = add_verb(
        commands,
        "replay-decisions",
        "decide a decision log again; exit 3 when anything differs, 1 when nothing can be read",
        (("replay-decisions decisions", "a log that turnout-autoscaler --decision-log has written"),),
    )
    replay.add_argument("file", type=Path, help="the autoscaler's --decision-log, or the old one beside it (.1)")
    replay.set_defaults(run=_replay)


def _replay(args: argparse.Namespace) -> int:
    from turnout.autoscaler.reporting.replay import replay

    decisions = looks = 0
    try:
        with args.file.open("rb") as file:
            for each in replay(file):
                if each.fault:
                    print(f"{args.file}:{each.line}: {each.fault}: passed over", file=sys.stderr)
                elif each.differs:
                    wrote = f" (written by version {each.program})" if each.program else ""
                    print(f"{args.file}:{each.line}: {each.differs}{wrote}", file=sys.stderr)
                    return Exit.FOUND_WRONG
                else:
                    decisions, looks = decisions + each.decisions, looks + 1
    except OSError as error:
        print(f"turnout replay-decisions: {error}", file=sys.stderr)
        return Exit.FAILED
    if not looks:
        print(f"turnout replay-decisions: {args.file} holds no look that can be read", file=sys.stderr)
        return Exit.FAILED
    print(f"{decisions} decisions of {looks} looks, all identical")
    return 0
