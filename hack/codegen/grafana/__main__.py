"""Write the boards of deploy/grafana: `python -m hack.codegen.grafana --write`; without --write it only compares.

It also fails if a metric is on no board, or if a query names a series that nobody exports.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.codegen.grafana.boards.controllers import CONTROLLERS
from hack.codegen.grafana.boards.extender import EXTENDER
from hack.codegen.grafana.boards.job import JOB
from hack.codegen.grafana.boards.launcher import LAUNCHER
from hack.codegen.grafana.boards.overview import OVERVIEW
from hack.codegen.grafana.boards.placement import PLACEMENT
from hack.codegen.grafana.boards.queue import QUEUE
from hack.codegen.grafana.coverage import faults
from hack.codegen.grafana.render import text_of

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "grafana"
BOARDS = (OVERVIEW, QUEUE, JOB, PLACEMENT, EXTENDER, LAUNCHER, CONTROLLERS)
TABLE = ("<!-- boards -->\n", "<!-- end of boards -->\n")


def files() -> Mapping[Path, str]:
    """Return the text of each file that is written here."""
    found = {FOLDER / f"{board.name}.json": text_of(board) for board in BOARDS}
    readme = FOLDER / "README.md"
    before, _, rest = readme.read_text().partition(TABLE[0])
    after = rest.partition(TABLE[1])[2]
    return {**found, readme: before + TABLE[0] + _table() + TABLE[1] + after}


def _table() -> str:
    """Return the table of the boards with their questions."""
    rows = [f"| `{board.name}.json` | {' '.join(board.questions)} |\n" for board in BOARDS]
    return "".join(["| board | questions |\n", "| --- | --- |\n", *rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the files with the code, or with --write write them; also check the queries of all boards.

    Returns 1 and prints the problems if a file is stale or a query is wrong, else 0. argv: None for that of this
    process.
    """
    problems = list(faults(expr for board in BOARDS for expr in board.exprs()))
    for path, text in files().items():
        if "--write" in (sys.argv[1:] if argv is None else argv):
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            problems.append(f"{path.relative_to(ROOT)} differs; run: python -m hack.codegen.grafana --write")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
