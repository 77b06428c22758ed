"""`python -m hack.fuzz [--seconds 60] [--seed 1]`: feed every reader, an equal time each, and print what was found.

A defect is printed with its input in base64; put that into tests/fuzz/cases, as NAME-OF-TARGET.txt, one line a case.
"""

from __future__ import annotations

import argparse
import base64
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from hack.fuzz.run import feed
from hack.fuzz.targets import TARGETS


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; 1 if there is a defect."""
    parser = argparse.ArgumentParser(prog="python -m hack.fuzz", description="Fuzz what strangers and tenants send.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all readers together (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other inputs (%(default)s)")
    chosen = parser.parse_args(argv)
    table, defects = Table("reader", "inputs", "refused", "defect"), 0
    for target in TARGETS:
        until_s = time.monotonic() + chosen.seconds / len(TARGETS)
        found = feed(target, chosen.seed, lambda _, until_s=until_s: time.monotonic() < until_s)  # type: ignore[misc]
        table.add_row(target.name, f"{found.inputs:,}", f"{found.refused:,}", "" if found.culprit is None else "yes")
        if found.culprit is not None:
            defects += 1
            print(f"{target.name}: {base64.b64encode(found.culprit).decode()}\n{found.why}", file=sys.stderr)
    Console().print(table)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
